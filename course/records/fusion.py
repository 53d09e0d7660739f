"""Section "fusion": bias → GELU → dropout → residual as four kernels, compiled, and by hand.

And a row softmax, as five operations, by PyTorch's own kernel, and by hand.
"""

from course import measure

COLS = 1024
ROWS = tuple(10**k for k in range(7))  # n = 1,024 to 1,024,000,000 elements
P = 0.1
FLOWS = ("eager", "compiled", "hand-written")
SOFTMAX_N = 2**27
SOFTMAX_COLS = (1024, 4096, 16384, 65536, 262144)
IN_A_ROW = 10


def record() -> dict:
    """Time, launches and DRAM bytes of each flow for each n, in FP16. About a minute."""
    largest = {flow: kernels(prepare(flow, ROWS[-1])) for flow in FLOWS}
    section = {
        "cols": COLS,
        "p": P,
        "kernels": {flow: [name for name, _ in launched] for flow, launched in largest.items()},
        "kernel_seconds": {flow: [t for _, t in launched] for flow, launched in largest.items()},
        "points": [point(flow, rows) for flow in FLOWS for rows in ROWS],
        "softmax": list(_softmax_points()),
        "draws": draws(),
        "compiled_code": compiled_code(),
    }
    method = (
        f"FP16, forward, the chain on rows of {COLS} with p = {P}; seconds: CUDA events, median "
        f"and quartiles, L2 flushed by reads before each call; wall: {IN_A_ROW} calls in a row by "
        "the wall clock, a call; graph: the same as one CUDA graph, by events; kernels, at the "
        "largest n: torch.profiler; dram: "
    )
    points = section["points"]
    try:
        counted = measure.dram_bytes(
            "course.records.fusion:prepare", [[p["flow"], p["n"] // COLS] for p in points]
        )
    except RuntimeError as error:
        method += str(error)
    else:
        method += "ncu --clock-control none, L2 flushed by reads before the call, then left alone"
        for one, counts in zip(points, counted, strict=True):
            one["dram_read"] = sum(k["read"] for k in counts)
            one["dram_written"] = sum(k["written"] for k in counts)
    return section | {"stamp": measure.stamp("cuda", method)}


def point(flow: str, rows: int) -> dict:
    """One flow on (rows, COLS) numbers: launches, and seconds by three clocks."""
    fn = prepare(flow, rows)
    timing = measure.time(fn, device="cuda", budget=0.1)
    wall = measure.time(lambda: [fn() for _ in range(IN_A_ROW)], budget=0.1)
    graph = measure.cuda_graph(fn, IN_A_ROW)
    in_graph = measure.time(graph.replay, device="cuda", budget=0.1, cold=False)
    return {
        "flow": flow,
        "n": rows * COLS,
        "launches": len(kernels(fn)),
        "seconds": timing.median,
        "low": timing.low,
        "high": timing.high,
        "wall": wall.median / IN_A_ROW,
        "graph": in_graph.median / IN_A_ROW,
    }


def draws(rows: int = ROWS[-1]) -> dict:
    """Seconds of the hand-written chain by its way to draw random numbers: all else is the same."""
    flows = {"one draw per number": "plain", "one draw for four": "hand-written"}
    return {
        name: measure.time(prepare(flow, rows), device="cuda", budget=0.1).median
        for name, flow in flows.items()
    }


def at(record: dict, flow: str, n: int) -> dict:
    """The recorded point of one flow at n elements."""
    return next(p for p in record["points"] if (p["flow"], p["n"]) == (flow, n))


def here() -> list[dict]:
    """Points of each flow measured on the GPU of this machine, now; none where there is no GPU."""
    if not measure.cuda_available():
        return []
    return [point(flow, rows) for flow in FLOWS for rows in (1, 100, 10_000)]


def prepare(flow: str, rows: int):
    """A call that runs the chain once on (rows, COLS) random FP16 numbers."""
    import torch

    torch.manual_seed(0)
    x, residual = torch.randn(2, rows, COLS, device="cuda", dtype=torch.float16)
    bias = torch.randn(COLS, device="cuda", dtype=torch.float16)
    if flow == "hand-written":
        from course.kernels.elementwise import bias_gelu_dropout_residual

        return lambda: bias_gelu_dropout_residual(x, bias, residual, p=P, seed=1)
    if flow == "plain":
        from course.kernels.elementwise import plain_chain_kernel

        out = torch.empty_like(x)
        launch = plain_chain_kernel[rows, 1]  # COLS numbers per program, as the one above
        return lambda: launch(x, bias, residual, out, COLS, P, 1, BLOCK=COLS, num_warps=1)
    chain = torch.compile(eager, dynamic=False) if flow == "compiled" else eager
    return lambda: chain(x, bias, residual)


def eager(x, bias, residual):
    """The chain in plain PyTorch: four operations, each a kernel; dropout stores its mask."""
    import torch
    import torch.nn.functional as F

    y = x + bias
    y = F.gelu(y, approximate="tanh")
    y, _mask = torch.native_dropout(y, P, True)
    return y + residual


def _softmax_points():
    import torch

    from course.kernels.elementwise import softmax

    flows = {
        "unfused": unfused_softmax,
        "torch": lambda x: torch.softmax(x, -1),
        "hand-written": softmax,
    }
    for cols in SOFTMAX_COLS:
        x = torch.randn(SOFTMAX_N // cols, cols, device="cuda", dtype=torch.float16)
        for flow, fn in flows.items():
            timing = measure.time(lambda fn=fn, x=x: fn(x), device="cuda", budget=0.05)
            yield {"flow": flow, "cols": cols, "n": SOFTMAX_N, "seconds": timing.median}


def unfused_softmax(x):
    """Five operations, each a kernel or more: maximum, subtract, exp, sum, divide."""
    import torch

    shifted = x - x.amax(-1, keepdim=True)
    p = torch.exp(shifted)
    return p / p.sum(-1, keepdim=True)


def kernels(fn) -> list[tuple[str, float]]:
    """Short name and seconds of each kernel that one call launches, by torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    fn()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        fn()
        torch.cuda.synchronize()
    on_gpu = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    on_gpu.sort(key=lambda event: event.time_range.start)
    return [(measure.kernel_name(e.name), e.time_range.elapsed_us() / 1e6) for e in on_gpu]


def compiled_code() -> str | None:
    """The Triton kernel that torch.compile writes for the chain; None where it cannot be had."""
    import torch

    try:
        from torch._inductor.utils import run_and_get_code
    except ImportError:
        return None
    torch._dynamo.reset()
    x = torch.randn(1000, COLS, device="cuda", dtype=torch.float16)
    compiled = torch.compile(eager, dynamic=False)
    _, (code, *_) = run_and_get_code(compiled, x, x[0].clone(), x.clone())
    start = code.index("@triton.jit")
    return code[start : code.index("'''", start)].rstrip()
