"""The kernels of notebook 03 on a real GPU: rounding, many programs, offsets beyond 2³¹."""

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

if not torch.cuda.is_available() or find_spec("triton") is None:
    pytest.skip("needs a CUDA GPU and Triton", allow_module_level=True)

from course.kernels import elementwise as ew
from tests import elementwise_checks as checks
from tests.elementwise_checks import DTYPES, mask, random

pytestmark = pytest.mark.gpu
SHAPES = [(1,), (3, 129), (2, 3, 1000), (513, 1024), (64, 40_001)]
BEYOND = 2**31


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(shape, dtype):
    for one_block in (ew.ONE_BLOCK, 256):
        checks.softmax_of(shape, dtype, one_block)
    x = random(*shape, dtype=dtype)
    gaps = x.T if x.dim() == 2 else x
    torch.testing.assert_close(ew.softmax(gaps), torch.softmax(gaps, -1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_chain_and_its_gradients(shape, dtype):
    checks.chain_and_its_gradients(shape, dtype, block=1024)


def test_case_a23_one_seed_one_mask():
    first = checks.one_seed_one_mask((301, 4100), (16, 256, 8192))
    assert abs(first.double().mean().item() - 0.5) < 0.005


def test_the_mask_is_the_interpreter_s():
    """The same seed drops the same elements on a laptop and here."""
    import os
    import subprocess
    import sys

    code = (
        "import torch; from course.kernels.elementwise import bias_gelu_dropout_residual as f\n"
        "z = torch.zeros(3, 70); out = f(z + 3, z[0], z, p=0.5, seed=2**33 + 5)\n"
        "print(''.join('01'[int(k)] for k in (out != 0).flatten()))"
    )
    env = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    here = mask((3, 70), 0.5, seed=2**33 + 5).flatten().tolist()
    assert done.stdout.split()[-1] == "".join("01"[int(k)] for k in here)


def test_case_a24_empty():
    checks.empty((0, 8))


def test_more_than_2_to_the_31_elements():
    """FP16, so 4.3 GB a tensor; the end is what a 32-bit offset would not reach."""
    if torch.cuda.mem_get_info()[0] < 20e9:
        pytest.skip("needs 20 GB of free GPU memory")
    n = BEYOND + 1000
    x = torch.ones(n, device="cuda", dtype=torch.float16)
    x[-1000:] = 2

    rows = x[: BEYOND + 992].view(-1, 32)  # the chain over rows, and over one row
    keep = ew.bias_gelu_dropout_residual(rows, x[:32], rows, p=0.5, seed=1) != rows
    assert abs(keep[-10_000:].double().mean().item() - 0.5) < 0.01
    assert not torch.equal(keep[-31:], keep[:31])  # its own numbers, not those of row 0 again
    del keep
    one_row = ew.bias_gelu_dropout_residual(x, x, x, p=0)
    assert torch.allclose(one_row[-1000:], F.gelu(x[-1:] * 2, approximate="tanh") + 2, rtol=1e-3)
    del one_row

    wide = x[:BEYOND].view(2**17, 2**14)
    wide[-1] = random(2**14, dtype=torch.float16)
    torch.testing.assert_close(ew.softmax(wide)[-1], torch.softmax(wide[-1], -1))
    far = x.as_strided((2, 8), (BEYOND + 992, 1))
    torch.testing.assert_close(ew.softmax(far, one_block=4), torch.softmax(far, -1))


def test_a_tensor_on_the_cpu_is_refused_in_one_line():
    with pytest.raises(ValueError, match="on cpu") as error:
        ew.softmax(torch.ones(4))
    assert "\n" not in str(error.value)
