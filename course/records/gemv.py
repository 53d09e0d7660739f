"""Section "gemv": one matrix times one vector, weights of 16, 8 and 4 bits, on this GPU."""

import statistics

from course import measure

SIZE = 8192
ROUNDS = 5
CACHE = 2e9  # bytes walked through before the same are read again: far more than the L2 holds


def record() -> dict:
    """Seconds a product and bytes it must read, for each format, all of them in turn."""
    import torch

    graphs, moved, calls = {}, {}, {}  # calls too: a graph does not keep its matrices alive
    for form in ("bf16", "int8", "int4", "bf16, cuBLAS"):
        calls[form], moved[form] = _calls(form)
        graphs[form] = measure.cuda_graph(lambda each=calls[form]: [call() for call in each], 1)
    samples = {form: [] for form in graphs}
    for _ in range(ROUNDS):
        for form, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            samples[form].append(start.elapsed_time(end) / 1e3 / len(calls[form]))
    points = [
        {"form": form, "bytes": moved[form], "seconds": statistics.median(times), "low": min(times),
         "high": max(times)}
        for form, times in samples.items()
    ]  # fmt: skip
    method = (
        f"{SIZE} × {SIZE} weights times one bf16 vector; bytes: weights with scales, x and y once; "
        "calls in one CUDA graph over matrices that take turns and exceed the L2, formats in turn, "
        f"median, least and most of {ROUNDS}"
    )
    return {"size": SIZE, "points": points, "stamp": measure.stamp("cuda", method)}


def _calls(form):
    """(a function for each matrix, bytes of one product)."""
    import torch

    from course.kernels.gemv import gemv, quantise

    torch.manual_seed(0)
    w = torch.randn(SIZE, SIZE, device="cuda").bfloat16()
    x = torch.randn(SIZE, device="cuda").bfloat16()
    parts = (w,) if form.startswith("bf16") else quantise(w, int(form[3:]))
    read = sum(part.nbytes for part in parts)
    copies = [[part.clone() for part in parts] for _ in range(max(2, round(CACHE / read)))]
    if form == "bf16, cuBLAS":
        calls = [lambda w=w: torch.mv(w, x) for (w,) in copies]
    else:
        calls = [lambda w=w, rest=rest: gemv(w, x, *rest) for w, *rest in copies]
    return calls, read + 2 * x.nbytes
