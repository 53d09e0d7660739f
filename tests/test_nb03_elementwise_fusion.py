"""Notebook 03: its kernels, its counts, its figures and what it says about the record."""

import ast
import inspect
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

from course import cost, kernels, measure, records
from course import roofline as model
from course.cost import OPS, Op
from course.draw import fusion as pictures
from course.exercises import fusion as ex
from course.hardware import GPUS
from course.records import fusion as recorder
from tests.notebook_code import definitions

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "03_elementwise_fusion.ipynb"
CELLS = [
    "".join(cell["source"])
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]
KERNELS = ("gelu", "kept", "gelu_slope", "softmax_kernel", "long_softmax_kernel")
H200 = GPUS["H200"]
explorer = import_module("course.explore.fusion")
programs = import_module("course.explore.programs")

needs_triton = pytest.mark.skipif(not kernels.available, reason="Triton has no wheel here")


# --- the kernels of the notebook --------------------------------------------------------------


def functions(source):
    """name → the function without its docstring, as a syntax tree."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            if ast.get_docstring(node):
                node.body = node.body[1:]
            found[node.name] = ast.dump(node)
    return found


@needs_triton
def test_the_library_has_the_kernels_of_the_notebook():
    from course.kernels import elementwise

    library, ours = functions(inspect.getsource(elementwise)), functions("\n".join(CELLS))
    for name in KERNELS:
        assert ours[name] == library[name], name
    plain = library["plain_chain_kernel"].replace("plain_chain_kernel", "chain_kernel")
    assert ours["chain_kernel"] == plain


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """The functions that the notebook defines: its kernels and how it launches them."""
    head = "import torch\nimport torch.nn.functional as F\nfrom course.kernels import tl, triton\n"
    path = tmp_path_factory.mktemp("cells") / "cells.py"
    path.write_text(head + definitions(NOTEBOOK), encoding="utf-8")
    names = {"__name__": "cells"}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)  # Triton reads the file
    return names


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def device():
    return "cpu" if kernels.interpreted else "cuda"


def draw(torch, *shape, dtype="float32", seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(getattr(torch, dtype)).to(device())


@needs_triton
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 129), (2, 1024), (5, 2050)])
def test_case_d15_the_chain_is_as_exact_as_pytorch(notebook, torch, shape, dtype):
    """Error against FP64 at most twice PyTorch's in the same data type; and equal to the library."""
    from torch.nn.functional import gelu

    from course.kernels.elementwise import bias_gelu_dropout_residual as library

    x, residual = draw(torch, *shape, dtype=dtype), draw(torch, *shape, dtype=dtype, seed=1)
    bias = draw(torch, shape[1], dtype=dtype, seed=2)
    for scale in (1, 1e-3):
        args = scale * x, bias, scale * residual
        plain, exact = (
            gelu(a[0] + a[1], approximate="tanh") + a[2] for a in (args, [t.double() for t in args])
        )
        ours = notebook["fused_chain"](*args, p=0)
        half = torch.finfo(ours.dtype).eps / 2 * exact.abs().max()
        assert (ours - exact).abs().max() <= 2 * torch.maximum((plain - exact).abs().max(), half)
        assert not torch.equal(ours, torch.zeros_like(ours))
        assert torch.equal(ours, library(*args, p=0))


