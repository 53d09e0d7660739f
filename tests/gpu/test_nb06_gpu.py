"""The cells of notebook 06 on a GPU: its kernels, the worked example, its exercises."""

import ast
import json
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from course.exercises import forward as ex
from course.kernels import interpreted, naive

pytestmark = pytest.mark.gpu
NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "06_flash_forward.ipynb"
HEAD = (
    "import numpy as np\nimport torch\nfrom course.kernels import tl, triton\ndevice = 'cuda'\n\n"
)


@pytest.fixture(scope="module")
def nb(tmp_path_factory):
    """What the notebook defines, exercises aside."""
    assert not interpreted
    kept = []
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        for node in ast.parse(source).body if cell["cell_type"] == "code" else ():
            if isinstance(node, ast.FunctionDef) and "..." not in ast.unparse(node):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                kept.append("\n".join(source.splitlines()[first - 1 : node.end_lineno]))
    path = tmp_path_factory.mktemp("cells") / "cells.py"
    path.write_text(HEAD + "\n\n\n".join(kept), encoding="utf-8")
    names = {"__name__": "cells"}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)  # Triton reads the file
    return names


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
