"""Notebook 07: its derivation against autograd and nudging, its loops, its counts, its explorer."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from course import attention, cost, roofline
from course.draw import backward as pictures
from course.draw import roofline as roof_pictures
from course.draw.static import STATIC
from course.exercises import backward as ex
from course.hardware import GPUS
from course.hbm import Hbm
from tests.notebook_code import definitions

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "07_backward_counted.ipynb"
EVERY = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
CELLS = [c for c in EVERY if c["cell_type"] == "code"]
PROSE = "\n".join("".join(c["source"]) for c in EVERY if c["cell_type"] == "markdown")
explorer = import_module("course.explore.backward")


@pytest.fixture(scope="module")
def nb():
    """What the notebook defines, by name."""
    names = {"np": np}
    exec(definitions(PATH), names)
    return names


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


def test_it_runs_on_any_laptop():
    code = "\n".join("".join(c["source"]) for c in CELLS)
    assert "torch" not in code and "triton" not in code and "kernels" not in code
    assert "course" not in json.loads(PATH.read_text(encoding="utf-8"))["metadata"]


# --- the derivation ---------------------------------------------------------------------------


def test_nudging_finds_a_gradient_and_a_wrong_one(nb):
    x = np.random.default_rng(0).standard_normal((3, 2))
    assert np.allclose(nb["nudge"](lambda x: (x**3).sum(), x), 3 * x**2, rtol=1e-6)
    assert not np.allclose(nb["nudge"](lambda x: (x**3).sum(), x), 3 * x**2 + 1e-3, rtol=1e-6)


def test_the_worked_example_backwards():
    assert said("D = p_row @ dp").splitlines()[1] == "D  = 2.7861"
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
    exact = torch.autograd.grad(o, x, torch.tensor(do))
    for mine, theirs in zip(nb["naive_backward"](q, k, v, do), exact, strict=True):
        assert np.allclose(mine, theirs, rtol=1e-11, atol=1e-11)


def test_a_row_of_p_needs_the_digits_of_l():
    words = said("m and log ℓ apart")
    assert words.endswith("L as one number 2.000; m and log ℓ apart 1.000.")


# --- the tiled loops --------------------------------------------------------------------------


@pytest.mark.parametrize("n, n_kv, d", ((64, 64, 16), (70, 101, 5), (5, 130, 8), (1, 1, 3)))
@pytest.mark.parametrize("block_q, block_kv", ((16, 32), (64, 48), (7, 200)))
def test_the_loops_equal_the_library_and_its_bytes(nb, n, n_kv, d, block_q, block_kv):
    """The two of the page, and the one the reader writes, whose solution is the exercise's."""
    q, k, v, o, lse, do = example(n, n_kv, d, 3.0)
    mine, theirs = Hbm(), Hbm()
    delta = nb["row_delta"](o, do, block_q, mine)
    tiled = q, k, v, do, lse, delta, block_q, block_kv, mine
    dk, dv = nb["dkdv_columns"](*tiled)
    grads = ex.tiled_dq.answer(*tiled), dk, dv
    library = attention.flash_backward(
        q, k, v, o, lse, do, block_q=block_q, block_kv=block_kv, hbm=theirs
    )
    whole = nb["naive_backward"](q, k, v, do)
    for a, b, c in zip(grads, library, whole, strict=True):
        assert np.allclose(a, b, rtol=1e-10, atol=1e-12) and np.allclose(a, c, rtol=1e-9, atol=1e-9)
    assert mine.read_by_name == theirs.read_by_name
    assert mine.written_by_name == theirs.written_by_name
    counted = cost.attention(
        n, d, n_kv=n_kv, flow="tiled", backward=True, block_q=block_q, block_kv=block_kv
    )
    assert (mine.read, mine.written) == (counted.read, counted.written)


def test_helpers_of_the_page_serve_the_exercise(nb):
    """The page says that load_rows and tile_p_ds are there to be used."""

    def tiled_dq(q, k, v, do, lse, delta, block_q, block_kv, hbm):
        dq = np.empty_like(q)
        for i in range(0, len(q), block_q):
            rows = nb["load_rows"](q, do, lse, delta, i, block_q, hbm)
            dq_i = 0.0
            for j in range(0, len(k), block_kv):
                cols = slice(j, j + block_kv)
                k_j, v_j = hbm.load("K", k[cols]), hbm.load("V", v[cols])
                dq_i = dq_i + nb["tile_p_ds"](rows[0], k_j, v_j, *rows[1:])[1] @ k_j
            hbm.store("dQ", dq[i : i + block_q], dq_i / np.sqrt(q.shape[1]))
        return dq

    status, words = ex.tiled_dq.verdict(tiled_dq, 3)
    assert status == "right", words


