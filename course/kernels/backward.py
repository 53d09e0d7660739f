"""FlashAttention backward: P is recomputed from Q, K and lse, never read from memory.

With P = exp(S − lse), dP = dO Vᵀ and D = rowsum(dO ∘ O), the derivation ends in
    dV = Pᵀ dO        dS = P ∘ (dP − D)        dQ = dS K · scale        dK = dSᵀ Q · scale.
Sums over queries (dK, dV) need one owner a key tile, sums over keys (dQ) one a query tile: two
kernels, each recomputing P, so that nothing is added atomically and each run gives the same bits.

lse = m + log ℓ is kept as m and 1/ℓ, so that P = exp(S − m) · 1/ℓ: in one FP32 number log ℓ would
be rounded away where scores are large (at 10⁶, by 6 %), and the rows of P would not sum to one.
That counts on the same bits of S in both passes. Tensor cores give Q Kᵀ and K Qᵀ the same (an H200:
gpu/test_attention_gpu.py). NumPy, in the interpreter, sums them in different orders on some
processors: there P is off by the rounding of S, eps · |S|.
"""

import triton
import triton.language as tl

from course.kernels.tile import (
    LOG2E,
    dot,
    load_rows,
    load_tile,
    round_to,
    row_offsets,
    store_tile,
    visible_keys,
)


