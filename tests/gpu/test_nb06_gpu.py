"""The cells of notebook 06 on a GPU: its kernels, the worked example, its exercises, its points."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from course import kernels
from course.exercises import forward as ex
from course.kernels import interpreted, launch, naive
from course.records import forward_ladder

pytestmark = pytest.mark.gpu
HEAD = """
import numpy as np
import torch

from course import cost, kernels, measure
from course.kernels import naive, tl, triton
from course.kernels.notebook_forward import hide, step, visible_keys

fp16 = torch.float16
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


PARTS = [ex.step, ex.hide, ex.visible_keys, ex.flash, ex.debug]


@pytest.mark.parametrize("item", PARTS, ids=["step", "hide", "visible_keys", "flash", "debug"])
def test_the_exercises_accept_their_solution_and_no_wrong_answer(item):
    assert item.verdict(item.answer, 1)[0] == "right"
    for attempt, diagnosis in item.wrong:
        status, said = item.verdict(attempt, 1)
        assert status == "wrong" and " ".join(diagnosis.split()) in " ".join(said.split())


def test_a_speed_of_the_reader_s_own(nb):
    for call in (nb["by_page"], kernels.attention):
        assert nb["rate"](call, 64, causal=True, n=1024) > 1e9


@pytest.mark.parametrize("causal", [False, True])
def test_the_ladder_climbs(causal):
    """Each rung is right at a size that is measured; its end is the library, and is faster than its start."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 4096, 128, device="cuda", dtype=torch.float16)
    exact = naive.attention(*(x.double() for x in (q, k, v)), causal=causal)
    allowed = 2 * (naive.attention(q, k, v, causal=causal) - exact).abs().max()
    own = launch.choose("forward", q)
    for run, tile in forward_ladder.ladder(own).values():
        o, rows = torch.empty_like(q), [launch.row_statistics(q) for _ in range(2)]
        run(q, k, v, o, rows, causal, tile)
        assert (o - exact).abs().max() <= allowed
    speeds = {p["rung"]: p["flops"] for p in forward_ladder._cell(128, causal, 4096)}
    assert list(speeds) == [*forward_ladder.ladder(own), "cuDNN"]
    assert speeds["copy engine"] > 2 * speeds["notebook kernel"]