@needs_triton
@pytest.mark.parametrize("block", [128, 256, 1024])
def test_case_a23_one_seed_one_mask_forward_and_backward(notebook, torch, block):
    threes, zeros = (torch.full((3, 1030), v, device=device()) for v in (3.0, 0.0))
    run = notebook["fused_chain"]
    first = run(threes, zeros[0], zeros, p=0.5, seed=7)
    assert torch.equal(run(threes, zeros[0], zeros, p=0.5, seed=7, block=block), first)
    dx = torch.full_like(threes, math.nan)
    grid = 3, -(-1030 // block)
    notebook["chain_backward_kernel"][grid](threes, zeros[0], threes, dx, 1030, 0.5, 7, BLOCK=block)
    assert torch.equal(dx != 0, first != 0)
    other = run(threes, zeros[0], zeros, p=0.5, seed=8, block=block) != 0
    assert 0.4 < (other != (first != 0)).double().mean() < 0.6


@needs_triton
def test_the_backward_kernel_gives_pytorchs_gradient(notebook, torch):
    from torch.nn.functional import gelu

    x, dout, bias = draw(torch, 2, 70), draw(torch, 2, 70, seed=1), draw(torch, 70, seed=2)
    dx = torch.full_like(x, math.nan)
    notebook["chain_backward_kernel"][2, 3](x, bias, dout, dx, 70, 0.0, 1, BLOCK=32)
    exact = x.double().requires_grad_()
    gelu(exact + bias, approximate="tanh").backward(dout.double())
    assert (dx - exact.grad).abs().max() < 1e-5


@needs_triton
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
def test_the_chain_drops_the_part_it_should(notebook, torch, p):
    ones = torch.ones(16, 4001, device=device())
    out = notebook["fused_chain"](ones, ones[0] * 0, ones * 0, p=p, seed=3)
    assert abs((out == 0).double().mean().item() - p) < 4 * (p * (1 - p) / 64016) ** 0.5 + 1e-12
    plain = torch.nn.functional.gelu(torch.tensor(1.0), approximate="tanh").item()
    assert out.max().item() == pytest.approx(plain / (1 - p), rel=1e-5)


@needs_triton
@pytest.mark.parametrize("block", [None, 16])
@pytest.mark.parametrize("cols", [1, 5, 100, 1024])
def test_softmax_for_any_row_length(notebook, torch, cols, block):
    softmax = notebook["long_softmax" if block else "softmax"]
    blocks = (block,) if block else ()
    x = 10 * draw(torch, 3, cols) - 50  # all negative: a lane filled with 0 would win
    x[0, : cols // 2] = -math.inf
    assert (softmax(x, *blocks) - torch.softmax(x.double(), -1)).abs().max() < 1e-6
    nothing = torch.full_like(x, -math.inf)
    assert torch.equal(softmax(nothing, *blocks), torch.zeros_like(x))
    wide = draw(torch, 3, 2 * cols)[:, :cols]  # rows that lie apart
    assert (softmax(wide, *blocks) - torch.softmax(wide.double(), -1)).abs().max() < 1e-6


def test_case_d11_every_masked_load_is_filled_and_blocks_are_powers_of_two():
    """The interpreter would forgive both."""
    answers = [ex.copy_kernel, ex.add_relu_times_kernel, ex.row_max_kernel, ex.norm_kernel]
    sources = "\n".join([*CELLS, *(inspect.getsource(answer.fn) for answer in answers)])
    loads = [
        node
        for node in ast.walk(ast.parse(sources))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load"
    ]
    given = [{keyword.arg for keyword in load.keywords} for load in loads]
    assert len(loads) >= 20 and all("other" in names for names in given if "mask" in names)
    bare = [ast.unparse(x) for x, names in zip(loads, given, strict=True) if "mask" not in names]
    assert bare == ["tl.load(x_ptr + offsets)", "tl.load(...)"]  # add_one_kernel, and the stub
    blocks = {int(b) for b in re.findall(r"(?:block=|BLOCK=|, block in \(\(\d, )(\d+)", sources)}
    assert blocks and all(b & (b - 1) == 0 for b in blocks)


@needs_triton
@pytest.mark.parametrize(
    ("draw", "low", "high", "numbers"),
    [
        ("tl.rand(seed, at)", 25, 35, 1),
        ("tl.join(tl.join(a, c), tl.join(b, d))", 20, 28, 4),  # as `kept` draws
    ],
)
def test_multiplications_per_draw(tmp_path, draw, low, high, numbers):
    """Counted in the machine code for an H100 or H200, compiled here without one."""
    program = tmp_path / "draw.py"
    program.write_text(
        DRAW.replace("DRAWN", draw).replace("NUMBERS", str(numbers)), encoding="utf-8"
    )
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, program], capture_output=True, encoding="utf-8", env=env)
    if done.returncode:
        pytest.skip(f"cannot compile for sm_90 here: {done.stderr.strip().splitlines()[-1]}")
    assert low <= float(done.stdout) <= high


DRAW = """
import re, subprocess, tempfile
from pathlib import Path
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def draw(out, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(seed, at, n_rounds=7)
    drawn = tl.reshape(DRAWN, (BLOCK * NUMBERS,))
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK * NUMBERS), drawn)

source = ASTSource(fn=draw, signature={"out": "*fp32", "seed": "i32", "BLOCK": "constexpr"},
                   constexprs={"BLOCK": 1024}, attrs={(0,): [["tt.divisibility", 16]]})
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
    Path(file.name).write_bytes(made.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    sass = subprocess.run([tool, "-sass", file.name], capture_output=True, encoding="utf-8", check=True).stdout
print(len(re.findall(r"\\sIMAD[. ]", sass)) / (1024 / 128))
"""


