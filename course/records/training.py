"""Section "training": a small character transformer, naive attention against ours, on this GPU."""

from time import perf_counter

from course import measure

SHAPE = dict(width=512, heads=8, layers=8)
CURVE = dict(n=2048, batch=8, steps=200)
TOKENS = 32_768  # a step
LENGTHS = tuple(2**e for e in range(10, 16))  # N = 1,024 to 32,768
RUNS = (("naive", "fp32"), ("naive", "bf16"), ("ours", "bf16"))
BARGAIN = dict(heads=16, d=128)


def record() -> dict:
    """Loss curves, memory and tokens a second over N, one layer's bargain. Under two minutes."""
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
        "points": [point(flow, n) for flow in ("naive", "ours") for n in LENGTHS],
        "layer": BARGAIN,
        "layer_points": [_layer(flow, n) for flow in ("naive", "ours") for n in LENGTHS],
        "stamp": measure.stamp(
            "cuda",
            "character transformer in plain PyTorch, causal, weights FP32, autocast BF16 unless fp32; "
            "off: loss minus that of naive in fp32; points: one training step, median of 5 by the wall "
            "clock, kept: allocated between forward and backward, above what was there before, peak: "
            "of the step, model and optimiser included; layer: attention alone, FP16, not causal, "
            "CUDA events, median, L2 flushed by reads before each call",
        ),
    }


def _attend(flow):
    from course.kernels import attention, naive

    return {"naive": naive.attention, "ours": attention}[flow]


def _model(flow, n):
    from course import train

    text, characters = train.load_text()
    model = train.Transformer(_attend(flow), characters=len(characters), n=n, **SHAPE)
    return model.cuda(), text, characters


def _curve(flow, dtype):
    from course import train

    model, text, characters = _model(flow, CURVE["n"])
    batches = train.windows(text, CURVE["n"], CURVE["batch"])
    half = dtype == "bf16"
    losses = train.train(model, batches, CURVE["steps"], half=half, lr=5e-4)
    start = text[: CURVE["n"]].tolist()
    sample = train.write(model, start, 200, CURVE["n"], half) if half else []
    said = "".join(characters[i] for i in sample)
    return {"flow": flow, "dtype": dtype, "loss": losses}, said


def point(flow, n):
    """One training step at length N: bytes kept and at the peak, tokens a second; or no memory."""
    import torch

    from course import train

    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()  # by others, such as the buffer that flushes the L2
    model, text, _ = _model(flow, n)
    batches = train.windows(text, n, TOKENS // n)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4)
    seconds, result = [], {"flow": flow, "n": n}
    try:
        for _ in range(7):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            start, before = perf_counter(), torch.cuda.memory_allocated()
            loss = train.loss_of(model, next(batches), half=True)
            kept = torch.cuda.memory_allocated() - before
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss.item()
            seconds.append(perf_counter() - start)
        step = sorted(seconds[2:])[2]
        peak = torch.cuda.max_memory_allocated() - held
        result |= {"kept_bytes": kept, "peak_bytes": peak, "tokens_per_second": TOKENS / step}
    except torch.OutOfMemoryError:
        result["out_of_memory"] = True
    return result


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
