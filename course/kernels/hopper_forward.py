"""FlashAttention forward for Hopper, in Gluon: who copies, who multiplies, and when, spelled out.

The mathematics and the names are those of `forward.py`. What is new is the division of work. One
warp group of a block only fetches K and V tiles with the copy engine, into a ring of slots in shared
memory. The others, the consumers, own 64 query rows each and compute. Each slot has two barriers:
`full` says that its tile has arrived, `empty` that all consumers are done with it.

`Schedule` says which ideas are switched on, so that each can be measured against the one before.
"""

from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from course.kernels.guard import on_device

# Triton 3.6 … 3.8 | 3.9: the copy engine's functions changed their names.
fetch = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
put = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

ROWS = gl.constexpr(64)  # of one consumer: what one instruction of a warp group multiplies
LOG2E = gl.constexpr(1.4426950408889634)


class Schedule(NamedTuple):
    """How the work of one block is divided and ordered.

    consumers    warp groups that compute, of 64 query rows each: 2, or 3 where registers allow
    block_kv     keys a tile
    stages       slots for tiles of K, and as many of V
    overlap      Q Kᵀ of the next tile is issued before P V of this one, whose softmax is done
    ping_pong    consumers issue their products in turn: while one multiplies, the other's exp run
    pinned       the softmax may not be moved below the wait for P V (the compiler does, see `pin`)
    persistent   as many blocks as SMs, each of which walks over tiles; else a block a tile
    """

    consumers: int = 2
    block_kv: int = 128
    stages: int = 2
    overlap: bool = True
    ping_pong: bool = False
    pinned: bool = False
    persistent: bool = False


