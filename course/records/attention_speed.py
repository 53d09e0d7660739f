"""Sections "attention_speed" and "tile_sweep": our attention beside the library's, on this GPU."""

import itertools

from course import cost, measure

TOKENS, WIDTH = 16_384, 2_048  # B·N and H·d, the same for every point, so that work is comparable
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384)
FLOWS = ("ours", "naive", "mem-efficient", "FA-2", "cuDNN")
NAIVE_BYTES = 20e9  # naive is left out where its S, P and their gradients would take more
COUNTED = {"heads": 8, "n": 8192, "d": 128}  # for the DRAM counters: one S fills the L2 twice over


def record() -> dict:
    """Every flow forward and backward: seconds, FLOP/s, peak and DRAM bytes. About two minutes."""
    with _workers() as pool:  # the compiler is what takes long: fill Triton's cache first
        list(pool.map(_warm, itertools.product(("fp16", "bf16"), (64, 128), (False, True))))
    points = []
    for dtype, d, causal, n in itertools.product(
        ("fp16", "bf16"), (64, 128), (False, True), LENGTHS
    ):
        for flow in FLOWS:
            if flow != "naive" or 4 * 2 * TOKENS * n * (WIDTH // d) <= NAIVE_BYTES:
                points.append(_point(flow, dtype, d, causal, n))
    best = {_cell(p): p for p in points if p["flow"] == "cuDNN"}
    for p in points:
        for way in ("forward", "backward"):
            p[way]["of_cudnn"] = p[way]["flops"] / best[_cell(p)][way]["flops"]
    method = (
        f"B·N = {TOKENS:,} tokens, H·d = {WIDTH:,}; CUDA events, median and quartiles, L2 flushed by "
        "reads before each call; backward through autograd, all passes of it; FLOPs: forward "
        "4·B·H·N²·d, backward 2.5 times, causal by visible pairs; peak: bytes allocated beyond "
        "the inputs by a forward that keeps what backward needs, and by the backward; naive is "
        f"left out where S, P and their gradients pass {NAIVE_BYTES / 1e9:.0f} GB; dram: "
    )
    section = {"points": points, "counted": COUNTED}
    runs = [[flow, way] for way in ("forward", "backward") for flow in FLOWS]
    try:
        lists = measure.dram_bytes("course.records.attention_speed:prepare", runs)
    except RuntimeError as error:
        method += str(error)
    else:
        method += "FP16, not causal, ncu --clock-control none, caches kept between kernels"
        section["dram"] = [
            {"flow": flow, "way": way, "kernels": kernels}
            for (flow, way), kernels in zip(runs, lists, strict=True)
        ]
    return section | {"stamp": measure.stamp("cuda", method)}


def prepare(flow, way):
    """A call that makes one pass, "forward" or "backward", at the size of COUNTED."""
    import torch

    torch.manual_seed(0)
    shape = 1, COUNTED["heads"], COUNTED["n"], COUNTED["d"]
    q, k, v, do = torch.randn(4, *shape, device="cuda", dtype=torch.float16)
    inputs, call = [x.requires_grad_(way == "backward") for x in (q, k, v)], _flow(flow)
    if way == "forward":
        return lambda: call(*inputs, False)
    o = call(*inputs, False)
    return lambda: torch.autograd.grad(o, inputs, do, retain_graph=True)


def _warm(cell):
    dtype, d, causal = cell
    _point("ours", dtype, d, causal, LENGTHS[0], budget=1e-3)


def _cell(point):
    return tuple(point[key] for key in ("dtype", "d", "causal", "n"))


def _point(flow, dtype, d, causal, n, budget=0.06):
    import torch

    b, h = TOKENS // n, WIDTH // d
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(b, h, n, d, device="cuda", dtype=kind).requires_grad_() for _ in range(3)
    )
    do = torch.randn_like(q)
    call = _flow(flow)

    def run():
        with torch.no_grad():
            call(q, k, v, causal)

    forward = measure.time(run, device="cuda", budget=budget)
    torch.cuda.empty_cache()
    before = _reset()
    o = call(q, k, v, causal)
    forward_peak = torch.cuda.max_memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
    backward_peak = torch.cuda.max_memory_allocated() - before
    backward = measure.time(
        lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True),
        device="cuda",
        budget=budget,
    )
    flops = cost.attention(n, d, flow="flash", heads=h, batch=b, causal=causal).flops
    return {
        "flow": flow,
        "dtype": dtype,
        "d": d,
        "causal": causal,
        "n": n,
        "forward": _result(forward, flops, forward_peak),
        "backward": _result(backward, 2.5 * flops, backward_peak),
    }


