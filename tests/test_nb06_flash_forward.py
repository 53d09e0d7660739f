"""Notebook 06: its kernels are right, compile for GPUs, equal the library's; its claims hold."""

import ast
import importlib.util
import itertools
import json
import math
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from course import attention, cost, kernels, records
from course.draw import kernels as pictures
from course.exercises import forward as ex
from course.hardware import GPUS, KiB
from course.kernels.report import SM, occupancy
from course.kernels.tiles import choose
from tests import rounding
from tests.notebook_code import definitions

ROOT = Path(__file__).resolve().parents[1]
PATH = ROOT / "notebooks" / "06_flash_forward.ipynb"
ALL = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
CELLS = [c for c in ALL if c["cell_type"] == "code"]
PROSE = "\n".join("".join(c["source"]) for c in ALL if c["cell_type"] == "markdown")
SOURCES = ["".join(c["source"]) for c in CELLS]
tiles = import_module("course.explore.forward_tiles")

interpreted = pytest.mark.skipif(
    not kernels.interpreted, reason="the interpreter is off: gpu/test_nb06_gpu.py covers it"
)


def said(words):
    """What the first code cell with these words stored as text."""
    cell = next(c for c in CELLS if words in "".join(c["source"]))
    texts = (o.get("text") or o["data"].get("text/plain", "") for o in cell["outputs"])
    return "".join("".join(text) for text in texts)


def module(name, head, folder, more=""):
    """The definitions as a module of its own: Triton reads kernels from a file."""
    path = folder / f"{name}.py"
    path.write_text(head + definitions(PATH) + "\n" + more, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


HEAD = """import numpy as np
import torch

from course import cost, kernels, measure
from course.kernels import naive, tl, triton
from course.kernels.notebook_forward import hide, step, visible_keys


"""


@pytest.fixture(scope="module")
def nb(tmp_path_factory):
    pytest.importorskip("triton")
    return module("nb06_cells", HEAD, tmp_path_factory.mktemp("cells"))


def drawn(seed, *shapes, size=1.0):
    rng = np.random.default_rng(seed)
    return [size * rng.standard_normal(shape) for shape in shapes]


# --- the steps --------------------------------------------------------------------------------


@interpreted
def test_one_tile_and_the_loop(nb):
    import torch

    q, k, v = drawn(0, (16, 16), (16, 16), (16, 16))
    o, meta = torch.empty(16, 16), dict(block_q=16, block_kv=16, block_d=16)
    nb.tile_kernel[(1,)](*nb.tensors(q, k, v), o, 0.25, 16, 16, 16, **meta)
    assert nb.close(o, attention.naive(q, k, v)[0])
    q, k, v = drawn(1, (37, 16), (96, 16), (96, 16), size=3)
    m, l, o = nb.run_loop(q, k, v, 0.25)
    want, lse = attention.naive(q, k, v)
    assert nb.close(o / l[:, None], want) and nb.close(m + l.log(), lse)
    assert np.allclose(nb.numpy_flash(q, k, v, 16, 16), want)


@interpreted
def test_the_worked_example_has_the_same_digits(nb):
    stored = said("q, k, v = worked_example()")
    assert stored == (
        "the state, block by block:\n"
        "after block 1: m = 3, l = 1.1353, o = 2.1353\n"
        "after block 2: m = 4, l = 1.5530, o = 4.3269\noutput 2.786\n"
    )
    q, k, v = nb.worked_example()
    for keys, want in ((16, "3.0000 1.1353 2.1353"), (32, "4.0000 1.5530 4.3269")):
        state = (x.flatten()[0].item() for x in nb.run_loop(q, k[:keys], v[:keys], 1.0))
        assert " ".join(f"{x:.4f}" for x in state) == want
    o, _ = nb.flash(*(x[None] for x in nb.tensors(4 * q, k, v)))  # the launcher scales by 1/√16
    assert f"{o[0, 0, 0].item():.3f}" == "2.786"
    assert all(digits in PROSE for digits in ("1.1353", "2.1353", "1.5530", "4.3269", "2.786"))


@interpreted
def test_a1_padded_keys_leak_without_the_mask(nb):
    import torch

    q, k = (s * np.abs(x) for s, x in zip((-1, 1), drawn(2, (5, 16), (5, 16)), strict=True))
    _, l, o = nb.run_loop(q, k, np.ones((5, 16)), 0.25)
    assert (o / l[:, None]).max() < 0.5
    right, _ = nb.flash(*nb.tensors(q[None], k[None], np.ones((1, 5, 16))))
    torch.testing.assert_close(right, torch.ones(1, 5, 16))
    *_, leaked = said("# five keys; all their scores").split()
    assert re.fullmatch(r"0\.\d{3}", leaked) and f"What was {leaked} is 1." in PROSE
    assert said("five keys again").startswith("five keys again: output 1.000\n")


def test_what_is_stored_is_what_a_reader_meets_who_wrote_nothing_yet():
    """Else the page would show the solutions, or say that its own parts are wrong."""
    for name in ("step", "hide", "visible_keys"):
        assert "not attempted yet. Still open:" in said(f"ex.{name}.check({name})")
        assert "until yours is right" in said(f"{name} = ex.{name}.use({name})")


# --- the whole kernel -------------------------------------------------------------------------

SHAPES = [(64, 64, 32), (5, 5, 8), (33, 70, 40), (70, 33, 40), (1, 40, 64), (40, 1, 1)]


@interpreted
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "n_kv", "d"), SHAPES)
def test_the_librarys_kernel_is_equal_to_the_notebooks(nb, n, n_kv, d, causal):
    """In the same tiles. It multiplies by 1/l where the notebook divides: that may cost one bit."""
    import torch

    from course.kernels import launch, naive
    from course.kernels.tiles import Tile

    arrays = drawn(7, (2, n, d), (2, n_kv, d), (2, n_kv, d), size=2)
    for dtype in (torch.float32, torch.float16):
        q, k, v = nb.tensors(*arrays, dtype=dtype)
        for blocks in ((16, 16), (32, 16)):
            o, lse = nb.flash(q, k, v, causal, *blocks)
            theirs, _, m, inv_l = launch.forward(
                q[None], k[None], v[None], causal=causal, scale=d**-0.5, tile=Tile(*blocks, 4, 1)
            )
            their_lse = (m * np.log(2) - inv_l.log())[0, :, :n]
            rtol = 2 * torch.finfo(dtype).eps
            torch.testing.assert_close(o, theirs[0], rtol=rtol, atol=rtol / 4)
            torch.testing.assert_close(lse, their_lse, rtol=1e-5, atol=1e-5)
        exact = naive.attention(*(x.double()[None] for x in (q, k, v)), causal=causal)[0]
        plain = naive.attention(q[None], k[None], v[None], causal=causal)[0]
        allowed = 2 * (plain - exact).abs().max() + torch.finfo(dtype).eps / 2 * exact.abs().max()
        assert (o - exact).abs().max() <= allowed + rounding.of_scores(q, k, v)