# --- without Triton, without a compiler (D10, D13) --------------------------------------------


def python(code, **env):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | env
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", env=env
    )


NO_TRITON = """
import importlib.util, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else real(name, *rest)
"""

RUN_CELLS = """
import json, os
os.chdir("notebooks")
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.load(open("03_elementwise_fusion.ipynb", encoding="utf-8"))["cells"]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "code":
        result = shell.run_cell(source)
        if not result.success:
            raise SystemExit(f"FAILED: {source}")
print("ALL CELLS RAN")
"""


def test_case_d13_every_cell_runs_without_triton_and_without_a_compiler(tmp_path):
    env = dict(CXX="no-such-compiler", TORCHINDUCTOR_CACHE_DIR=str(tmp_path), OMP_NUM_THREADS="1")
    done = python(NO_TRITON + RUN_CELLS, **env)
    assert "ALL CELLS RAN" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    missing = [line for line in done.stdout.splitlines() if "Triton has no wheel" in line]
    assert len(missing) >= 5 and len(set(missing)) == 1
    assert "attention recognised: 1" in done.stdout  # a kernel that is there needs no compiler


def test_without_triton_a_launch_says_so_in_one_line():
    code = NO_TRITON + (
        "from course.kernels import tl, triton\n"
        "@triton.jit(do_not_specialize=['n'])\n"
        "def kernel(n, BLOCK: tl.constexpr): pass\n"
        "assert (triton.cdiv(10, 4), triton.next_power_of_2(5)) == (3, 8)\n"
        "assert [triton.next_power_of_2(n) for n in (1, 2, 8)] == [1, 2, 8]\n"
        "try: kernel[(1,)](1, BLOCK=4)\n"
        "except RuntimeError as error: print(error)\n"
        "from course.exercises import fusion as ex\n"
        "for each in (ex.copy, ex.add_relu_times_in_one, ex.row_max, ex.layer_norm):\n"
        "    each.check(...), each.check(kernel)\n"
    )
    said = python(code).stdout
    first, launched, checked = said.split("\n", 2)
    assert first == launched and "the Triton cells are skipped" in first
    assert checked.count("not attempted yet") == 4
    assert " ".join(checked.split()).count("Triton has no wheel") == 4


@needs_triton
@pytest.mark.skipif(not kernels.interpreted, reason="a GPU is here")
@pytest.mark.parametrize(
    ("first", "interpreted", "says"),
    [
        ("", True, "interpreter, right but slow"),
        ("import torch", True, "interpreter, right but slow"),
        ("import triton", False, "Restart the kernel"),
        ("import os; os.environ['TRITON_INTERPRET'] = '1'; import triton", True, "interpreter"),
    ],
)
def test_case_d10_the_interpreter_is_on_before_triton_is_imported(first, interpreted, says):
    done = python(f"{first}\nfrom course import kernels\nprint(kernels.interpreted)")
    note, value = done.stdout.splitlines()
    assert says in note and value == str(interpreted)


