"""Notebook 08: its kernels are right and those of the course; what it says of training and records."""

import ast
import json
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch.nn.functional import scaled_dot_product_attention

from course import kernels, records, roofline, train
from course.draw import backward as pictures
from course.exercises import training as ex
from course.exercises._kernel import changed
from course.hardware import GPUS
from course.kernels import naive, notebook_backward
from course.records import training as recorder
from tests.notebook_code import DEFINED, definitions

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "08_training.ipynb"
EVERY = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
CELLS = [c for c in EVERY if c["cell_type"] == "code"]
PROSE = "\n".join("".join(c["source"]) for c in EVERY if c["cell_type"] == "markdown")
TRAINING = records.load("h200")["training"]
triton = pytest.mark.skipif(not kernels.available, reason=kernels.reason or "Triton")


@pytest.fixture(scope="module")
def nb(tmp_path_factory):
    """What the notebook defines, its broken kernel mended and the missing one put in its place."""
    path = tmp_path_factory.mktemp("nb08") / "notebook_08.py"  # Triton reads a kernel's own file
    code = definitions(PATH, (ast.Import, ast.ImportFrom, *DEFINED))
    path.write_text(f"from course.kernels import launch\n{code}\n", encoding="utf-8")
    module = types.ModuleType("notebook_08")
    module.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    module.broken, module.dkdv_kernel = module.dkdv_kernel, ex.dkdv.answer
    module.dq_kernel = ex.dq.answer
    return module