def tree(source, name):
    """The function of that name, without its docstring."""
    node = next(n for n in ast.parse(source).body if getattr(n, "name", "") == name)
    if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
        node.body = node.body[1:]
    return node


FOLDER = ROOT / "course" / "kernels"
COPY = (FOLDER / "notebook_forward.py").read_text(encoding="utf-8")
SHARED = (FOLDER / "notebook.py").read_text(encoding="utf-8")
STUBS = {
    name: next(source for source in SOURCES if f"def {name}(" in source)
    for name in ("step", "hide", "visible_keys")
}


def test_the_course_has_the_page_s_kernel():
    """What stands in for a reader, and is recorded, is what the page says."""
    page = definitions(PATH)
    for name in ("load_tile", "store_tile"):
        assert ast.unparse(tree(page, name)) == ast.unparse(tree(SHARED, name))
    for name in ("visit", "flash_kernel", "flash"):
        assert ast.unparse(tree(page, name)) == ast.unparse(tree(COPY, name))


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_is_its_solution_with_lines_left_out(name):
    stub, solution = tree(STUBS[name], name), tree(COPY, name)
    assert ast.unparse(stub.args) == ast.unparse(solution.args)
    lines = zip(*(ast.unparse(f).splitlines() for f in (stub, solution)), strict=True)
    left_out = [b for a, b in lines if a != b]
    assert left_out and all(a == b or a.endswith(" ...") for a, b in
                            zip(ast.unparse(stub).splitlines(), ast.unparse(solution).splitlines(),
                                strict=True))  # fmt: skip


def test_the_library_has_the_notebook_s_lines():
    """visible_keys whole; of the loop in visit, every line that is softmax and not plumbing."""
    tile, forward = ((FOLDER / f"{name}.py").read_text("utf-8") for name in ("tile", "forward"))
    assert ast.unparse(tree(COPY, "visible_keys")) == ast.unparse(tree(tile, "visible_keys"))
    theirs = next(n.body for n in tree(forward, "visit").body if isinstance(n, ast.For))
    theirs = [re.sub(r"\bscale\b", "c", ast.unparse(line)) for line in theirs]
    mine = [ast.unparse(line) for line in tree(COPY, "step").body[:-1]]
    for line in mine[:-1]:
        assert line in theirs
    assert mine[-1].startswith("acc = ") and any(line.startswith("acc = ") for line in theirs)


def test_every_line_of_the_table_stands_in_the_code():
    rows = re.findall(r"^\| `([^`]*)` \| `([^`]*)` \|$", PROSE, re.M)
    assert len(rows) == 5
    for numpy_line, triton_line in rows:
        assert numpy_line in definitions(PATH) and triton_line in COPY


def test_a3_which_corner():
    text = said("notebook, bottom right:")
    assert "[1.5, 2.0]" in text and "[0.0, 0.5]" in text


@interpreted
def test_bf16_is_refused_where_the_interpreter_would_be_wrong(nb):
    import torch

    x = torch.ones(1, 4, 4, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="interpreter multiplies BF16 wrongly"):
        nb.flash(x, x, x)


@interpreted
def test_a13_tensors_with_gaps(nb):
    import torch

    q, k, v = torch.randn(3, 20, 2, 8, generator=torch.Generator().manual_seed(1)).transpose(1, 2)
    o, lse = nb.flash(q, k, v, causal=True)
    want, want_lse = nb.flash(*(x.contiguous() for x in (q, k, v)), causal=True)
    assert torch.equal(o, want) and torch.equal(lse, want_lse)


@interpreted
def test_rows_without_a_key(nb):
    import torch

    q, k, v = nb.tensors(*drawn(3, (1, 40, 8), (1, 13, 8), (1, 13, 8)))
    o, lse = nb.flash(q, k, v, causal=True)
    assert (
        not o[0, :27].any() and torch.isneginf(lse[0, :27]).all() and lse[0, 27:].isfinite().all()
    )
    assert "first 27 see nothing" in PROSE


