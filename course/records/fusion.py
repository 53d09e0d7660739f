"""Section "fusion": bias → GELU → dropout → residual as four kernels, compiled, and by hand."""

from course import measure

COLS = 1024
ROWS = tuple(10**k for k in range(7))  # n = 1,024 to 1,024,000,000 elements
P = 0.1
FLOWS = ("eager", "compiled", "hand-written")


def record() -> dict:
    """Time, launches, kernels and DRAM bytes of each flow for each n, in FP16. About two minutes."""
    points = [_point(flow, rows) for flow in FLOWS for rows in ROWS]
    method = (
        f"FP16, rows of {COLS}, forward, p = {P}; seconds: CUDA events, median and quartiles, L2 "
        "flushed by reads before each call; wall: a tenth of ten calls in a row by the wall clock, L2 as it was; "
        "kernels: torch.profiler; dram: "
    )
    try:
        counted = measure.dram_bytes(
            "course.records.fusion:prepare", [[p["flow"], p["n"] // COLS] for p in points]
        )
    except RuntimeError as error:
        method += str(error)
    else:
        method += "ncu --clock-control none, L2 flushed by reads before the call, then left alone"
        for point, kernels in zip(points, counted, strict=True):
            point["dram_read"] = sum(k["read"] for k in kernels)
            point["dram_written"] = sum(k["written"] for k in kernels)
    return {
        "cols": COLS,
        "p": P,
        "points": points,
        "compiled_code": compiled_code(),
        "stamp": measure.stamp("cuda", method),
    }


def _point(flow, rows):
    fn = prepare(flow, rows)
    timing = measure.time(fn, device="cuda", budget=0.1)
    return {
        "flow": flow,
        "n": rows * COLS,
        "seconds": timing.median,
        "low": timing.low,
        "high": timing.high,
        "wall": measure.time(lambda: [fn() for _ in range(10)], budget=0.1).median / 10,
        "kernels": kernels(fn),
    }


def prepare(flow: str, rows: int):
    """A call that runs the chain once on (rows, COLS) random FP16 numbers."""
    import torch

    torch.manual_seed(0)
    x, residual = torch.randn(2, rows, COLS, device="cuda", dtype=torch.float16)
    bias = torch.randn(COLS, device="cuda", dtype=torch.float16)
    if flow == "hand-written":
        from course.kernels.elementwise import bias_gelu_dropout_residual

        return lambda: bias_gelu_dropout_residual(x, bias, residual, p=P, seed=1)
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


def kernels(fn) -> list[str]:
    """Names of the kernels that one call launches, by torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    fn()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        fn()
        torch.cuda.synchronize()
    on_gpu = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return [e.name for e in sorted(on_gpu, key=lambda e: e.time_range.start)]


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