def bare(text):
    """The dump of a module's source, docstrings and the spelling of comments aside."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, DEFINED) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return {node.name: ast.dump(node) for node in tree.body if isinstance(node, DEFINED)}


# --- the page and the course ------------------------------------------------------------------


def test_the_kernels_of_the_course_are_those_of_the_page():
    """notebook_backward.py, which the recorder trains with, is the page, mended and completed."""
    page = bare(definitions(PATH))
    module = bare(Path(notebook_backward.__file__).read_text(encoding="utf-8"))
    assert set(module) - set(page) == {"dq_kernel"}
    different = [name for name in module if name in page and module[name] != page[name]]
    assert different == ["dkdv_kernel"]


@triton
def test_the_broken_kernel_of_the_page_has_the_three_bugs(nb):
    from course.exercises._source import tree

    three = changed(ex.dkdv.answer, *ex.BUGS.values())
    page, wanted = (tree(k).body[0] for k in (nb.broken, three))
    assert [ast.dump(x) for x in page.body] == [ast.dump(x) for x in wanted.body[1:]]  # docstring
    status, said = ex.dkdv.verdict(nb.broken, 8)
    assert status == "wrong" and "Three bugs are left" in said


@triton
def test_what_is_not_done_is_replaced_and_a_line_says_so(nb, capsys):
    def dq_kernel(): ...  # fmt: skip

    assert ex.stand_in(ex.dq, dq_kernel) is ex.dq.answer
    assert ex.stand_in(ex.dkdv, nb.broken) is ex.dkdv.answer
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "dq_kernel is not right yet: the course's own stands in.",
        "dkdv_kernel is not right yet: the course's own stands in.",
    ]
    mine = changed(ex.dq.answer)
    assert ex.stand_in(ex.dq, mine) is mine and not capsys.readouterr().out


def test_the_function_has_fifteen_lines():
    cell = next(c for c in CELLS if "class Attention" in "".join(c["source"]))
    code = "".join(cell["source"]).split("\n\n\n")[0]
    assert len(code.splitlines()) == 15


# --- the kernels ------------------------------------------------------------------------------


@triton
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("n, n_kv, d", ((65, 65, 16), (5, 40, 31), (40, 5, 8)))
def test_the_notebooks_kernels_are_right(nb, dtype, causal, n, n_kv, d, assert_attention):
    """A1, A3, A8, A10, A21: ragged, N ≠ N_kv, odd d, both masks, rows that see no key."""
    torch.manual_seed(n)
    q, do = torch.randn(2, 1, 2, n, d).to(dtype)
    k, v = torch.randn(2, 1, 2, n_kv, d).to(dtype)

    def run(q, k, v, *, causal, **options):  # the page's function gives no lse
        _, lse = naive.attention(q, k, v, causal=causal, **options)
        return nb.attention(q, k, v, causal=causal), lse.float()

    no_slope = torch.zeros(q.shape[:3])
    assert_attention(q, k, v, causal=causal, do=do, dlse=no_slope, run=run)


@triton
def test_strides_of_a_model(nb):
    """q, k and v are views of one product, as in course.train, and dO is turned over."""
    x = torch.randn(2, 33, 3, 2, 16, requires_grad=True)
    do = torch.randn(2, 33, 2, 16).transpose(1, 2)

    def through(attend, x):
        return torch.autograd.grad(
            attend(*x.permute(2, 0, 3, 1, 4), causal=True), x, do.to(x.dtype)
        )

    exact = through(naive.attention, x.detach().double().requires_grad_())[0]
    assert (through(nb.attention, x)[0] - exact).abs().max() < 1e-5


@triton
def test_this_test_sees_a_wrong_mask(nb):
    """A10: a backward that is silently causal is far off."""
    q, k, v, do = torch.randn(4, 2, 33, 16)
    o, lse = nb.flash(q, k, v)
    full, silent = (nb.triton_backward(q, k, v, o, lse, do, c) for c in (False, True))
    assert (full[1] - silent[1]).abs().max() > 0.1


@triton
@pytest.mark.skipif(not kernels.interpreted, reason="a GPU multiplies BF16")
def test_bfloat16_is_refused_where_it_is_multiplied_wrongly(nb):
    q, k, v, do = torch.randn(4, 1, 16, 16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="interpreter multiplies BF16 wrongly"):
        nb.triton_backward(q, k, v, q, torch.zeros(1, 16), do)


@triton
def test_the_same_bits_again(nb):
    """A23."""
    q, k, v, do = torch.randn(4, 1, 2, 70, 32)
    first, second = (nb.gradients(nb.attention, (q, k, v), do, False) for _ in range(2))
    assert all(map(torch.equal, first, second))


@triton
def test_a_second_derivative(nb):
    """A22: what the page shows of once_differentiable."""
    x = [torch.randn(1, 1, 8, 16, requires_grad=True) for _ in range(3)]
    (dq,) = torch.autograd.grad(nb.attention(*x).sum(), x[0], create_graph=True)
    assert not dq.requires_grad
    do = torch.randn(1, 1, 8, 16, requires_grad=True)
    (dq,) = torch.autograd.grad(nb.attention(*x), x[0], do, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


@triton
def test_what_is_kept(nb):
    """P is kept by naive and not by yours: 4 N² bytes per head in FP32."""
    n, d = 64, 32
    q, k, v = (torch.randn(1, 1, n, d, requires_grad=True) for _ in range(3))
    assert nb.kept_bytes(naive.attention, q, k, v) == 3 * n * d * 4 + n * n * 4
    assert nb.kept_bytes(nb.attention, q, k, v) == 4 * n * d * 4 + n * 4


@triton
def test_the_yardstick_of_the_page_sees_a_wrong_gradient(nb, monkeypatch):
    torch.manual_seed(0)
    assert nb.is_right(torch.float32, True, 40, 33)
    monkeypatch.setattr(nb, "dq_kernel", changed(ex.dq.answer, ("dq * scale", "dq * scale * 1.01")))
    assert not nb.is_right(torch.float32, True, 40, 33)


@triton
def test_what_rounding_took_from_o(nb):
    """The table of the page, with its claims: a few times, a hundred times, right by the rule."""
    torch.manual_seed(0)
    q, k, v, do = torch.randn(4, 1, 1, 128, 64)
    plain, without, kept = np.array(
        [[float(x) for x in nb.errors_of_dq(f * q, k, v, do)] for f in (4, 64, 256)]
    ).T
    assert (kept < 4e-4).all() and (without > 1.3 * kept).all() and (without < 12 * kept).all()
    assert (without < 2 * plain).all()
    plain, without, kept = (float(x) for x in nb.errors_of_dq(2 * k, k, v, do))
    assert kept < 1e-3 and without > 50 * kept and without < 2 * plain


# --- the checks -------------------------------------------------------------------------------

MY_OWN = """
from course.kernels import tl, triton


