"""Section "forward_ladder": from the kernel of notebook 06 to the library's, one change a rung."""

import itertools
import statistics

from course import cost, measure
from course.kernels import launch, notebook_forward, tiles
from course.kernels.forward import forward_kernel
from course.kernels.guard import grid
from course.kernels.report import occupancy
from course.records.attention_speed import TOKENS, WIDTH, _flow

LENGTHS = (4096, 16_384)
ROUNDS = 5
DEFAULT_STAGES = 3  # of Triton, where a launch does not say
RUNGS = {  # each has what the one before has, and one change
    "notebook kernel": "tiles of 16 × 16, as on its page",
    "tile": "the library's tile",
    "stages": f"its number of stages instead of Triton's {DEFAULT_STAGES}",
    "library code": "batches, strides, grouped heads, what the backward pass needs",
    "copy engine": "tiles fetched by TMA instead of one address an element",
    "register cap": "maxnreg: one more block on each SM",
}


def record() -> dict:
    """Every rung and cuDNN on this GPU, FP16: FLOP/s, and what a block takes. About a minute."""
    points = [
        point
        for d, causal, n in itertools.product((64, 128), (False, True), LENGTHS)
        for point in _cell(d, causal, n)
    ]
    method = (
        f"FP16, B·N = {TOKENS:,} tokens, H·d = {WIDTH:,}; forward, the kernel alone, CUDA events, L2 "
        f"flushed by reads before each call; median of {ROUNDS} rounds in which all take turns, with "
        "the fastest and the slowest round; FLOPs: 4·B·H·N²·d, causal by visible pairs; registers, "
        "spilled bytes and shared memory of the loaded kernel"
    )
    return {"rungs": RUNGS, "points": points, "stamp": measure.stamp("cuda", method)}


def ladder(own):
    """{rung: (how it is launched, its tile)}, up to the library's own tile."""
    plain = own._replace(maxnreg=None)
    found = {
        "notebook kernel": (_notebook, tiles.Tile(16, 16, 4, DEFAULT_STAGES)),
        "tile": (_notebook, plain._replace(num_stages=DEFAULT_STAGES)),
        "stages": (_notebook, plain),
        "library code": (_addresses, plain),
        "copy engine": (_descriptors, plain),
    }
    return found if own == plain else found | {"register cap": (_descriptors, own)}


def _notebook(q, k, v, o, rows, causal, tile):
    """The notebook's kernel; rows: tensors for what is stored of each row, here lse."""
    b, h, n, d = q.shape
    return notebook_forward.flash_kernel[grid(n, tile.block_q, b * h)](
        q, k, v, o, rows[0], d**-0.5, n, k.shape[2], d, causal, **launch.meta(tile, d)
    )


def _addresses(q, k, v, o, rows, causal, tile):
    """The library's kernel as on a GPU without a copy engine: it computes addresses."""
    b, h, n, d = q.shape
    operands = (
        (x, x.shape[2], d, *(stride * x.element_size() // 16 for stride in x.stride()[:3]))
        for x in (q, k, v, o, o)
    )
    return forward_kernel[grid(n, tile.block_q, b * h)](
        *operands, *rows, d**-0.5, h, n, k.shape[2], 1, False, causal, **launch.meta(tile, d)
    )


def _descriptors(q, k, v, o, rows, causal, tile):
    """The library's kernel as the library launches it."""
    options = {"causal": causal, "scale": q.shape[3] ** -0.5, "tile": tile}
    return launch.launch_forward(q, k, v, o, None, *rows, **options)


def _cell(d, causal, n):
    """The points of one head dimension, mask and length."""
    import torch

    b, h = TOKENS // n, WIDTH // d
    torch.manual_seed(0)
    q, k, v = torch.randn(3, b, h, n, d, device="cuda", dtype=torch.float16)
    o, rows = torch.empty_like(q), [launch.row_statistics(q) for _ in range(2)]
    own = tiles.choose("forward", d=d, itemsize=2, shared_memory=tiles.gpu(0)[1])
    rungs, cudnn = ladder(own), _flow("cuDNN")
    made = {name: run(q, k, v, o, rows, causal, tile) for name, (run, tile) in rungs.items()}
    runs = {
        name: lambda run=run, tile=tile: run(q, k, v, o, rows, causal, tile)
        for name, (run, tile) in rungs.items()
    }
    runs["cuDNN"] = lambda: cudnn(q, k, v, causal)
    rounds = [
        {name: measure.time(run, device="cuda", budget=5e-3).median for name, run in runs.items()}
        for _ in range(ROUNDS)
    ]
    flops = cost.attention(n, d, flow="ideal", heads=h, batch=b, causal=causal).flops
    for name in runs:
        low, seconds, high = (f(r[name] for r in rounds) for f in (min, statistics.median, max))
        point = {
            "rung": name, "d": d, "causal": causal, "n": n, "seconds": seconds, "low": low,
            "high": high, "flops": flops / seconds,
        }  # fmt: skip
        yield point | (_takes(made[name], rungs[name][1]) if name in made else {})


def _takes(compiled, tile):
    """What a block of a loaded kernel takes, and how many an SM holds."""
    arch, shared = tiles.gpu(0)[0], compiled.metadata.shared
    blocks, limit = occupancy(compiled.n_regs, shared, tile.num_warps, arch)
    return {
        "tile": list(tile), "registers": compiled.n_regs, "spilled_bytes": 4 * compiled.n_spills,
        "shared_bytes": shared, "blocks": blocks, "limited_by": limit,
    }  # fmt: skip
