"""The backward kernels of notebook 08, as they stand there: with nothing but their idea.

What a reader has not written yet is taken from here, the exercises have it as solutions, and the
recorder trains with it. `course.kernels.backward` is what a library makes of it.
"""

import torch
from torch.autograd.function import once_differentiable

from course import kernels
from course.kernels import tl, triton
from course.kernels.notebook import load_tile, store_tile
from course.kernels.notebook_forward import flash


@triton.jit
def p_and_ds(
    q, k, v, do, lse_ptr, delta_ptr, i, j, scale, n, n_kv,
    causal: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr,
):  # fmt: skip
    """P and dS, FP32 (block_q, block_kv), of the queries from i on and the keys from j on."""
    row, column = i + tl.arange(0, block_q), j + tl.arange(0, block_kv)
    seen = (row[:, None] < n) & (column[None, :] < n_kv)
    if causal:
        seen &= column[None, :] <= row[:, None] + (n_kv - n)
    lse = tl.load(lse_ptr + row, mask=row < n, other=0.0)
    delta = tl.load(delta_ptr + row, mask=row < n, other=0.0)
    s = tl.dot(q, k.T, input_precision="ieee") * scale
    p = tl.where(seen, tl.exp(s - lse[:, None]), 0.0)
    dp = tl.dot(do, v.T, input_precision="ieee")
    return p, p * (dp - delta[:, None])


@triton.jit
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, scale, n, n_kv, d,
    causal: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One tile of dK and dV of one head; q, do (heads, n, d), k, v (heads, n_kv, d), no gaps."""
    tiles = tl.cdiv(n_kv, block_kv)
    j, head = tl.program_id(0) % tiles * block_kv, (tl.program_id(0) // tiles).to(tl.int64)
    queries, keys, rows = head * n * d, head * n_kv * d, head * n
    k = load_tile(k_ptr + keys, j, n_kv, d, block_kv, block_d)
    v = load_tile(v_ptr + keys, j, n_kv, d, block_kv, block_d)
    dk = tl.zeros([block_kv, block_d], tl.float32)
    dv = tl.zeros([block_kv, block_d], tl.float32)
    first = 0
    if causal:  # the first query tile that sees key j
        first = tl.maximum(j - (n_kv - n), 0) // block_q * block_q
    for i in range(first, n, block_q):
        q = load_tile(q_ptr + queries, i, n, d, block_q, block_d)
        do = load_tile(do_ptr + queries, i, n, d, block_q, block_d)
        p, ds = p_and_ds(
            q, k, v, do, lse_ptr + rows, delta_ptr + rows, i, j, scale, n, n_kv,
            causal, block_q, block_kv,
        )  # fmt: skip
        dv += tl.dot(p.T.to(do.dtype), do, input_precision="ieee")
        dk += tl.dot(ds.T.to(q.dtype), q, input_precision="ieee")
    store_tile(dk_ptr + keys, dk * scale, j, n_kv, d, block_kv, block_d)
    store_tile(dv_ptr + keys, dv, j, n_kv, d, block_kv, block_d)


@triton.jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, scale, n, n_kv, d,
    causal: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One tile of dQ of one head; q, do (heads, n, d), k, v (heads, n_kv, d), no gaps."""
    tiles = tl.cdiv(n, block_q)
    i, head = tl.program_id(0) % tiles * block_q, (tl.program_id(0) // tiles).to(tl.int64)
    queries, keys, rows = head * n * d, head * n_kv * d, head * n
    q = load_tile(q_ptr + queries, i, n, d, block_q, block_d)
    do = load_tile(do_ptr + queries, i, n, d, block_q, block_d)
    dq = tl.zeros([block_q, block_d], tl.float32)
    end = n_kv
    if causal:  # past the last key that the last query of the tile sees
        end = tl.minimum(i + block_q + n_kv - n, n_kv)
    for j in range(0, end, block_kv):
        k = load_tile(k_ptr + keys, j, n_kv, d, block_kv, block_d)
        v = load_tile(v_ptr + keys, j, n_kv, d, block_kv, block_d)
        _, ds = p_and_ds(
            q, k, v, do, lse_ptr + rows, delta_ptr + rows, i, j, scale, n, n_kv,
            causal, block_q, block_kv,
        )  # fmt: skip
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    store_tile(dq_ptr + queries, dq * scale, i, n, d, block_q, block_d)


def rows_of_a_tile(x):
    """Rows of a tile of x: FP32 numbers take twice the room."""
    return 64 if x.element_size() == 2 else 32


def triton_backward(q, k, v, o, lse, do, causal=False, block=None):
    """(dq, dk, dv): q, o, do (heads, n, d), k, v (heads, n_kv, d), lse (heads, n), natural, FP32.

    causal aligns bottom-right, scale is 1/√d. Raises ValueError for BF16 in the interpreter.
    """
    if kernels.interpreted and q.dtype == torch.bfloat16:
        raise ValueError("Triton's interpreter multiplies BF16 wrongly. Use FP32 or FP16 here.")
    q, k, v, do = (x.contiguous() for x in (q, k, v, do))  # the kernels count on it
    (heads, n, d), n_kv, block = q.shape, k.shape[1], block or rows_of_a_tile(q)
    delta = (do.float() * o.float()).sum(-1)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    block_d = max(16, triton.next_power_of_2(d))
    meta = dict(causal=causal, block_q=block, block_kv=block, block_d=block_d)
    given, sizes = (q, k, v, do, lse, delta), (d**-0.5, n, n_kv, d)
    dkdv_kernel[(triton.cdiv(n_kv, block) * heads,)](*given, dk, dv, *sizes, **meta)
    dq_kernel[(triton.cdiv(n, block) * heads,)](*given, dq, *sizes, **meta)
    return dq, dk, dv


class Attention(torch.autograd.Function):
    """o of q (B, H, N, d) and k, v (B, H, N_kv, d), by the kernels of notebooks 06 and 08."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        """O; kept are q, k, v, o and lse."""
        heads = [x.flatten(0, 1) for x in (q, k, v)]
        block = rows_of_a_tile(q)
        o, lse = flash(*heads, causal, block, block)
        ctx.save_for_backward(*heads, o, lse)
        ctx.causal = causal
        return o.unflatten(0, q.shape[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        """The gradients of q, k and v; None for the flag."""
        grads = triton_backward(*ctx.saved_tensors, do.flatten(0, 1), ctx.causal)
        return *(g.unflatten(0, do.shape[:2]) for g in grads), None


def attention(q, k, v, causal=False):
    """As `course.kernels.attention`, with as many K/V heads as query heads; differentiable once."""
    return Attention.apply(q, k, v, causal)