def test_case_d13_compile_falls_back_with_one_line(tmp_path):
    code = (
        "import torch\nfrom course.kernels import compiled\n"
        "made = compiled.compile(torch.relu, torch.ones(3))\n"
        "print(made.fn(torch.tensor([-1.0, 2.0])).tolist(), made.kernels, made.note)\n"
    )
    done = python(code, CXX="no-such-compiler", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    if "CUDA" in done.stdout:
        pytest.skip("a GPU is here")
    line = done.stdout.splitlines()[-1]
    assert line.startswith("[0.0, 2.0] [] torch.compile needs a C++ compiler here")


ATTENTION = """
import torch
from torch._dynamo.utils import counters
from course.kernels import compiled

def attention(q, k, v, cap=float("inf")):
    s = q @ k.mT / q.shape[-1] ** 0.5
    s = s.clamp(max=50) if cap == 50 else s
    p = torch.softmax(s, dim=-1)
    return p @ v

qkv = torch.randn(3, 1, 2, 256, 64)
for _ in range(2):  # the second time from a cache, if there were one
    made = compiled.compile(attention, *qkv)
    print(made.recognised, made.kernels, made.calls, made.note)
print((made.fn(*qkv) - attention(*qkv)).abs().max().item() < 1e-5)
made = compiled.compile(lambda q, k, v: attention(q, k, v, 50), *qkv)
print(counters["inductor"]["fuse_attention"], made.note)
"""


def test_attention_is_recognised_and_with_one_line_more_it_is_not(tmp_path):
    """No C++ compiler: what is recognised is there, and what is not would have to be written."""
    done = python(ATTENTION, CXX="no-such-compiler", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    first, again, right, capped = done.stdout.splitlines()[-4:]
    if "CUDA" in done.stdout:
        pytest.skip("a GPU is here")
    assert first == again == "1 [] ['_scaled_dot_product_flash_attention_for_cpu'] "
    assert right == "True" and capped.startswith("0 torch.compile needs a C++ compiler here")
    assert not done.stderr


def test_calls_are_those_of_kernels_that_people_wrote():
    from course.kernels.compiled import Compiled

    code = (
        "    extern_kernels.bmm(reinterpret_tensor(a, (2, 3)), b, out=buf0)\n"
        "    buf1 = torch.ops.aten._scaled_dot_product_x.default(q, k, scale=0.125)\n"
        "    assert_size_stride(buf1, (1,), 'torch.ops.aten._scaled_dot_product_x.default')\n"
        "# Original ATen: [aten.mm]\n"
    )
    assert Compiled(None, code, "").calls == ["bmm", "_scaled_dot_product_x"]


def test_moves_reads_what_inductor_wrote():
    from course.kernels.compiled import Compiled, moves

    code = records.load("h200")["fusion"]["compiled_code"]
    assert sorted(moves(code)) == [f"load in_ptr{i}" for i in range(4)] + ["store out_ptr1"]
    cpp = (
        "cpp_fused_add_0 = async_compile.cpp_pybinding(\n"
        "auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + x0, 16);\n"
        "tmp1.store(in_out_ptr0 + x0);\n tmp4.store(offset);"
    )
    assert moves(cpp) == ["load in_ptr0", "store in_out_ptr0"]
    assert Compiled(None, cpp, "").kernels == ["cpp_fused_add_0"]


# --- counts -----------------------------------------------------------------------------------


def test_case_c15_i_unfused_softmax():
    m, n = 4096, 1000
    read, written = ex.softmax_elements(m, n)
    assert (read, written) == (5 * m * n + 2 * m, 3 * m * n + 2 * m)
    assert (read + written) / (2 * m * n) == pytest.approx(4.0, rel=1e-2)
    table = [(m * n, m), (m * n + m, m * n), (m * n, m * n), (m * n, m), (m * n + m, m * n)]
    assert tuple(map(sum, zip(*table, strict=True))) == (read, written)


def test_case_c15_ii_rms_norm_with_casts():
    assert ex.rms_norm.answer == pytest.approx(1174.4, abs=0.05)
    fused = cost.elementwise(4096 * 10240)  # BF16 in, BF16 out
    assert fused.bytes / 1e6 == pytest.approx(167.8, abs=0.05)
    assert ex.rms_norm.answer * 1e6 / fused.bytes == ex.rms_norm_fused.answer == 7


def test_case_c15_iii_add_relu_times():
    ops = explorer.CHAINS["(a + b), ReLU, times c"]
    apart, one = (cost.chain(ops, 1000, fused=fused).bytes for fused in (False, True))
    assert (apart / 2000, one / 2000) == (8, 4) and apart / one == ex.add_relu_times.answer


@pytest.mark.parametrize("seed", range(20))
def test_traffic_of_the_exercise_is_cost_chain(seed):
    rng = np.random.default_rng(seed)
    ops = [(int(e), int(s)) for e, s in rng.integers(0, 3, (rng.integers(1, 6), 2))]
    n, size = int(rng.integers(1, 10**9)), int(rng.choice([1, 2, 4]))
    chain = [Op(reads=extra, stored=stored) for extra, stored in ops]
    counted = tuple(cost.chain(chain, n, fused=f, itemsize=size).bytes for f in (False, True))
    assert ex.traffic(ops, n, size) == counted


def test_a_gelu_input_that_is_kept_costs_the_fused_kernel_one_write_more(notebook_values):
    """Apart, it is written in any case: it is what bias hands to GELU."""
    kept = [Op("bias", 1, stored=2), *(OPS[name] for name in pictures.FUSED[1:])]
    assert notebook_values["one"] == cost.chain(kept, 1, fused=True).bytes == 8
    assert notebook_values["apart"] == cost.chain(pictures.FUSED, 1, fused=False).bytes == 18


@pytest.fixture
def notebook_values():
    """What the cell of case 3 leaves."""
    (cell,) = [cell for cell in CELLS if "GELU's input kept" in cell]
    names = {"cost": cost, "seeded": pictures.FUSED}
    exec(cell, names)
    return names


def test_questions_by_the_course_s_own_counts():
    plain, seeded = [Op()] * 4, [OPS[name] for name in pictures.FUSED]
    ratio = lambda ops: cost.chain(ops, 1, fused=False).bytes / cost.chain(ops, 1, fused=True).bytes  # noqa: E731
    assert ratio(plain) == 4
    assert ratio(seeded) == ex.exact_trips.answer
    assert ratio(seeded[:3]) == ratio(plain[:3]) == ex.three_trips.answer
    assert math.ceil(1_000_000 / 1024) == ex.programs.answer
    three, one = 3 * cost.matmul(4096, 4096, 4096), cost.matmul(4096, 3 * 4096, 4096)
    assert (three.bytes - one.bytes) / 1e6 == pytest.approx(ex.qkv.answer)
    product = cost.matmul(8192, 8192, 8192)
    assert round(product.intensity) == 2731 and model.bound(product, GPUS["H100 SXM"]) == "compute"


# --- what the page says about the record ------------------------------------------------------


@pytest.fixture(scope="module")
def record():
    return records.load("h200")["fusion"]


def points(record, n):
    return {p["flow"]: p for p in record["points"] if p["n"] == n}


def dram(point):
    return (point["dram_read"] + point["dram_written"]) / point["n"]


def test_the_record_covers_what_the_figures_show(record):
    sizes = {p["n"] for p in record["points"]}
    assert min(sizes) < 2e3 and max(sizes) > 1e9
    for n in sizes:
        assert list(points(record, n)) == list(pictures.STYLES) == list(recorder.FLOWS)


def test_large_tensors_move_the_bytes_that_were_counted(record):
    for flow, point in points(record, 1_024_000_000).items():
        assert dram(point) == pytest.approx(pictures.predicted(flow, 1).bytes, rel=0.01)
    assert [pictures.predicted(flow, 1).bytes for flow in pictures.STYLES] == [19, 6, 6]


def test_in_the_middle_the_l2_keeps_all_but_the_inputs(record):
    for point in points(record, 1_024_000).values():
        assert dram(point) == pytest.approx(4, rel=0.01)
        assert point["dram_written"] < 0.01 * point["n"]
    for n in (10_240, 102_400):
        assert all(dram(point) < 4.7 for point in points(record, n).values())


def test_what_the_page_says_of_the_time(record):
    large, small = points(record, 1_024_000_000), points(record, 1024)
    ideal = model.time(pictures.predicted("hand-written", 1_024_000_000), H200)
    assert large["hand-written"]["seconds"] < 1.15 * ideal  # close to the prediction
    assert large["eager"]["seconds"] / large["hand-written"]["seconds"] > 19 / 6
    assert large["compiled"]["seconds"] / large["hand-written"]["seconds"] > 2
    for flow, point in small.items():
        off = point["seconds"] / model.time(pictures.predicted(flow, 1024), H200)
        assert off > 1000 and point["graph"] < point["seconds"] < point["wall"]
    graphs = [small[flow]["graph"] for flow in ("hand-written", "compiled", "eager")]
    assert graphs == sorted(graphs)  # one, two, four launches
    for point in small.values():  # a microsecond or two each
        assert 0.9e-6 < point["graph"] / point["launches"] < 2.6e-6
    assert small["hand-written"]["wall"] > small["eager"]["wall"]  # through Triton's Python
    assert f"{large['compiled']['seconds'] / large['hand-written']['seconds']:.1f}" == "2.9"
    rate = (
        pictures.predicted("hand-written", 1_024_000_000).bytes / large["hand-written"]["seconds"]
    )
    copy = records.load("h200")["memory"]["machine"]["bandwidth"]
    assert f"{rate / 1e12:.1f}" == "4.3" and rate == pytest.approx(copy, rel=0.03)


def test_the_draws_alone_take_longer_than_the_bytes(record):
    n, rate = 1_024_000_000, H200.peak["fp32"] / 4
    assert n * 30 / rate > 6 * n / H200.bandwidth > n * 6 / rate
    assert points(record, n)["compiled"]["seconds"] > n * 30 / rate


def test_a_point_of_the_record_is_found():
    record = {"points": [{"flow": f, "n": n} for n in (1, 2) for f in ("eager", "compiled")]}
    assert recorder.at(record, "compiled", 2) == {"flow": "compiled", "n": 2}
    if not measure.cuda_available():
        assert recorder.here() == []


def test_tables_of_the_record(record):
    table = pictures.clocks(record, 1024, H200)
    assert table.rows[0] == ("eager", "4", "4.05 ns", "5.97 µs", "11.7 µs", "95.2 µs")
    assert len(table.rows) == 3
    table = pictures.softmax_times(record)
    assert [row[0] for row in table.rows] == [f"{c:,}" for c in recorder.SOFTMAX_COLS]
    (first,) = [p for p in record["softmax"] if (p["flow"], p["cols"]) == ("torch", 1024)]
    assert table.rows[0][2] == f"{first['seconds'] * 1e6:.0f} µs"


def test_bias_and_dropout_are_the_slow_kernels_of_eager(record):
    took, sizes = record["kernel_seconds"]["eager"], [4, 4, 5, 6]
    bias, gelu, dropout, residual = (b / t for b, t in zip(sizes, took, strict=True))
    assert max(bias, dropout) < min(gelu, residual)
    assert sum(took) == pytest.approx(points(record, 1_024_000_000)["eager"]["seconds"], rel=0.1)


def test_what_the_page_says_of_the_softmax(record):
    times = {(p["flow"], p["cols"]): p["seconds"] for p in record["softmax"]}
    n = record["softmax"][0]["n"]
    for (flow, cols), took in times.items():
        passes = took * H200.bandwidth / n  # bytes an element at full bandwidth
        if flow == "hand-written":
            assert (4 < passes < 5.2) if cols <= 32768 else (6 < passes < 8.2)
        if flow == "unfused":
            assert 1.8 < took / (16 * n / H200.bandwidth) < 2.5
        assert times["hand-written", cols] < times["torch", cols] < times["unfused", cols]


def test_one_point_can_be_measured_alone():
    if not measure.cuda_available():
        pytest.skip("needs a GPU")
    point = recorder.point("hand-written", 1)
    assert point["launches"] == 1 and point["graph"] < point["wall"]


# --- figures ----------------------------------------------------------------------------------


def ax():
    return Figure(figsize=(10, 4.5)).subplots()


@pytest.mark.parametrize(
    ("ops", "apart", "one"),
    [
        ([Op("a")] * 4, 16, 4),
        ([OPS[name] for name in pictures.FUSED], 18, 6),
        ([OPS[name] for name in pictures.CHAIN], 19, 7),
    ],
)
def test_trips_draws_an_arrow_for_every_byte_it_counts(ops, apart, one):
    axes = ax()
    words = pictures.trips(axes, ops)
    assert f"four kernels: {apart}n bytes" in words and f"one kernel: {one}n bytes" in words
    labels = [t for t in axes.texts if re.fullmatch(r"\d+n", t.get_text())]
    left = [int(t.get_text()[:-1]) for t in labels if t.get_position()[0] < len(ops)]
    right = [int(t.get_text()[:-1]) for t in labels if t.get_position()[0] > len(ops)]
    assert (sum(left), sum(right)) == (apart, one)


def test_measured_figures_show_the_record_and_the_reader_s_own_points(record):
    mine = [p | {"seconds": p["seconds"] / 2} for p in record["points"][:2]]
    for figure, value in (
        (pictures.times, lambda p: p["seconds"]),
        (pictures.dram, dram),
    ):
        axes = ax()
        words = figure(axes, record["points"], H200, mine)
        lines = {line.get_label(): line for line in axes.get_lines()}
        for flow, (_, name) in pictures.STYLES.items():
            some = [p for p in record["points"] if p["flow"] == flow]
            np.testing.assert_allclose(lines[name].get_xdata(), [p["n"] for p in some])
            np.testing.assert_allclose(lines[name].get_ydata(), [value(p) for p in some])
        own = lines["here: eager: four kernels"]
        np.testing.assert_allclose(own.get_ydata(), [value(p) for p in mine])
        assert words.endswith(".") and "nan" not in words


def test_without_a_counter_there_is_still_a_figure(record):
    bare = [{k: v for k, v in p.items() if not k.startswith("dram")} for p in record["points"]]
    pictures.times(ax(), bare, H200, bare[:1])
    pictures.dram(ax(), record["points"], H200, bare[:1])


# --- exercises --------------------------------------------------------------------------------


LADDER = """
from course.kernels import tl, triton

@triton.jit
def mine(BLOCK: tl.constexpr):
    return tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)

@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    BODY
"""


@needs_triton
@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("at = mine(BLOCK); tl.store(out_ptr + at, tl.load(x_ptr + at, at < n), at < n)", "right", ""),
        # a last program that stores its last number twice harms nobody
        ("at = tl.minimum(mine(BLOCK), n - 1); m = at >= 0; "
         "tl.store(out_ptr + at, tl.load(x_ptr + at, m), m)", "right", ""),
        ("for i in range(n): tl.store(out_ptr + i, tl.load(x_ptr + i, True))",
         "wrong", "several programs write element 0"),
        ("at = mine(BLOCK); tl.store(out_ptr + at, tl.load(x_ptr + at), at < n)",
         "wrong", "The load has no mask"),
        ("at = mine(BLOCK); tl.load(x_ptr + at, at < n)", "wrong", "Nothing arrives in out"),
        ("at = mine(BLOCK); tl.store(out_ptr + at, 2 * tl.load(x_ptr + at, at < n), at < n)",
         "wrong", "numbers are off"),
    ],
)  # fmt: skip
def test_a_copy_is_judged_by_what_it_does(tmp_path, body, status, says):
    path = tmp_path / "attempt.py"
    path.write_text(LADDER.replace("BODY", body), encoding="utf-8")
    names = {"__name__": "attempt"}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)
    found, said = ex.copy.verdict(names["kernel"], 0)
    assert found == status and says in " ".join(said.split()), said