@interpreted
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero)")
def test_a_row_that_sees_only_minus_infinity_is_nan_as_in_pytorch(nb):
    """Why the kernel asks last_key < 0 and not l = 0: no key gives 0, no finite score NaN."""
    import torch

    from course.kernels import naive

    q, v = torch.ones(1, 4, 1), torch.arange(1.0, 4).view(1, 3, 1)
    k = torch.tensor([-math.inf, 0.0, -math.inf]).view(1, 3, 1)
    o, lse = nb.flash(q, k, v, causal=True)  # row 0 sees nothing, row 1 a −∞, row 2 more
    assert o[0, 0] == 0 and o[0, 1].isnan() and o[0, 2] == o[0, 3] == 2
    want, want_lse = naive.attention(q[None], k[None], v[None], causal=True, return_lse=True)
    torch.testing.assert_close(o, want[0], equal_nan=True)
    torch.testing.assert_close(lse, want_lse[0])


def test_stored_comparisons_all_hold():
    for words in ("tile_kernel[(1,)]", "def run_loop", "five keys again"):
        text = said(words)
        assert "True" in text and "False" not in text.replace("causal False", "")
    assert said("def allowed") == "right: True\n"


def test_d15_nan_is_not_right(nb):
    """Where plain PyTorch is NaN, a kernel must still be right, and never NaN."""
    import torch

    (source,) = (source for source in SOURCES if "def allowed" in source)
    assert "right &= got <= allowed(*qkv, theirs)" in source
    nan = float("nan")
    for dtype, small, large in ((torch.float16, 4e-4, 6e-4), (torch.float32, 5e-8, 1e-7)):
        zeros, fours = (
            [torch.zeros(1, 1, 1, dtype=dtype)] * 3,
            [torch.full((1, 1, 1), 4.0, dtype=dtype)] * 3,
        )
        assert small <= nb.allowed(*zeros, nan) < large
        assert 2 + small <= nb.allowed(*zeros, 1.0) < 2 + 10 * large
        one_rounding = 4 * 4 * 4 * 2.0**-24  # of a score of 16, times the largest value
        assert small + one_rounding <= nb.allowed(*fours, nan) < large + one_rounding
        assert not nan <= nb.allowed(*fours, nan)


def test_the_loop_is_that_of_notebook_05():
    """All its lines but those that count or merely name."""
    path = PATH.with_name("05_online_softmax.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    before = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    mine = [
        line.strip() for line in ast.unparse(tree(definitions(PATH), "numpy_flash")).splitlines()
    ]
    theirs = {line.strip() for line in ast.unparse(ast.parse(before)).splitlines()}
    fetched = ("def", "o = ", "q_i = ", "m, l, o_i = ", "k_j, v_j = ", "o[i:", "return")
    softmax = [line for line in mine if not line.startswith(fetched)]
    assert len(softmax) == 9 and set(softmax) <= theirs


def lines_of_a_compiler(tmp_path, code):
    """What `code` prints where Triton compiles; the page's kernels are in module nb06_compiled."""
    pytest.importorskip("triton")
    (tmp_path / "nb06_compiled.py").write_text(HEAD + definitions(PATH) + "\n", encoding="utf-8")
    env = os.environ | {"TRITON_INTERPRET": "0"}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_d11_d12_every_kernel_compiles_for_gpus(tmp_path):
    """Without a GPU: the interpreter takes what a GPU refuses."""
    code = """
import nb06_compiled as nb
from course.kernels.report import _compile
single = ("m_ptr", "l_ptr", "lse_ptr", "s_ptr", "out_ptr", "x_ptr")
for name in sorted(n for n in dir(nb) if n.endswith("_kernel")):
    fn = getattr(nb, name)
    constants = {p.name: {"causal": True, "masked": True, "d": 32, "block_d": 32}.get(p.name, 16)
                 for p in fn.params if p.is_constexpr}
    for dtype in ("fp32", "fp16") if name == "flash_kernel" else ("fp32",):
        types = {a: "*" + ("fp32" if a in single else dtype) if a.endswith("_ptr")
                 else "fp32" if a == "scale" else "i32" for a in fn.arg_names}
        for arch in (80, 90):
            made = _compile("nb06_compiled:" + name, types, constants, arch, {"num_warps": 4}, None)
            print(name, dtype, arch, made["spilled_bytes"])
"""
    lines = lines_of_a_compiler(tmp_path, code)
    assert len(lines) == 12
    spilled = [line for line in lines if not line.endswith(" 0") and "look_kernel" not in line]
    assert not spilled  # printing takes a stack, nothing else does


def test_no_product_runs_during_the_softmax(tmp_path):
    """What the page says of waits, read in what Triton makes of its kernel for an H200."""
    code = """
import re, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from nb06_compiled import flash_kernel as fn
sizes = {"causal": False, "block_q": 64, "block_kv": 128, "block_d": 128}
types = {a: "*fp32" if a == "lse_ptr" else "*fp16" if a.endswith("_ptr")
         else "fp32" if a == "scale" else "i32" for a in fn.arg_names}
types |= dict.fromkeys(sizes, "constexpr")
constants = {(fn.arg_names.index(a),): value for a, value in sizes.items()}
aligned = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(fn.arg_names)
           if a.endswith("_ptr") or a == "d"}
for stages in (1, 2):
    source = ASTSource(fn=fn, signature=types, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32),
                          options={"num_warps": 4, "num_stages": stages})
    seen = re.findall(r"(scf.for|warp_group_dot_wait|warp_group_dot |exp2|scf.yield)",
                      made.asm["ttgir"])
    loop = seen[seen.index("scf.for") + 1 :]
    print(*loop[: loop.index("scf.yield")])
"""
    one, two = (
        line.replace("warp_group_dot_wait", "wait").replace("warp_group_dot", "dot").split()
        for line in lines_of_a_compiler(tmp_path, code)
    )
    assert one == ["dot", "wait", "exp2", "exp2", "dot", "wait"]  # QKᵀ, softmax, PV
    assert two == one[:-1]  # PV may run on into the next round, where QKᵀ's wait is for both
    assert "plain Triton lets no product run during the softmax" in PROSE