def test_what_it_moved():
    table = {row.split()[0]: row.split()[1:] for row in said("flash_backward(").splitlines()[1:]}
    assert table["Q"] == ["1,088", "0"] and table["O"] == ["64", "0"] and table["dQ"] == ["0", "64"]
    assert "17 · 64 KiB = 1,088 KiB" in PROSE and 17 * 64 == 1088


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
    assert "28.9x fewer" in said("fewer = stored") and "3.3x shorter" in said("fewer = stored")


# --- figures ----------------------------------------------------------------------------------

STILLS = ("backward_graph", "backward_kept", "softmax_jacobian", "backward_owners")


@pytest.mark.parametrize("name", STILLS)
def test_static_figures_speak(name):
    draw, size, panels = STATIC[name]
    words = draw(Figure(figsize=size).subplots(*panels))
    assert len(words) > 40 and f"../figures/{name}.svg" in PROSE


def test_the_first_graph_does_not_say_what_is_kept():
    """It stands beside the question; the answer is the second one, where L comes from S."""
    ax = Figure().subplots()
    words = pictures.graph(ax, answer=False)
    asked = [t.get_text() for t in ax.texts]
    assert "L" not in asked and "kept" not in words and not any("kept" in t for t in asked)
    assert len({p.get_facecolor() for p in ax.patches}) == 1
    ax = Figure().subplots()
    assert "one number L per row of S" in pictures.graph(ax)
    assert "L" in [t.get_text() for t in ax.texts]


def test_the_jacobian_of_the_figure():
    axes = Figure().subplots(1, 2)
    words = pictures.jacobian(axes)
    numbers = [t.get_text().replace("−", "-") for t in axes[0].texts]
    p = np.exp([1.0, 3.0, 4.0, 2.0]) / np.exp([1.0, 3.0, 4.0, 2.0]).sum()
    assert np.allclose(
        [float(x) for x in numbers], (np.diag(p) - np.outer(p, p)).ravel(), atol=6e-4
    )
    assert "0.031 to 0.229" in words


# --- the explorer: what each way asks for, run on a counted memory ------------------------------


def stored(q, k, v, o, do, p, block, hbm):
    """The backward pass with P stored: D, then five products and a softmax, a tile of result each."""
    n, tiles = len(q), range(0, len(q), block)
    rows = [slice(i, i + block) for i in tiles]
    delta, dp, ds = np.empty(n), np.empty((n, n)), np.empty((n, n))
    dq, dk, dv = (np.empty_like(q) for _ in range(3))
    for i in rows:
        d_i = (hbm.load("O", o[i]) * hbm.load("dO", do[i])).sum(1)
        hbm.store("D", delta[i], d_i, itemsize=4)
    for j in rows:
        hbm.store("dV", dv[j], sum(hbm.load("P", p[i, j]).T @ hbm.load("dO", do[i]) for i in rows))
    for i in rows:
        for j in rows:
            hbm.store("dP", dp[i, j], hbm.load("dO", do[i]) @ hbm.load("V", v[j]).T)
    for i in rows:
        for j in rows:
            less = hbm.load("dP", dp[i, j]) - hbm.load("D", delta[i], itemsize=4)[:, None]
            hbm.store("dS", ds[i, j], hbm.load("P", p[i, j]) * less)
    for i in rows:
        hbm.store("dQ", dq[i], sum(hbm.load("dS", ds[i, j]) @ hbm.load("K", k[j]) for j in rows))
    for j in rows:
        hbm.store("dK", dk[j], sum(hbm.load("dS", ds[i, j]).T @ hbm.load("Q", q[i]) for i in rows))
    return dq, dk, dv


def one_kernel(q, k, v, o, do, lse, block, hbm):
    """P again, in one kernel: down the columns, each tile adds its FP32 part to dQ."""
    n = len(q)
    rows = [slice(i, i + block) for i in range(0, n, block)]
    delta, total = np.empty(n), np.zeros_like(q)
    dq, dk, dv = (np.empty_like(q) for _ in range(3))
    for i in rows:
        d_i = (hbm.load("O", o[i]) * hbm.load("dO", do[i])).sum(1)
        hbm.store("D", delta[i], d_i, itemsize=4)
    for j in rows:
        k_j, v_j = hbm.load("K", k[j]), hbm.load("V", v[j])
        dk_j, dv_j = 0.0, 0.0
        for i in rows:
            q_i, do_i = hbm.load("Q", q[i]), hbm.load("dO", do[i])
            lse_i, d_i = (hbm.load(x, a[i], itemsize=4) for x, a in (("lse", lse), ("D", delta)))
            p = np.exp(q_i @ k_j.T - lse_i[:, None])
            ds = p * (do_i @ v_j.T - d_i[:, None])
            dk_j, dv_j = dk_j + ds.T @ q_i, dv_j + p.T @ do_i
            hbm.store("dQ part", total[i], total[i] + ds @ k_j, itemsize=4)
        hbm.store("dK", dk[j], dk_j)
        hbm.store("dV", dv[j], dv_j)
    for i in rows:
        hbm.store("dQ", dq[i], hbm.load("dQ sum", total[i], itemsize=4))
    return dq, dk, dv