LOADS = """
from course.kernels import tl, triton

@triton.jit
def kernel(x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, cols, eps, BLOCK: tl.constexpr):
    at, lane = tl.program_id(0) * cols, tl.arange(0, BLOCK)
    inside = lane < cols
    y = tl.load(x_ptr + at + lane, X) + tl.load(residual_ptr + at + lane, mask=inside, other=0)
    Y
    centred = tl.where(inside, y - tl.sum(y) / cols, 0)
    weight = tl.load(weight_ptr + lane, mask=inside)  # its masked lanes reach no result
    scale = tl.rsqrt(tl.sum(centred * centred) / cols + eps) * weight
    out = centred * scale + tl.load(bias_ptr + lane, mask=inside, other=0)
    tl.store(out_ptr + at + lane, out, mask=inside)
"""


@needs_triton
@pytest.mark.parametrize(
    ("load", "then", "status"),
    [
        ("mask=inside, other=0", "pass", "right"),
        ("inside, 0", "pass", "right"),
        ("mask=inside", "y = tl.where(inside, y, 0)", "right"),
        ("mask=inside", "pass", "wrong"),
        ("inside", "pass", "wrong"),
        ("mask=inside, other=-float('inf')", "pass", "wrong"),
    ],
)
def test_case_d11_a_fill_that_only_the_interpreter_gives_is_found(tmp_path, load, then, status):
    path = tmp_path / "attempt.py"
    source = LOADS.replace("X)", f"{load})").replace("    Y\n", f"    {then}\n")
    path.write_text(source, encoding="utf-8")
    names = {"__name__": "attempt"}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)
    found, said = ex.layer_norm.verdict(names["kernel"], 0)
    assert found == status and ("What fills the masked lanes" in said) == (status == "wrong")