@gluon.jit
def slot(use, stages: gl.constexpr):
    """Where in a ring the use-th tile lies, and the parity of its round."""
    return use % stages, (use // stages) & 1


@gluon.jit
def work(t, heads, n_q, n_kv, causal: gl.constexpr, block_q: gl.constexpr, block_kv: gl.constexpr):
    """Of tile t: (b, h, first row, tiles of keys that every row sees whole, tiles in all)."""
    row_tiles = gl.cdiv(n_q, block_q)
    tile, head = t % row_tiles, t // row_tiles
    full, end = n_kv, n_kv
    if causal:  # the rows with the most keys first, so that no long tile starts last
        tile = row_tiles - 1 - tile
        diagonal = tile * block_q + n_kv - n_q
        full = gl.minimum(gl.maximum(diagonal + 1, 0), n_kv)
        end = gl.minimum(gl.maximum(diagonal + block_q, 1), n_kv)
    return head // heads, head % heads, tile * block_q, full // block_kv, gl.cdiv(end, block_kv)


@gluon.jit
def producer(
    fetches, group: gl.constexpr, causal: gl.constexpr, block_kv: gl.constexpr, consumers: gl.constexpr,
    stages: gl.constexpr,
):  # fmt: skip
    """Fetch Q, then K and V tile by tile, as fast as slots become empty."""
    q, k, v, q_ring, k_ring, v_ring, n_work, heads, n_q, n_kv = fetches
    q_tiles, q_full, q_empty = q_ring
    k_tiles, k_full, k_empty = k_ring
    v_tiles, v_full, v_empty = v_ring
    turn, use = 0, 0
    for t in range(gl.program_id(0), n_work, gl.num_programs(0)):
        b, h, first, _, tiles = work(t, heads, n_q, n_kv, causal, consumers * ROWS, block_kv)
        for c in gl.static_range(consumers):
            mbarrier.wait(q_empty.index(c), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(c), q.block_type.nbytes)
            fetch(q, [b, h, first + c * ROWS, 0], q_full.index(c), q_tiles.index(c))
        for j in range(tiles):
            i, parity = slot(use, stages)
            mbarrier.wait(k_empty.index(i), parity ^ 1)
            mbarrier.expect(k_full.index(i), k.block_type.nbytes)
            fetch(k, [b, h // group, j * block_kv, 0], k_full.index(i), k_tiles.index(i))
            mbarrier.wait(v_empty.index(i), parity ^ 1)
            mbarrier.expect(v_full.index(i), v.block_type.nbytes)
            fetch(v, [b, h // group, j * block_kv, 0], v_full.index(i), v_tiles.index(i))
            use += 1
        turn += 1


@gluon.jit
def partial_sum(p):
    """Each thread's own share of the row sums: joined across threads only at the very end."""
    return gl.sum(gl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), 1)


@gluon.jit
def hide(s, start, last_key):
    """The scores, −∞ where a row may not see the key."""
    column = start + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
    return gl.where(column[None, :] <= last_key[:, None], s, float("-inf"))


@gluon.jit
def softmax(s, m, l, scale, masked: gl.constexpr):
    """(p, alpha, m, l): the step of `course.softmax.update`, l kept as partial sums."""
    m_new = gl.maximum(m, gl.max(s, 1) * scale)
    shift = m_new
    if masked:  # a row may have seen no key yet: −∞ − (−∞) is NaN
        shift = gl.where(m_new == float("-inf"), 0.0, m_new)
    p = gl.exp2(s * scale - shift[:, None])
    alpha = gl.exp2(m - shift)
    l = l * gl.convert_layout(alpha, gl.SliceLayout(1, l.type.layout))[:, None] + partial_sum(p)
    return p, alpha, m_new, l


@gluon.jit
def pin(l):
    """l, through a store that never happens but might: what l depends on comes before it.

    ptxas moves the exponentials below the wait for P V, where nothing is left to overlap with.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred never; .reg .u32 at; setp.lt.f32 never, $1, 0f00000000; mov.u32 at, 0; "
        "@never st.volatile.shared.f32 [at], $1; mov.b32 $0, $1; }",
        "=f,f", [l], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def issue_scores(
    q, k_ring, turns, use, count, c: gl.constexpr, ping_pong: gl.constexpr, stages: gl.constexpr
):
    """Start S = Q Kᵀ of the use-th tile once it has arrived and, with ping_pong, it is our turn."""
    k_tiles, k_full, _ = k_ring
    block_kv: gl.constexpr = k_tiles.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block_kv, 16])
    i, parity = slot(use, stages)
    mbarrier.wait(k_full.index(i), parity)
    if ping_pong:
        mbarrier.wait(turns.index(c), count & 1)
    k = k_tiles.index(i).reshape([block_kv, q.shape[1]])
    zeros = gl.zeros([ROWS, block_kv], gl.float32, layout)
    return warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def issue_output(p, acc, v_ring, use, stages: gl.constexpr):
    """Start acc + P V of the use-th tile once it has arrived."""
    v_tiles, v_full, _ = v_ring
    i, parity = slot(use, stages)
    mbarrier.wait(v_full.index(i), parity)
    v = v_tiles.index(i).reshape([p.shape[1], acc.shape[1]])
    return warpgroup_mma(p, v, acc, is_async=True)


@gluon.jit
def release(ring, use, stages: gl.constexpr):
    """Say that this consumer is done with the use-th tile."""
    _, _, empty = ring
    mbarrier.arrive(empty.index(use % stages), count=1)


@gluon.jit
def pass_turn(turns, c: gl.constexpr, consumers: gl.constexpr):
    """Let the next consumer issue its products."""
    mbarrier.arrive(turns.index((c + 1) % consumers), count=1)


@gluon.jit
def visit(
    state, use, count, first, last, q, k_ring, v_ring, turns, last_key, scale,
    c: gl.constexpr, consumers: gl.constexpr, stages: gl.constexpr, overlap: gl.constexpr,
    ping_pong: gl.constexpr, pinned: gl.constexpr, masked: gl.constexpr,
):  # fmt: skip
    """Add tiles first … last − 1 to the state. With `overlap`, P V of a tile waits for the next."""
    m, l, acc, p = state
    block_kv: gl.constexpr = p.shape[1]
    for j in range(first, last):
        s = issue_scores(q, k_ring, turns, use, count, c, ping_pong, stages)
        if overlap:
            acc = issue_output(p, acc, v_ring, use - 1, stages)
        if ping_pong:
            pass_turn(turns, c, consumers)
        s = warpgroup_mma_wait(overlap, deps=[s])  # so many younger products may still run
        release(k_ring, use, stages)
        if masked:
            s = hide(s, j * block_kv, last_key)
        p_new, alpha, m, l = softmax(s, m, l, scale, masked)
        p_new = gl.convert_layout(p_new.to(p.dtype), p.type.layout)
        if overlap:
            if pinned:
                l = pin(l)
            acc, p = warpgroup_mma_wait(0, deps=[acc, p])
            release(v_ring, use - 1, stages)
        alpha = gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))
        acc *= alpha[:, None]
        p = p_new
        if not overlap:
            acc = issue_output(p, acc, v_ring, use, stages)
            acc, p = warpgroup_mma_wait(0, deps=[acc, p])
            release(v_ring, use, stages)
        use += 1
        count += 1
    return (m, l, acc, p), use, count


@gluon.jit
def consumer(
    computes, shape, scale, keep_rest: gl.constexpr, causal: gl.constexpr, c: gl.constexpr, consumers: gl.constexpr,
    stages: gl.constexpr, overlap: gl.constexpr, ping_pong: gl.constexpr, pinned: gl.constexpr,
):  # fmt: skip
    """64 rows of each tile of work: o, m and 1/l."""
    o, o_rest, m_out, inv_l_out, q_ring, k_ring, v_ring, turns, o_tiles = computes
    n_work, heads, n_q, n_kv = shape
    q_tiles, q_full, q_empty = q_ring
    block_kv: gl.constexpr = k_ring[0].shape[3]
    block_d: gl.constexpr = q_tiles.shape[4]
    dtype: gl.constexpr = o.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block_kv, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block_d, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    q = q_tiles.index(c).reshape([ROWS, block_d])
    turn, use, count = 0, 0, 0
    for t in range(gl.program_id(0), n_work, gl.num_programs(0)):
        b, h, first, full, tiles = work(t, heads, n_q, n_kv, causal, consumers * ROWS, block_kv)
        row = first + c * ROWS + gl.arange(0, ROWS, row_layout)
        last_key = gl.full([ROWS], n_kv - 1, gl.int32, row_layout)
        if causal:
            last_key = gl.minimum(row + n_kv - n_q, n_kv - 1)
        m = gl.full([ROWS], float("-inf"), gl.float32, row_layout)
        acc = gl.zeros([ROWS, block_d], gl.float32, o_layout)
        p = gl.zeros([ROWS, block_kv], dtype, p_layout)
        l = partial_sum(gl.zeros([ROWS, block_kv], gl.float32, s_layout))
        mbarrier.wait(q_full.index(c), turn & 1)
        begin = 0
        if overlap:  # the first tile has no P V of a tile before to run under its softmax
            s = issue_scores(q, k_ring, turns, use, count, c, ping_pong, stages)
            if ping_pong:
                pass_turn(turns, c, consumers)
            s = warpgroup_mma_wait(0, deps=[s])
            release(k_ring, use, stages)
            if full == 0:
                s = hide(s, 0, last_key)
            p_first, _, m, l = softmax(s, m, l, scale, True)
            p = gl.convert_layout(p_first.to(dtype), p_layout)
            use += 1
            count += 1
            begin = 1
        state = m, l, acc, p
        state, use, count = visit(
            state, use, count, begin, full, q, k_ring, v_ring, turns, last_key, scale,
            c, consumers, stages, overlap, ping_pong, pinned, False,
        )  # fmt: skip
        state, use, count = visit(
            state, use, count, gl.maximum(full, begin), tiles, q, k_ring, v_ring, turns, last_key, scale,
            c, consumers, stages, overlap, ping_pong, pinned, True,
        )  # fmt: skip
        m, l, acc, p = state
        mbarrier.arrive(q_empty.index(c), count=1)
        if overlap:
            acc = issue_output(p, acc, v_ring, use - 1, stages)
        l = gl.convert_layout(gl.sum(l, 1), row_layout)
        l = gl.where(last_key < 0, 1.0, l)  # no key to see: o = 0 / 1
        inv_l = 1.0 / l
        if overlap:
            acc, p = warpgroup_mma_wait(0, deps=[acc, p])
            release(v_ring, use - 1, stages)
        acc *= gl.convert_layout(inv_l, gl.SliceLayout(1, o_layout))[:, None]
        o_tile = o_tiles.index(c)
        tma.store_wait(0)  # of the tile before
        o_tile.reshape([ROWS, block_d]).store(acc.to(dtype))
        fence_async_shared()
        put(o, [b, h, first + c * ROWS, 0], o_tile)
        if keep_rest:
            tma.store_wait(0)
            o_tile.reshape([ROWS, block_d]).store((acc - acc.to(dtype).to(gl.float32)).to(dtype))
            fence_async_shared()
            put(o_rest, [b, h, first + c * ROWS, 0], o_tile)
        at = (b * heads + h).to(gl.int64) * (gl.cdiv(n_q, 128) * 128) + row
        gl.store(m_out + at, m, mask=row < n_q)
        gl.store(inv_l_out + at, inv_l, mask=row < n_q)
        turn += 1
    tma.store_wait(0)


@gluon.jit
def make_ring(x, count: gl.constexpr, readers: gl.constexpr):
    """(tiles, full, empty): slots for tiles of operand x that `readers` consumers read."""
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    tiles = gl.allocate_shared_memory(x.dtype, [count] + x.block_type.shape, x.layout)  # noqa: RUF005
    full = gl.allocate_shared_memory(gl.int64, [count, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [count, 1], barrier)
    for i in gl.static_range(count):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=readers)
    return tiles, full, empty


@gluon.jit(do_not_specialize=["n_work", "heads", "n_q", "n_kv"])
def forward_kernel(
    q, k, v, o, o_rest, m_out, inv_l_out, scale, n_work, heads, n_q, n_kv,
    group: gl.constexpr, keep_rest: gl.constexpr, causal: gl.constexpr,
    consumers: gl.constexpr, block_kv: gl.constexpr, stages: gl.constexpr, registers: gl.constexpr,
    overlap: gl.constexpr, ping_pong: gl.constexpr, pinned: gl.constexpr,
):  # fmt: skip
    """One producer and two or three consumers. Needs scale > 0."""
    q_ring = make_ring(q, consumers, 1)
    k_ring = make_ring(k, stages, consumers)
    v_ring = make_ring(v, stages, consumers)
    o_tiles = gl.allocate_shared_memory(o.dtype, [consumers] + o.block_type.shape, o.layout)  # noqa: RUF005
    turns = gl.allocate_shared_memory(gl.int64, [consumers, 1], mbarrier.MBarrierLayout())
    for c in gl.static_range(consumers):
        mbarrier.init(turns.index(c), count=1)
    if ping_pong:
        mbarrier.arrive(turns.index(0), count=1)
    scale *= LOG2E
    fetches = q, k, v, q_ring, k_ring, v_ring, n_work, heads, n_q, n_kv
    computes = o, o_rest, m_out, inv_l_out, q_ring, k_ring, v_ring, turns, o_tiles
    shape = n_work, heads, n_q, n_kv
    if consumers == 2:
        gl.warp_specialize(
            [
                (producer, (fetches, group, causal, block_kv, 2, stages)),
                (consumer, (computes, shape, scale, keep_rest, causal, 0, 2, stages, overlap, ping_pong, pinned)),
                (consumer, (computes, shape, scale, keep_rest, causal, 1, 2, stages, overlap, ping_pong, pinned)),
            ],
            [4, 4], [registers, registers],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (producer, (fetches, group, causal, block_kv, 3, stages)),
                (consumer, (computes, shape, scale, keep_rest, causal, 0, 3, stages, overlap, ping_pong, pinned)),
                (consumer, (computes, shape, scale, keep_rest, causal, 1, 3, stages, overlap, ping_pong, pinned)),
                (consumer, (computes, shape, scale, keep_rest, causal, 2, 3, stages, overlap, ping_pong, pinned)),
            ],
            [4, 4, 4], [registers, registers, registers],
        )  # fmt: skip


REGISTERS = {2: 240, 3: 160}  # a thread of a consumer: what the producer leaves of 65,536


def launch(q, k, v, o, o_rest, m, inv_l, *, causal, scale, schedule):
    """Fill o, m, 1/l and, unless it is None, o_rest. Returns the compiled kernel."""
    (b, h, n, _), (heads_kv, n_kv) = q.shape, k.shape[1:3]
    n_work = b * h * -(-n // (ROWS.value * schedule.consumers))
    sms = torch.cuda.get_device_properties(q.device).multi_processor_count
    rest = o if o_rest is None else o_rest
    rows = [descriptor(x, ROWS.value) for x in (q, o, rest)]
    keys = [descriptor(x, schedule.block_kv) for x in (k, v)]
    with on_device(q):
        return forward_kernel[(min(n_work, sms) if schedule.persistent else n_work,)](
            rows[0], *keys, *rows[1:], m, inv_l, scale, n_work, h, n, n_kv,
            h // heads_kv, o_rest is not None, causal,
            *constants(schedule), num_warps=4,
        )  # fmt: skip


def constants(schedule):
    """The last compile-time arguments of the kernel."""
    consumers, block_kv, stages, *ideas, _persistent = schedule
    return consumers, block_kv, stages, REGISTERS[consumers], *ideas


def descriptor(x, rows):
    """How the copy engine is told of x (B, H, N, d), `rows` rows at a time."""
    block = [1, 1, rows, x.shape[3]]
    dtype = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    strides = [s if size > 1 else x.shape[3] for s, size in zip(x.stride(), x.shape, strict=True)]
    return TensorDescriptor(x, list(x.shape), [*strides[:3], 1], block, layout)
