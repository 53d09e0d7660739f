"""The cells of notebook 06 on a GPU: its kernels, the worked example, its exercises, its points."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from course.exercises import forward as ex
from course.kernels import interpreted, naive

pytestmark = pytest.mark.gpu
HEAD = """
import numpy as np
import torch

from course import cost, kernels, measure
from course.kernels import tl, triton

device, fp16 = "cuda", torch.float16
"""


@pytest.fixture(scope="module")
def nb(cells):
    assert not interpreted
    return cells("06_flash_forward.ipynb", HEAD)


def test_the_worked_example(nb):
    q, k, v = nb["worked_example"]()
    for keys, want in ((16, "3.0000 1.1353 2.1353"), (32, "4.0000 1.5530 4.3269")):
        state = (x.flatten()[0].item() for x in nb["run_loop"](q, k[:keys], v[:keys], 1.0))
        assert " ".join(f"{x:.4f}" for x in state) == want


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "n_kv", "d"), [(1000, 1000, 64), (63, 1025, 40), (300, 70, 128)])
def test_the_whole_kernel(nb, n, n_kv, d, causal, dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, rows, d, device="cuda", dtype=dtype) for rows in (n, n_kv, n_kv))
    inputs = [x[None] for x in (q, k, v)]
    exact = naive.attention(*(x.double() for x in inputs), causal=causal)[0]
    plain = naive.attention(*inputs, causal=causal)[0]
    for blocks in ((16, 16), (64, 32)):
        o, _ = nb["flash"](q, k, v, causal, *blocks)
        allowed = 2 * (plain - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max()
        assert (o - exact).abs().max() <= allowed


@pytest.mark.parametrize("item", [ex.flash, ex.debug], ids=["flash", "debug"])
def test_the_exercises_accept_their_solution_and_no_wrong_answer(item):
    assert item.verdict(item.answer, 1)[0] == "right"
    for attempt, diagnosis in item.wrong:
        status, said = item.verdict(attempt, 1)
        assert status == "wrong" and " ".join(diagnosis.split()) in " ".join(said.split())


def test_a_point_of_the_reader_s_own(nb):
    point = nb["my_point"](64, True, n=1024)
    assert (point["flow"], point["d"], point["causal"], point["n"]) == ("ours", 64, True, 1024)
    assert point["forward"]["flops"] > 1e9
