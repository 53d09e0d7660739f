"""Notebook 07: what it defines is right and equal to the library; its data, its records, training."""

import ast
import json
import types
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from course import attention, cost, kernels, records, roofline, train
from course.draw import backward as pictures
from course.draw import roofline as roof_pictures
from course.draw.static import STATIC
from course.exercises import backward as ex
from course.hardware import GPUS
from course.hbm import Hbm
from course.kernels import naive
from course.units import seconds
from tests.notebook_code import DEFINED, definitions

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "07_flash_backward.ipynb"
EVERY = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
CELLS = [c for c in EVERY if c["cell_type"] == "code"]
PROSE = "\n".join("".join(c["source"]) for c in EVERY if c["cell_type"] == "markdown")
explorer = import_module("course.explore.backward")
TRAINING = records.load("h200")["training"]


@pytest.fixture(scope="module")
def nb(tmp_path_factory):
    """What the notebook defines: imports, functions, classes. Triton reads a kernel's own file."""
    path = tmp_path_factory.mktemp("nb07") / "notebook_07.py"
    code = definitions(PATH, (ast.Import, ast.ImportFrom, *DEFINED))
    path.write_text(code + "\ndevice = 'cpu'\n", encoding="utf-8")
    module = types.ModuleType("notebook_07")
    module.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


def said(words):
    """The text that the first code cell with these words stored."""
    cell = next(c for c in CELLS if words in "".join(c["source"]))
    texts = (o.get("text") or o["data"].get("text/plain", "") for o in cell["outputs"])
    return "".join("".join(text) for text in texts)


def example(n, n_kv, d, size=1.0, seed=0):
    rng = np.random.default_rng(seed)
    q, do = rng.standard_normal((2, n, d))
    k, v = rng.standard_normal((2, n_kv, d))
    o, lse = attention.naive(size * q, k, v)
    return size * q, k, v, o, lse, do


# --- the derivation ---------------------------------------------------------------------------


def test_nudging_finds_a_gradient_and_a_wrong_one(nb):
    x = np.random.default_rng(0).standard_normal((3, 2))
    assert np.allclose(nb.nudge(lambda x: (x**3).sum(), x), 3 * x**2, rtol=1e-6)
    assert not np.allclose(nb.nudge(lambda x: (x**3).sum(), x), 3 * x**2 + 1e-3, rtol=1e-6)


def test_the_worked_example_backwards():
    assert said("D = p_row @ dp").splitlines()[0] == "D  = 2.7861"
    d, *ds = ex.by_hand.answer
    assert round(d, 4) == 2.7861 and abs(sum(ds)) < 1e-12
    s = torch.tensor([1.0, 3.0, 4.0, 2.0], dtype=torch.float64, requires_grad=True)
    (s.softmax(0) @ torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)).backward()
    assert np.allclose(s.grad, ds)


@pytest.mark.parametrize("size", (1.0, 20.0))
def test_naive_backward_equals_autograd(nb, size):
    q, k, v, _, _, do = example(7, 11, 5, size)
    x = [torch.tensor(a, requires_grad=True) for a in (q, k, v)]
    o = (x[0] @ x[1].T * 5**-0.5).softmax(-1) @ x[2]
    for mine, theirs in zip(
        nb.naive_backward(q, k, v, do), torch.autograd.grad(o, x, torch.tensor(do)), strict=True
    ):
        assert np.allclose(mine, theirs, rtol=1e-11, atol=1e-11)


# --- the tiled loop ---------------------------------------------------------------------------


