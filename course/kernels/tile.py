"""What every kernel here does with a tile: load it, multiply it, store it.

An operand arrives as a tensor descriptor (Hopper: the copy engine, TMA, fetches a whole
tile, writes zeros where the tile leaves the tensor, and clips what is stored), or as
(pointer, rows, d, three strides), from which an older GPU computes one address an element.
"""

import triton
import triton.language as tl

from course.kernels import interpreted

INTERPRETED = tl.constexpr(interpreted)
LOG2E = tl.constexpr(1.4426950408889634)  # a GPU computes 2^x, so e^x is 2^(x · log2 e)


@triton.jit
def dot(a, b, acc=None):
    """a @ b (+ acc), summed in FP32; FP32 operands are multiplied as FP32, not as TF32."""
    if INTERPRETED:  # its bfloat16 product multiplies bit patterns
        a, b = a.to(tl.float32), b.to(tl.float32)
    if a.dtype == tl.float32 and acc is not None:  # one chain a tile: shorter chains round less
        return acc + tl.dot(a, b, input_precision="ieee")
    else:
        return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def round_to(x, dtype: tl.constexpr):
    """FP32 values in another type, rounded to nearest."""
    if INTERPRETED and dtype == tl.bfloat16:  # its cast truncates: round the bits, ties to even
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = bits.to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def addresses(x, b, h, first, block: tl.constexpr, block_d: tl.constexpr):
    """Where each element of a tile lies, and which of them exist.

    The strides count 16 bytes: a row starts at a multiple of them (`launch.aligned` sees to it), and
    the multiplication here tells the compiler, which may then fetch 16 bytes at once. Triton would
    know it of a plain stride only where the stride itself is a multiple of 16.
    """
    pointer, rows, d, stride_b, stride_h, stride_n = x
    unit: tl.constexpr = 128 // pointer.dtype.element_ty.primitive_bitwidth
    row, column = first + tl.arange(0, block), tl.arange(0, block_d)
    pointer += (tl.cast(b, tl.int64) * stride_b + tl.cast(h, tl.int64) * stride_h) * unit
    offset = row.to(tl.int64)[:, None] * stride_n * unit + column[None, :]
    return pointer + offset, (row[:, None] < rows) & (column[None, :] < d)


@triton.jit
def load_tile(x, b, h, first, block: tl.constexpr, block_d: tl.constexpr):
    """Rows first … first + block − 1 of head h in batch b; zeros past the last row and past d."""
    if isinstance(x, tl.tensor_descriptor):
        return x.load([b, h, first, 0]).reshape(block, block_d)
    else:
        pointers, exist = addresses(x, b, h, first, block, block_d)
        return tl.load(pointers, mask=exist, other=0.0)


@triton.jit
def store_tile(x, b, h, first, tile, block: tl.constexpr, block_d: tl.constexpr):
    """Store a tile, rounded to x's type, leaving out the rows and columns that do not exist."""
    if isinstance(x, tl.tensor_descriptor):
        x.store([b, h, first, 0], round_to(tile, x.dtype).reshape(1, 1, block, block_d))
    else:
        pointers, exist = addresses(x, b, h, first, block, block_d)
        tl.store(pointers, round_to(tile, x[0].dtype.element_ty), mask=exist)


@triton.jit
def visible_keys(
    first, n_q, n_kv, causal: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr
):
    """For the query rows first … first + block_q − 1: (last_key, full, end).

    last_key is the last key each row sees. Every row sees all keys before `full`, which is a
    whole number of tiles; no row sees a key from `end` on. Causal aligns bottom-right.
    """
    last_key = tl.full([block_q], n_kv - 1, tl.int32)
    full, end = n_kv, n_kv
    if causal:
        diagonal = first + n_kv - n_q
        last_key = tl.minimum(diagonal + tl.arange(0, block_q), n_kv - 1)
        full = tl.minimum(tl.maximum(diagonal + 1, 0), n_kv)
        end = tl.minimum(tl.maximum(diagonal + block_q, 0), n_kv)
    return last_key, full // block_kv * block_kv, end


@triton.jit
def row_offsets(head, first, n, block: tl.constexpr):
    """Where m, 1/l and D of the query rows first … first + block − 1 are stored.

    Each head has room for a multiple of 128 rows, so that no load or store of them needs a mask.
    What stands in the rows past n is used by no row that exists.
    """
    return head.to(tl.int64) * (tl.cdiv(n, 128) * 128) + first + tl.arange(0, block)


@triton.jit
def load_rows(x, head, first, n, block: tl.constexpr):
    """m, 1/l or D of some query rows: a tile of one row, in the sense of load_tile."""
    if isinstance(x, tl.tensor_descriptor):
        return x.load([head, first]).reshape(block)
    else:
        return tl.load(x + row_offsets(head, first, n, block))
