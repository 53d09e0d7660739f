"""One matrix times one vector, where a decode step spends its time: weights of 16, 8 or 4 bits.

Integers become numbers in registers, right before they are multiplied: what crosses from memory is
the packed byte. Each group of 128 columns of a row has a 16-bit scale.
"""

import torch

from course.kernels import tl, triton

GROUP = 128  # columns that share a scale
LARGEST = {8: 127, 4: 7}  # symmetric: −127 … 127 and −7 … 7


@triton.jit
def times_x(w, x_ptr, column, inside):
    """Weights (groups, lanes) times the numbers of x at their columns, in FP32."""
    x = tl.load(x_ptr + column, mask=inside, other=0)
    return w.to(tl.float32) * x.to(tl.float32)


@triton.jit
def gemv_kernel(
    w_ptr, scale_ptr, x_ptr, y_ptr, cols,
    bits: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """One row of y = W x, so many groups of columns at a time."""
    row = tl.program_id(0).to(tl.int64)
    lanes: tl.constexpr = GROUP // 2 if bits == 4 else GROUP  # bytes, or numbers, of a group
    lane = tl.arange(0, lanes)[None, :]
    groups = cols // GROUP
    y = tl.zeros([GROUPS, lanes], tl.float32)
    for first in tl.range(0, groups, GROUPS, loop_unroll_factor=4):  # four loads under way
        group = first + tl.arange(0, GROUPS)[:, None]
        inside = group < groups
        w = tl.load(w_ptr + (row * groups + group) * lanes + lane, mask=inside, other=0)
        if bits == 4:  # the low half of a byte is column i of its group, the high half i + 64
            column = group * GROUP + lane
            part = times_x((w & 15).to(tl.int8) - 8, x_ptr, column, inside)
            part += times_x((w >> 4).to(tl.int8) - 8, x_ptr, column + lanes, inside)
        else:
            part = times_x(w, x_ptr, group * GROUP + lane, inside)
        if bits < 16:
            part *= tl.load(scale_ptr + row * groups + group, mask=inside, other=0).to(tl.float32)
        y += part
    tl.store(y_ptr + row, tl.sum(tl.sum(y, 1), 0).to(y_ptr.dtype.element_ty))


def quantise(w: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(packed, scales) of a matrix (rows, columns) in 8 or 4 bits.

    packed: int8 (rows, columns), or uint8 (rows, columns / 2) with two numbers a byte, each plus 8;
    scales: float16 (rows, columns / 128). ValueError for other bits, or columns in no whole groups.
    """
    if bits not in LARGEST or w.ndim != 2 or w.shape[1] % GROUP:
        raise ValueError(
            f"quantise takes a matrix whose columns are a multiple of {GROUP}, and 8 or 4 bits, "
            f"and got {tuple(w.shape)} and {bits}."
        )
    groups = w.float().unflatten(1, (-1, GROUP))
    scale = (groups.abs().amax(2, keepdim=True) / LARGEST[bits]).half()
    scale = torch.where(scale == 0, 1, scale)  # a group of zeros
    whole = (groups / scale.float()).round().clamp(-LARGEST[bits], LARGEST[bits])
    if bits == 8:
        packed = whole.to(torch.int8)
    else:
        low, high = (whole + 8).to(torch.uint8).chunk(2, dim=2)
        packed = low | high << 4
    return packed.flatten(1), scale.flatten(1)


def gemv(w: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """W x for a vector x (columns,): w (rows, columns) as it is, or as `quantise` packs it.

    Sums in FP32, result in the type of x. ValueError where shapes do not fit.
    """
    bits = 16 if scale is None else 8 if w.dtype == torch.int8 else 4
    columns = w.shape[1] * (2 if bits == 4 else 1)
    if x.shape != (columns,) or columns % GROUP:
        raise ValueError(
            f"W has {columns} columns, which must be a multiple of {GROUP}, and x is {tuple(x.shape)}."
        )
    y = x.new_empty(w.shape[0])
    gemv_kernel[(len(y),)](
        w.contiguous(), None if scale is None else scale.contiguous(), x.contiguous(), y, columns,
        bits, GROUP, GROUPS=16 if bits == 4 else 8, num_warps=4,  # 8 numbers a thread
    )  # fmt: skip
    return y
