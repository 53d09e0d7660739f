"""Attention as one writes it first, in plain PyTorch: S and P are stored whole, N × N_kv each.

What the kernels are measured against, and in FP64 what they are checked against.
"""

import math

import torch


def attention(q, k, v, *, causal=False, scale=None, return_lse=False):
    """As `course.kernels.attention`, in q's own precision and N² memory, on any device."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        n, n_kv = s.shape[-2:]
        later = torch.ones(n, n_kv, dtype=torch.bool, device=q.device).triu(n_kv - n + 1)
        s = s.masked_fill(later, -math.inf)
    p = s.softmax(-1)
    if causal and n > n_kv:  # the first rows see no key: 0 / 0
        p = p.masked_fill(later.all(-1)[:, None], 0.0)
    o = p @ v
    return (o, s.logsumexp(-1)) if return_lse else o
