"""Few queries over many keys: the keys are split over programs, their states merged at the end.

With one query a head, one program a head would leave most of the GPU idle while a few SMs walk
over all the keys. So every program takes a chunk of the keys and stores the state of
`course.softmax`, (m, l, o not yet divided); a second kernel merges them by the same rule.

The query heads that share a K/V head are rows of one tile, so each key is loaded once for all of
them. K and V lie in one piece, or in pages that a table finds.
"""

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from course.kernels import interpreted, tiles
from course.kernels.guard import on_device
from course.kernels.launch import aligned, cdiv, empty_aligned, operand, operands
from course.kernels.tile import LOG2E, dot, load_tile, round_to, store_tile


@triton.jit
def find(table, b, first, page: tl.constexpr, block: tl.constexpr):
    """(place, exists): the page of a tile of keys, or where pages are small, of each key of it."""
    places, pages, most = table  # pages of each batch; how many there are in all
    if page % block == 0:
        place = tl.load(places + b * pages + first // page)
    else:
        at = (first + tl.arange(0, block)) // page
        place = tl.load(places + b * pages + at, mask=at < pages, other=0)
    exists = (place >= 0) & (place < most)
    return tl.where(exists, place, 0), exists


@triton.jit
def load_keys(
    x, place, b, h, first, page: tl.constexpr, block: tl.constexpr, block_d: tl.constexpr
):
    """A tile of keys or values of batch b: in one piece, on one page, or gathered key by key."""
    if page is None:
        return load_tile(x, b, h, first, block, block_d)
    elif page % block == 0:
        return load_tile(x, place, h, first % page, block, block_d)
    else:
        pointer, _, d, stride_page, stride_h, stride_n = x
        unit: tl.constexpr = 128 // pointer.dtype.element_ty.primitive_bitwidth
        row, column = (first + tl.arange(0, block)) % page, tl.arange(0, block_d)
        offset = (place.to(tl.int64) * stride_page + h * stride_h + row * stride_n) * unit
        pointers = pointer + offset[:, None] + column[None, :]
        return tl.load(pointers, mask=(column < d)[None, :], other=0.0)


@triton.jit
def visit(
    state, q, k, v, table, b, h, first, last, last_key, scale, page: tl.constexpr,
    block_kv: tl.constexpr, block_d: tl.constexpr, masked: tl.constexpr, stale: tl.constexpr,
):  # fmt: skip
    """Add the keys first … last − 1 to the state, a tile at a time.

    Past the last key may lie what is `stale`, NaN even, whose weight of zero would not be enough.
    """
    m, l, acc = state
    for start in tl.range(first, last, block_kv):
        place = 0
        if page is not None:
            place, exists = find(table, b, start, page, block_kv)
        s = dot(q, load_keys(k, place, b, h, start, page, block_kv, block_d).T)
        if page is not None:  # a page that does not exist: NaN is loud, its neighbour's keys not
            s = tl.where(exists, s, float("nan"))
        column = start + tl.arange(0, block_kv)
        if masked:
            s = tl.where(column[None, :] <= last_key[:, None], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * scale)
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)  # no key yet: −∞ − (−∞) is NaN
        p = tl.exp2(s * scale - shift[:, None])
        alpha = tl.exp2(m - shift)
        l = l * alpha + tl.sum(p, 1)
        v_tile = load_keys(v, place, b, h, start, page, block_kv, block_d)
        if masked and stale:
            v_tile = tl.where((column < last)[:, None], v_tile, 0.0).to(v_tile.dtype)
        acc = dot(round_to(p, v_tile.dtype), v_tile, acc * alpha[:, None])
        m = m_new
    return m, l, acc


