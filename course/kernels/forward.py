"""FlashAttention forward: one program owns one tile of query rows and walks over the keys.

The state is the one of `course.softmax`: m, the running maximum; l, the running sum; acc, the
running output, not yet divided. m is kept in base 2: the scale times log2 e is folded into one
multiplication, and exp becomes exp2.
"""

import triton
import triton.language as tl

from course.kernels.tile import (
    LOG2E,
    dot,
    load_tile,
    round_to,
    row_offsets,
    store_tile,
    visible_keys,
)


@triton.jit
def visit(
    state, q, k, v, b, h, first, last, last_key, scale,
    block_kv: tl.constexpr, block_d: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Add the keys first … last − 1 to the state, a tile at a time."""
    m, l, acc = state
    for start in tl.range(first, last, block_kv):
        s = dot(q, load_tile(k, b, h, start, block_kv, block_d).T)
        if masked:
            column = start + tl.arange(0, block_kv)
            s = tl.where(column[None, :] <= last_key[:, None], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * scale)
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)  # no key yet: −∞ − (−∞) is NaN
        p = tl.exp2(s * scale - shift[:, None])
        alpha = tl.exp2(m - shift)
        l = l * alpha + tl.sum(p, 1)
        v_tile = load_tile(v, b, h, start, block_kv, block_d)
        acc = dot(round_to(p, v_tile.dtype), v_tile, acc * alpha[:, None])
        m = m_new
    return m, l, acc


@triton.jit(do_not_specialize=["heads", "n_q", "n_kv"])
def forward_kernel(
    q, k, v, o, o_rest, m_out, inv_l_out, scale, heads, n_q, n_kv,
    group: tl.constexpr, keep_rest: tl.constexpr, causal: tl.constexpr,
    block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One tile of o, and what its lse = m + log l is made of: m and 1/l. Needs scale > 0.

    keep_rest also stores what rounding takes from o: the backward pass subtracts numbers that
    nearly cancel where one key dominates, and the rounding of o would be all that is left.
    """
    tiles = tl.cdiv(n_q, block_q)
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    if causal:  # the rows with the most keys first, so that no long program starts last
        tile = tiles - 1 - tile
    b, h = head // heads, head % heads
    first = tile * block_q
    last_key, full, end = visible_keys(first, n_q, n_kv, causal, block_q, block_kv)

    q_tile = load_tile(q, b, h, first, block_q, block_d)
    m = tl.full([block_q], float("-inf"), tl.float32)
    l = tl.zeros([block_q], tl.float32)
    acc = tl.zeros([block_q, block_d], tl.float32)
    state = visit(
        (m, l, acc), q_tile, k, v, b, h // group, 0, full, last_key, scale * LOG2E,
        block_kv, block_d, False,
    )  # fmt: skip
    m, l, acc = visit(
        state, q_tile, k, v, b, h // group, full, end, last_key, scale * LOG2E,
        block_kv, block_d, True,
    )  # fmt: skip

    l = tl.where(last_key < 0, 1.0, l)  # no key to see: o = 0 / 1, and m alone makes the lse −∞
    inv_l = tl.div_rn(1.0, l)
    o_tile = acc * inv_l[:, None]
    store_tile(o, b, h, first, o_tile, block_q, block_d)
    if keep_rest:
        rest = o_tile - round_to(o_tile, q_tile.dtype).to(tl.float32)
        store_tile(o_rest, b, h, first, rest, block_q, block_d)
    at = row_offsets(head, first, n_q, block_q)
    tl.store(m_out + at, m)
    tl.store(inv_l_out + at, inv_l)
