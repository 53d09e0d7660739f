"""From tensors to a launch: operands that the kernels can read, a grid, a tile."""

import contextlib

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from course.kernels import interpreted, tiles
from course.kernels.backward import delta_kernel, dkdv_kernel, dq_kernel
from course.kernels.forward import forward_kernel

MAX_GRID = 2**31 - 1  # programs along x, the only axis used: y and z stop at 65,535


def forward(q, k, v, *, causal, scale, tile=None):
    """(o, m, log2 l) for checked, non-empty q, k, v and scale > 0."""
    b, h, n, d = q.shape
    q, k, v = (aligned(x) for x in (q, k, v))
    o = empty_aligned(q.shape, q)
    m, log_l = torch.empty((2, b, h, n), dtype=torch.float32, device=q.device)
    tile = tile or choose("forward", q)
    with on_device(q):
        forward_kernel[grid(n, tile.block_q, b * h)](
            *operands(tile.block_q, q), *operands(tile.block_kv, k, v), *operands(tile.block_q, o),
            m, log_l, scale, h, n, k.shape[2], h // k.shape[1], causal, **meta(tile, d),
        )  # fmt: skip
    return o, m, log_l


def backward(q, k, v, o, do, dlse, m, log_l, *, causal, scale, dkdv_tile=None, dq_tile=None):
    """(dq, dk, dv) given the gradients of o and (or None) of lse."""
    b, h, n, d = q.shape
    heads_kv, n_kv = k.shape[1:3]
    q, k, v, o, do = (aligned(x) for x in (q, k, v, o, do))
    dq, dk, dv = (empty_aligned(x.shape, x) for x in (q, k, v))
    delta = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    dkdv_tile, dq_tile = dkdv_tile or choose("dkdv", q), dq_tile or choose("dq", q)
    with on_device(q):
        delta_kernel[grid(n, 64, b * h)](
            *operands(64, o, do), delta, h, n, block_q=64, block_d=tiles.padded(d)
        )
        if dlse is not None:  # d lse / dS = P, so its gradient joins dP − D
            delta -= dlse
        rest = m, log_l, delta, scale
        block_q, block_kv = dkdv_tile[:2]
        dkdv_kernel[grid(n_kv, block_kv, b * heads_kv)](
            *operands(block_q, q), *operands(block_kv, k, v), *operands(block_q, do),
            *operands(block_kv, dk, dv), *rest, heads_kv, n, n_kv, h // heads_kv, causal,
            **meta(dkdv_tile, d),
        )  # fmt: skip
        block_q, block_kv = dq_tile[:2]
        dq_kernel[grid(n, block_q, b * h)](
            *operands(block_q, q), *operands(block_kv, k, v), *operands(block_q, do, dq),
            *rest, h, n, n_kv, h // heads_kv, causal, **meta(dq_tile, d),
        )  # fmt: skip
    return dq, dk, dv


def aligned(x):
    """x itself where a tile of it can be fetched whole, else a copy that allows it.

    That takes unit stride along d, and a start and other strides that are multiples of 16 bytes.
    A copy is padded along d to make them so.
    """
    unit = 16 // x.element_size()
    strides = [s for s, size in zip(x.stride(), x.shape, strict=True) if size > 1]
    whole = x.stride(3) == 1 or x.shape[3] == 1
    if whole and x.data_ptr() % 16 == 0 and all(s > 0 and s % unit == 0 for s in strides[:-1]):
        return x
    return empty_aligned(x.shape, x).copy_(x)


def empty_aligned(shape, like):
    """An empty tensor of that shape whose rows start at multiples of 16 bytes."""
    unit = 16 // like.element_size()
    return like.new_empty(*shape[:3], triton.cdiv(shape[3], unit) * unit)[..., : shape[3]]


def operands(block, *tensors):
    """How each tensor is passed to a kernel that takes it `block` rows at a time (see tile.py)."""
    return [operand(x, block) for x in tensors]


def operand(x, block, tma=None):
    """A descriptor where the copy engine can use one, else (pointer, rows, d, strides)."""
    unit = 16 // x.element_size()
    d = x.shape[3]
    row = triton.cdiv(d, unit) * unit
    # The stride of a dimension of size one is never used, so any aligned number serves.
    strides = [s if size > 1 else row for s, size in zip(x.stride(), x.shape, strict=True)]
    if tma is None:
        tma = interpreted or tiles.gpu(x.device.index)[0] >= 90
    if tma:
        block_shape = [1, 1, block, tiles.padded(d)]
        return TensorDescriptor(x, list(x.shape), [*strides[:3], 1], block_shape)
    return x, x.shape[2], d, tuple(s // unit for s in strides[:3])


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
    return {**tile._asdict(), "block_d": tiles.padded(d)}


def grid(rows, block, heads):
    """One program for each tile of each head, all along x."""
    programs = triton.cdiv(rows, block) * heads
    if programs > MAX_GRID:
        raise ValueError(
            f"this needs {programs:,} programs and CUDA starts at most {MAX_GRID:,} at once. "
            "Split the batch."
        )
    return (programs,)


def on_device(x):
    """Triton launches on the current device: make it the one x is on."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
