"""The public `decode`: what it refuses, for caches of keys and values as a server keeps them."""

import math

import torch

from course.kernels import guard, split_kv
from course.kernels.autograd import check_scale


def decode(q, k, v, *, lengths=None, table=None, causal=True, scale=None, return_lse=False):
    """See `course.kernels.decode`."""
    scale = check(q, k, v, lengths, table, causal, scale)
    if scale <= 0:  # as in attention: a sign or a zero moves into q
        q, scale = q * (-1.0 if scale < 0 else 0.0), -scale or 1.0
    keys = k.shape[2] * (1 if table is None else table.shape[1])
    if q.numel() == 0 or k.numel() == 0 or keys == 0:
        o, lse = torch.zeros_like(q), q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
        return (o, lse) if return_lse else o
    with torch.no_grad():
        o, m, l = split_kv.forward(
            q, k, v, causal=bool(causal), scale=scale, lengths=lengths, table=table
        )
    if return_lse:
        return o, (m.double() * math.log(2) + l.double().log()).float()
    return o


def check(q, k, v, lengths, table, causal, scale):
    """The scale, once everything else is known to be supported."""
    if getattr(causal, "ndim", 0) or causal not in (True, False):
        raise ValueError("causal must be True or False. A mask of your own is not supported.")
    guard.tensors(q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            what = "(B, H, N, d)" if table is None or name == "q" else "(pages, H_kv, page, d)"
            raise ValueError(f"{name} must have shape {what}, not {tuple(x.shape)}.")
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} requires a gradient and would get none. Use attention.")
    if k.shape != v.shape:
        raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} must have the same shape.")
    (b, h, _, d), h_kv = q.shape, k.shape[1]
    if d != k.shape[3] or (table is None and b != k.shape[0]):
        raise ValueError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} must agree in batch and head dimension."
        )
    if not 1 <= d <= 256:
        raise ValueError(f"the head dimension is {d}. The kernels take 1 to 256.")
    if h and (not h_kv or h % h_kv):
        raise ValueError(f"{h} query heads cannot share {h_kv} K/V heads: make it a multiple.")
    if table is not None:
        _whole("table", table, (b, "pages of a batch"), q.device)
    if lengths is not None:
        _whole("lengths", lengths, (b,), q.device)
    return check_scale(scale, d)


def _whole(name, x, shape, device):
    """Refuse what is no int32 tensor of that shape; a word in it stands for any number."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.int32 or x.device != device:
        raise ValueError(f"{name} must be an int32 tensor on {device}.")
    fits = x.ndim == len(shape) and all(
        isinstance(want, str) or want == size for want, size in zip(shape, x.shape, strict=True)
    )
    if not fits:
        wanted = f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
        raise ValueError(f"{name} must have shape {wanted}, not {tuple(x.shape)}.")