@needs_triton
def test_a_function_that_is_no_kernel_is_told_what_is_missing():
    def kernel(x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, cols, eps, BLOCK):
        return None

    for each in (ex.copy, ex.add_relu_times_in_one, ex.row_max, ex.layer_norm):
        said = " ".join(each.verdict(kernel, 0)[1].split())
        assert "write @triton.jit above its def" in said


# --- the explorer -----------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["H200", "laptop GPU", "B200"])
@pytest.mark.parametrize("chain", explorer.CHAINS)
def test_explorer_by_hand(gpu, chain):
    ops, bandwidth = explorer.CHAINS[chain], GPUS[gpu].bandwidth
    for n, dtype, launched in itertools.product((1000, 10**9), explorer.TYPES, explorer.LAUNCHES):
        data = explorer.compute(gpu, chain, n, dtype, launched)
        size, launch = explorer.TYPES[dtype], data["launch"]
        each = [n * ((2 + op.reads) * size + op.stored) for op in ops]
        fused = n * ((2 + sum(op.reads for op in ops)) * size + sum(op.stored for op in ops))
        apart, one = data["separate"], data["fused"]
        assert apart["cost"].bytes == sum(each) and one["cost"].bytes == fused
        assert apart["cost"].flops == one["cost"].flops
        floors = [max(b / bandwidth, launch["separate"]) for b in each]
        assert apart["time"] == pytest.approx(sum(floors))
        assert one["time"] == pytest.approx(max(fused / bandwidth, launch["fused"]))
        assert sum(apart["shares"]) == pytest.approx(1)