def _result(timing, flops, peak):
    return {
        "seconds": timing.median,
        "low": timing.low,
        "high": timing.high,
        "flops": timing.rate(flops),
        "peak_bytes": peak,
    }


def _reset():
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _flow(flow):
    """A function of (q, k, v, causal) that runs that flow."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from course.kernels import attention, naive

    backends = {
        "mem-efficient": SDPBackend.EFFICIENT_ATTENTION,
        "FA-2": SDPBackend.FLASH_ATTENTION,
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
    }
    if flow in backends:

        def library(q, k, v, causal):
            with sdpa_kernel(backends[flow]):
                return scaled_dot_product_attention(q, k, v, is_causal=causal)

        return library
    if flow == "naive":
        return lambda q, k, v, causal: naive.attention(q, k, v, causal=causal)
    return lambda q, k, v, causal: attention(q, k, v, causal=causal, variant="readable")


# --- the tile sweep ---------------------------------------------------------------------------

SWEEP_N = 4096
SWEEP = {  # kernel: the values of block_q, block_kv, num_warps, num_stages
    "forward": ((32, 64, 128), (32, 64, 128), (4, 8), (1, 2, 3)),
    "dkdv": ((32, 64), (64, 128), (4, 8), (2, 3)),
    "dq": ((64, 128), (64,), (4, 8), (2, 3, 4)),
}


def _grid(kernel, d):
    """SWEEP's tiles, and the library's own, whose registers may be capped."""
    from course.kernels import tiles

    own = tiles.choose(kernel, d=d, itemsize=2, shared_memory=tiles.gpu(0)[1])
    swept = itertools.starmap(tiles.Tile, itertools.product(*SWEEP[kernel]))
    return list(dict.fromkeys([*swept, own]))


def tile_sweep() -> dict:
    """Each kernel on each tile this GPU can run: FLOP/s and what it takes of an SM. Six minutes."""
    cells = list(itertools.product(SWEEP, (64, 128), (False, True)))
    with _workers() as pool:
        list(pool.map(_compile, [(*c, tile) for c in cells for tile in _grid(*c[:2])]))
    points = [point for cell in cells for point in sweep(*cell)]
    method = (
        f"fp16, N = {SWEEP_N:,}, B·N = {TOKENS:,}, H·d = {WIDTH:,}; the kernel alone, CUDA events, "
        "median, L2 flushed by reads before each call; FLOPs: forward 4·B·H·N²·d, dkdv 8, dq 6, "
        "causal by visible pairs; registers, spilled bytes and shared memory of the loaded kernel"
    )
    return {"points": points, "stamp": measure.stamp("cuda", method)}


def _workers():
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(12, mp_context=get_context("spawn"))


def _compile(job):
    kernel, d, causal, tile = job
    return sweep(kernel, d, causal, [tile], budget=None)


def sweep(kernel, d, causal, grid=None, budget=0.02):
    """A dict for each tile of `grid` (by default `_grid`'s) that compiles and fits this GPU."""
    import torch
    from triton.runtime.errors import OutOfResources

    from course.kernels import launch

    b, h, n = TOKENS // SWEEP_N, WIDTH // d, SWEEP_N
    torch.manual_seed(0)
    q, k, v, do = torch.randn(4, b, h, n, d, device="cuda", dtype=torch.float16)
    options = {"causal": causal, "scale": d**-0.5}
    o, _, m, inv_l = launch.forward(q, k, v, **options)
    delta = (o.float() * do).sum(-1)
    out, out2 = torch.empty_like(q), torch.empty_like(q)
    runs = {
        "forward": lambda: launch.launch_forward(q, k, v, out, None, m, inv_l, **options),
        "dkdv": lambda: launch.launch_dkdv(q, k, v, do, out, out2, m, inv_l, delta, **options),
        "dq": lambda: launch.launch_dq(q, k, v, do, out, m, inv_l, delta, **options),
    }
    pairs = cost.visible_pairs(n, n, causal)
    flops = {"forward": 4, "dkdv": 8, "dq": 6}[kernel] * b * h * pairs * d
    points = []
    for tile in grid or _grid(kernel, d):
        options["tile"] = tile
        try:
            compiled = runs[kernel]()
            seconds = (
                measure.time(runs[kernel], device="cuda", budget=budget).median if budget else 1
            )
        except OutOfResources:
            continue
        points.append(
            {
                "kernel": kernel,
                "d": d,
                "causal": causal,
                **tile._asdict(),
                "flops": flops / seconds,
                "registers": compiled.n_regs,
                "spilled_bytes": 4 * compiled.n_spills,
                "shared_bytes": compiled.metadata.shared,
            }
        )
    return points
