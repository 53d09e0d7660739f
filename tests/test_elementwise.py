"""The kernels of notebook 03 in Triton's interpreter (on the GPU, where there is one)."""

import inspect
import re
from importlib.util import find_spec

import numpy as np
import pytest

if find_spec("triton") is None:
    pytest.skip("Triton has no wheel for this system", allow_module_level=True)

from course.kernels import elementwise as ew

import torch  # isort: skip  # after course.kernels, which decides about the interpreter
import torch.nn.functional as F

from tests import elementwise_checks as checks
from tests.elementwise_checks import DEVICE, DTYPES, mask, random

SHAPES = [(1,), (7,), (3, 129), (2, 3, 1000), (5, 1024), (4, 2050)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_chain_and_its_gradients(shape, dtype):
    checks.chain_and_its_gradients(shape, dtype, block=256)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_dropout_keeps_the_part_it_should_and_the_mean(p):
    kept = mask((16, 4001), p, seed=3).double().mean().item()
    assert abs(kept - (1 - p)) < 4 * (p * (1 - p) / 64016) ** 0.5 + 1e-12
    ones = torch.ones(16, 4001, device=DEVICE)
    out = ew.bias_gelu_dropout_residual(ones, ones[0] * 0, ones * 0, p=p, seed=3)
    plain = F.gelu(torch.tensor(1.0), approximate="tanh").item()
    assert out.mean().item() == pytest.approx(kept / (1 - p) * plain, rel=1e-4)


def test_case_a23_one_seed_one_mask_for_any_block_size():
    checks.one_seed_one_mask((3, 1030), (16, 64, 1024, 4096))


def test_case_a23_no_two_elements_share_a_number():
    """Rows, and the four numbers of a draw, differ: neighbours agree half of the time."""
    keep = mask((32, 2048), 0.5, seed=1).double()
    for a, b in ((keep[1:], keep[:-1]), (keep[:, 1:], keep[:, :-1]), (keep[:, 4:], keep[:, :-4])):
        assert abs((a == b).double().mean().item() - 0.5) < 0.01


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**40 + 1, -5])
def test_case_a23_forward_and_backward_drop_the_same_elements(seed):
    x = (torch.zeros(3, 130, device=DEVICE) + 3).requires_grad_()
    zeros = torch.zeros(3, 130, device=DEVICE)
    out = ew.bias_gelu_dropout_residual(x, zeros[0], zeros, p=0.5, seed=seed, block=64)
    out.sum().backward()
    assert torch.equal(out != 0, x.grad != 0)
    again = ew.bias_gelu_dropout_residual(x, zeros[0], zeros, p=0.5, seed=seed)
    assert torch.equal(again, out)  # bit for bit


