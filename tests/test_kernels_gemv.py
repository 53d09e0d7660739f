"""The matrix-vector product in Triton's interpreter: 16, 8 and 4 bits, odd sizes, refusals."""

import pytest
import torch

from course import kernels
from course.serving import FORMATS

if not kernels.interpreted:
    pytest.skip(kernels.reason or "on a GPU: see tests/gpu", allow_module_level=True)

from course.kernels.gemv import GROUP, LARGEST, gemv, quantise

SHAPES = [(1, 128), (5, 256), (4, 1024), (9, 1152), (3, 2176)]  # rows and groups in no whole blocks


def unpacked(packed, scale, bits):
    """The numbers that a packed matrix stands for, by its definition, one at a time."""
    rows, groups = scale.shape
    w = torch.empty(rows, groups * GROUP, dtype=torch.float64)
    for r in range(rows):
        for column in range(w.shape[1]):
            g, i = divmod(column, GROUP)
            if bits == 8:
                number = int(packed[r, column])
            else:
                byte = int(packed[r, g * GROUP // 2 + i % (GROUP // 2)])
                number = (byte >> 4 if i >= GROUP // 2 else byte & 15) - 8
            w[r, column] = number * float(scale[r, g])
    return w


def matrix(rows, cols, size=1.0):
    torch.manual_seed(rows + cols)
    w = torch.randn(rows, cols)
    w[:, 0] = 40  # an outlier: its group alone gets coarse
    return size * w, torch.randn(cols)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_as_it_is(shape, dtype):
    w, x = (t.to(dtype) for t in matrix(*shape))
    exact = w.double() @ x.double()
    close = 4 * torch.finfo(dtype).eps * (w.double().abs() @ x.double().abs())
    assert ((gemv(w, x).double() - exact).abs() <= close).all()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_packed(shape, bits):
    w, x = matrix(*shape)
    packed, scale = quantise(w, bits)
    y = gemv(packed, x, scale)
    assert torch.allclose(
        y.double(), unpacked(packed, scale, bits) @ x.double(), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("bits", [8, 4])
def test_no_number_is_off_by_more_than_half_a_step(bits):
    w, _ = matrix(4, 384, size=1e-3)
    packed, scale = quantise(w, bits)
    off = (unpacked(packed, scale, bits) - w.double()).abs().unflatten(1, (-1, GROUP)).amax(2)
    assert (off <= 0.505 * scale.double()).all()  # and the rounding of the scale itself
    assert scale[0, 1] < scale[0, 0] / 5, "the outlier reaches no other group"


def test_a_group_of_zeros_stays_zero():
    w = torch.zeros(2, 256)
    for bits in LARGEST:
        packed, scale = quantise(w, bits)
        assert (unpacked(packed, scale, bits) == 0).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_its_bytes_are_those_of_the_formats(bits):
    packed, scale = quantise(torch.randn(8, 1024), bits)
    assert (packed.nbytes + scale.nbytes) / (8 * 1024) == FORMATS[f"int{bits}"]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="multiple of 128"):
        quantise(torch.randn(4, 100), 8)
    with pytest.raises(ValueError, match="8 or 4 bits"):
        quantise(torch.randn(4, 128), 3)
    with pytest.raises(ValueError, match="x is"):
        gemv(torch.randn(4, 128), torch.randn(256))
