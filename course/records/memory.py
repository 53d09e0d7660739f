"""Section "memory": the machine, its staircase, its matmul rates, real operations on its roofline."""

from course import cost, measure

MATMUL_SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)


def record() -> dict:
    """Measure all of it on this GPU. Ten seconds."""
    return {
        "machine": measure.machine(),
        "staircase": measure.staircase(device="cuda")["points"],
        "matmul": matmul_rates(),
        "roofline": roofline_points(),
        "stamp": measure.stamp(
            "cuda",
            "CUDA events, median and quartiles, about 0.02 s each (sustained: 0.5 s); L2 flushed by "
            "reads before each call, except in the staircase (copies, up to 256 to a CUDA graph, "
            "bytes read + written); random data",
        ),
    }


def l2_bandwidth(record: dict) -> tuple[float, float]:
    """Bytes/s of the L2, from a recorded section and its copies that fit: (at least, by the slope).

    The largest such copy, start and end included, reaches the first. Its bytes beyond those of the
    next smaller copy, over the time that they take more, give the second: there the start cancels.
    """
    fits = record["machine"]["l2_bytes"]
    small, large = [point for point in record["staircase"] if point["bytes"] <= fits][-2:]
    longer = large["bytes"] / large["bandwidth"] - small["bytes"] / small["bandwidth"]
    return large["bandwidth"], (large["bytes"] - small["bytes"]) / longer


def matmul_rates() -> list[dict]:
    """FLOP/s of square matmuls by data type and size: in a short burst, and kept up for 0.5 s."""

    def rate(dtype, n, budget=None):
        return measure.matmul_rate(n, dtype, device="cuda", budget=budget)["rate"]

    dtypes = ("fp16", "bf16", "tf32", "fp32")
    rates = [{"dtype": t, "n": n, "rate": rate(t, n)} for t in dtypes for n in MATMUL_SIZES]
    for point in rates:  # last: the power limit would slow the bursts after it
        if point["n"] == MATMUL_SIZES[-1]:
            point["sustained"] = rate(point["dtype"], point["n"], budget=0.5)
    return rates


def roofline_points() -> list[dict]:
    """Real FP16 operations: FLOPs and bytes as `course.cost` counts them, time as measured."""
    points = []
    for name, counted, fn in _operations():
        timing = measure.time(fn, device="cuda", budget=0.02)
        points.append(
            {
                "name": name,
                "flops": counted.flops,
                "bytes": counted.bytes,
                "seconds": timing.median,
                "low": timing.low,
                "high": timing.high,
            }
        )
    return points


def _operations():
    """Name, cost and call of each operation."""
    import torch
    import torch.nn.functional as F

    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.float16)

    n, row = 2**27, 8192
    x, y = random(n // row, row), random(n // row, row)
    out = torch.empty_like(x)
    weight, bias = random(row), random(row)
    yield "add", cost.elementwise(n, inputs=2), lambda: torch.add(x, y, out=out)
    yield "relu", cost.elementwise(n), lambda: torch.clamp_min(x, 0, out=out)
    # Layer norm: mean 1, variance 3, subtract and scale 2, weight and bias 2.
    layer_norm = cost.elementwise(n, flops_per_element=8)
    yield "layer norm", layer_norm, lambda: F.layer_norm(x, (row,), weight, bias)
    # Softmax: maximum, subtract, exp, sum, divide.
    softmax = cost.elementwise(n, flops_per_element=5)
    yield "softmax", softmax, lambda: torch.softmax(x, -1)
    matrix, vector = random(8192, 28672), random(28672, 1)
    yield "decode (matrix × vector)", cost.matmul(8192, 1, 28672), lambda: torch.mm(matrix, vector)
    for batch in (8, 64, 512):
        vectors = random(28672, batch)
        counted = cost.matmul(8192, batch, 28672)
        yield f"decode, batch {batch}", counted, lambda v=vectors: torch.mm(matrix, v)
    for size in MATMUL_SIZES:
        a, b = random(size, size), random(size, size)
        yield f"matmul {size}", cost.matmul(size, size, size), lambda a=a, b=b: torch.mm(a, b)
