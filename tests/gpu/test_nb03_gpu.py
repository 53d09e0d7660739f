"""The cells of notebook 03 on a GPU: its kernels, its exercise, its own points."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from course.exercises import fusion as ex
from course.kernels import compiled, elementwise, interpreted
from course.records import fusion as recorder

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def notebook(cells):
    """What the notebook defines: its kernels and how it launches them."""
    assert not interpreted
    head = "import torch\nimport torch.nn.functional as F\nfrom course.kernels import tl, triton\n"
    return cells("03_elementwise_fusion.ipynb", head)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_kernels(notebook, dtype):
    x, residual = torch.randn(2, 33, 2050, device="cuda").to(dtype)
    bias = torch.randn(2050, device="cuda").to(dtype)
    ours = notebook["fused_chain"](x, bias, residual, p=0)
    library = elementwise.bias_gelu_dropout_residual(x, bias, residual, p=0)
    assert (ours - library).abs().max() <= torch.finfo(dtype).eps * library.abs().max()
    dropped = notebook["fused_chain"](x * 0 + 3, bias * 0, residual * 0, p=0.3, seed=5) == 0
    again = notebook["fused_chain"](x * 0 + 3, bias * 0, residual * 0, p=0.3, seed=5, block=64) == 0
    assert torch.equal(dropped, again) and abs(dropped.double().mean().item() - 0.3) < 0.01
    exact = torch.softmax(x.double(), -1)
    for softmax in (notebook["softmax"](x), notebook["long_softmax"](x, 64)):
        assert (softmax - exact).abs().max() <= 2 * torch.finfo(dtype).eps


def test_the_kernel_without_a_mask(notebook):
    memory = torch.tensor([1.0] * 10 + [7.0] * 2, device="cuda")
    notebook["add_one_kernel"][3,](memory, BLOCK=4)
    assert memory.tolist() == [2.0] * 10 + [8.0] * 2


@pytest.mark.parametrize("name", ["copy", "add_relu_times_in_one", "row_max", "layer_norm"])
def test_the_exercises_accept_their_solutions_and_no_wrong_answer(name):
    exercise = getattr(ex, name)
    assert exercise.verdict(exercise.answer, 1)[0] == "right"
    for attempt, diagnosis in exercise.wrong:
        status, said = exercise.verdict(attempt, 1)
        assert status == "wrong" and " ".join(diagnosis.split()) in " ".join(said.split())


def test_attention_is_recognised(notebook):
    qkv = torch.randn(3, 1, 2, 256, 64, device="cuda")
    made = compiled.compile(notebook["attention"], *qkv)
    assert made.recognised == 1 and not made.note
    assert any("attention" in name for name in made.calls)


def test_the_draws_are_timed():
    assert all(seconds > 0 for seconds in recorder.draws(rows=100).values())


def test_compiled_is_one_kernel():
    x = torch.randn(64, 1024, device="cuda")
    made = compiled.compile(lambda x: torch.relu(x + 1) * 2, x)
    assert not made.note and torch.equal(made.fn(x), torch.relu(x + 1) * 2)
    assert compiled.moves(made.code) == ["load in_ptr0", "store out_ptr0"]


def test_a_point_of_the_reader_s_own():
    point = recorder.point("hand-written", 10)
    assert point["launches"] == 1 and 0 < point["graph"] < point["wall"]
