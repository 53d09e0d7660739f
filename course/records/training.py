"""Section "training": a small character transformer on this GPU, with four kinds of attention.

Flows: "naive"; "SDPA", PyTorch's own; "notebook", the kernels of notebooks 06 and 08; "ours", the
library's.
"""

from statistics import median
from time import perf_counter

from course import measure

SHAPE = dict(width=512, heads=8, layers=8)
CURVE = dict(n=2048, batch=8, steps=200)
TOKENS = 32_768  # a step
LENGTHS = tuple(2**e for e in range(10, 16))  # N = 1,024 to 32,768
FLOWS = ("naive", "SDPA", "ours", "notebook")
RUNS = (("naive", "fp32"), *((flow, "bf16") for flow in FLOWS))
BARGAIN = dict(heads=16, d=128)


def record() -> dict:
    """Loss curves, memory and tokens a second over N, one layer's bargain. Under three minutes."""
    curves, sample = zip(*(_curve(*run) for run in RUNS), strict=True)
    return {
        "shape": SHAPE,
        "curve": CURVE,
        "curves": [
            curve | {"off": [a - b for a, b in zip(curve["loss"], curves[0]["loss"], strict=True)]}
            for curve in curves
        ],
        "sample": sample[-1],
        "tokens": TOKENS,
        "points": [point(flow, n) for flow in FLOWS for n in LENGTHS],
        "layer": BARGAIN,
        "layer_points": [_layer(flow, n) for flow in FLOWS for n in LENGTHS],
        "stamp": measure.stamp(
            "cuda",
            "character transformer in plain PyTorch, causal, weights FP32, autocast BF16 unless fp32; "
            "off: loss minus that of naive in fp32; points: one training step, median of 5 by the wall "
            "clock, host: until all its kernels are queued (a full queue makes Python wait), gpu: by "
            "CUDA events with all of it queued beforehand, kept: allocated between forward and "
            "backward, above what was there before, peak: of the step, model and optimiser included; "
            "layer: attention alone, FP16, not causal, CUDA events, median, L2 flushed by reads before "
            "each call; notebook: the kernels of notebooks 06 and 08",
        ),
    }


def _attend(flow):
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    from course.kernels import attention, naive, notebook_backward

    return {
        "naive": naive.attention,
        "SDPA": lambda q, k, v, causal=False: sdpa(q, k, v, is_causal=causal),
        "ours": attention,
        "notebook": notebook_backward.attention,
    }[flow]


def _model(attend, n):
    from course import train

    text, characters = train.load_text()
    model = train.Transformer(attend, characters=len(characters), n=n, **SHAPE)
    return model.cuda(), text, characters


def _curve(flow, dtype):
    from course import train

    model, text, characters = _model(_attend(flow), CURVE["n"])
    batches = train.windows(text, CURVE["n"], CURVE["batch"])
    half = dtype == "bf16"
    losses = train.train(model, batches, CURVE["steps"], half=half, lr=5e-4)
    start = text[: CURVE["n"]].tolist()
    sample = train.write(model, start, 200, CURVE["n"], half) if half else []
    said = "".join(characters[i] for i in sample)
    return {"flow": flow, "dtype": dtype, "loss": losses}, said


def point(flow, n, attend=None):
    """One training step at length N: bytes kept and at the peak, its times; or no memory.

    attend: what to call, if it is not the course's own of this flow.

    host_seconds well below gpu_seconds: the GPU always has work. Above: it waits for Python.
    """
    import torch

    from course import train

    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()  # by others, such as the buffer that flushes the L2
    model, text, _ = _model(attend or _attend(flow), n)
    batches = train.windows(text, n, TOKENS // n)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4)
    times, result = [], {"flow": flow, "n": n}

    def step(window):
        loss = train.loss_of(model, window, half=True)
        kept = torch.cuda.memory_allocated() - before
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss, kept

    try:
        for _ in range(7):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            start, before = perf_counter(), torch.cuda.memory_allocated()
            loss, kept = step(next(batches))
            queued = perf_counter() - start
            loss.item()
            times.append((perf_counter() - start, queued))
            del loss
        peak = torch.cuda.max_memory_allocated() - held
        whole, host = (median(x) for x in zip(*times[2:], strict=True))
        gpu = median(_queued_first(step, next(batches).cuda()) for _ in range(3))
        result |= {
            "kept_bytes": kept, "peak_bytes": peak, "tokens_per_second": TOKENS / whole,
            "host_seconds": host, "gpu_seconds": gpu,
        }  # fmt: skip
    except torch.OutOfMemoryError:
        result["out_of_memory"] = True
    return result


def _queued_first(step, window):
    """Seconds that the GPU works on step(window), with all of its kernels queued before it begins."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(200_000_000)  # a tenth of a second
    start.record()
    step(window)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def _layer(flow, n):
    """Forward and backward of attention alone: seconds, what is kept in between, the peak."""
    import torch

    torch.cuda.empty_cache()
    torch.manual_seed(0)
    heads, d = BARGAIN["heads"], BARGAIN["d"]
    q, k, v, do = torch.randn(4, 1, heads, n, d, device="cuda", dtype=torch.float16)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    attend, point = _attend(flow), {"flow": flow, "n": n}
    try:
        point["forward"] = measure.time(lambda: attend(q, k, v), device="cuda", budget=0.1).median
        before = torch.cuda.memory_allocated()
        o = attend(q, k, v)
        point["kept_bytes"] = torch.cuda.memory_allocated() - before

        def backward():
            return torch.autograd.grad(o, (q, k, v), do, retain_graph=True)

        pairs = zip(backward(), backward(), strict=True)
        point["same_bits_again"] = all(torch.equal(a, b) for a, b in pairs)
        del pairs
        point["backward_peak_bytes"] = measure.peak_memory(backward, device="cuda")
        point["backward"] = measure.time(backward, device="cuda", budget=0.1).median
    except torch.OutOfMemoryError:
        point["out_of_memory"] = True
    return point
