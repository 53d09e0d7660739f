"""The cells of notebook 03 on a GPU: its kernels, its exercise, its own points."""

import json
import re
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from course.exercises import fusion as ex
from course.kernels import compiled, elementwise, interpreted
from course.records import fusion as recorder

pytestmark = pytest.mark.gpu
NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "03_elementwise_fusion.ipynb"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """What the notebook defines in cells that begin with a kernel or a launch."""
    assert not interpreted
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    begins = re.compile(r"(@triton|def (add|fused_chain|softmax)\()")
    wanted = [source for source in sources if begins.match(source) and ".check(" not in source]
    path = tmp_path_factory.mktemp("cells") / "cells.py"
    head = "import torch\nfrom course.kernels import tl, triton\n"
    path.write_text(head + "\n\n".join(wanted), encoding="utf-8")
    names = {"__name__": "cells"}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)  # Triton reads the file
    return names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_kernels(notebook, dtype):
    x, residual = torch.randn(2, 33, 2050, device="cuda").to(dtype)
    bias = torch.randn(2050, device="cuda").to(dtype)
    assert torch.equal(notebook["add"](x, residual), x + residual)
    ours = notebook["fused_chain"](x, bias, residual, p=0.3, seed=5)
    library = elementwise.bias_gelu_dropout_residual(x, bias, residual, p=0.3, seed=5)
    assert torch.equal(ours, library)
    for one_block in (32768, 64):
        exact = torch.softmax(x.double(), -1)
        error = (notebook["softmax"](x, one_block) - exact).abs().max()
        assert error <= 2 * torch.finfo(dtype).eps


def test_the_exercise_accepts_its_solution_and_no_wrong_answer():
    assert ex.layer_norm.verdict(ex.norm_kernel, 1)[0] == "right"
    for attempt, diagnosis in ex.layer_norm.wrong:
        status, said = ex.layer_norm.verdict(attempt, 1)
        assert status == "wrong" and " ".join(diagnosis.split()) in " ".join(said.split())


def test_compiled_is_one_kernel():
    x = torch.randn(64, 1024, device="cuda")
    made = compiled.compile(lambda x: torch.relu(x + 1) * 2, x)
    assert not made.note and torch.equal(made.fn(x), torch.relu(x + 1) * 2)
    assert compiled.moves(made.code) == ["load in_ptr0", "store out_ptr0"]


def test_a_point_of_the_reader_s_own():
    point = recorder.point("hand-written", 10)
    assert point["launches"] == 1 and 0 < point["graph"] < point["wall"]