@triton.jit(do_not_specialize=["n_q", "n_kv", "rows", "chunk", "splits"])
def split_kernel(
    q, k, v, table, lengths, o, m_out, l_out, scale, heads, n_q, n_kv, rows, chunk, splits,
    page: tl.constexpr, causal: tl.constexpr, alone: tl.constexpr, early: tl.constexpr,
    block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """The state of one tile of rows over one chunk of keys. Needs scale > 0.

    Row r of a K/V head is query r mod n_q of its query head r div n_q. A program that is `alone`
    with its rows divides by l at once: what it stores is o.
    """
    row_tiles = tl.cdiv(rows, block_q)
    tile, at = tl.program_id(0) % row_tiles, tl.program_id(0) // row_tiles  # neighbours share keys
    split, head = at % splits, at // splits
    b, h = head // heads, head % heads
    if lengths is not None:
        room = n_kv
        n_kv = tl.load(lengths + b)
        good = (n_kv >= 0) & (n_kv <= room)
        scale, n_kv = tl.where(good, scale, float("nan")), tl.where(good, n_kv, room)  # NaN is loud
    row = tile * block_q + tl.arange(0, block_q)
    first, last = split * chunk, tl.minimum((split + 1) * chunk, n_kv)
    last_key = tl.full([block_q], last - 1, tl.int32)
    full = last
    if causal:
        last_key = tl.minimum(row % n_q + n_kv - n_q, last - 1)
        full = tl.minimum(n_kv - n_q + 1, last)  # the first query sees the fewest keys
    full = first + tl.maximum(full - first, 0) // block_kv * block_kv

    stale: tl.constexpr = page is not None or lengths is not None
    q_tile = load_tile(q, b, h, tile * block_q, block_q, block_d)
    m = tl.full([block_q], float("-inf"), tl.float32)
    l = tl.zeros([block_q], tl.float32)
    acc = tl.zeros([block_q, block_d], tl.float32)
    state = visit(
        (m, l, acc), q_tile, k, v, table, b, h, first, full, last_key, scale * LOG2E,
        page, block_kv, block_d, False, stale,
    )  # fmt: skip
    m, l, acc = visit(
        state, q_tile, k, v, table, b, h, full, last, last_key, scale * LOG2E,
        page, block_kv, block_d, True, stale,
    )  # fmt: skip

    if early:  # the merge may be set up from now on; it waits for what is stored below
        gdc_launch_dependents()
    if alone:
        l = tl.where(last_key < 0, 1.0, l)  # no key to see: o = 0 / 1
        acc *= tl.div_rn(1.0, l)[:, None]
    store_tile(o, head, split, tile * block_q, acc, block_q, block_d)
    exists = row < rows
    tl.store(m_out + at.to(tl.int64) * rows + row, m, mask=exists)
    tl.store(l_out + at.to(tl.int64) * rows + row, l, mask=exists)


@triton.jit(do_not_specialize=["rows", "splits"])
def merge_kernel(
    parts, m_in, l_in, o, m_out, l_out, rows, d, stride, splits,
    early: tl.constexpr, block_s: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One row of o from the states of its splits: the rule of `course.softmax.merge`."""
    out = tl.program_id(0).to(tl.int64)
    head, row = out // rows, out % rows
    split, column = tl.arange(0, block_s), tl.arange(0, block_d)
    exists = split < splits
    at = (head * splits + split) * rows + row
    if early:
        gdc_wait()
    m_part = tl.load(m_in + at, mask=exists, other=float("-inf"))
    l_part = tl.load(l_in + at, mask=exists, other=0.0)
    m = tl.max(m_part, 0)
    alpha = tl.exp2(m_part - tl.where(m == float("-inf"), 0.0, m))
    l = tl.sum(alpha * l_part, 0)
    l = tl.where(m == float("-inf"), tl.where(l == 0.0, 1.0, l), l)
    part = tl.load(parts + at[:, None] * block_d + column[None, :], mask=exists[:, None], other=0.0)
    acc = tl.sum(alpha[:, None] * part, 0) * tl.div_rn(1.0, l)
    tl.store(o + out * stride + column, round_to(acc, o.dtype.element_ty), mask=column < d)
    tl.store(m_out + out, m)
    tl.store(l_out + out, l)


START = 256  # what a program costs before and after its keys, in keys; measured on an H200
GATHER = 64  # pages of fewer keys than this, or of no multiple of it, are gathered key by key


def choose(rows, d, itemsize, shared_memory, page=None):
    """(tile, how many programs share an SM) for so many query rows a K/V head.

    Waiting for memory is all there is to do, so K and V in flight fill the shared memory. Eight
    warps, from 128 rows on, share each tile of keys.
    """
    row_bytes = tiles.padded(d) * itemsize
    block_q = max(16, min(128, triton.next_power_of_2(rows)))
    while block_q >= 16:
        for block_kv, stages in ((128, 3), (64, 3), (64, 2), (32, 2), (16, 1)):
            takes = (block_q + 2 * stages * block_kv) * row_bytes + 1024  # and some barriers
            whole = page is None or page < GATHER or page % GATHER or page % block_kv == 0
            if takes <= shared_memory and whole:
                tile = tiles.Tile(block_q, block_kv, 8 if block_q == 128 else 4, stages)
                return tile, max(1, min(4, shared_memory // takes))
        block_q //= 2
    raise ValueError(
        f"no tile fits this GPU: a block may use {shared_memory:,} bytes of shared memory, too few "
        f"for head dimension {d} with {itemsize} bytes an element."
    )


def count_splits(walks, n_kv, block_kv, slots):
    """Into how many chunks to cut the keys of each of `walks`, where `slots` programs run at once.

    The programs of all chunks take waves × (keys of a chunk + START): the split where that is least.
    """
    most = cdiv(n_kv, block_kv)

    def keys(split):
        return cdiv(walks * split, slots) * (cdiv(most, split) * block_kv + START)

    return min(range(1, max(1, min(most, 4 * slots // walks)) + 1), key=keys)


def forward(q, k, v, *, causal, scale, lengths=None, table=None, how=None, split=None):
    """(o, m, l) for checked, non-empty q, k, v and scale > 0; m (base 2) and l are (B, H, N)."""
    (b, h, n_q, d), heads = q.shape, k.shape[1]
    rows = h // heads * n_q
    page = k.shape[2] if table is not None else None
    n_kv = table.shape[1] * page if page else k.shape[2]
    sms, shared_memory = gpu(q.device.index)
    tile, per_sm = how or choose(rows, d, q.element_size(), shared_memory, page)
    k, v = aligned(k), aligned(v)
    q = aligned(q.reshape(b, heads, rows, d))
    walks = b * heads * cdiv(rows, tile.block_q)
    split = split or count_splits(walks, n_kv, tile.block_kv, per_sm * sms)
    chunk = cdiv(cdiv(n_kv, tile.block_kv), split) * tile.block_kv
    split = cdiv(n_kv, chunk)

    merged = split > 1
    early = merged and not interpreted and tiles.gpu(q.device.index)[0] >= 90
    o = empty_aligned((b * heads, 1, rows, d), q)
    m, l = q.new_empty(2, b * heads, split, rows, dtype=torch.float32)
    parts = o
    if merged:
        parts = q.new_empty(b * heads, split, rows, tiles.padded(d), dtype=torch.float32)
    gathered = page is not None and page % tile.block_kv != 0
    keys = [operand(x, tile.block_kv, plain=gathered) for x in (k, v)]
    if table is not None:
        table = table.contiguous(), table.shape[1], k.shape[0]
    meta = {name: value for name, value in tile._asdict().items() if value is not None}
    with on_device(q):
        split_kernel[(walks * split,)](
            *operands(tile.block_q, q), *keys, table, lengths, operand(parts, tile.block_q),
            m, l, scale, heads, n_q, n_kv, rows, chunk, split, page, causal, not merged, early,
            block_d=tiles.padded(d), **meta,
        )  # fmt: skip
        if merged:
            states, (m, l) = (m, l), q.new_empty(2, b * heads, rows, dtype=torch.float32)
            merge_kernel[(b * heads * rows,)](
                parts, *states, o, m, l, rows, d, o.stride(2), split,
                early, triton.next_power_of_2(split), tiles.padded(d), num_warps=2,
                **({"launch_pdl": True} if early else {}),
            )  # fmt: skip
    return o.view(b, h, n_q, d), m.view(b, h, n_q), l.view(b, h, n_q)


@functools.cache
def gpu(index):
    """(SMs, bytes of shared memory a block may use); in the interpreter those of an H200."""
    if interpreted:
        return 132, 232_448
    properties = torch.cuda.get_device_properties(index)
    return properties.multi_processor_count, properties.shared_memory_per_block_optin