def test_small_chains_take_what_the_record_says(record):
    """Slower from Python, faster in a graph: the explorer contradicts neither."""
    small = points(record, 1024)
    for how, field in explorer.LAUNCHES.items():
        data = explorer.compute("H200", "the same, mask stored", 1000, "FP16 or BF16", how)
        for flow, recorded in (("separate", "eager"), ("fused", "hand-written")):
            assert data[flow]["time"] == pytest.approx(small[recorded][field])
        words = explorer._gain(data)
        assert ("slower" in words) == (data["faster"] < 1) and "launches decide" in words
        if how == "in a CUDA graph":
            assert f"{data['faster']:.1f}" == "2.5"  # as the page says
    assert data["faster"] < 1  # from Python
    assert (
        explorer.compute("H200", "four plain steps", 1000, "FP8", "in a CUDA graph")["faster"] > 2
    )


def test_bars_stay_in_the_picture_when_the_fused_kernel_is_slower():
    fig = Figure(figsize=(10, 4.5))
    first = explorer.compute("H200", "bias, GELU", 1000, "FP32", "from Python")
    for artist in explorer.draw(fig, first)(first):
        for path in getattr(artist, "get_paths", list)():
            assert 0 <= path.vertices[:, 0].min() and path.vertices[:, 0].max() <= 1 + 1e-9


