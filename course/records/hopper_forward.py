"""Section "hopper_forward": each idea of hopper_forward.py beside the libraries, on this GPU."""

import itertools
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from course import cost, measure

TOKENS, WIDTH = 16_384, 2_048  # B·N and H·d, as in attention_speed
LENGTHS = (1024, 4096, 16_384)
PUBLIC = {"batch": 2, "heads": 64, "kv_heads": 8, "n": 8192, "d": 128}  # of published tables, BF16
ROUNDS, CALLS = 4, 4  # every flow in turn, so many rounds of so many calls
AHEAD = 400_000  # clocks that the GPU sleeps before a call, so that no call waits for Python


def record() -> dict:
    """FLOP/s of every schedule, of the readable kernel and of the libraries. About two minutes."""
    cells = list(itertools.product((64, 128), (False, True)))
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile, [(*cell, s) for cell in cells for s in schedules(cell[0])]))
    points = []
    for (d, causal), n in itertools.product(cells, LENGTHS):
        shape = {"batch": TOKENS // n, "heads": WIDTH // d, "kv_heads": WIDTH // d, "n": n, "d": d}
        points += _points(shape, causal, "fp16")
    for causal in (False, True):
        points += _points(PUBLIC, causal, "bf16")
    method = (
        "the forward kernel alone, without lse of the libraries; CUDA events, the GPU kept busy "
        "before each call so that none waits for Python, L2 flushed by reads, flows in turn, median "
        f"and quartiles of {ROUNDS * CALLS}; FLOPs 4·B·H·N²·d, causal by visible pairs"
    )
    return {"points": points, "stamp": measure.stamp("cuda", method)}


def schedules(d):
    """The rungs: each switches one idea on, or the number of consumers."""
    from course.kernels.hopper_forward import Schedule

    rungs = [Schedule(overlap=False)]
    for more in ({}, {"pinned": True}, {"ping_pong": True}, {"pinned": True, "ping_pong": True}):
        rungs += [Schedule(**more), Schedule(**more, persistent=True)]
    if d == 64:
        rungs += [Schedule(consumers=3, overlap=False)]
        rungs += [
            Schedule(consumers=3, ping_pong=p, persistent=g)
            for p in (False, True)
            for g in (False, True)
        ]
    return rungs


def _inputs(shape, dtype):
    import torch

    torch.manual_seed(0)
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    b, n, d = (shape[key] for key in ("batch", "n", "d"))

    def random(heads):
        return torch.randn(b, heads, n, d, device="cuda", dtype=kind)

    return random(shape["heads"]), random(shape["kv_heads"]), random(shape["kv_heads"])


def _calls(q, k, v, causal):
    """{name: (what to note, a function that runs it)}."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from course.kernels import hopper_forward, launch

    o, (m, inv_l) = torch.empty_like(q), (launch.row_statistics(q) for _ in "ml")
    options = {"causal": causal, "scale": q.shape[3] ** -0.5}
    calls = {"readable": lambda: launch.launch_forward(q, k, v, o, None, m, inv_l, **options)}
    for schedule in schedules(q.shape[3]):
        calls[schedule] = lambda s=schedule: hopper_forward.launch(
            q, k, v, o, None, m, inv_l, schedule=s, **options
        )

    def library(backend):
        def run():
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

        return run

    calls["cuDNN"] = library(SDPBackend.CUDNN_ATTENTION)
    calls["FA-2"] = library(SDPBackend.FLASH_ATTENTION)
    return calls


def _compile(job):
    d, causal, schedule = job
    calls = _calls(
        *_inputs({"batch": 1, "heads": 1, "kv_heads": 1, "n": 256, "d": d}, "fp16"), causal
    )
    calls[schedule]()


def _points(shape, causal, dtype):
    import torch

    q, k, v = _inputs(shape, dtype)
    calls = _calls(q, k, v, causal)
    samples = {name: [] for name in calls}
    compiled = {name: call() for name, call in calls.items()}
    other = torch.empty(2**28, dtype=torch.int8, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    for _ in range(ROUNDS):
        for name, call in calls.items():
            for _ in range(CALLS):
                other.max()
                torch.cuda._sleep(AHEAD)
                start.record()
                call()
                end.record()
                end.synchronize()
                samples[name].append(start.elapsed_time(end) / 1e3)
    counted = {"heads": shape["heads"], "batch": shape["batch"], "causal": causal}
    flops = cost.attention(shape["n"], shape["d"], flow="ideal", **counted).flops
    points = []
    for name, times in samples.items():
        low, median, high = statistics.quantiles(times, n=4, method="inclusive")
        point = {"flow": name if isinstance(name, str) else "hopper", "dtype": dtype, **shape}
        point |= {"causal": causal, "seconds": median, "low": low, "high": high}
        point |= {"flops": flops / median}
        if not isinstance(name, str):
            kernel = compiled[name]
            point |= {**name._asdict(), "registers": kernel.n_regs}
            point |= {"spilled_bytes": 4 * kernel.n_spills, "shared_bytes": kernel.metadata.shared}
        points.append(point)
    return points
