"""What the kernels of notebooks 06 and 08 do with a tile, as it stands there: load it, store it."""

from course.kernels import tl, triton


@triton.jit
def load_tile(x_ptr, first, n, d, block: tl.constexpr, block_d: tl.constexpr):
    """Rows first … first + block − 1 of a matrix (n, d); zeros past n and past d."""
    row, column = first + tl.arange(0, block), tl.arange(0, block_d)
    inside = (row[:, None] < n) & (column[None, :] < d)
    return tl.load(x_ptr + row[:, None] * d + column[None, :], mask=inside, other=0.0)


@triton.jit
def store_tile(x_ptr, x, first, n, d, block: tl.constexpr, block_d: tl.constexpr):
    """Store a tile x, leaving out what lies past n and past d."""
    row, column = first + tl.arange(0, block), tl.arange(0, block_d)
    inside = (row[:, None] < n) & (column[None, :] < d)
    tl.store(x_ptr + row[:, None] * d + column[None, :], x, mask=inside)
