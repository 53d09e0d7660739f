"""From tensors to a launch: operands that the kernels can read, a grid, a tile."""

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from course.kernels import interpreted, tiles
from course.kernels.backward import delta_kernel, dkdv_kernel, dq_kernel
from course.kernels.forward import forward_kernel
from course.kernels.guard import grid, on_device


def forward(q, k, v, *, causal, scale, keep_rest=False, tile=None):
    """(o, o_rest, m, 1/l) for checked, non-empty q, k, v and scale > 0.

    o_rest, what rounding took from o, is None unless asked for: FP32 has none worth keeping.
    Without it the error of dQ grows with the steepness of the softmax, in FP16 up to a hundredfold:
    notebook 08 has the table.
    """
    q, k, v = (aligned(x) for x in (q, k, v))
    o = empty_aligned(q.shape, q)
    o_rest = empty_aligned(q.shape, q) if keep_rest and q.dtype != torch.float32 else None
    m, inv_l = row_statistics(q), row_statistics(q)
    launch_forward(q, k, v, o, o_rest, m, inv_l, causal=causal, scale=scale, tile=tile)
    return o, o_rest, m, inv_l


def backward(
    q, k, v, o, o_rest, do, dlse, m, inv_l, *, causal, scale, dkdv_tile=None, dq_tile=None
):
    """(dq, dk, dv) given the gradients of o and (or None) of lse."""
    q, k, v, o, do = (aligned(x) for x in (q, k, v, o, do))  # o too: hooks may have moved it
    o_rest = o_rest if o_rest is None else aligned(o_rest)
    m, inv_l = m.contiguous(), inv_l.contiguous()
    dq, dk, dv = (empty_aligned(x.shape, x) for x in (q, k, v))
    delta = row_statistics(q)
    launch_delta(o, o_rest, do, delta)
    if dlse is not None:  # d lse / dS = P, so its gradient joins dP − D
        delta[:, :, : q.shape[2]] -= dlse
    options = {"causal": causal, "scale": scale}
    launch_dkdv(q, k, v, do, dk, dv, m, inv_l, delta, **options, tile=dkdv_tile)
    launch_dq(q, k, v, do, dq, m, inv_l, delta, **options, tile=dq_tile)
    return dq, dk, dv


def launch_forward(q, k, v, o, o_rest, m, inv_l, *, causal, scale, tile=None):
    """Fill o, m, inv_l and, unless it is None, o_rest. Returns the compiled kernel."""
    tile = tile or choose("forward", q)
    (b, h, n, d), (heads_kv, n_kv) = q.shape, k.shape[1:3]
    rest = o if o_rest is None else o_rest
    with on_device(q):
        return forward_kernel[grid(n, tile.block_q, b * h)](
            *operands(tile.block_q, q), *operands(tile.block_kv, k, v),
            *operands(tile.block_q, o, rest), m, inv_l, scale, h, n, n_kv, h // heads_kv,
            o_rest is not None, causal, **meta(tile, d),
        )  # fmt: skip


