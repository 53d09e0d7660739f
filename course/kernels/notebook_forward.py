"""The forward kernel of notebook 06, as it stands there: with nothing but its idea.

What a reader has not written yet is taken from here, the exercises have it as solutions, and the
recorder times it. `course.kernels.forward` is what a library makes of it.
"""

import torch

from course import kernels
from course.kernels import tl, triton
from course.kernels.notebook import load_tile, store_tile


@triton.jit
def step(m, l, acc, s, v, c):
    """The state after one more block of keys: scores s = q kᵀ, values v, c = scale · log₂ e."""
    m_new = tl.maximum(m, tl.max(s, 1) * c)
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)  # no key yet: −∞ − (−∞) is NaN
    p = tl.exp2(s * c - shift[:, None])
    alpha = tl.exp2(m - shift)
    l = l * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return m_new, l, acc


@triton.jit
def hide(s, start, last_key, block_kv: tl.constexpr):
    """s, the scores of the keys from start on, with −∞ behind the last key of each row."""
    key = start + tl.arange(0, block_kv)
    return tl.where(key[None, :] <= last_key[:, None], s, float("-inf"))


@triton.jit
def visible_keys(
    first, n_q, n_kv, causal: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr
):
    """(last_key, full, end) of the query rows from first on, as in `course.kernels.tile`."""
    last_key = tl.full([block_q], n_kv - 1, tl.int32)
    full, end = n_kv, n_kv
    if causal:
        diagonal = first + n_kv - n_q
        last_key = tl.minimum(diagonal + tl.arange(0, block_q), n_kv - 1)
        full = tl.minimum(tl.maximum(diagonal + 1, 0), n_kv)
        end = tl.minimum(tl.maximum(diagonal + block_q, 0), n_kv)
    return last_key, full // block_kv * block_kv, end


@triton.jit
def visit(
    state, q, k_ptr, v_ptr, first, last, last_key, c, n_kv, d,
    block_kv: tl.constexpr, block_d: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """The state after the keys first … last − 1, a tile at a time."""
    m, l, acc = state
    for start in tl.range(first, last, block_kv):
        k = load_tile(k_ptr, start, n_kv, d, block_kv, block_d)
        s = tl.dot(q, k.T, input_precision="ieee")
        if masked:
            s = hide(s, start, last_key, block_kv)
        v = load_tile(v_ptr, start, n_kv, d, block_kv, block_d)
        m, l, acc = step(m, l, acc, s, v, c)
    return m, l, acc


@triton.jit(do_not_specialize=["n", "n_kv"])
def flash_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, scale, n, n_kv, d, causal: tl.constexpr,
    block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One tile of o and its natural lse; q, o (heads, n, d), k, v (heads, n_kv, d), no gaps."""
    tiles = tl.cdiv(n, block_q)
    tile, head = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    if causal:  # the rows with the most keys first, so that no long program starts last
        tile = tiles - 1 - tile
    first, queries, keys = tile * block_q, head * n * d, head * n_kv * d
    last_key, full, end = visible_keys(first, n, n_kv, causal, block_q, block_kv)

    q = load_tile(q_ptr + queries, first, n, d, block_q, block_d)
    m = tl.full([block_q], float("-inf"), tl.float32)
    l = tl.zeros([block_q], tl.float32)
    acc = tl.zeros([block_q, block_d], tl.float32)
    c = scale * 1.4426950408889634  # log₂ e
    state = visit(
        (m, l, acc), q, k_ptr + keys, v_ptr + keys, 0, full, last_key, c, n_kv, d,
        block_kv, block_d, False,
    )  # fmt: skip
    m, l, acc = visit(
        state, q, k_ptr + keys, v_ptr + keys, full, end, last_key, c, n_kv, d,
        block_kv, block_d, True,
    )  # fmt: skip

    l = tl.where(last_key < 0, 1.0, l)  # no key to see: o = 0 / 1, and m alone makes the lse −∞
    store_tile(o_ptr + queries, acc / l[:, None], first, n, d, block_q, block_d)
    row = first + tl.arange(0, block_q)
    lse = (m + tl.log2(l)) * 0.6931471805599453  # ln 2
    tl.store(lse_ptr + head * n + row, lse, mask=row < n)


def flash(q, k, v, causal=False, block_q=16, block_kv=16, **options):
    """o and lse of q (heads, N, d) and k, v (heads, N_kv, d); options: num_warps, num_stages.

    Raises ValueError for BF16 in the interpreter.
    """
    if kernels.interpreted and q.dtype == torch.bfloat16:
        raise ValueError("Triton's interpreter multiplies BF16 wrongly. Use FP32 or FP16 here.")
    q, k, v = (x.contiguous() for x in (q, k, v))  # the kernel counts on it
    heads, n, d = q.shape
    o, lse = torch.empty_like(q), torch.empty(heads, n, device=q.device)
    block_d = max(16, triton.next_power_of_2(d))
    flash_kernel[(triton.cdiv(n, block_q) * heads,)](
        q, k, v, o, lse, d**-0.5, n, k.shape[1], d, causal, block_q, block_kv, block_d, **options
    )
    return o, lse