def test_d13_every_cell_runs_without_triton():
    code = f"""
import json, sys
sys.modules["triton"] = None
cells = json.load(open({str(PATH)!r}, encoding="utf-8"))["cells"]
space = {{}}
for cell in cells:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), space)
assert not space["kernels"].available
print("compiled", space["compiled"](128, 128, 64, 4, 2))
"""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PATH.parent, env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Triton has no wheel") >= 10
    assert done.stdout.splitlines()[-1].startswith("compiled (255,")


# --- the broken kernel ------------------------------------------------------------------------

MENDED = {
    "alpha": ("o = o + tl.dot(p, v", "o = o * alpha[:, None] + tl.dot(p, v"),
    "keys": (
        "        m_new = tl.maximum(m, tl.max(s, 1))\n        alpha = tl.exp(m - m_new)\n",
        '        s = tl.where(start + key[None, :] < n_kv, s, float("-inf"))\n'
        "        m_new = tl.maximum(m, tl.max(s, 1))\n        alpha = tl.exp(m - m_new)\n",
    ),
    "heads": ("there = head * n * d", "there = head * n_kv * d"),
}


@interpreted
@pytest.mark.parametrize("order", [tuple(MENDED), ("heads", "keys", "alpha")])
def test_the_three_bugs_are_found_one_at_a_time(order, tmp_path):
    (source,) = (s for s in SOURCES if "def broken_kernel" in s)
    head = "from course.kernels import tl, triton\n\n\n"
    left = ["Three bugs are left", "One down, two bugs are left", "One bug is left", "right"]
    for i, expected in enumerate(left):
        path = tmp_path / f"broken_{i}.py"
        path.write_text(head + source + "\n", encoding="utf-8")
        names = {"__name__": f"broken_{i}"}
        exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)
        verdict = ex.debug.verdict(names["broken_kernel"], seed=6)
        assert expected in verdict[1]
        if i < 3:
            bug, mended = MENDED[order[i]]
            assert source.count(bug) == 1
            source = source.replace(bug, mended)
    assert verdict[0] == "right"


def test_the_broken_kernel_passes_the_friendly_test():
    assert said("friendly test passes") == "friendly test passes: True\n"


@interpreted
def test_the_page_says_what_print_shows_inside_a_kernel(nb, capsys):
    """Stored on a GPU, the cell itself has nothing to show: there a print speaks for every thread."""
    nb.look_kernel[(1,)](*nb.tensors(np.array([1.0, 3.0, 4.0, 2.0])), block=2)
    assert f"```\n{capsys.readouterr().out}```" in PROSE


