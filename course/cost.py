"""FLOPs and bytes of an operation, counted, never timed.

A `Cost` says how much arithmetic an operation does and how many bytes it moves between main memory
(HBM) and the chip. One fused multiply-add is 2 FLOP; bytes are what the algorithm asks of memory,
before any cache. Whether a cache serves some of them is a question for measurement.

Sizes are whole numbers (NumPy's or 16e9 will do) and become Python integers, which cannot overflow.
Every function here raises ValueError, in one line, for a size that is negative or not whole, and
for a yes or no that is neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

STATISTIC_BYTES = 4  # lse and delta, one FP32 number a row each


def whole(least: int = 0, /, **sizes: float) -> list[int]:
    """The sizes as Python integers, or a ValueError that names the one which is no size."""
    return [_whole(name, size, least) for name, size in sizes.items()]


def _whole(name, size, least):
    try:
        number = int(size)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or number != size or number < least:
        raise ValueError(f"{name} must be a whole number, {least} or more, and is {shown(size)}.")
    return number


def true_or_false(**flags: bool) -> list[bool]:
    """The flags as Python's True or False, or a ValueError that names the one which is neither.

    "False" is none: as every text but the empty one it would count as true.
    """
    for name, flag in flags.items():
        if getattr(flag, "ndim", 0) or flag not in (True, False):
            raise ValueError(f"{name} must be True or False, and is {shown(flag)}.")
    return [bool(flag) for flag in flags.values()]


def shown(x: object) -> str:
    """What was given, for a message of one line: an array prints several."""
    text = " ".join(repr(x).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Cost:
    """FLOPs, bytes read and bytes written. Costs add: `a + b`, `sum([a, b])`, `3 * a`."""

    flops: int = 0
    read: int = 0
    written: int = 0

    def __post_init__(self):
        counts = whole(flops=self.flops, read=self.read, written=self.written)
        for name, count in zip(("flops", "read", "written"), counts, strict=True):
            object.__setattr__(self, name, count)

    @property
    def bytes(self) -> int:
        """Bytes moved, both ways."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOP per byte moved. ValueError where no byte is moved."""
        if self.bytes == 0:
            raise ValueError("This cost moves no bytes, so it has no arithmetic intensity.")
        return self.flops / self.bytes

    def __add__(self, other: Cost) -> Cost:
        """Both, one after the other."""
        if isinstance(other, Cost):
            return Cost(
                self.flops + other.flops, self.read + other.read, self.written + other.written
            )
        return self if other == 0 else NotImplemented  # sum() starts at 0

    __radd__ = __add__

    def __mul__(self, times: int) -> Cost:
        """The same, `times` over."""
        (times,) = whole(times=times)
        return Cost(times * self.flops, times * self.read, times * self.written)

    __rmul__ = __mul__


@dataclass(frozen=True)
class Op:
    """One element-wise operation of a chain: it takes the running tensor and gives it back changed.

    `reads` counts further full-size tensors, such as a residual; `stored` the bytes an element of
    what is kept for the backward pass, such as a dropout mask.
    """

    name: str = "op"
    flops: int = 1  # an element
    reads: int = 0
    stored: int = 0

    def __post_init__(self):
        whole(flops=self.flops, reads=self.reads, stored=self.stored)


OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op("bias", 1),  # the bias vector itself is one row, and is not counted
        Op("relu", 1),
        Op("gelu", 9),  # ½x(1 + tanh(√(2/π)(x + 0.044715x³)))
        Op("scale", 1),
        Op("dropout", 2),  # compare, multiply; the mask comes from a seed
        Op("stored dropout", 2, stored=1),  # the mask, one byte an element
        Op("residual", 1, reads=1),  # a second tensor
    )
}
"""Operations that `chain` knows by name."""


def elementwise(
    n: int, *, inputs: int = 1, outputs: int = 1, flops_per_element: int = 1, itemsize: int = 2
) -> Cost:
    """One kernel over n elements: each input read once, each output written once."""
    n, inputs, outputs, flops_per_element = whole(
        n=n, inputs=inputs, outputs=outputs, flops_per_element=flops_per_element
    )
    (itemsize,) = whole(1, itemsize=itemsize)
    return Cost(n * flops_per_element, n * inputs * itemsize, n * outputs * itemsize)