@pytest.mark.parametrize("n, n_kv, d", ((64, 64, 16), (70, 101, 5), (5, 130, 8), (1, 1, 3)))
@pytest.mark.parametrize("block_q, block_kv", ((16, 32), (64, 48), (7, 200)))
def test_tiled_backward_equals_the_library_and_its_bytes(nb, n, n_kv, d, block_q, block_kv):
    q, k, v, o, lse, do = example(n, n_kv, d, 3.0)
    mine, theirs = Hbm(), Hbm()
    grads = nb.flash_backward(q, k, v, o, lse, do, block_q, block_kv, mine)
    library = attention.flash_backward(
        q, k, v, o, lse, do, block_q=block_q, block_kv=block_kv, hbm=theirs
    )
    for a, b, c in zip(grads, library, nb.naive_backward(q, k, v, do), strict=True):
        assert np.allclose(a, b, rtol=1e-10, atol=1e-12) and np.allclose(a, c, rtol=1e-9, atol=1e-9)
    assert mine.read_by_name == theirs.read_by_name
    assert mine.written_by_name == theirs.written_by_name
    counted = cost.attention(
        n, d, n_kv=n_kv, flow="tiled", backward=True, block_q=block_q, block_kv=block_kv
    )
    assert (mine.read, mine.written) == (counted.read, counted.written)


# --- the kernels ------------------------------------------------------------------------------

triton = pytest.mark.skipif(not kernels.available, reason=kernels.reason or "Triton")


def errors(nb, dtype, n, n_kv, d, causal, scale=1.0):
    """Largest error of (ours, the library, plain PyTorch) against FP64, for each gradient."""
    torch.manual_seed(n)
    q, do = (scale * torch.randn(2, 1, 2, n, d)).to(dtype)
    k, v = torch.randn(2, 1, 2, n_kv, d).to(dtype)

    def grads(attend, kind):
        x = [a.to(kind).requires_grad_() for a in (q, k, v)]
        return torch.autograd.grad(attend(*x, causal=causal), x, do.to(kind))

    o, lse = kernels.attention(q, k, v, causal=causal, return_lse=True)
    ours = nb.triton_backward(q[0], k[0], v[0], o[0], lse[0], do[0], causal)
    exact = grads(naive.attention, torch.float64)
    ways = [g[None] for g in ours], grads(kernels.attention, dtype), grads(naive.attention, dtype)
    return [[(g.double() - e).abs().max() for g, e in zip(w, exact, strict=True)] for w in ways]


@triton
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("n, n_kv, d", ((65, 65, 16), (5, 40, 31), (40, 5, 8)))
def test_the_notebooks_kernels_are_right(nb, dtype, causal, n, n_kv, d):
    """A1, A3, A8, A10, A21: ragged, N ≠ N_kv, odd d, both masks, rows that see no key."""
    ours, library, plain = errors(nb, dtype, n, n_kv, d, causal)
    for mine, theirs, allowed in zip(ours, library, plain, strict=True):
        assert mine <= 2 * allowed + 1e-6 and theirs <= 2 * allowed + 1e-6


@triton
def test_this_test_sees_a_wrong_mask(nb):
    """A10: a backward that is silently causal is far off."""
    q, k, v, do = torch.randn(4, 2, 33, 16)
    o, lse = kernels.attention(q[None], k[None], v[None], return_lse=True)
    full, silent = (nb.triton_backward(q, k, v, o[0], lse[0], do, c) for c in (False, True))
    assert (full[1] - silent[1]).abs().max() > 0.1