@triton.jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, scale, n, n_kv, d,
    causal: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):
    heads = tl.num_programs(0) // tl.cdiv(n, block_q)
    head, first = tl.program_id(0) % heads, tl.program_id(0) // heads * block_q
    row, column = first + tl.arange(0, block_q), tl.arange(0, block_d)
    inside = (row[:, None] < n) & (column[None, :] < d)
    at = head * n * d + row[:, None] * d + column[None, :]
    q = tl.load(q_ptr + at, mask=inside, other=0)
    do = tl.load(do_ptr + at, mask=inside, other=0)
    lse = tl.load(lse_ptr + head * n + row, mask=row < n, other=0)
    delta = tl.load(delta_ptr + head * n + row, mask=row < n, other=0)
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    dq = tl.zeros([block_q, block_d], tl.float32)
    for start in range(0, n_kv, block_kv):
        key = start + tl.arange(0, block_kv)
        exist = (key[:, None] < n_kv) & (column[None, :] < d)
        there = head * n_kv * d + key[:, None] * d + column[None, :]
        k = tl.load(k_ptr + there, mask=exist, other=0)
        v = tl.load(v_ptr + there, mask=exist, other=0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        s = tl.where(key[None, :] < n_kv, s, float("-inf"))
        if causal:
            s = tl.where(key[None, :] - row[:, None] <= n_kv - n, s, float("-inf"))
        p = tl.exp2(s - lse[:, None] * 1.4426950408889634)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = (p * (dp - delta[:, None])).to(k.dtype)
        dq = tl.dot(ds, k, dq, input_precision="ieee")
    tl.store(dq_ptr + at, (dq * scale).to(q.dtype), mask=inside)
"""


@triton
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (None, None),  # no helper of the page, heads side by side, base 2, the sum inside tl.dot
        (("* scale).to(q.dtype), mask", "* scale).to(q.dtype) + tl.load(dq_ptr + at), mask"), ""),
        (
            ("dq = tl.zeros", "tl.store(q_ptr + at, do, mask=inside)\n    dq = tl.zeros"),
            "its inputs",
        ),
        (("(row[:, None] < n) &", "(head * n + row[:, None] < heads * n) &"), "two programs write"),
        (("lse[:, None] * 1.4426950408889634", "lse[:, None]"), ""),
        (("tl.where(lse ==", "tl.where(lse <"), "not finite"),
        ((").to(k.dtype)", ")"), "one type"),
    ],
    ids=["right", "adds", "overwrites", "next head", "base", "no key", "type"],
)
def test_a_kernel_written_without_the_course(change, says, tmp_path):
    text = MY_OWN
    if change:
        assert text.count(change[0]) == 1
        text = text.replace(*change)
    path = tmp_path / "own.py"  # Triton reads the file
    path.write_text(text, encoding="utf-8")
    names = {"__name__": "own"}
    exec(compile(text, path, "exec"), names)
    status, said = ex.dq.verdict(names["dq_kernel"], 3)
    assert status == ("right" if says is None else "wrong") and (says or "") in " ".join(
        said.split()
    )


def test_a_check_stays_where_the_gpu_is(monkeypatch):
    """A copy of a process cannot go on using CUDA: every kernel would be refused there."""
    from course.exercises import _guard

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(_guard.os, "fork", lambda: pytest.fail("it forks"))
    assert _guard.apart(lambda: 3) == 3


# --- training ---------------------------------------------------------------------------------


def test_the_text_is_what_its_note_says():
    text, characters = train.load_text()
    whole = train.TEXT.read_text(encoding="ascii")
    assert len(whole) == len(text) <= 60_000 and len(characters) == len(set(whole))
    assert "".join(characters[i] for i in text) == whole
    assert whole.count("\nCHAPTER ") == 4 and whole.startswith("CHAPTER I\n")
    assert "Alice was beginning to get very tired of sitting by her sister" in whole
    note = (train.TEXT.parent / "SOURCES.txt").read_text(encoding="utf-8")
    assert "public domain" in note and "Lewis Carroll" in note


def toy(attend, steps=4, seed=0):
    text, characters = train.load_text()
    shape = dict(n=32, width=16, heads=1, layers=1)
    model = train.Transformer(attend, characters=len(characters), seed=seed, **shape)
    return train.train(model, train.windows(text, 32, 1), steps, lr=1e-2), model


def test_the_same_seeds_give_the_same_curve_whatever_the_attention(nb):
    first, _ = toy(naive.attention)
    assert first == toy(naive.attention)[0]
    assert first != toy(naive.attention, seed=1)[0]
    assert np.allclose(first, toy(nb.sdpa)[0], atol=1e-4)
    if kernels.available:
        assert np.allclose(first, toy(nb.attention)[0], atol=1e-4)
        assert np.allclose(first, toy(kernels.attention)[0], atol=1e-4)


def test_a_model_that_knows_nothing_guesses_and_then_learns():
    losses, _ = toy(naive.attention, steps=80)
    assert abs(losses[0] - np.log(67)) < 0.5
    assert np.mean(losses[-5:]) < losses[0] - 0.8


def test_no_position_sees_the_future():
    _, model = toy(naive.attention, steps=1)
    tokens = torch.randint(67, (1, 32), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[0, 20:] = (other[0, 20:] + 1) % 67
    with torch.no_grad():
        a, b = model(tokens), model(other)
    assert torch.equal(a[0, :20], b[0, :20]) and not torch.equal(a[0, 20:], b[0, 20:])


def test_writing_is_repeatable():
    _, model = toy(naive.attention, steps=2)
    start = train.load_text()[0][:32].tolist()
    first = train.write(model, start, 5, 32)
    assert len(first) == 5 and first == train.write(model, start, 5, 32)
    assert all(0 <= token < 67 for token in first)


# --- figures and tables -----------------------------------------------------------------------


def test_loss_figure_draws_the_differences():
    axes = Figure().subplots(1, 2)
    words = pictures.losses(axes, {"naive": [3.0, 2.0], "ours, BF16": [3.0, 2.25]})
    assert list(axes[1].lines[0].get_ydata()) == [0.0, 0.25]
    assert words == (
        "The loss falls from 3.00 to 2.00. From naive differ: library kernels, BF16 by 0.2 at most."
    )


def test_recorded_figures_draw_what_is_recorded():
    axes = Figure().subplots(1, 2)
    words = pictures.training(axes, TRAINING["points"])
    assert "out of memory" in words
    peaks = [p["peak_bytes"] / 1e9 for p in TRAINING["points"] if p["flow"] == "ours"]
    drawn = [list(line.get_ydata()) for line in axes[0].lines]
    assert any(len(d) == len(peaks) and np.allclose(d, peaks) for d in drawn)
    words = pictures.layer(Figure().subplots(1, 2), TRAINING["layer_points"])
    assert "library kernels: 273 MB kept at N = 32,768" in words
    points = records.load("h200")["attention_speed"]["points"]
    assert "cuDNN" in pictures.speeds(Figure().subplots(1, 2), points)


def test_out_of_memory_is_drawn():
    points = TRAINING["layer_points"]
    enough = [p for p in points if not p.get("out_of_memory")]
    assert "no memory" not in pictures.layer(Figure().subplots(1, 2), enough)
    axes = Figure().subplots(1, 2)
    lost = [  # whatever the GPU of the record had room for
        {k: v for k, v in p.items() if not k.startswith("backward")} | {"out_of_memory": True}
        if (p["flow"], p["n"]) == ("naive", 32_768)
        else p
        for p in points
    ]
    assert "no memory for the backward pass at N = 32,768" in pictures.layer(axes, lost)
    assert "out of memory" in [t.get_text() for t in axes[1].texts]


POINTS = [
    {"flow": "naive", "n": 1024, "peak_bytes": 2e9, "tokens_per_second": 100.0,
     "host_seconds": 0.03, "gpu_seconds": 0.02},
    {"flow": "naive", "n": 2048, "out_of_memory": True},
    {"flow": "notebook", "n": 1024, "peak_bytes": 1e9, "tokens_per_second": 200.0},
    {"flow": "notebook", "n": 2048, "peak_bytes": 1e9, "tokens_per_second": 150.0},
]  # fmt: skip


def test_tables_of_training():
    table = pictures.training_table(POINTS)
    assert table.rows == [
        ("1,024", "2 GB", "1 GB", "100", "200"),
        ("2,048", "out of memory", "1 GB", "–", "150"),
    ]
    assert pictures.waits(POINTS, 1024).rows == [("naive", "30 ms", "20 ms", "100")]
    layer = {"n": 4, "kept_bytes": 1e6, "forward": 1e-3, "backward": 2e-3}
    table = pictures.layer_table([{"flow": "ours", **layer}], 4, heads=10**9, d=25)
    flops = 5 * 2 * 10**9 * 4 * 4 * 25
    assert table.rows == [("library kernels", "1 MB", "1 ms", "2 ms", f"{flops / 2e-3 / 1e12:.0f}")]


# --- the record -------------------------------------------------------------------------------


def test_every_flow_that_is_recorded_has_a_style_and_an_attention():
    q = torch.randn(1, 1, 16, 16)
    assert set(recorder.FLOWS) == set(pictures.STYLES)
    for flow in recorder.FLOWS:
        if kernels.available:
            assert recorder._attend(flow)(q, q, q, causal=True).shape == q.shape


def test_the_recorded_curves_are_the_same():
    yardstick, *others = TRAINING["curves"]
    assert (yardstick["flow"], yardstick["dtype"]) == ("naive", "fp32")
    assert yardstick["loss"][-1] < yardstick["loss"][0] - 1.5
    far = {c["flow"]: np.abs(c["off"]) for c in others}
    for flow in set(far) - {"naive"}:  # "about as far from FP32 as naive attention in BF16"
        assert far[flow].max() < 0.01 and far[flow].mean() < 2 * far["naive"].mean()


def test_the_recorded_memory_is_what_is_counted():
    points = {(p["flow"], p["n"]): p for p in TRAINING["points"]}
    lengths = sorted({n for _, n in points})
    assert points["naive", lengths[-1]]["out_of_memory"]
    shape, tokens = TRAINING["shape"], TRAINING["tokens"]
    layers, heads, width = (shape[key] for key in ("layers", "heads", "width"))
    only_ours = layers * (2 * tokens * width * 2 + heads * tokens * 8)  # O, its rest, m, 1/l
    for n in lengths[:-1]:
        only_naive = layers * (heads * tokens * n * 2 + n * n)  # P, the mask
        more = points["naive", n]["kept_bytes"] - points["ours", n]["kept_bytes"]
        assert abs(more / (only_naive - only_ours) - 1) < 0.01
    for flow in {f for f, _ in points} - {"naive"}:
        peaks = [points[flow, n]["peak_bytes"] for n in lengths]
        assert max(peaks) < 1.1 * min(peaks)
    for n in lengths[:-1]:
        faster = points["ours", n]["tokens_per_second"] / points["naive", n]["tokens_per_second"]
        assert faster > 1
    own = [p for p in TRAINING["layer_points"] if p["flow"] in ("ours", "notebook")]
    assert own and all(p["same_bits_again"] for p in own)


def test_what_the_page_says_of_speed():
    points = {(p["flow"], p["n"]): p for p in TRAINING["points"]}
    speed = {key: p["tokens_per_second"] for key, p in points.items() if "peak_bytes" in p}
    lengths = sorted({n for _, n in speed})
    for n in lengths[:-1]:  # "less memory, more tokens per second", with the notebook's kernels
        assert speed["notebook", n] > 2 * speed["naive", n]
        assert points["notebook", n]["peak_bytes"] < 0.6 * points["naive", n]["peak_bytes"]
    assert speed["naive", 2048] < 0.7 * speed["naive", 1024]  # "from the start"
    for flow in ("SDPA", "notebook", "ours"):  # "the others later"
        assert speed[flow, 2048] > 0.85 * speed[flow, 1024]
    python = points["ours", 1024]["host_seconds"] / points["ours", 1024]["gpu_seconds"]
    assert 0.8 < python < 1  # "nearly as long"
    assert round(1e3 * TRAINING["tokens"] / 840_700) == 39 and "39 ms per step" in PROSE
    assert f"works for {1e3 * points['ours', 1024]['gpu_seconds']:.0f}. So" in PROSE
    layer = {p["flow"]: p for p in TRAINING["layer_points"] if p["n"] == 16_384}
    order = sorted(layer, key=lambda flow: layer[flow]["backward"])
    assert order == ["SDPA", "ours", "notebook", "naive"]  # "They are the fastest"
    assert not any(p["same_bits_again"] for p in TRAINING["layer_points"] if p["flow"] == "SDPA")


def test_naive_gets_what_twelve_passes_allow():
    """The box on the least time: what is missing to it is named."""
    from course import cost

    points = {(p["flow"], p["n"]): p for p in TRAINING["layer_points"]}
    machine, gpu = records.load("h200")["memory"]["machine"], GPUS["H200"]
    most = (
        machine["bandwidth"] / gpu.bandwidth * 7 / 12,
        machine["peak"]["fp16"] / gpu.peak["fp16"] * 5 / 7,
    )
    for (flow, model), limit in zip((("naive", "naive"), ("ours", "flash")), most, strict=True):
        count = cost.attention(16384, 128, flow=model, heads=16, backward=True)
        share = roofline.time(count, gpu) / points[flow, 16384]["backward"]
        assert 0.7 * limit < share < 1.02 * limit


def test_what_the_counter_says_of_the_backward_pass():
    section = records.load("h200")["attention_speed"]
    n, d, heads = (section["counted"][name] for name in ("n", "d", "heads"))
    tensor, square = 2 * heads * n * d, 2 * heads * n * n
    runs = {r["flow"]: r["kernels"] for r in section["dram"] if r["way"] == "backward"}

    def moved(flow, way):
        return sum(kernel[way] for kernel in runs[flow])

    reads = [kernel["read"] / tensor for kernel in runs["ours"]]
    assert [round(x) for x in reads] == [3, 4, 4] and abs(sum(reads) - 11) < 0.1
    assert f"{tensor / 1e6:.1f} MB" in PROSE
    for flow in ("mem-efficient", "FA-2", "cuDNN"):
        assert moved(flow, "written") > moved("ours", "written")
    assert moved("ours", "written") < 3 * tensor
    naive_bytes = moved("naive", "read") + moved("naive", "written")
    assert abs(naive_bytes / square - 12) < 0.5 and f"passes of {square / 1e9:.2f} GB" in PROSE


def test_two_plain_kernels_beat_fa2_and_not_cudnn():
    by = {
        (p["flow"], p["d"], p["n"]): p["backward"]["flops"]
        for p in records.load("h200")["attention_speed"]["points"]
        if p["dtype"] == "fp16" and not p["causal"] and p["n"] >= 4096
    }
    for flow, d, n in by:
        if flow == "ours":
            assert by["FA-2", d, n] < by[flow, d, n] < by["cuDNN", d, n]


def test_one_pass_was_slower_in_every_row():
    """Told in notebook 09; the library keeps two kernels because of it."""
    points = records.load("h200")["one_pass"]["points"]
    by = {(p["way"], p["d"], p["causal"], p["n"]): p["flops"] for p in points}
    cells = {key[1:] for key in by}
    assert len(cells) == 8
    assert all(by["one pass", *c] < by["two kernels", *c] for c in cells)


def test_sdpa_of_the_page_is_causal_where_asked(nb):
    q = torch.randn(1, 1, 5, 8)
    for causal in (False, True):
        wanted = naive.attention(q, q, q, causal=causal)
        assert torch.allclose(nb.sdpa(q, q, q, causal), wanted, atol=1e-6)
    assert scaled_dot_product_attention is nb.scaled_dot_product_attention