def chain(ops: Iterable[str | Op], n: int, *, fused: bool, itemsize: int = 2) -> Cost:
    """Element-wise operations one after the other on n elements, as one kernel or as one each.

    `ops` are names of `OPS` or `Op`s. This is the *exact* count: the residual is a second tensor, a
    stored mask is written. The simple count of many texts (one tensor in, one out, whatever the
    operation) is the count of plain `Op()`s: `chain([Op()] * 4, n, fused=False)` moves 16n bytes.
    ValueError for an empty chain or an unknown name.
    """
    (fused,) = true_or_false(fused=fused)
    several = isinstance(ops, Iterable) and not isinstance(ops, str)
    ops = [_known(op) for op in (ops if several else [ops])]
    if not ops:
        raise ValueError("A chain needs at least one operation.")
    separate = [
        elementwise(n, inputs=1 + op.reads, flops_per_element=op.flops, itemsize=itemsize)
        + elementwise(n, inputs=0, outputs=op.stored, flops_per_element=0, itemsize=1)
        for op in ops
    ]
    total = sum(separate, Cost())
    if not fused:
        return total
    # Fused, the running tensor stays on the chip: each hand-over saves one write and one read.
    saved = (len(ops) - 1) * elementwise(n, itemsize=itemsize)
    return Cost(total.flops, total.read - saved.read, total.written - saved.written)


def _known(op: str | Op) -> Op:
    if isinstance(op, Op):
        return op
    if isinstance(op, str) and op in OPS:
        return OPS[op]
    raise ValueError(f"No operation is called {shown(op)}. Known: {', '.join(OPS)}; or give an Op.")


def matmul(m: int, n: int, k: int, *, itemsize: int = 2) -> Cost:
    """C = A·B with A (m, k), B (k, n): 2mnk FLOP; A and B read once, C written once."""
    m, n, k = whole(m=m, n=n, k=k)
    (itemsize,) = whole(1, itemsize=itemsize)
    return Cost(2 * m * n * k, (m * k + k * n) * itemsize, m * n * itemsize)


def visible_pairs(n: int, n_kv: int, causal: bool) -> int:
    """(query, key) pairs that attention looks at. Causal aligns bottom-right: j ≤ i + (n_kv − n)."""
    n, n_kv = whole(n=n, n_kv=n_kv)
    (causal,) = true_or_false(causal=causal)
    if not causal:
        return n * n_kv
    rows = min(n, n_kv)  # the last rows, which see n_kv − rows + 1 … n_kv keys; earlier ones none
    return rows * (n_kv - rows) + rows * (rows + 1) // 2


def attention(
    n: int,
    d: int,
    *,
    flow: str,
    n_kv: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    causal: bool = False,
    backward: bool = False,
    itemsize: int = 2,
    block_q: int | None = None,
    block_kv: int | None = None,
) -> Cost:
    """Attention, or its backward pass alone, for n queries and n_kv keys of width d.

    flow:
      "naive"  a kernel for each step. Forward: S, softmax, PV, so four passes over an N×N matrix.
               Backward, with P stored: seven passes (P, dP, dS between five kernels).
      "ideal"  one fused kernel: each operand crosses the boundary once ("flash" says the same).
      "tiled"  what `course.attention.flash` and `flash_backward` ask of memory with these block
               sizes: K and V are read again for every Q block. Equal to their counted bytes.

    FLOPs are those of the matrix products, over the pairs that are visible: forward 4d a pair.
    Backward: naive 8d; ideal 10d, since S is computed again; tiled 14d, since it runs in two
    kernels and S and dP are needed in both. The forward pass counts no lse (inference keeps none);
    the backward pass reads lse and delta, 4 bytes each a row.

    Blocks have 64 rows unless given. ValueError for an unknown flow, for blocks without
    flow="tiled", and for heads that kv_heads does not divide.
    """
    n_kv = n if n_kv is None else n_kv
    kv_heads = heads if kv_heads is None else kv_heads
    n, n_kv, batch = whole(n=n, n_kv=n_kv, batch=batch)
    d, heads, kv_heads, itemsize = whole(1, d=d, heads=heads, kv_heads=kv_heads, itemsize=itemsize)
    causal, backward = true_or_false(causal=causal, backward=backward)
    if heads % kv_heads:
        raise ValueError(f"heads ({heads}) must be a multiple of kv_heads ({kv_heads}).")
    flow = "ideal" if flow == "flash" else flow
    if not isinstance(flow, str) or flow not in _FLOWS:
        raise ValueError(f"flow is {shown(flow)}; it must be one of {', '.join(_FLOWS)}.")
    if flow != "tiled" and (block_q, block_kv) != (None, None):
        raise ValueError(f"Only flow='tiled' has block sizes, and this is flow={flow!r}.")
    block_q, block_kv = whole(
        1,
        block_q=64 if block_q is None else block_q,
        block_kv=64 if block_kv is None else block_kv,
    )
    shape = _Shape(n, n_kv, d, heads, kv_heads, causal, itemsize, block_q, block_kv)
    products, count = _FLOWS[flow][backward]
    read, written = count(shape)
    flops = products * 2 * d * heads * visible_pairs(n, n_kv, causal)
    return batch * Cost(flops, read, written)


