"""The public `attention`: what it refuses, and its place in autograd."""

import math

import torch

from course.kernels import interpreted, launch, tiles

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
VARIANTS = ("auto", "readable")


def attention(q, k, v, *, causal=False, scale=None, variant="auto", return_lse=False):
    """See `course.kernels.attention`."""
    scale = check(q, k, v, scale, variant)
    if scale <= 0:  # the kernels take max(S)·scale for max(S·scale): a sign or a zero moves into q
        q, scale = q * (-1.0 if scale < 0 else 0.0), -scale or 1.0
    return Attention.apply(q, k, v, bool(causal), scale, bool(return_lse))


class Attention(torch.autograd.Function):
    """o, or (o, lse), of checked q, k, v and scale > 0."""

    @staticmethod
    def forward(ctx, q, k, v, causal, scale, return_lse):
        """O, and lse as m and 1/l for the backward pass."""
        ctx.causal, ctx.scale = causal, scale
        ctx.set_materialize_grads(False)
        if q.numel() == 0 or k.numel() == 0:  # nothing to launch: no queries, or no keys to see
            ctx.save_for_backward(q, k, v)
            o, lse = torch.zeros_like(q), q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
            return (o, lse) if return_lse else o
        keep_rest = any(ctx.needs_input_grad)
        o, o_rest, m, inv_l = launch.forward(
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
            grads = launch.backward(q, k, v, o, o_rest, do, dlse, m, inv_l, **options)
        else:
            grads = [torch.zeros_like(x) for x in (q, k, v)]
        if torch.is_grad_enabled():  # create_graph=True: without a node, a penalty trains nothing
            grads = [NoSecondDerivative.apply(g, q, k, v, do) for g in grads]
        return *grads, None, None, None


class NoSecondDerivative(torch.autograd.Function):
    """A gradient as it is, which says so when it is differentiated again."""

    @staticmethod
    def forward(ctx, grad, *inputs):
        """The same numbers."""
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx, *_):
        """Refuse."""
        raise RuntimeError(
            "attention has no second derivative. Use course.kernels.naive.attention where you "
            "differentiate twice."
        )


def check(q, k, v, scale, variant):
    """The scale as a number FP32 can hold, once everything else is known to be supported."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.ndim != 4:
            got = f"{tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
            raise ValueError(f"{name} must be a tensor of shape (B, H, N, d), not {got}.")
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is unknown. Choose one of {', '.join(VARIANTS)}.")
    if len({x.dtype for x in (q, k, v)}) > 1:
        raise ValueError(
            f"q, k and v have mixed types ({q.dtype}, {k.dtype}, {v.dtype}). Cast them to one."
        )
    if q.dtype not in DTYPES:
        raise ValueError(f"{q.dtype} is not supported. Use float16, bfloat16 or float32.")
    if len({x.device for x in (q, k, v)}) > 1:
        raise ValueError(
            f"q, k and v lie on different devices ({q.device}, {k.device}, {v.device}). Move them."
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
    if not interpreted:
        if not q.is_cuda:
            raise ValueError(
                f"q is on {q.device} and Triton compiles for a GPU. Move q, k and v to 'cuda', "
                "or set TRITON_INTERPRET=1 before Python starts."
            )
        capability, _ = tiles.gpu(q.device.index)
        if capability < 75 or (capability < 80 and q.dtype == torch.bfloat16):
            raise ValueError(
                f"this GPU (compute capability {capability / 10}) cannot run {q.dtype} kernels. "
                "float16 and float32 need 7.5, bfloat16 needs 8.0."
            )
    return check_scale(scale, d)


def check_scale(scale, d):
    """scale (by default 1/√d) rounded to FP32, in which the kernels multiply by it."""
    scale = 1 / math.sqrt(d) if scale is None else float(scale)
    folded = abs(scale * math.log2(math.e))
    if not folded < 2.0**128:
        raise ValueError(f"scale is {scale}. It must be a finite number below 2.3e38.")
    return scale if folded > 2.0**-150 else 0.0  # what FP32 would round to zero