@pytest.mark.parametrize("n, d, block", ((64, 8, 16), (96, 16, 32), (32, 4, 32)))
def test_bytes_asked_are_those_of_the_loops(n, d, block):
    q, k, v, _, _, do = example(n, n, d)
    p = np.exp(q @ k.T - (lse := np.logaddexp.reduce(q @ k.T, axis=1))[:, None])
    o, x = p @ v, [torch.tensor(a, requires_grad=True) for a in (q, k, v)]
    exact = torch.autograd.grad((x[0] @ x[1].T).softmax(-1) @ x[2], x, torch.tensor(do))
    store, one = Hbm(), Hbm()
    grads = stored(q, k, v, o, do, p, block, store), one_kernel(q, k, v, o, do, lse, block, one)
    for grad in grads:
        assert all(np.allclose(a, b) for a, b in zip(grad, exact, strict=True))
    two = cost.attention(n, d, flow="tiled", backward=True, block_q=block, block_kv=block)
    asked = {"naive": store.bytes, "flash": one.bytes, "tiled": two.bytes}
    assert asked == {way: explorer.asked(way, n, d, block) for way in explorer.WAYS}


@pytest.mark.parametrize("n, d, block, heads", ((512, 32, 16, 1), (131072, 256, 256, 1024)))
def test_the_explorer_computes_the_counts(n, d, block, heads):
    ways = explorer.compute(n, d, block, heads)["ways"]
    for way, shown in ways.items():
        tile = dict(block_q=block, block_kv=block) if way == "tiled" else {}
        spent = cost.attention(n, d, flow=way, heads=heads, backward=True, **tile)
        assert shown["flops"] == spent.flops and shown["asked"] >= spent.bytes
    assert ways["naive"]["kept"] - ways["flash"]["kept"] == heads * (2 * n * n - 4 * n)
    assert ways["flash"]["kept"] == ways["tiled"]["kept"] == heads * (8 * n * d + 4 * n)


def test_bars_are_as_long_as_their_numbers():
    fig, data = Figure(), explorer.compute(4096, 128, 128, 16)
    explorer.draw(fig, data)(data)
    for ax, (key, *_) in zip(fig.axes, explorer.PANELS, strict=True):
        values = [way[key] for way in data["ways"].values()]
        widths = [bar.get_width() for bar in ax.patches]
        assert np.allclose(widths, np.array(values) / max(values)) and ax.get_xscale() == "linear"


def test_the_explorer_says_what_does_not_fit():
    shown = explorer.compute(131072, 256, 16, 1024)
    assert "35.5 TB with P stored, which does not fit on an H100" in explorer.describe(shown)
    fig = Figure()
    explorer.draw(fig, shown)(shown)
    assert all("over 80 GB" in t.get_text() for t in fig.axes[0].texts[:3])


def test_what_was_found_with_the_explorer():
    def ways(n, d=128, block=128, heads=16):
        return explorer.compute(n, d, block, heads)["ways"]

    room = GPUS["H100 SXM"].hbm_bytes
    for heads, fits, kept in ((16, 32768, 35), (128, 16384, 71)):
        assert round(ways(fits, heads=heads)["naive"]["kept"] / 1e9) == kept
        assert f"{fits:,} " in PROSE and f"({kept} GB)" in PROSE
        assert ways(fits, heads=heads)["naive"]["kept"] < room
        assert ways(2 * fits, heads=heads)["naive"]["kept"] > room
    for d in (32, 64, 128, 256):  # "hardly any fewer"
        one, two = (ways(4096, d)[way]["asked"] for way in ("flash", "tiled"))
        assert 0.97 < one / two < 1
    large, small = ways(4096), ways(4096, block=64)
    for way in ("flash", "tiled"):
        assert 1.9 < small[way]["asked"] / large[way]["asked"] < 2  # "nearly"
    assert small["naive"]["asked"] - large["naive"]["asked"] < 0.5 * large["naive"]["asked"]
    for key in ("kept", "flops"):
        assert all(small[way][key] == large[way][key] for way in explorer.WAYS)