def test_gradients_by_finite_differences():
    """Independent of autograd: the slope of the kernel itself."""
    x, bias, residual = random(2, 33), random(33, seed=1), random(2, 33, seed=2)

    def chain(x):
        return ew.bias_gelu_dropout_residual(x, bias, residual, p=0.4, seed=5)

    x.requires_grad_()
    chain(x).sum().backward()
    h = 1e-2
    slope = (chain(x.detach() + h) - chain(x.detach() - h)) / (2 * h)
    assert (x.grad - slope).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("one_block", [ew.ONE_BLOCK, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_short_and_long_rows(shape, one_block, dtype):
    checks.softmax_of(shape, dtype, one_block)


@pytest.mark.parametrize("one_block", [ew.ONE_BLOCK, 4])
def test_softmax_of_adversarial_rows(one_block):
    inf, nan = float("inf"), float("nan")
    rows = [
        [0, 0, 0, 0, 0, 0, 0],
        [1e4, -1e4, 0, 0, 0, 0, 1e4],
        [-3e38] * 7,
        [-inf] * 4 + [1, 2, 3],  # the first block of four has nothing to say
        [3, 2, 1] + [-inf] * 4,
        [0, 1, 2, 3, 4, 5, 88],
    ]
    x = torch.tensor(rows, device=DEVICE)
    ours = ew.softmax(x, one_block=one_block)
    assert (ours - torch.softmax(x.double(), -1)).abs().max() < 1e-6
    nothing = torch.full((2, 7), -inf, device=DEVICE)
    assert torch.equal(ew.softmax(nothing, one_block=one_block), torch.zeros_like(nothing))
    assert torch.isnan(
        ew.softmax(torch.tensor([[1, nan, 2.0]], device=DEVICE), one_block=one_block)
    ).all()


def test_tensors_with_gaps():
    wide = random(6, 300)
    for x in (wide[:, ::3], wide.T, wide[:, 7:200], wide[::2], wide[0].expand(4, 300)):
        assert torch.allclose(ew.softmax(x), torch.softmax(x, -1), atol=1e-6)
        bias = wide.reshape(-1)[: 2 * x.shape[-1] : 2]
        ours = ew.bias_gelu_dropout_residual(x, bias, x, p=0)
        assert torch.allclose(ours, F.gelu(x + bias, approximate="tanh") + x, atol=1e-5)


def test_a_view_that_keeps_its_sign_apart():
    z = torch.complex(random(1), random(1, seed=1)).conj().imag
    assert z.is_neg() and torch.allclose(ew.softmax(-z), torch.softmax(-z, -1))
    ours = ew.bias_gelu_dropout_residual(z, z, z, p=0)
    assert torch.allclose(ours, F.gelu(z + z, approximate="tanh") + z)


def test_case_a22_a_second_derivative_is_refused():
    x = random(2, 9).requires_grad_()
    (dx,) = torch.autograd.grad(
        ew.bias_gelu_dropout_residual(x, x[0].detach(), x.detach()).sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="no second derivative"):
        dx.square().sum().backward()


@pytest.mark.parametrize("shape", [(0,), (0, 8), (3, 0), (2, 0, 8)])
def test_case_a24_empty_tensors(shape):
    checks.empty(shape)


def test_rows_more_than_2_to_the_31_elements_apart(tmp_path):
    """Offsets are 64-bit. A sparse file stands in for 4 GB, so that none are used."""
    if DEVICE == "cuda":
        pytest.skip("tests/gpu does this with real memory")
    stride, rows, cols = 2**30, 4, 8
    file = np.memmap(tmp_path / "sparse", np.float16, "w+", shape=(rows - 1) * stride + cols)
    x = torch.from_numpy(np.asarray(file)).as_strided((rows, cols), (stride, 1))
    x.copy_(random(rows, cols, dtype=torch.float16))
    assert torch.allclose(ew.softmax(x), torch.softmax(x, -1), atol=1e-3)
    assert torch.allclose(ew.softmax(x, one_block=4), torch.softmax(x, -1), atol=1e-3)
    ours = ew.bias_gelu_dropout_residual(x, x[3], x, p=0)
    assert torch.allclose(ours, F.gelu(x + x[3], approximate="tanh") + x, atol=1e-2)


def test_case_d11_every_masked_load_says_what_to_fill_with():
    """The interpreter fills with zeros by itself; a GPU does not."""
    loads = re.findall(r"tl\.load\([^)]*\)", inspect.getsource(ew))
    assert len(loads) >= 10
    assert all("mask=" in load and "other=" in load for load in loads)


X = torch.ones(2, 8, device=DEVICE)


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: ew.bias_gelu_dropout_residual(X, X[0], X.half()), "differ in dtype"),
        (lambda: ew.softmax(X.int()), "Use float16, bfloat16 or float32"),
        (lambda: ew.softmax(X.double()), "Use float16"),
        (lambda: ew.softmax(X[0, 0]), "at least one axis"),
        (lambda: ew.softmax(X.clone().requires_grad_()), "no backward pass"),
        (lambda: ew.bias_gelu_dropout_residual(X, X, X), "last axis"),
        (lambda: ew.bias_gelu_dropout_residual(X, X[0], X[0]), "shape of x"),
        (lambda: ew.bias_gelu_dropout_residual(X, X[0], X, p=1), "less than 1"),
        (lambda: ew.bias_gelu_dropout_residual(X, X[0], X, p=float("nan")), "less than 1"),
        (lambda: ew.bias_gelu_dropout_residual(X, X[0], X, p="0.1"), "one real number"),
        (lambda: ew.bias_gelu_dropout_residual(X, X[0], X, block=100), "power of two"),
        (lambda: ew.bias_gelu_dropout_residual(X, X[0], X, block=2), "power of two, 4 to"),
        (lambda: ew.bias_gelu_dropout_residual(X, X[0], X, seed=1.5), "integer"),
        (lambda: ew.bias_gelu_dropout_residual(X, X[0], X, seed=2**64), "64 bits"),
        (lambda: ew.softmax(X, one_block=0), "power of two"),
        (lambda: ew.softmax(X, one_block=-4), "power of two"),  # a grid of none would write nothing
        (lambda: ew.softmax(X, one_block=2**20), "to 32,768"),
        (lambda: ew.softmax(1.0), "x is of type float. Make it a tensor"),
        (lambda: ew.softmax(X.cpu().numpy()), "ndarray"),
        (lambda: ew.softmax(X.to_sparse()), "sparse"),
        (lambda: ew.softmax(X.to("meta")), "on meta"),
        (lambda: ew.softmax(X[:1, :1].expand(2**31, 1)), "programs"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, says):
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)