@pytest.mark.parametrize("block", programs.BLOCKS)
def test_programs_share_out_every_element_once(block):
    for n in (1, block - 1, block, block + 1, programs.MOST):
        count = programs.compute(n, block, 0)["programs"]
        assert count == math.ceil(n / block)
        every = [programs.compute(n, block, i) for i in range(count)]
        pairs = [pair for p in every for pair in zip(p["offsets"], p["inside"], strict=True)]
        assert pairs == [(i, i < n) for i in range(count * block)]
        assert programs.compute(n, block, count + 3)["program"] == count - 1
        assert f"{count} program" in programs.describe(every[0])


def test_programs_shows_a_yes_for_every_lane_inside():
    fig = Figure(figsize=(10, 3.2))
    move = programs.draw(fig, programs.compute(10, 4, 0))
    for n, block, program in ((10, 4, 2), (40, 16, 2), (1, 2, 0), (40, 2, 19)):
        data = programs.compute(n, block, program)
        move(data)
        said = [t.get_text() for t in fig.axes[0].texts]
        assert said.count("yes") == sum(data["inside"])
        assert said.count("no") == block - sum(data["inside"])
        assert f"offsets = {program} * {block} + " in " ".join(said)


def test_the_names_of_both_points_stay_on_the_roofline():
    fig = Figure(figsize=(10, 4.5))
    first = explorer.compute("H200", "bias, GELU", 1000, "FP32", "from Python")
    move = explorer.draw(fig, first)
    for gpu, chain, dtype in itertools.product(GPUS, explorer.CHAINS, explorer.TYPES):
        move(explorer.compute(gpu, chain, 10**6, dtype, "from Python"))
        names = [t for t in fig.axes[1].texts if t.get_text().startswith(("separate", "fused"))]
        assert len(names) == 2
        for name in names:
            x, y = name.get_position()
            assert explorer.LEFT < x < explorer.RIGHT / 10 and y > explorer.BOTTOM


def test_who_decides():
    said = explorer.describe
    assert "Moving bytes takes all" in said(
        explorer.compute("H200", "four plain steps", 10**9, "FP32", "from Python")
    )
    assert "launches decide" in said(
        explorer.compute("H200", "four plain steps", 1000, "FP32", "from Python")
    )
    mixed = explorer.compute(
        "H200", "bias, GELU, dropout, residual", 10**6, "FP16 or BF16", "in a CUDA graph"
    )
    assert ("both count" in said(mixed)) == (0 < mixed["waiting"] < 5)