def launch_delta(o, o_rest, do, delta):
    """Fill delta, D of every row."""
    b, h, n, d = o.shape
    block_q = min(128, 2**15 // (tiles.padded(d) * o.element_size()))  # 32 KiB, or registers spill
    rest = o if o_rest is None else o_rest
    with on_device(o):
        return delta_kernel[grid(n, block_q, b * h)](
            *operands(block_q, o, rest, do), delta, h, n, o_rest is not None,
            block_q, tiles.padded(d),
        )  # fmt: skip


def launch_dkdv(q, k, v, do, dk, dv, m, inv_l, delta, *, causal, scale, tile=None):
    """Fill dk and dv. Returns the compiled kernel."""
    tile = tile or choose("dkdv", q)
    (b, h, n, d), (heads_kv, n_kv) = q.shape, k.shape[1:3]
    with on_device(q):
        return dkdv_kernel[grid(n_kv, tile.block_kv, b * heads_kv)](
            *operands(tile.block_q, q), *operands(tile.block_kv, k, v),
            *operands(tile.block_q, do), *operands(tile.block_kv, dk, dv),
            *row_operands(tile, q, m, inv_l, delta),
            scale, heads_kv, n, n_kv, h // heads_kv, causal, **meta(tile, d),
        )  # fmt: skip


def launch_dq(q, k, v, do, dq, m, inv_l, delta, *, causal, scale, tile=None):
    """Fill dq. Returns the compiled kernel."""
    tile = tile or choose("dq", q)
    (b, h, n, d), (heads_kv, n_kv) = q.shape, k.shape[1:3]
    with on_device(q):
        return dq_kernel[grid(n, tile.block_q, b * h)](
            *operands(tile.block_q, q), *operands(tile.block_kv, k, v),
            *operands(tile.block_q, do, dq), *row_operands(tile, q, m, inv_l, delta),
            scale, h, n, n_kv, h // heads_kv, causal, **meta(tile, d),
        )  # fmt: skip


def cdiv(a, b):
    """a / b, rounded up."""
    return -(-a // b)


def aligned(x):
    """x itself where a tile of it can be fetched whole, else a copy that allows it.

    That takes unit stride along d, and a start and other strides that are multiples of 16 bytes.
    A copy is padded along d to make them so.
    """
    x = x.resolve_neg()  # a view such as z.conj().imag keeps its sign apart from its bytes
    unit = 16 // x.element_size()
    strides = [s for s, size in zip(x.stride()[:3], x.shape[:3], strict=True) if size > 1]
    whole = x.stride(3) == 1 and x.data_ptr() % 16 == 0
    if whole and all(s > 0 and s % unit == 0 for s in strides):
        return x
    return empty_aligned(x.shape, x).copy_(x)


def empty_aligned(shape, like):
    """An empty tensor of that shape whose rows start at multiples of 16 bytes."""
    unit = 16 // like.element_size()
    _, h, n, d = shape
    row = cdiv(d, unit) * unit  # by strides, not by a slice: autograd is strict with views
    return like.new_empty_strided(shape, (h * n * row, n * row, row, 1))


def row_statistics(q):
    """One FP32 number a query row, with room for a multiple of 128 rows a head (see tile.py)."""
    b, h, n, _ = q.shape
    make = torch.empty if n % 128 == 0 else torch.zeros
    return make((b, h, cdiv(n, 128) * 128), dtype=torch.float32, device=q.device)


def operands(block, *tensors):
    """How each tensor is passed to a kernel that takes it `block` rows at a time (see tile.py)."""
    return [operand(x, block) for x in tensors]


def row_operands(tile, like, *tensors):
    """How one number a row is passed, laid out as in `row_statistics`, beside operand `like`.

    With a single tile in flight each fetch by the copy engine is waited for; plain loads overlap.
    """
    if not has_tma(like) or tile.num_stages == 1:
        return tensors
    b, h, rows = tensors[0].shape
    return [TensorDescriptor(x, [b * h, rows], [rows, 1], [1, tile.block_q]) for x in tensors]


def has_tma(x):
    """Whether the copy engine fetches tiles where x is; the interpreter plays it."""
    return interpreted or tiles.uses_tma(tiles.gpu(x.device.index)[0], x.element_size())


def operand(x, block, plain=False):
    """A descriptor where the copy engine can use one, else (pointer, rows, d, three strides).

    `plain` asks for the latter in any case.
    """
    unit = 16 // x.element_size()
    d = x.shape[3]
    row = cdiv(d, unit) * unit
    # The stride of a dimension of size one is never used, so any aligned number serves.
    strides = [s if size > 1 else row for s, size in zip(x.stride(), x.shape, strict=True)]
    if has_tma(x) and not plain:
        block_shape = [1, 1, block, tiles.padded(d)]
        return TensorDescriptor(x, list(x.shape), [*strides[:3], 1], block_shape)
    return x, x.shape[2], d, *(s // unit for s in strides[:3])


def choose(kernel, q):
    """The tile for this device; in the interpreter, where nothing is measured, a small one."""
    if interpreted:
        return tiles.Tile(64, 64, 4, 1)
    shared_memory = tiles.gpu(q.device.index)[1]
    return tiles.choose(
        kernel, d=q.shape[3], itemsize=q.element_size(), shared_memory=shared_memory
    )


def meta(tile, d):
    """The compile-time arguments of a launch."""
    given = {name: value for name, value in tile._asdict().items() if value is not None}
    return {**given, "block_d": tiles.padded(d)}
