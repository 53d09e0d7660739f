"""What several test files share."""

import math

import pytest


@pytest.fixture(scope="session")
def assert_attention():
    """A function that holds `course.kernels.attention` to DESIGN.md's rule (case D15)."""
    return _assert_attention


def _assert_attention(q, k, v, *, causal=False, scale=None, do=None, dlse=None, run=None):
    """o, lse, dq, dk, dv: error against FP64 at most twice that of plain PyTorch in this dtype.

    Both in the largest element and in the norm. Twice of a lucky result is granted more, but only
    what an error analysis to first order says no order of summing avoids: half a unit in the last
    place for storing the result, and for every sum as much of its terms' sizes (see `_roundings`).
    Where plain PyTorch overflows it is run in FP32 instead; P and dS then may round to this dtype,
    as the tensor cores take them. Returns ours.
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
    fp32 = torch.finfo(torch.float32).eps / 2
    half = fp32
    if not all(x.isfinite().all() for name, x in plain.items() if name != "lse"):
        half = torch.finfo(q.dtype).eps / 2
        plain = {
            name: x.to(q.dtype) for name, x in everything(naive.attention, torch.float32).items()
        }
    roundings = _roundings(*(x.double() for x in (q, k, v, do, dlse)), causal, scale)
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
                of_itself, of_s = roundings[name]
                allowed += half * size(of_itself) + fp32 * size(of_s)
                assert error <= allowed, f"{name}, {what}: {error:.3g} > {allowed:.3g}"
    return ours


def _roundings(q, k, v, do, dlse, causal, scale):
    """For each result, the sum of its terms' sizes, and what one rounding of S's terms does to it.

    In units of a rounding. S = Σ q_c k_c · scale has terms of size A = |Q||K|ᵀ·|scale|; a change of
    S by A changes P by at most P ∘ (A + rowsum(P ∘ A)), and what is made of P accordingly. In
    dS = P ∘ (dP − D + dL) the terms of dP = Σ do_c v_c count, as they may cancel in dP and in dP − D.
    """
    import torch

    from course.kernels import naive

    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    identity = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:3], -1)
    p = naive.attention(q, k, identity, causal=causal, scale=scale)
    sizes = (q.abs() @ k.abs().mT) * abs(scale)
    mean = (p * sizes).sum(-1, keepdim=True)
    p_of_s = p * (sizes + mean)

    dp, dp_terms, dlse = do @ v.mT, do.abs() @ v.abs().mT, dlse[..., None]
    ds = p * (dp_terms + (p * dp_terms).sum(-1, keepdim=True) + dlse.abs())
    centred = dp - (p * dp).sum(-1, keepdim=True)
    ds_of_s = p_of_s * (centred + dlse).abs()
    ds_of_s += p * (p_of_s * centred.abs()).sum(-1, keepdim=True)

    def shared(x):
        return x.unflatten(1, (heads, group)).sum(2)

    of_p, of_ds = (p, p_of_s), [x * abs(scale) for x in (ds, ds_of_s)]
    return {
        "o": [x @ v.abs() for x in of_p],
        "lse": [torch.zeros_like(mean[..., 0]), mean[..., 0]],
        "dq": [x @ k.abs() for x in of_ds],
        "dk": [shared(x.mT @ q.abs()) for x in of_ds],
        "dv": [shared(x.mT @ do.abs()) for x in of_p],
    }
