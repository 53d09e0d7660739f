"""What several test files share."""

import math

import pytest


@pytest.fixture(scope="session")
def assert_attention():
    """A function that holds `course.kernels.attention` to DESIGN.md's rule (case D15)."""
    return _assert_attention


def _assert_attention(q, k, v, *, causal=False, scale=None, do=None, dlse=None, run=None):
    """o, lse, dq, dk, dv: error against FP64 at most twice that of plain PyTorch in this dtype.

    Both in the largest element and in the norm. Granted on top is what no order of summing
    avoids: half a unit in the last place, for storing the result, and one FP32 rounding of the
    terms summed, which counts where they cancel, as in dS = P ∘ (dP − D). Where plain PyTorch
    overflows it is run in FP32 instead; P and dS then may round to this dtype, as the tensor
    cores take them. Returns ours.
    """
    import torch

    from course.kernels import attention, naive

    run = run or attention
    options = {"causal": causal, "scale": scale, "return_lse": True}
    generator = torch.Generator(q.device).manual_seed(17)

    def random(shape):
        return torch.randn(shape, generator=generator, device=q.device)

    do = random(q.shape).to(q.dtype) if do is None else do
    dlse = random(q.shape[:3]) if dlse is None else dlse

    def everything(f, dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        if dtype == q.dtype:  # the strides of the caller, not those of a copy
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        o, lse = f(*leaves, **options)
        seen = lse > -math.inf
        # lse is −∞ in a row without keys and has no slope there.
        total = (o * do.to(o.dtype)).sum() + (lse[seen] * dlse.to(lse.dtype)[seen]).sum()
        grads = torch.autograd.grad(total, leaves)
        return dict(zip(("o", "lse", "dq", "dk", "dv"), (o, lse, *grads), strict=True))

    ours, exact = everything(run, q.dtype), everything(naive.attention, torch.float64)
    plain = everything(naive.attention, q.dtype)
    a_rounding = torch.finfo(torch.float32).eps
    if not all(x.isfinite().all() for name, x in plain.items() if name != "lse"):
        a_rounding = torch.finfo(q.dtype).eps / 2
        plain = {
            name: x.to(q.dtype) for name, x in everything(naive.attention, torch.float32).items()
        }
    terms = _terms(q.double(), k.double(), v.double(), do.double(), causal, scale)
    for name, x in ours.items():
        assert x.shape == exact[name].shape and x.device == q.device
        assert x.dtype == (torch.float32 if name == "lse" else q.dtype), name
        truth, theirs, x = exact[name].detach(), plain[name].detach().double(), x.detach().double()
        if name == "lse":
            assert torch.equal(x == -math.inf, truth == -math.inf)
            truth, theirs, x = (y.masked_fill(truth == -math.inf, 0.0) for y in (truth, theirs, x))
        assert x.isfinite().all(), f"{name} is not finite"
        half_ulp = torch.finfo(ours[name].dtype).eps / 2
        for what, size in (("largest", lambda y: y.abs().max()), ("norm", lambda y: y.norm())):
            if x.numel():
                error, allowed = size(x - truth), 2 * size(theirs - truth) + half_ulp * size(truth)
                if name in terms:
                    allowed += a_rounding * size(terms[name])
                assert error <= allowed, f"{name}, {what}: {error:.3g} > {allowed:.3g}"
    return ours


def _terms(q, k, v, do, causal, scale):
    """What o, dq, dk and dv would be if no two terms of their sums cancelled."""
    import torch

    from course.kernels import naive

    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    identity = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:3], -1)
    p = naive.attention(q, k, identity, causal=causal, scale=scale)
    p_dp = p * (do @ v.mT)
    ds = (p_dp.abs() + p * p_dp.sum(-1, keepdim=True).abs()) * abs(scale)
    dk, dv = (x.unflatten(1, (heads, group)).sum(2) for x in (ds.mT @ q.abs(), p.mT @ do.abs()))
    return {"o": p @ v.abs(), "dq": ds @ k.abs(), "dk": dk, "dv": dv}