@triton.jit(do_not_specialize=["heads", "n_q"])
def delta_kernel(
    o, o_rest, do, delta_out, heads, n_q, has_rest: tl.constexpr,
    block_q: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """D = rowsum(dO ∘ O), which equals rowsum(P ∘ dP): what the softmax takes from each row."""
    tiles = tl.cdiv(n_q, block_q)
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h, first = head // heads, head % heads, tile * block_q
    o_tile = load_tile(o, b, h, first, block_q, block_d).to(tl.float32)
    if has_rest:
        o_tile += load_tile(o_rest, b, h, first, block_q, block_d).to(tl.float32)
    do_tile = load_tile(do, b, h, first, block_q, block_d).to(tl.float32)
    at = row_offsets(head, first, n_q, block_q)
    tl.store(delta_out + at, tl.sum(o_tile * do_tile, 1))


@triton.jit
def visit_queries(
    grads, k_tile, v_tile, q, do, rows, b, h, head, first, last, full, whole, first_row, n_q, scale,
    block_q: tl.constexpr, block_d: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Add what the queries first … last − 1 give to dk and dv. Tiles lie keys × queries here.

    masked: the queries before `full`, and then, in place of those after it, those after `whole`.
    """
    dk, dv = grads
    m, inv_l, delta = rows
    for step in tl.range(first, last, block_q):
        start = step
        if masked:
            start = tl.where(step < full, step, step - full + whole)
        q_tile = load_tile(q, b, h, start, block_q, block_d)
        do_tile = load_tile(do, b, h, start, block_q, block_d)
        m_row = load_rows(m, head, start, n_q, block_q)
        inv_l_row = load_rows(inv_l, head, start, n_q, block_q)
        delta_row = load_rows(delta, head, start, n_q, block_q)
        s_t = dot(k_tile, q_tile.T)
        p_t = tl.exp2(s_t * scale - m_row[None, :]) * inv_l_row[None, :]
        if masked:
            row = start + tl.arange(0, block_q)[None, :]
            seen = (row >= first_row[:, None]) & (row < n_q)
            p_t = tl.where(seen, p_t, 0.0)
        dv = dot(round_to(p_t, do_tile.dtype), do_tile, dv)
        dp_t = dot(v_tile, do_tile.T)
        ds_t = p_t * (dp_t - delta_row[None, :])
        if masked:  # p is 0 there, but 0 · NaN is NaN
            ds_t = tl.where(seen, ds_t, 0.0)
        dk = dot(round_to(ds_t, q_tile.dtype), q_tile, dk)
    return dk, dv


@triton.jit(do_not_specialize=["heads", "n_q", "n_kv"])
def dkdv_kernel(
    q, k, v, do, dk_out, dv_out, m, inv_l, delta, scale, heads, n_q, n_kv, group: tl.constexpr,
    causal: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One tile of dk and dv, summed over the `group` query heads that share the K/V head."""
    tiles = tl.cdiv(n_kv, block_kv)
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h, first = head // heads, head % heads, tile * block_kv

    # The queries of a head, in whole tiles from 0, and which keys of this tile they see:
    #
    #     0          some         full                     whole      n_q
    #     |-- none --|-- a part --|---------- all ---------|-- all ---|
    #                |-- masked --|------- unmasked -------|- masked -|  (the last fill no tile)
    #
    # first_row is the first query to see each key.
    first_row = tl.zeros([block_kv], tl.int32)
    some, full = 0, 0
    if causal:
        diagonal = first + n_q - n_kv
        first_row = diagonal + tl.arange(0, block_kv)
        some = tl.minimum(tl.maximum(diagonal, 0), n_q) // block_q * block_q
        full = tl.cdiv(tl.minimum(tl.maximum(diagonal + block_kv - 1, 0), n_q), block_q) * block_q
    whole = tl.maximum(n_q // block_q * block_q, full)

    k_tile = load_tile(k, b, h, first, block_kv, block_d)
    v_tile = load_tile(v, b, h, first, block_kv, block_d)
    dk = tl.zeros([block_kv, block_d], tl.float32)
    dv = tl.zeros([block_kv, block_d], tl.float32)
    rows = m, inv_l, delta
    for h_q in range(h * group, h * group + group):
        head_q = b * heads * group + h_q
        dk, dv = visit_queries(
            (dk, dv), k_tile, v_tile, q, do, rows, b, h_q, head_q, some,
            full + tl.maximum(n_q - whole, 0), full, whole, first_row, n_q, scale * LOG2E,
            block_q, block_d, True,
        )  # fmt: skip
        dk, dv = visit_queries(
            (dk, dv), k_tile, v_tile, q, do, rows, b, h_q, head_q, full, whole, full, whole,
            first_row, n_q, scale * LOG2E, block_q, block_d, False,
        )  # fmt: skip
    store_tile(dk_out, b, h, first, dk * scale, block_kv, block_d)
    store_tile(dv_out, b, h, first, dv, block_kv, block_d)


@triton.jit
def visit_keys(
    dq, q_tile, do_tile, rows, k, v, b, h, first, last, last_key, scale,
    block_kv: tl.constexpr, block_d: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Add what the keys first … last − 1 give to dq."""
    m, inv_l, delta = rows
    for start in tl.range(first, last, block_kv):
        k_tile = load_tile(k, b, h, start, block_kv, block_d)
        v_tile = load_tile(v, b, h, start, block_kv, block_d)
        s = dot(q_tile, k_tile.T)
        p = tl.exp2(s * scale - m[:, None]) * inv_l[:, None]
        if masked:
            column = start + tl.arange(0, block_kv)
            p = tl.where(column[None, :] <= last_key[:, None], p, 0.0)
        dp = dot(do_tile, v_tile.T)
        ds = p * (dp - delta[:, None])
        if masked:
            ds = tl.where(column[None, :] <= last_key[:, None], ds, 0.0)
        dq = dot(round_to(ds, k_tile.dtype), k_tile, dq)
    return dq


@triton.jit(do_not_specialize=["heads", "n_q", "n_kv"])
def dq_kernel(
    q, k, v, do, dq_out, m, inv_l, delta, scale, heads, n_q, n_kv, group: tl.constexpr,
    causal: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One tile of dq."""
    tiles = tl.cdiv(n_q, block_q)
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    if causal:
        tile = tiles - 1 - tile
    b, h, first = head // heads, head % heads, tile * block_q
    last_key, full, end = visible_keys(first, n_q, n_kv, causal, block_q, block_kv)

    q_tile = load_tile(q, b, h, first, block_q, block_d)
    do_tile = load_tile(do, b, h, first, block_q, block_d)
    rows = (
        load_rows(m, head, first, n_q, block_q),
        load_rows(inv_l, head, first, n_q, block_q),
        load_rows(delta, head, first, n_q, block_q),
    )
    dq = tl.zeros([block_q, block_d], tl.float32)
    dq = visit_keys(
        dq, q_tile, do_tile, rows, k, v, b, h // group, 0, full, last_key, scale * LOG2E,
        block_kv, block_d, False,
    )  # fmt: skip
    dq = visit_keys(
        dq, q_tile, do_tile, rows, k, v, b, h // group, full, end, last_key, scale * LOG2E,
        block_kv, block_d, True,
    )  # fmt: skip
    store_tile(dq_out, b, h, first, dq * scale, block_q, block_d)