@triton
def test_the_same_bits_again(nb):
    """A23."""
    q, k, v, do = torch.randn(4, 2, 70, 32)
    o, lse = kernels.attention(q[None], k[None], v[None], return_lse=True)
    first, second = (nb.triton_backward(q, k, v, o[0], lse[0], do) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_the_numpy_loop_as_a_function_of_pytorch(nb):
    """gradcheck with grouped queries (A14); a second derivative is refused (A22)."""
    x = [
        torch.randn(1, h, n, 3, dtype=torch.float64, requires_grad=True)
        for h, n in ((4, 5), (2, 7), (2, 7))
    ]
    for causal in (False, True):
        assert torch.autograd.gradcheck(lambda *x, c=causal: nb.tiled(*x, c), x)
    (dq,) = torch.autograd.grad(nb.tiled(*x).sum(), x[0], create_graph=True)
    assert not dq.requires_grad, "what the notebook shows of once_differentiable"
    do = torch.randn(1, 4, 5, 3, dtype=torch.float64, requires_grad=True)
    (dq,) = torch.autograd.grad(nb.tiled(*x), x[0], do, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


@triton
def test_what_is_kept(nb):
    """P is kept by naive and not by ours: 4 N² bytes a head in FP32."""
    n, d = 256, 32
    q, k, v = (torch.randn(1, 1, n, d, requires_grad=True) for _ in range(3))
    assert nb.kept_bytes(naive.attention, q, k, v) == 3 * n * d * 4 + n * n * 4
    assert nb.kept_bytes(kernels.attention, q, k, v) == 4 * n * d * 4 + 2 * n * 4


# --- counts -----------------------------------------------------------------------------------


def test_flops_of_c10():
    """C10: 4·B·N²·H·d forward; with P stored 824.6, with P again 962.1 GFLOP in all."""
    size = dict(n=1024, d=64, heads=16, batch=64)
    forward = cost.attention(**size, flow="flash").flops
    assert forward == 274_877_906_944
    totals = [forward + cost.attention(**size, flow=f, backward=True).flops for f in pictures.WAYS]
    assert [round(t / 1e9, 1) for t in totals] == [824.6, 962.1, 1237.0]
    assert ex.flops.verdict(totals[1] / 1e9)[0] == "right"
    for n, n_kv, causal in ((5, 12, True), (12, 5, True), (7, 9, False)):
        pairs = cost.visible_pairs(n, n_kv, causal)
        assert ex.count_flops.answer(n, n_kv, 3, 2, 5, causal) == 5 * 2 * 3 * 2 * pairs


def test_products_of_the_figure_are_those_of_the_count():
    forward = cost.attention(64, 8, flow="flash").flops
    for flow, names in pictures.WAYS.items():
        backward = cost.attention(64, 8, flow=flow, backward=True).flops
        assert backward / forward == len(names) / 2


def test_both_ways_are_drawn_on_one_scale():
    costs = [cost.attention(4096, 128, flow=flow, backward=True) for flow in ("naive", "flash")]
    gpu, ax = GPUS["H100 SXM"], Figure().subplots()
    roof_pictures.times(ax, dict(zip("ab", costs, strict=True)), gpu, one_scale=True)
    times = [f(c, gpu) for c in costs for f in (roofline.memory_time, roofline.compute_time)]
    drawn = [bar.get_width() for bar in ax.patches]
    assert np.allclose(drawn, np.array(times) / max(times))


def test_seven_passes():
    """With P stored: P, dP, dS between five kernels, 7 N² numbers beside the operands."""
    n, d = 512, 16
    spent = cost.attention(n, d, flow="naive", backward=True)
    assert spent.bytes - 7 * n * n * 2 == 8 * n * d * 2
    assert "28.9x fewer" in said("fewer = stored")


def test_a_row_of_p_needs_the_digits_of_l():
    words = said("m and log ℓ apart")
    assert words.endswith("L as one number 2.000; m and log ℓ apart 1.000.")


# --- figures and explorer ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ("backward_graph", "softmax_jacobian", "backward_owners"))
def test_static_figures_speak(name):
    draw, size, panels = STATIC[name]
    words = draw(Figure(figsize=size).subplots(*panels))
    assert len(words) > 40


def test_the_jacobian_of_the_figure():
    axes = Figure().subplots(1, 2)
    words = pictures.jacobian(axes)
    numbers = [t.get_text().replace("−", "-") for t in axes[0].texts]
    p = np.exp([1.0, 3.0, 4.0, 2.0]) / np.exp([1.0, 3.0, 4.0, 2.0]).sum()
    assert np.allclose(
        [float(x) for x in numbers], (np.diag(p) - np.outer(p, p)).ravel(), atol=6e-4
    )
    assert "0.031 to 0.229" in words


def test_recorded_figures_draw_what_is_recorded():
    axes = Figure().subplots(1, 2)
    words = pictures.training(axes, TRAINING["points"])
    assert "out of memory" in words
    peaks = [p["peak_bytes"] / 1e9 for p in TRAINING["points"] if p["flow"] == "ours"]
    drawn = [list(line.get_ydata()) for line in axes[0].lines]
    assert any(len(d) == len(peaks) and np.allclose(d, peaks) for d in drawn)
    words = pictures.layer(Figure().subplots(1, 2), TRAINING["layer_points"])
    assert "ours keeps" in words
    words = pictures.speeds(
        Figure().subplots(1, 2), records.load("h200")["attention_speed"]["points"]
    )
    assert "cuDNN" in words


def test_loss_figure_draws_the_differences():
    axes = Figure().subplots(1, 2)
    words = pictures.losses(axes, {"a": [3.0, 2.0], "b": [3.0, 2.25]})
    assert list(axes[1].lines[0].get_ydata()) == [0.0, 0.25]
    assert words == "The loss falls from 3.00 to 2.00. From a differ: b by 0.2 at most."


@pytest.mark.parametrize("n, d, heads, gpu", ((512, 32, 1, "T4"), (131072, 256, 1024, "H200")))
def test_the_explorer_computes_the_counts(n, d, heads, gpu):
    data = explorer.compute(n, d, heads, gpu)
    for way, shown in data["ways"].items():
        spent = cost.attention(
            n, d, flow=way, heads=heads, backward=True,
            **(dict(block_q=128, block_kv=128) if way == "tiled" else {}),
        )  # fmt: skip
        assert (shown["bytes"], shown["flops"]) == (spent.bytes, spent.flops)
        assert shown["time"] == roofline.time(spent, GPUS[gpu])
    kept = {way: shown["kept"] for way, shown in data["ways"].items()}
    assert kept["naive"] - kept["flash"] == heads * (2 * n * n - 4 * n)
    assert kept["flash"] == kept["tiled"] == heads * (8 * n * d + 4 * n)


def test_the_explorer_says_what_does_not_fit():
    shown = explorer.compute(131072, 256, 1024, "T4")
    assert (
        "35.5 TB with P stored (does not fit), 275 GB without (does not fit)"
        in explorer.describe(shown)
    )
    fig = Figure()
    explorer.draw(fig, shown)(shown)
    for text in fig.axes[0].texts[:3]:
        assert text.get_color() == explorer.ACCENT


def test_what_was_found_with_the_explorer():
    def ways(n, d, heads, gpu):
        return explorer.compute(n, d, heads, gpu)["ways"]

    room = GPUS["H100 SXM"].hbm_bytes
    for heads, fits, kept in ((16, 32768, 35), (128, 16384, 71)):
        assert round(ways(fits, 128, heads, "H100 SXM")["naive"]["kept"] / 1e9) == kept
        assert ways(fits, 128, heads, "H100 SXM")["naive"]["kept"] < room
        assert ways(2 * fits, 128, heads, "H100 SXM")["naive"]["kept"] > room
    store, one, two = (ways(4096, 256, 16, "H100 SXM")[w] for w in explorer.WAYS)
    assert two["bytes"] > store["bytes"] and two["time"] > store["time"]
    cached = cost.Cost(two["flops"], one["bytes"], 0)  # the L2 answers what is read again
    assert one["time"] < roofline.time(cached, GPUS["H100 SXM"]) < store["time"]
    assert round(4 * 256 / 7) == 146 and round(roofline.ridge(GPUS["A100 80GB"])) == 153
    for gpu in explorer.CHIPS:
        store, one, _ = (ways(4096, 256, 16, gpu)[w] for w in explorer.WAYS)
        assert (store["time"] < one["time"]) == (gpu in ("A100 80GB", "RTX 4090"))


def test_prose_says_what_the_record_says():
    """Numbers in the text beside the tables of what was measured."""
    points = {(p["flow"], p["n"]): p for p in TRAINING["layer_points"]}
    n = 16384
    least = {
        flow: roofline.time(
            cost.attention(n, 128, flow=model, heads=16, backward=True), GPUS["H200"]
        )
        for flow, model in (("naive", "naive"), ("ours", "flash"))
    }
    took = {flow: points[flow, n]["backward"] for flow in least}
    for times in (least, took):
        a, b = (seconds(times[flow]).split()[0] for flow in ("naive", "ours"))
        assert f"{a} / {b} = {times['naive'] / times['ours']:.1f} times" in PROSE
    shares = [round(100 * least[flow] / took[flow]) for flow in ("naive", "ours")]
    machine = records.load("h200")["memory"]["machine"]
    most = (
        round(100 * machine["bandwidth"] / GPUS["H200"].bandwidth * 7 / 12),
        round(100 * machine["peak"]["fp16"] / GPUS["H200"].peak["fp16"] * 5 / 7),
    )
    assert f"{shares[0]} of {most[0]}% and {shares[1]} of {most[1]}%" in PROSE
    assert shares[0] / most[0] > 0.95 and 0.75 < shares[1] / most[1] < 0.8  # "almost four fifths"
    both = {key: p["forward"] + p["backward"] for key, p in points.items()}  # as the picture has it
    assert both["ours", 1024] > both["naive", 1024] and both["ours", 2048] < both["naive", 2048]
    short, twice = (f"{both['ours', length] * 1e6:.0f} µs" for length in (1024, 2048))
    assert f"It takes {short} there and {twice} at 2,048" in PROSE
    speed = {p["n"]: p["tokens_per_second"] for p in TRAINING["points"] if p["flow"] == "ours"}
    assert f"at N = 1,024 the record has {speed[1024]:,.0f} tokens" in PROSE
    assert max(speed[1024], speed[2048]) <= speed[4096] > speed[8192] > speed[16384] > speed[32768]
    ours = [
        p
        for p in records.load("h200")["attention_speed"]["points"]
        if (p["flow"], p["dtype"]) == ("ours", "fp16")
    ]
    of = {
        d: sorted(p["backward"]["of_cudnn"] for p in ours if (p["d"], p["n"]) == (d, n))
        for d in (64, 128)
    }
    said = [f"{a:.0%}"[:-1] + f" to {b:.0%} at d = {d}" for d, (a, b) in of.items()]
    assert f"Not quite: {', '.join(said)}." in PROSE


def test_what_the_counter_says_of_the_backward_pass():
    section = records.load("h200")["attention_speed"]
    n, d, heads = (section["counted"][name] for name in ("n", "d", "heads"))
    tensor, square = 2 * heads * n * d, 2 * heads * n * n
    runs = {r["flow"]: r["kernels"] for r in section["dram"] if r["way"] == "backward"}

    def moved(flow, way):
        return sum(kernel[way] for kernel in runs[flow])

    reads = [kernel["read"] / tensor for kernel in runs["ours"]]
    assert [round(x) for x in reads] == [3, 4, 4] and abs(sum(reads) - 11) < 0.1
    assert f"{moved('ours', 'read') / 1e6:.0f} MB" in PROSE and f"{tensor / 1e6:.1f} MB" in PROSE
    for flow in ("mem-efficient", "FA-2", "cuDNN"):
        assert moved(flow, "written") > moved("ours", "written")
    total = moved("ours", "read") + moved("ours", "written")
    assert moved("ours", "written") < 3 * tensor
    assert f"{total / 1e6:.0f} MB are {total / GPUS['H200'].bandwidth * 1e6:.0f} µs" in PROSE
    took = {(p["flow"], p["n"]): p["backward"] for p in TRAINING["layer_points"]}["ours", n]
    assert TRAINING["layer"]["heads"] == 2 * heads and f"half of the {seconds(took)}" in PROSE
    naive_bytes = moved("naive", "read") + moved("naive", "written")
    assert abs(naive_bytes / square - 12) < 0.5 and f"moves {naive_bytes / 1e9:.0f} GB" in PROSE
    assert f"passes of {square / 1e9:.2f} GB" in PROSE


def test_two_kernels_are_as_fast_without_autograd():
    without, n = records.load("h200")["one_pass"]["points"], 16384
    assert "two kernels come out within 2% of the table above" in PROSE
    for p in records.load("h200")["attention_speed"]["points"]:
        if (p["flow"], p["dtype"], p["n"]) == ("ours", "fp16", n):
            (flops,) = (
                w["flops"]
                for w in without
                if (w["way"], w["d"], w["causal"], w["n"])
                == ("two kernels", p["d"], p["causal"], n)
            )
            assert abs(flops / p["backward"]["flops"] - 1) < 0.02


def test_one_pass_was_slower_in_every_row():
    points = records.load("h200")["one_pass"]["points"]
    by = {(p["way"], p["d"], p["causal"], p["n"]): p["flops"] for p in points}
    cells = {key[1:] for key in by}
    assert len(cells) == 8 and "*slower*, in every row" in PROSE
    assert all(by["one pass", *c] < by["two kernels", *c] for c in cells)
    tiles = {d: {tuple(p["tile"]) for p in points if p["d"] == d and p["tile"]} for d in (64, 128)}
    for d, keys in ((64, 64), (128, 128)):  # each tile of keys adds to all of dQ
        assert {tile[1] for tile in tiles[d]} == {keys} and f"N / {keys} times" in PROSE
    assert {tile[0] for tile in tiles[128]} == {64} and "64 queries and 128 keys" in PROSE
    assert all(tile[2] == 8 for tile in tiles[128])  # eight warps of 255 registers: one block an SM
    ratio = {c: by["one pass", *c] / by["two kernels", *c] for c in cells}
    assert max(r for c, r in ratio.items() if c[0] == 64) < min(
        r for c, r in ratio.items() if c[0] == 128
    )


def test_out_of_memory_is_drawn():
    axes, points = Figure().subplots(1, 2), TRAINING["layer_points"]
    assert "no memory" not in pictures.layer(Figure().subplots(1, 2), points)
    lost = [  # as a GPU with less memory would have it
        {k: v for k, v in p.items() if not k.startswith("backward")} | {"out_of_memory": True}
        if (p["flow"], p["n"]) == ("naive", 32_768)
        else p
        for p in points
    ]
    assert "has no memory for the backward pass at N = 32,768" in pictures.layer(axes, lost)
    assert "out of memory" in [t.get_text() for t in axes[1].texts]


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


def toy(attend, steps=6, seed=0):
    text, characters = train.load_text()
    shape = dict(n=32, width=16, heads=2, layers=1)
    model = train.Transformer(attend, characters=len(characters), seed=seed, **shape)
    return train.train(model, train.windows(text, 32, 2), steps, lr=1e-2), model


def test_the_same_seeds_give_the_same_curve_whatever_the_attention(nb):
    first, _ = toy(naive.attention)
    assert first == toy(naive.attention)[0]
    assert first != toy(naive.attention, seed=1)[0]
    assert np.allclose(first, toy(nb.tiled)[0], atol=1e-4)
    if kernels.available:
        assert np.allclose(first, toy(kernels.attention)[0], atol=1e-4)


def test_a_model_that_knows_nothing_guesses_and_then_learns():
    losses, _ = toy(naive.attention, steps=40)
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


# --- the record -------------------------------------------------------------------------------


def test_the_recorded_curves_are_the_same():
    yardstick, *others = TRAINING["curves"]
    assert (yardstick["flow"], yardstick["dtype"]) == ("naive", "fp32")
    assert yardstick["loss"][-1] < yardstick["loss"][0] - 1.5
    far = {c["flow"]: np.abs(c["off"]) for c in others}
    assert far["ours"].max() < 0.01 and far["ours"].mean() < 2 * far["naive"].mean()


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
    ours = [points["ours", n]["peak_bytes"] for n in lengths]
    assert max(ours) < 1.1 * min(ours)
    for n in lengths[:-1]:
        faster = points["ours", n]["tokens_per_second"] / points["naive", n]["tokens_per_second"]
        assert faster > 1
    assert all(p["same_bits_again"] for p in TRAINING["layer_points"] if p["flow"] == "ours")