# --- tiles, masks, an SM ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "n_kv", "block_q", "block_kv"),
    [(96, 96, 16, 16), (64, 104, 16, 16), (50, 20, 16, 8), (33, 90, 16, 32), (128, 128, 64, 32)],
)
def test_tiles_are_sorted_by_what_the_mask_leaves(n, n_kv, block_q, block_kv):
    i, j = np.arange(n)[:, None], np.arange(n_kv)[None, :]
    seen = j <= i + n_kv - n
    counts = dict.fromkeys((pictures.FULL, pictures.MASKED, pictures.SKIPPED), 0)
    for a in range(0, n, block_q):
        full, end = ex.visible(a, n, n_kv, block_q, block_kv)
        for b in range(0, n_kv, block_kv):
            part = seen[a : a + block_q, b : b + block_kv]
            whole = part.shape[1] == block_kv and part.all()
            kind = pictures.FULL if whole else pictures.MASKED if part.any() else pictures.SKIPPED
            assert pictures.kind(a // block_q, b // block_kv, n, n_kv, block_q, block_kv) == kind
            counts[kind] += 1
            if kind == pictures.SKIPPED:  # the kernel's loop never reaches it, if N is whole tiles
                assert b >= end or n % block_q
            assert (kind == pictures.FULL) == (b + block_kv <= full) or n % block_q
    assert pictures.tile_counts(n, n_kv, block_q, block_kv) == counts


@interpreted
def test_visible_keys_are_those_that_the_mask_leaves():
    """The solution against every pair of query and key, also where there are more queries than keys."""
    from course.kernels.notebook_forward import visible_keys

    for first, n, n_kv, causal, block_q, block_kv in ex._q_tiles(None):
        i, j = first + np.arange(block_q)[:, None], np.arange(n_kv)[None, :]
        seen = (j <= i + n_kv - n) | (not causal)
        last, full, end = ex._run_visible(visible_keys, first, n, n_kv, causal, block_q, block_kv)
        assert (np.maximum(last, -1) == seen.sum(1) - 1).all()
        assert full == seen.all(0).sum() // block_kv * block_kv and end == seen.any(0).sum()
        if causal:
            assert (full, end) == ex.visible(first, n, n_kv, block_q, block_kv)


def test_numbers_of_the_questions():
    counts = pictures.tile_counts(1024, 1024, 64, 64)
    assert (counts["masked"], counts["full"], counts["skipped"]) == (16, 120, 120)
    assert ex.masked_tiles.answer == counts["masked"]
    assert ex.shared.answer * KiB == 128 * 128 * 2 + 2 * 2 * 64 * 128 * 2
    assert ex.blocks.answer == occupancy(255, 0, 4, 90)[0]
    assert ex.programs.answer == 4096 // 128 * 16
    assert 64 * 40 * 40 > 65_504 == int(np.finfo(np.float16).max)  # A17


def test_blocks_of_the_exercise_are_those_of_the_report():
    rng = np.random.default_rng(0)
    for registers, warps, shared in zip(
        rng.integers(16, 256, 200), 2 ** rng.integers(0, 4, 200), rng.integers(0, 227, 200), strict=True
    ):  # fmt: skip
        args = int(registers), int(warps), int(shared) * 1024
        assert ex.blocks_per_sm(*args) == occupancy(args[0], args[2], args[1], 90)[0]
    assert (SM[75][3], SM[89][3], SM[90][3]) == (65_536, 101_376, 232_448)  # D12


def test_clocks_of_a_tile():
    parts = pictures.tile_clocks(64, 128, 128)
    assert parts == {"QKᵀ": 512, "exp2": 512, "other": 320, "PV": 512}
    gpu = GPUS["H200"]
    assert pictures.TENSOR_FLOPS == pytest.approx(gpu.peak["fp16"] / gpu.sms / 1.83e9, rel=1e-3)
    assert pictures.LANES == pytest.approx(gpu.peak["fp32"] / 2 / gpu.sms / 1.98e9, rel=1e-2)
    words = pictures.clocks(Figure().subplots(), [(64, 128, 128), (64, 128, 64)])
    assert "d = 128: 1856 clocks, 55%" in words and "d = 64: 1312 clocks, 39%" in words
    assert "55% of it matmul" in PROSE and "39% matmul" in PROSE


# --- the record -------------------------------------------------------------------------------

H200 = records.load("h200")
POINTS = H200["attention_speed"]["points"]
IN_CELLS = {
    (dtype, *cell): flows
    for dtype in ("fp16", "bf16")
    for cell, flows in pictures.cells(POINTS, dtype).items()
}


def test_the_explorer_shows_the_record():
    for key, p in tiles.swept().items():
        *_, block_q, block_kv, warps, _ = key
        data = tiles.compute(*key)
        assert data["point"] is p and data["speeds"][block_q, block_kv]["flops"] == p["flops"]
        assert (data["blocks"], data["limit"]) == occupancy(
            p["registers"], p["shared_bytes"], warps, 90
        )
        for name, share in data["shares"].items():
            assert 0 < share * data["blocks"] <= 1.0001, (key, name)
        words = tiles.describe(data)
        assert (
            f"{p['registers']} registers" in words and f"{p['flops'] / 1e12:.0f} TFLOP/s" in words
        )
    nowhere = tiles.compute(128, False, 128, 64, 4, 99)
    assert nowhere["point"] is None and "does not start" in tiles.describe(nowhere)


def test_what_the_notebook_says_can_be_found_with_the_sliders():
    swept = tiles.swept()
    full = {key[2:]: p for key, p in swept.items() if key[:2] == (128, False)}
    best = max(full, key=lambda key: full[key]["flops"])
    assert best == (64, 128, 4, 1) and tiles.compute(128, False, *best)["blocks"] == 3
    top = full[best]["flops"]
    few, ruined = full[128, 64, 4, 2], [full[128, 128, 4, stages] for stages in (1, 2, 3)]
    assert 0 < few["spilled_bytes"] < 128
    assert f"still reaches {few['flops'] / top:.0%} of the best" in PROSE
    assert round(ruined[1]["spilled_bytes"] / few["spilled_bytes"]) == 7
    assert round(top / ruined[1]["flops"]) == 3
    assert all(p["spilled_bytes"] > 500 and p["flops"] < 0.6 * top for p in ruined)
    eight = [full[128, 128, 8, stages] for stages in (1, 2, 3)]
    assert all(
        not e["spilled_bytes"] and e["flops"] > r["flops"]
        for e, r in zip(eight, ruined, strict=True)
    )
    assert all(e["flops"] > 2 * r["flops"] for e, r in zip(eight[1:], ruined[1:], strict=True))
    assert full[128, 64, 4, 2]["shared_bytes"] == ex.shared.answer * KiB + 32  # for signals
    assert (
        max(
            full[32, *rest]["flops"] for rest in itertools.product((32, 64, 128), (4, 8), (1, 2, 3))
        )
        < 0.5 * top
    )
    free = swept[128, True, *best]
    (capped,) = (
        p
        for p in H200["tile_sweep"]["points"]
        if (p["kernel"], p["d"], p["causal"], p["maxnreg"]) == ("forward", 128, True, 168)
    )
    blocks = [occupancy(p["registers"], p["shared_bytes"], 4, 90)[0] for p in (free, capped)]
    assert f"takes {free['registers']} registers for it, and only two" in PROSE and blocks == [2, 3]
    assert f"it runs {capped['flops'] / free['flops'] - 1:.0%} faster" in PROSE


def test_what_lies_in_shared_memory_is_what_was_recorded():
    for (d, _, block_q, block_kv, _, stages), p in tiles.swept().items():
        words, size = tiles.budget(d, block_q, block_kv, stages)
        assert 0 <= p["shared_bytes"] - size <= KiB, (d, block_q, block_kv, stages)  # signals
        letters = {"Q": block_q * d, "K": block_kv * d, "V": block_kv * d, "P": block_q * block_kv}
        said = eval(words.replace("−", "-").replace("·", "*"), {"stages": stages, **letters})
        assert 2 * said == size


def test_below_64_rows_there_is_no_wgmma():
    pytest.importorskip("triton")
    from course.kernels.report import report

    few, enough = (
        report("forward", d=64, block_q=rows, block_kv=32).instructions for rows in (32, 64)
    )
    assert few["mma"] and not few["wgmma"] and enough["wgmma"] and not enough["mma"]


@pytest.mark.parametrize("stages", [2, 3])
def test_three_stages_are_two_slots_on_an_a100_and_three_on_hopper(stages):
    pytest.importorskip("triton")
    from course.kernels.report import report

    tile = dict(d=128, block_q=128, block_kv=128, num_warps=8, num_stages=stages)
    a100, hopper = (report("forward", arch=arch, **tile).shared_bytes / KiB for arch in (80, 90))
    assert a100 == 32 + (stages - 1) * 64 and 0 <= hopper - (32 + stages * 64) <= 1


def test_memory_is_linear_and_naive_is_not():
    flows = IN_CELLS["fp16", 128, False]
    peaks = {flow: {n: q["peak_bytes"] for n, q in line.items()} for flow, line in flows.items()}
    for flow in ("ours", "cuDNN", "FA-2", "mem-efficient"):
        assert max(peaks[flow].values()) < 1.02 * min(peaks[flow].values())
    naive = peaks["naive"]
    s_and_p = {n: 2 * cost.attention(n, 128, flow="naive", heads=16, batch=16384 // n).written // 2
               for n in naive}  # fmt: skip
    assert all(naive[n] > 0.9 * s_and_p[n] for n in naive)
    assert 1.7 < naive[4096] / naive[2048] < 2.1
    assert 1.8 < peaks["ours"][4096] / peaks["cuDNN"][4096] < 2.2  # "twice as much"
    ax = Figure().subplots()
    words = pictures.memory(ax, POINTS)
    assert "naive" in words and "GB" in words and "cuDNN, FA-2, mem-efficient 68" in words
    drawn = [tuple(f"{y:.1g}" for y in line.get_ydata()) for line in ax.lines]
    assert len(drawn) == len(set(drawn)) == 3  # no line hides another


def test_what_the_prose_says_of_speed():
    for cell, flows in IN_CELLS.items():
        for n in (512, 4096, 16384):
            assert flows["ours"][n]["flops"] > flows["FA-2"][n]["flops"], cell
        assert flows["ours"][4096]["flops"] > 4 * flows["naive"][4096]["flops"], cell
    for dtype, mask in itertools.product(("fp16", "bf16"), (False, True)):
        near, behind = (IN_CELLS[dtype, d, mask]["ours"][4096]["of_cudnn"] for d in (64, 128))
        assert 0.93 < near and behind < near  # "comes close at d = 64, stays behind at d = 128"
    for mask in (False, True):  # "none closes the gap at d = 128"
        tried = (p["flops"] for p in H200["tile_sweep"]["points"]
                 if (p["kernel"], p["d"], p["causal"]) == ("forward", 128, mask))  # fmt: skip
        assert max(tried) < 0.95 * IN_CELLS["fp16", 128, mask]["cuDNN"][4096]["flops"]
    for d in (64, 128):  # "lands near the measurement", and overlap lifts both above it or to it
        share = pictures.matmul_share(64, 128, d)
        ours, cudnn = (
            IN_CELLS["fp16", d, False][flow][16384]["flops"] / GPUS["H200"].peak["fp16"]
            for flow in ("ours", "cuDNN")
        )
        assert 1 < ours / share < 1.25 and cudnn > share  # "Both pass the model"


def test_the_table_of_shares_is_the_record():
    table = pictures.shares(POINTS)
    assert len(table.rows) == len(IN_CELLS) == 8
    for (dtype, d, mask, *numbers, naive), ((kind, *cell), flows) in zip(
        table.rows, IN_CELLS.items(), strict=True
    ):
        assert (dtype, int(d), mask) == (kind, cell[0], "causal" if cell[1] else "full")
        for n, said_there in zip((512, 4096, 16384), numbers, strict=True):
            ours, cudnn = (flows[flow][n]["flops"] for flow in ("ours", "cuDNN"))
            speed, share = re.fullmatch(r"(\d+) \((\d+)%\)", said_there).groups()
            assert speed == f"{ours / 1e12:.0f}" and abs(int(share) - 100 * ours / cudnn) < 0.6
        assert naive == f"{flows['ours'][4096]['flops'] / flows['naive'][4096]['flops']:.1f}×"


def test_the_figure_of_speeds_says_what_it_shows():
    mine = [p for p in POINTS if p["flow"] == "ours" and p["n"] == 4096]
    figure = Figure()
    words = pictures.speeds(figure.subplots(2, 2), POINTS, mine=mine)
    last = IN_CELLS["fp16", 128, False]["ours"][16384]["flops"] / 1e12
    assert f"d = 128, full, N = 16,384: library kernel {last:.0f}, cuDNN" in words
    labels = [t.get_text() for t in figure.legends[0].get_texts()]
    assert labels == ["library kernel", "naive", "cuDNN", "FA-2", "mem-efficient", pictures.MINE]
    markers = {s.marker for s in pictures.STYLES.values()}
    assert len(markers) == len(pictures.STYLES)  # D16: no line is told by colour alone


# --- the ladder -------------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize("causal", [False, True])
def test_every_rung_of_the_ladder_is_attention(causal):
    import torch

    from course.kernels import launch, naive
    from course.kernels.tiles import Tile
    from course.records import forward_ladder

    q, k, v = torch.randn(3, 2, 3, 128, 32, generator=torch.Generator().manual_seed(0)).half()
    exact = naive.attention(*(x.double() for x in (q, k, v)), causal=causal)
    allowed = 2 * (naive.attention(q, k, v, causal=causal) - exact).abs().max()
    allowed += torch.finfo(q.dtype).eps / 2 * exact.abs().max() + rounding.of_scores(q, k, v)
    rungs = forward_ladder.ladder(Tile(32, 64, 4, 1, maxnreg=168))
    assert list(rungs) == list(forward_ladder.RUNGS)
    for run, tile in rungs.values():
        o, rows = torch.empty_like(q), [launch.row_statistics(q) for _ in range(2)]
        run(q, k, v, o, rows, causal, tile)
        assert (o - exact).abs().max() <= allowed


def test_each_rung_of_the_ladder_changes_one_thing():
    from course.records import forward_ladder

    for d, names in ((64, list(forward_ladder.RUNGS)[:-1]), (128, list(forward_ladder.RUNGS))):
        own = choose("forward", d=d, itemsize=2, shared_memory=SM[90][3])
        rungs = forward_ladder.ladder(own)
        assert list(rungs) == names and list(rungs.values())[-1][1] == own
        for (run, tile), (next_run, next_tile) in itertools.pairwise(rungs.values()):
            shape, next_shape = tile[:2], next_tile[:2]  # rows and keys are one choice
            changed = [run != next_run, shape != next_shape]
            changed += [a != b for a, b in zip(tile[2:], next_tile[2:], strict=True)]
            assert sum(changed) == 1


def climb(seconds):
    """A made-up section of the ladder: {(rung, d, causal): seconds of 10 TFLOP} at N = 4,096."""
    from course.records.forward_ladder import RUNGS

    points = [
        {"rung": rung, "d": d, "causal": causal, "n": n, "seconds": t * n / 4096, "low": 0.9 * t * n / 4096,
         "high": 1.25 * t * n / 4096, "flops": 1e13 / t, **({"blocks": d // 64 + i, "registers": 100 + i} if rung in RUNGS else {})}
        for i, ((rung, d, causal), t) in enumerate(seconds.items())
        for n in (16_384, 4096)
    ]  # fmt: skip
    return {"rungs": RUNGS, "points": points}


MADE_UP = climb(
    {
        (rung, d, causal): t * (2 if causal else 1) * 64 / d
        for d in (64, 128)
        for causal in (False, True)
        for rung, t in (("notebook kernel", 0.1), ("tile", 0.05), ("stages", 0.04),
                        ("library code", 0.04), ("copy engine", 0.032), ("register cap", 0.025),
                        ("cuDNN", 0.02))
        if (rung, d) != ("register cap", 64)
    }
)  # fmt: skip


def test_the_gain_of_a_rung_is_over_the_rung_before():
    line = pictures.rungs(MADE_UP, 4096)[128, False]
    gains = {name: p["gain"] for name, p in line.items()}
    assert gains.pop("notebook kernel") is None and gains.pop("cuDNN") is None
    assert list(gains.values()) == pytest.approx([2, 1.25, 1, 1.25, 1.28])
    assert {p["n"] for p in line.values()} == {4096}


def test_the_picture_of_the_ladder_says_what_it_shows():
    axes, mine = Figure().subplots(1, 2), {("stages", True): 3e14}
    words = pictures.ladder(axes, MADE_UP, mine=mine)
    assert "full: notebook kernel 200, tile 400, stages 500, library code 500" in words
    assert "causal: notebook kernel 100" in words and "register cap 400, cuDNN 500" in words
    for ax, mask, first in zip(axes, ("full", "causal"), (200, 100), strict=True):
        assert len(ax.patches) == 6 and ax.get_title() == f"d = 128, {mask}, N = 4,096"
        texts = [t.get_text() for t in ax.texts]
        assert texts[:2] == [f"{first}", f"{2 * first}   ×2.00"]
        spread, speed = ax.lines[1].get_xdata(), ax.patches[1].get_width()
        assert spread == pytest.approx([speed / 1.25, speed / 0.9])
    (star,) = [line for line in axes[1].lines if line.get_marker() == "*"]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (300, 2)
    assert not [line for line in axes[0].lines if line.get_marker() == "*"]
    axes = Figure().subplots(1, 2)
    pictures.ladder(axes, MADE_UP, d=64)
    assert len(axes[0].patches) == 5 and axes[0].texts[-1].get_text() == "none in the table"


def test_the_table_of_the_ladder():
    rows = pictures.climbed(MADE_UP, n=16_384).rows
    assert [row[0] for row in rows] == [*MADE_UP["rungs"], "cuDNN"]
    assert rows[0][1:] == ("100", "50", "200", "100", "112, 119", "14, 21")
    assert rows[1][1:5] == ("200 ×2.00", "100 ×2.00", "400 ×2.00", "200 ×2.00")
    assert rows[5][1:3] == ("–", "–") and rows[6][1:] == ("500", "250", "1000", "500", "–", "–")


LADDER = {n: pictures.rungs(H200["forward_ladder"], n) for n in (4096, 16_384)}


def test_the_record_of_the_ladder_is_whole():
    """Every rung of every cell, in its order; where it ends as the library does in another run."""
    from course.records import forward_ladder

    assert H200["forward_ladder"]["rungs"] == forward_ladder.RUNGS
    for n, found in LADDER.items():
        assert set(found) == set(itertools.product((64, 128), (False, True)))
        for (d, causal), line in found.items():
            own = choose("forward", d=d, itemsize=2, shared_memory=SM[90][3])
            rungs = forward_ladder.ladder(own)
            assert list(line) == [*rungs, "cuDNN"]
            for name, (_, tile) in rungs.items():
                p = line[name]
                assert p["tile"] == list(tile) and p["low"] <= p["seconds"] <= p["high"]
                fits = occupancy(p["registers"], p["shared_bytes"], tile.num_warps, 90)
                assert (p["blocks"], p["limited_by"]) == fits
            library = IN_CELLS["fp16", d, causal]["ours"][n]["flops"]
            assert line[list(rungs)[-1]]["flops"] == pytest.approx(library, rel=0.08)


def test_what_the_prose_says_of_the_ladder():
    for found in LADDER.values():
        gains = {cell: {name: p["gain"] for name, p in line.items() if p["gain"]}
                 for cell, line in found.items()}  # fmt: skip
        for cell, gain in gains.items():
            assert max(gain, key=gain.get) == "tile" and 4 < gain["tile"] < 9, cell
            assert gain["copy engine"] > 1.15, cell
            assert (gain["stages"] > 1.1) if cell[0] == 128 else (gain["stages"] < 0.95), cell
        assert 0.95 < gains[128, False]["register cap"] < 1.01
        assert 1.2 < gains[128, True]["register cap"] < 1.3
        full, causal = (
            {name: (p["registers"], p["spilled_bytes"], p["blocks"])
             for name, p in found[128, masked].items() if name != "cuDNN"}
            for masked in (False, True)
        )  # fmt: skip
        assert [full[name][2] for name in ("tile", "stages", "library code")] == [1, 2, 2]
        assert full["library code"][0] == 255 and full["library code"][1] > 0
        assert full["copy engine"] == full["register cap"] == (168, 0, 3)
        assert causal["copy engine"][0] == 186 and causal["copy engine"][2] == 2
        assert causal["register cap"][2] == 3
    assert (
        "four to eight times" in PROSE and "from 255 to 168" in PROSE and "stopped at 168" in PROSE
    )


def test_sixteen_rows_are_too_few_for_wgmma():
    pytest.importorskip("triton")
    from course.kernels.report import resources

    types = {name: "*fp16" for name in ("q_ptr", "k_ptr", "v_ptr", "o_ptr")}
    types |= {"lse_ptr": "*fp32", "scale": "fp32", "n": "i32", "n_kv": "i32", "d": "i32:128"}
    few, enough = (
        resources(
            "course.kernels.notebook_forward:flash_kernel", types,
            dict(causal=False, block_q=rows, block_kv=keys, block_d=128), num_stages=3,
        ).instructions
        for rows, keys in ((16, 16), (64, 128))
    )  # fmt: skip
    assert few["mma"] and not few["wgmma"] and enough["wgmma"] and not enough["mma"]


# --- the counter of HBM -----------------------------------------------------------------------


def test_hbm_delivers_k_and_v_about_once():
    section = records.load("h200")["attention_speed"]
    n, d, heads = (section["counted"][name] for name in ("n", "d", "heads"))
    runs = {r["flow"]: r["kernels"] for r in section["dram"] if r["way"] == "forward"}
    tensor = 2 * heads * n * d
    read = runs["ours"][0]["read"]
    assert f"K and V are {3 * tensor / 1e6:.1f} MB, and {read / 1e6:.0f} MB were read" in PROSE
    l2 = GPUS["H200"].l2_bytes
    assert (
        f"K and V of a head are {2 * tensor / heads / 1e6:.1f} MB, and the L2 holds "
        f"{l2 / 1e6:.1f} MB ({l2 / KiB**2:.0f} MiB)"
    ) in PROSE
    tile = choose("forward", d=d, itemsize=2, shared_memory=SM[90][3])
    assert f"has {tile.block_q} queries" in PROSE
    assert f"there are {n // tile.block_q} programs per head" in PROSE
    assert n // tile.block_q < 3 * GPUS["H200"].sms  # "run at the same time", three blocks an SM
    for flow in ("ours", "mem-efficient", "FA-2", "cuDNN"):
        (kernel,) = runs[flow]
        assert 3 * tensor < kernel["read"] < 3.3 * tensor and kernel["written"] < tensor
    (ours,) = runs["ours"]
    products = cost.attention(n, d, flow="ideal", heads=heads).flops / GPUS["H200"].peak["fp16"]
    moving = (ours["read"] + ours["written"]) / GPUS["H200"].bandwidth
    assert "a twentieth of the time" in PROSE and 0.04 < moving / products < 0.055
    counted = cost.attention(n, d, flow="naive", heads=heads).bytes
    naive_bytes = sum(k["read"] + k["written"] for k in runs["naive"])
    once_more = 2 * 2 * heads * n * n  # the scale: S read and written again
    assert len(runs["naive"]) == 4 and abs(naive_bytes / (counted + once_more) - 1) < 0.03
    assert "about five times" in PROSE
    assert 4.5 < naive_bytes / GPUS["H200"].bandwidth / products < 5.5
    (kernels,) = (
        r["kernels"]
        for r in H200["attention_bytes"]["dram"]
        if (r["flow"], r["heads"], r["n"], r["caches"]) == ("naive", heads, n, "kept")
    )
    moved = sum(k["read"] + k["written"] for k in kernels)
    assert f"{moved / 1e9:.2f} GB of notebook 04" in PROSE and len(kernels) == 3