@dataclass(frozen=True)
class _Shape:
    n: int
    n_kv: int
    d: int
    heads: int
    kv_heads: int
    causal: bool
    itemsize: int
    block_q: int
    block_kv: int

    @property
    def q(self) -> int:  # bytes of Q, O, dQ or dO
        return self.heads * self.n * self.d * self.itemsize

    @property
    def k(self) -> int:  # bytes of K, V, dK or dV
        return self.kv_heads * self.n_kv * self.d * self.itemsize

    @property
    def s(self) -> int:  # bytes of S, P, dP or dS
        return self.heads * self.n * self.n_kv * self.itemsize

    @property
    def statistic(self) -> int:  # bytes of lse or delta
        return self.heads * self.n * STATISTIC_BYTES

    def keys_read(self) -> int:
        """Key rows that one head loads while every Q block walks over the K blocks it can see."""
        if not self.causal:
            return _blocks(self.n, self.block_q) * self.n_kv
        total = 0
        for start in range(0, self.n, self.block_q):
            last_query = min(start + self.block_q, self.n) - 1
            seen = max(last_query + 1 + self.n_kv - self.n, 0)
            total += min(_blocks(seen, self.block_kv) * self.block_kv, self.n_kv)
        return total

    def queries_read(self) -> int:
        """Query rows that one head loads while every K block walks over the Q blocks that see it."""
        if not self.causal:
            return _blocks(self.n_kv, self.block_kv) * self.n
        total = 0
        for start in range(0, self.n_kv, self.block_kv):
            first = max(start - (self.n_kv - self.n), 0)
            total += max(self.n - first // self.block_q * self.block_q, 0)
        return total


def _blocks(n, size):
    """How many blocks cover n rows; the last may be shorter."""
    return -(-n // size)


def _naive(x):  # S = QKᵀ · P = softmax(S) · O = PV
    return (x.q + x.k) + x.s + (x.s + x.k), x.s + x.s + x.q


def _naive_backward(x):  # dV = PᵀdO · dP = dOVᵀ · dS = P∘(dP − D) · dQ = dS K · dK = dSᵀQ
    read = (x.s + x.q) + (x.q + x.k) + 2 * x.s + (x.s + x.k) + (x.s + x.q)
    return read, x.k + x.s + x.s + x.q + x.k


def _ideal(x):
    return x.q + 2 * x.k, x.q


def _ideal_backward(x):  # reads Q, K, V, O, dO and lse
    return 3 * x.q + 2 * x.k + x.statistic, x.q + 2 * x.k


def _tiled(x):
    return x.q + 2 * x.heads * x.keys_read() * x.d * x.itemsize, x.q


def _tiled_backward(x):
    row, statistics = x.d * x.itemsize, 2 * STATISTIC_BYTES
    delta = 2 * x.q, x.statistic  # D = rowsum(dO ∘ O)
    columns = 2 * x.k + x.heads * x.queries_read() * (2 * row + statistics), 2 * x.k  # dK, dV
    rows = 2 * x.q + 2 * x.statistic + 2 * x.heads * x.keys_read() * row, x.q  # dQ
    return tuple(map(sum, zip(delta, columns, rows, strict=True)))


# flow: (matrix products, bytes read and written) forward, then backward
_FLOWS = {
    "naive": ((2, _naive), (4, _naive_backward)),
    "ideal": ((2, _ideal), (5, _ideal_backward)),
    "tiled": ((2, _tiled), (7, _tiled_backward)),
}


def tile_bytes(block_q: int, block_kv: int, d: int, *, itemsize: int = 2) -> int:
    """Shared memory that one Q tile, one K tile and one V tile take."""
    block_q, block_kv, d = whole(block_q=block_q, block_kv=block_kv, d=d)
    (itemsize,) = whole(1, itemsize=itemsize)
    return (block_q + 2 * block_kv) * d * itemsize


def paper_tiles(sram_bytes: int, d: int, *, itemsize: int = 2) -> tuple[int, int]:
    """(block_q, block_kv) of the FlashAttention paper (arXiv:2205.14135, algorithm 1).

    B_c = ⌈M/4d⌉ and B_r = min(B_c, d), where M counts *elements*, not bytes.
    """
    sram_bytes, d, itemsize = whole(1, sram_bytes=sram_bytes, d=d, itemsize=itemsize)
    block_kv = _blocks(sram_bytes, 4 * d * itemsize)
    return min(block_kv, d), block_kv


def kv_cache_bytes(
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    tokens: int = 1,
    batch: int = 1,
    itemsize: float = 2,
    window: int | None = None,
) -> int:
    """Bytes of K and V kept for `tokens` of each of `batch` sequences.

    head_dim is the model's own figure: hidden size / heads is wrong for some models. With a sliding
    window only the last `window` tokens are kept; add two calls for a model that mixes layers.
    Latent attention (MLA) keeps no K and V: see `latent_cache_bytes`. itemsize is 0.5 for 4 bits.
    """
    layers, kv_heads, head_dim, tokens, batch, window = whole(
        layers=layers, kv_heads=kv_heads, head_dim=head_dim, tokens=tokens, batch=batch,
        window=tokens if window is None else window,
    )  # fmt: skip
    kept = min(tokens, window) * batch
    return ceil(2 * layers * kv_heads * head_dim * kept * _size(itemsize=itemsize))


def latent_cache_bytes(
    *,
    layers: int,
    latent_dim: int,
    rope_dim: int,
    tokens: int = 1,
    batch: int = 1,
    itemsize: float = 2,
) -> int:
    """Bytes that multi-head latent attention keeps: one shared latent and one rotary key a token."""
    layers, latent_dim, rope_dim, tokens, batch = whole(
        layers=layers, latent_dim=latent_dim, rope_dim=rope_dim, tokens=tokens, batch=batch
    )
    return ceil(layers * (latent_dim + rope_dim) * tokens * batch * _size(itemsize=itemsize))


def _size(**itemsize):
    """Bytes an element, exactly: quantised ones take less than one."""
    ((name, size),) = itemsize.items()
    try:
        number = Fraction(float(size))
    except (TypeError, ValueError, OverflowError):
        number = 0
    if number <= 0 or number != size:
        raise ValueError(f"{name} must be a number of bytes above 0, and is {shown(size)}.")
    return number


LAYOUTS, WAYS = ("ring", "zigzag"), ("ring", "gather", "heads")


def shards(n: int, processes: int, layout: str = "ring") -> list[tuple[range, ...]]:
    """The rows of n that each process holds, in chunks: the last ones are shorter, or empty.

    "ring": process i holds chunk i of W. "zigzag": of 2W chunks it holds i and 2W − 1 − i, an early
    and a late one, so that all have equally much to do where a query sees only earlier keys.
    """
    n, w = whole(n=n, processes=processes)
    whole(1, processes=w)
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {shown(layout)}; it must be one of {', '.join(LAYOUTS)}.")
    count = w if layout == "ring" else 2 * w
    size = _blocks(n, count)
    chunks = [range(min(i * size, n), min((i + 1) * size, n)) for i in range(count)]
    if layout == "ring":
        return [(chunk,) for chunk in chunks]
    return [(chunks[i], chunks[-1 - i]) for i in range(w)]


def ring_pairs(n: int, processes: int, layout: str = "ring", *, causal: bool) -> list[list[int]]:
    """[step][process]: the (query, key) pairs that a process looks at in each step around the ring.

    In step s process i meets the keys of process i − s.
    """
    plan = shards(n, processes, layout)
    (causal,) = true_or_false(causal=causal)
    return [
        [_pairs(plan[i], plan[i - step], causal) for i in range(len(plan))]
        for step in range(len(plan))
    ]


def ring_idle(n: int, processes: int, layout: str = "ring", *, causal: bool) -> float:
    """The share of their time that the processes wait for the slowest of each step, wire aside."""
    steps = ring_pairs(n, processes, layout, causal=causal)
    spent = processes * sum(map(max, steps))
    return 1 - sum(map(sum, steps)) / spent if spent else 0.0


def _pairs(queries, keys, causal):
    return sum(
        visible_pairs(len(a), len(b), causal and a == b)
        for a in queries
        for b in keys
        if not causal or b.start <= a.start
    )


def ring(
    n: int,
    d: int,
    *,
    processes: int,
    rank: int = 0,
    way: str = "ring",
    layout: str = "ring",
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    causal: bool = False,
    backward: bool = False,
    itemsize: int = 2,
) -> Cost:
    """What one of the processes that share n rows computes, receives (read) and sends (written).

    Bytes are those on the wire. way: "ring", K and V go round in W − 1 exchanges; backward they do
    so again, and dK and dV, in FP32 at least, in W. "gather", each process sends its K and V to all
    others, and backward gets back what these add to dK and dV. "heads", Q, K and V are swapped from
    rows to heads and O back, without lse; backward the same with gradients. FLOPs as `attention` with
    flow="ideal": 2 matrix products, backward 5.
    """
    plan = shards(n, processes, layout)
    kv_heads = heads if kv_heads is None else kv_heads
    n, batch = whole(n=n, batch=batch)
    d, heads, kv_heads, itemsize = whole(1, d=d, heads=heads, kv_heads=kv_heads, itemsize=itemsize)
    causal, backward = true_or_false(causal=causal, backward=backward)
    w, (rank,) = len(plan), whole(rank=rank)
    if rank >= w:
        raise ValueError(f"rank is {rank}; the {w} processes are counted from 0.")
    if heads % kv_heads:
        raise ValueError(f"heads ({heads}) must be a multiple of kv_heads ({kv_heads}).")
    if way not in WAYS:
        raise ValueError(f"way is {shown(way)}; it must be one of {', '.join(WAYS)}.")
    if way == "heads" and (heads % w or kv_heads % w):
        raise ValueError(f"{heads} heads and {kv_heads} K/V heads do not divide among {w}.")
    rows = [sum(map(len, chunks)) for chunks in plan]
    row = 2 * kv_heads * d * itemsize  # K and V of a row
    own, other = rows[rank], n - rows[rank]
    if way == "ring":
        sent, received = (n - rows[(rank + 1) % w]) * row, other * row
        if backward and w > 1:
            gradients = n * 2 * kv_heads * d * max(itemsize, STATISTIC_BYTES)
            sent, received = sent + gradients, received + gradients
    elif way == "gather":
        sent, received = (w - 1) * own * row, other * row
        if backward:
            sent, received = received, sent
    else:
        # own rows of the others' heads leave and others' rows of own heads come; O goes the other way
        out, back = (heads + 2 * kv_heads) * d * itemsize // w, heads * d * itemsize // w
        if backward:
            out, back = back, out
        away = (w - 1) * own
        sent, received = away * out + other * back, other * out + away * back
    products = 5 if backward else 2
    if way == "heads":
        pairs = visible_pairs(n, n, causal) * heads // w
    else:
        pairs = sum(step[rank] for step in ring_pairs(n, w, layout, causal=causal)) * heads
    return batch * Cost(products * 2 * d * pairs, received, sent)


def decode_step(
    *,
    weight_bytes: int,
    kv_bytes: int = 0,
    batch: int = 1,
    itemsize: float = 2,
    kv_itemsize: float = 2,
    queries_per_kv_head: int = 1,
) -> Cost:
    """One token for each of `batch` sequences: the weights read once, each sequence's K and V read.

    kv_bytes is the cache of *one* sequence. itemsize is bytes a weight (0.5 for 4 bits), kv_itemsize
    bytes a cached number. Each weight is used in one multiply-add a sequence; each cached number in
    one for every query head on it.
    """
    weight_bytes, kv_bytes, batch, queries_per_kv_head = whole(
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
        batch=batch,
        queries_per_kv_head=queries_per_kv_head,
    )
    flops = 2 * batch * (weight_bytes // _size(itemsize=itemsize))
    flops += 2 * batch * queries_per_kv_head * (kv_bytes // _size(kv_itemsize=kv_itemsize))
    return Cost(flops, weight_bytes + batch * kv_bytes, 0)
