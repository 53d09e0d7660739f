"""The public `attention`: what it refuses, and its place in autograd."""

import math

import torch

from course.kernels import auto, guard, launch

VARIANTS = {"readable": launch, "auto": auto}  # whose forward and backward run
MAX_LENGTH = 2**31 - 512  # rows are counted in 32 bits, a tile or two past the last


def attention(q, k, v, *, causal=False, scale=None, variant="auto", return_lse=False):
    """See `course.kernels.attention`."""
    scale = check(q, k, v, causal, scale, variant)
    if scale <= 0:  # the kernels take max(S)·scale for max(S·scale): a sign or a zero moves into q
        q, scale = q * (-1.0 if scale < 0 else 0.0), -scale or 1.0
    return Attention.apply(q, k, v, bool(causal), scale, VARIANTS[variant], bool(return_lse))


class Attention(torch.autograd.Function):
    """o, or (o, lse), of checked q, k, v and scale > 0."""

    @staticmethod
    def forward(ctx, q, k, v, causal, scale, kernels, return_lse):
        """O, and lse as m and 1/l for the backward pass."""
        ctx.causal, ctx.scale, ctx.kernels = causal, scale, kernels
        ctx.set_materialize_grads(False)
        if q.numel() == 0 or k.numel() == 0:  # nothing to launch: no queries, or no keys to see
            ctx.save_for_backward(q, k, v)
            o, lse = torch.zeros_like(q), q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
            return (o, lse) if return_lse else o
        keep_rest = any(ctx.needs_input_grad)
        o, o_rest, m, inv_l = kernels.forward(
            q, k, v, causal=causal, scale=scale, keep_rest=keep_rest
        )
        ctx.save_for_backward(q, k, v, o, o_rest, m, inv_l)
        if return_lse:  # in FP64: one rounding instead of four
            m, inv_l = (x[:, :, : q.shape[2]].double() for x in (m, inv_l))
            return o, (m * math.log(2) - inv_l.log()).float()
        return o

    @staticmethod
    def backward(ctx, do, dlse=None):
        """The gradients of q, k and v; None for the flags."""
        q, k, v, *saved = ctx.saved_tensors
        if do is None:
            do = torch.zeros_like(q)
        if saved:
            o, o_rest, m, inv_l = saved
            options = {"causal": ctx.causal, "scale": ctx.scale}
            grads = ctx.kernels.backward(q, k, v, o, o_rest, do, dlse, m, inv_l, **options)
        else:
            grads = [torch.zeros_like(x) for x in (q, k, v)]
        instead = "course.kernels.naive.attention"
        inputs = [x for x in (q, k, v, do, dlse) if x is not None]
        grads = guard.differentiable_once(grads, inputs, "attention", instead)
        return *grads, None, None, None, None


def check(q, k, v, causal, scale, variant):
    """The scale as a number FP32 can hold, once everything else is known to be supported."""
    if not isinstance(variant, str) or variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is unknown. Choose one of {', '.join(VARIANTS)}.")
    if getattr(causal, "ndim", 0) or causal not in (True, False):
        raise ValueError("causal must be True or False. A mask of your own is not supported.")
    guard.tensors(q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(f"{name} must have shape (B, H, N, d), not {tuple(x.shape)}.")
        if x.shape[2] > MAX_LENGTH:
            raise ValueError(
                f"{name} has {x.shape[2]:,} rows. The kernels count to {MAX_LENGTH:,}."
            )
    if k.shape != v.shape:
        raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} must have the same shape.")
    (b, h, _, d), (b_kv, h_kv, _, d_kv) = q.shape, k.shape
    if b != b_kv or d != d_kv:
        raise ValueError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} must agree in batch and head dimension."
        )
    if not 1 <= d <= 256:
        raise ValueError(f"the head dimension is {d}. The kernels take 1 to 256.")
    if h and (not h_kv or h % h_kv):
        raise ValueError(f"{h} query heads cannot share {h_kv} K/V heads: make it a multiple.")
    return check_scale(scale, d)


def check_scale(scale, d):
    """scale (by default 1/√d) rounded to FP32, in which the kernels multiply by it."""
    scale = 1 / math.sqrt(d) if scale is None else guard.number("scale", scale)
    folded = abs(scale * math.log2(math.e))
    if not folded < 2.0**128:
        raise ValueError(f"scale is {scale}. It must be a finite number below 2.3e38.")
    return scale if folded > 2.0**-150 else 0.0  # what FP32 would round to zero
