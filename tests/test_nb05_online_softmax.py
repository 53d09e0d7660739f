"""Notebook 05: what its cells define is right, and equal to the library and to what it draws."""

import ast
import dataclasses
import json
import types
from importlib import import_module
from itertools import pairwise
from math import inf, isnan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy.special import softmax

from course import attention, cost, records
from course import softmax as library
from course.draw import softmax as pictures
from course.draw import tiles as tile_pictures
from course.exercises import softmax as ex
from course.hardware import GPUS, KiB
from course.hbm import Hbm

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "05_online_softmax.ipynb"
ALL = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
CELLS = [c for c in ALL if c["cell_type"] == "code"]
PROSE = "\n".join("".join(c["source"]) for c in ALL if c["cell_type"] == "markdown")
WORKED = ("1.1353", "1.5530", "2.1353", "4.3269", "2.786")
online, stepper, tiles = (
    import_module(f"course.explore.{name}") for name in ("online", "stepper", "tiles")
)


def said(cell):
    """The text that a cell stored."""
    texts = (o.get("text") or o["data"].get("text/plain", "") for o in cell["outputs"])
    return "".join("".join(text) for text in texts)


def cell_with(words):
    """The first code cell whose source holds these words."""
    return next(c for c in CELLS if words in "".join(c["source"]))


def defined():
    """What the notebook defines: its functions and a few constants; all versions of `update`."""
    space, updates = {}, []
    for cell in CELLS:
        for node in ast.parse("".join(cell["source"])).body:
            names = [t.id for t in getattr(node, "targets", ()) if isinstance(t, ast.Name)]
            keep = isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef)
            if keep or names in (["warn"], ["aloud"], ["NOTHING"], ["rng"], ["vary"]):
                space.setdefault("n", 1024)
                space.setdefault("d", 32)
                exec(compile(ast.Module([node], []), PATH.name, "exec"), space)
                if getattr(node, "name", "") == "update":
                    updates.append(space["update"])
    return types.SimpleNamespace(**space, updates=updates)


nb = defined()


def run(scores, values, block, start=-inf):
    return nb.run(np.asarray(scores, float), np.asarray(values, float), block, start, nb.update)


# --- the worked example: the same digits everywhere -------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        PATH.read_text(encoding="utf-8"),
        said(cell_with("values = np.array([1.0, 2.0, 3.0, 4.0])")),
        (PATH.parents[1] / "figures" / "online_worked_example.svg").read_text(encoding="utf-8"),
        pictures.worked_example(Figure().subplots()),
        " ".join(
            online.describe(online.compute("worked example", 2, step, online.RIGHT))
            for step in (1, 2)
        ),
        " ".join((ex.worked_l.task, ex.worked_output.task, ex.worked_output.explanation)),
    ],
    ids=["prose", "cell", "svg", "figure", "explorer", "questions"],
)
def test_the_worked_example_has_the_same_digits_everywhere(text):
    assert [digits for digits in WORKED if digits not in text] == []


def test_the_worked_example_in_the_library_and_by_hand():
    after = pictures.states(pictures.SCORES, pictures.VALUES, 2)
    got = [f"{x:.4f}" for state in after[1:] for x in (state.l, state.o[0])]
    output = float(library.finish(after[-1])[0][0])
    assert (got[0], got[2], got[1], got[3], f"{output:.3f}") == WORKED
    assert [float(state.m) for state in after] == [-inf, 3, 4]
    assert ex.worked_l.verdict(float(after[-1].l))[0] == "right"
    assert ex.worked_output.verdict(output)[0] == "right"
    assert ex.by_hand.answer[-1] == pytest.approx(output, rel=1e-14)


# --- one row ----------------------------------------------------------------------------------

SCORES = st.one_of(
    st.floats(-1e5, 1e5), st.floats(-5, 5), st.just(-inf), st.just(3.0), st.just(1e4)
)


@settings(deadline=None)
@given(st.lists(SCORES, min_size=1, max_size=40), st.integers(1, 45), st.integers(0, 10**6))
def test_the_recurrence_of_the_notebook_is_scipys_softmax(scores, block, seed):
    scores, values = np.array(scores), np.random.default_rng(seed).normal(size=len(scores))
    if np.all(scores == -inf):
        assert nb.update(nb.NOTHING, scores, values) == nb.NOTHING
    else:
        assert run(scores, values, block) == pytest.approx(softmax(scores) @ values, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.lists(SCORES, min_size=1, max_size=9), min_size=2, max_size=5), st.randoms())
def test_any_order_of_merges_gives_one_state(parts, random):
    states = [nb.update(nb.NOTHING, np.array(p), np.arange(1.0, len(p) + 1)) for p in parts]
    m, l, o = library.update(
        library.State.empty(1),
        np.concatenate(parts),
        np.concatenate([np.arange(1.0, len(p) + 1) for p in parts])[:, None],
    )
    while len(states) > 1:
        random.shuffle(states)
        states.append(nb.merge(states.pop(), states.pop()))
    np.testing.assert_allclose(states[0], (m, l, o[0]), rtol=1e-12)


def test_b1_the_published_statistics_are_printed():
    lines = said(cell_with("eight = ")).splitlines()
    assert len(lines) == 5
    assert all("m = 5   l = 1.6617926287" in line for line in lines)


def test_b2_a_finite_start_is_shown_to_fail():
    low, values = np.array([-800.0, -801.0, -802.0]), np.arange(1.0, 4)
    assert isnan(run(low, values, 2, start=0.0))
    assert isnan(run(low - 1200, values, 2, start=-1000.0))
    assert run(low, values, 2) == pytest.approx(0.66524 + 2 * 0.24473 + 3 * 0.09003, abs=1e-4)
    assert "nan" in said(cell_with("start at 0:")) and "1.4248" in said(cell_with("start at 0:"))


def test_b4_two_finished_results():
    assert "lse = 1.386294   output = 2.0000" in said(cell_with("np.logaddexp(np.log(3), 0.0)"))


def test_b6_the_blocks_own_maximum_is_shown_to_fail():
    text = said(cell_with("def update_own"))
    assert "NumPy warns: overflow" in text
    assert "own maximum:     nan" in text and text.count("1.2689") == 2


@pytest.mark.parametrize("place", [0, 50_000, 99_999])
def test_b7_all_masked_but_one(place):
    scores = np.where(np.arange(100_000) == place, 10.0, -inf)
    assert run(scores, np.arange(100_000.0), 4096) == place


def test_b8_far_below_any_sentinel():
    scores = np.array([-240_000.0, *[-245_000.0] * 63]) / np.sqrt(128)
    values = np.arange(5.0, 69)
    assert run(scores, values, 16) == pytest.approx(values[0], rel=1e-12)


def test_a_first_block_of_minus_infinity_needs_the_guard():
    row, values = np.array([-inf, -inf, 1.0, 3.0]), np.arange(1.0, 5)
    first, guarded = nb.updates[0], nb.updates[-1]
    assert isnan(nb.run(row, values, 2, -inf, first))
    assert nb.run(row, values, 2, -inf, guarded) == pytest.approx(softmax(row) @ values)


def test_without_alpha_the_sum_is_wrong(capsys):
    assert f"{nb.first_try(np.array([1.0, 3, 4, 2]), 2):.4f}" == "2.2707"
    assert "l = 2.2707" in capsys.readouterr().out
    first = said(cell_with("def first_try"))
    assert "l = 2.2707" in first and "the right sum: False" in first
    assert "1.5530" not in first  # it is asked for later


def test_the_invariant_check_can_fail():
    scores, values = np.array([1.0, 3.0]), np.array([1.0, 2.0])
    m, l, o = nb.update(nb.NOTHING, scores, values)
    assert nb.invariant_holds((m, l, o), scores, values)
    for broken in ((m + 1e-9, l, o), (m, 1.0001 * l, o), (m, l, o + 1e-6)):
        assert not nb.invariant_holds(broken, scores, values)
    assert "False" not in said(cell_with("def invariant_holds"))


# --- low precision ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "stop"), [("float16", 2048), ("bfloat16", 256), ("float32", 4096)]
)
def test_where_a_running_sum_of_ones_stands_still(dtype, stop):
    torch = pytest.importorskip("torch")
    sums = nb.running_sum(getattr(torch, dtype))
    assert len(sums) == 4097 and sums[-1] == stop
    assert np.array_equal(sums, np.minimum(np.arange(4097), stop))
    if dtype == "float16":
        assert np.array_equal(sums[1:], np.cumsum(np.ones(4096, np.float16), dtype=np.float16))
        assert ex.fp16_stop.answer == stop
    if dtype == "bfloat16":
        assert ex.bf16_stop.answer == stop


def test_what_rounding_does_to_the_denominator():
    exact, fp32, fp16 = said(cell_with("half, half_value = ")).splitlines()
    l = [float(line.split("l = ")[1].split(",")[0]) for line in (exact, fp32, fp16)]
    assert l[0] == l[1] > 1.1 * l[2]
    assert fp32.endswith("0.0%") and float(fp16.split()[-1].rstrip("%")) > 1


# --- the tiled loop ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "n_kv", "d", "block_q", "block_kv"),
    [
        (200, 200, 32, 64, 48),
        (1, 37, 5, 16, 8),
        (65, 63, 3, 64, 64),
        (30, 7, 4, 7, 7),
        (5, 5, 2, 9, 9),
    ],
)
def test_the_loop_of_the_notebook_is_the_librarys(n, n_kv, d, block_q, block_kv):
    rng = np.random.default_rng(n)
    q, k, v = rng.normal(size=(n, d)), 30 * rng.normal(size=(n_kv, d)), rng.normal(size=(n_kv, d))
    mine, theirs = Hbm(), Hbm()
    o, lse = nb.flash(q, k, v, block_q, block_kv, mine)
    want = attention.flash(q, k, v, block_q=block_q, block_kv=block_kv, hbm=theirs)
    np.testing.assert_allclose(o, want[0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(lse, want[1], rtol=1e-12)
    assert mine.read_by_name == theirs.read_by_name
    assert mine.written_by_name == theirs.written_by_name
    tiled = cost.attention(n, d, n_kv=n_kv, flow="tiled", block_q=block_q, block_kv=block_kv)
    assert (mine.read, mine.written) == (tiled.read, tiled.written)


def test_every_point_of_the_byte_plot_is_counted():
    for runs in nb.vary.values():
        for n, block_q, block_kv in runs.values():
            if n * n // block_q // block_kv <= 1024:  # the cell itself does them all
                assert nb.moved(n, block_q, block_kv) == nb.formula(n, block_q, block_kv)
    assert "every point equals the formula: True" in said(cell_with("counted = {"))


def test_the_plot_says_what_varies():
    predicted = {
        name: {x: nb.formula(*args) for x, args in runs.items()} for name, runs in nb.vary.items()
    }
    words = tile_pictures.bytes_against(Figure().subplots(1, 4), predicted, predicted)
    assert "B_c, rows of a K and V tile: 2.23 MB to 2.23 MB" in words
    kv = {name: [b - 4 * 32 * 1024 for b in runs.values()] for name, runs in predicted.items()}
    b_r, b_c, chip = list(kv.values())[:3]
    assert all(a == 2 * b for a, b in pairwise(b_r))
    assert len(set(b_c)) == 1
    assert all(a == 2 * b for a, b in pairwise(chip))


@pytest.mark.parametrize(("n", "d", "sram"), [(512, 16, 2048), (1024, 32, 8192), (256, 8, 1024)])
def test_c16_the_constant_of_n2d2_over_m_is_eight(n, d, sram):
    """M counts elements; B_r = M / 4d."""
    block, hbm = sram // (4 * d), Hbm()
    x = np.random.default_rng(0).normal(size=(n, d))
    nb.flash(x, x, x, block, block, hbm)
    loaded = (hbm.read_by_name["K"] + hbm.read_by_name["V"]) // 2
    assert loaded == 8 * n**2 * d**2 // sram
    assert said(cell_with("constant {loaded")).count("constant 8.00") == 4


def test_c16_tiles_of_the_questions():
    assert ex.paper_block.answer == 192 == cost.paper_tiles(96 * KiB, 64)[1]
    assert cost.paper_tiles(96 * KiB, 64)[0] == 64
    assert "elements, not bytes" in ex.paper_block.verdict(384)[1]
    assert ex.q_tile.answer == 131_072 == tile_pictures.budget(128, 64, 512)["Q"]
    assert ex.q_tile.answer > GPUS["RTX 4090"].smem_per_block > GPUS["T4"].smem_per_block


def test_facts_at_scale():
    """Ideal, asked and measured, as the prose has them."""
    text = said(cell_with("naive = cost.attention(4096, 128"))
    assert [line.split(": ")[1].split()[0] for line in text.splitlines()[1:]] == [
        *("132", "130", "66", "34", "4", "3.21")
    ]
    times = [line.split(", ")[2].split()[0] for line in text.splitlines() if "asked" in line]
    assert times == ["1.0", "2.0", "3.9"]
    assert cost.attention(4096, 128, flow="naive").bytes == 138_412_032
    assert "4 MiB" in PROSE and "66 MiB with 128-row tiles" in PROSE and "3.2 MB" in PROSE


def test_the_ridge_of_the_l2_lies_between_128_and_256_rows():
    """By the fastest copy, and by the slope of the staircase between 16 and 32 MiB, too."""
    text = said(cell_with("l2 = max("))
    ridges = [int(line.split("ridge ")[1].split()[0]) for line in text.splitlines()]
    assert ridges == [206, 176]
    steps = {s["bytes"]: s["bandwidth"] for s in records.load("h200")["memory"]["staircase"]}
    low, high = 2**24, 2**25
    slope = (high - low) / (high / steps[high] - low / steps[low])
    asked = {b: cost.attention(4096, 128, flow="tiled", block_q=b).intensity for b in (128, 256)}
    assert asked[128] < GPUS["H200"].peak["fp16"] / slope < min(ridges) < max(ridges) < asked[256]


# --- D15: tolerances --------------------------------------------------------------------------


def test_d15_zeros_do_not_pass_for_small_values():
    """(i) values scaled by 1e-3: all zeros are within atol=1e-2 of the truth, and are refused."""

    def small(rng):
        for scores, values, block in ex.one_row.cases(rng):
            yield scores, 1e-3 * values, block

    def zeros(blocks):
        return 0 * next(blocks)[1][0]

    item = dataclasses.replace(ex.one_row, cases=small)
    assert item.verdict(item.answer, 1)[0] == "right"
    assert item.verdict(zeros, 1)[0] == "wrong"
    rows = small(nb.rng)
    assert all(np.allclose(0, item.call(item.answer, *row), atol=1e-2) for row in rows)


def test_d15_blocks_are_no_powers_of_two_and_lengths_no_multiples():
    rng = np.random.default_rng(0)
    sizes = [(len(q), len(k), a, b) for q, k, _, a, b in ex._attentions(rng)]
    assert any(a & (a - 1) for *_, a, b in sizes) and any(b & (b - 1) for *_, b in sizes)
    assert any(n % a for n, _, a, _ in sizes) and any(m % b for _, m, _, b in sizes)
    assert any(n != m for n, m, *_ in sizes)
    assert any(len(s) % b for s, _, b in ex._rows(rng))


def test_a_row_goes_past_once_and_tiles_must_be_loaded():
    """The checks see whether an answer streams: no second sweep, no kept block, no unloaded tile."""

    kept = ex.one_row.verdict(lambda blocks: ex.one_row.answer(list(blocks)), 0)
    assert kept[0] == "wrong" and "Blocks were kept" in " ".join(kept[1].split())

    def loads_and_looks_elsewhere(q, k, v, block_q, block_kv, hbm):
        o = ex.tiled.answer(q, k, v, block_q, block_kv, hbm)
        s = q @ k.T / np.sqrt(q.shape[1])
        o[:] = softmax(s, axis=1) @ v
        return o

    status, text = ex.tiled.verdict(loads_and_looks_elsewhere, 0)
    assert status == "wrong" and "not finite" in text


# --- figures ----------------------------------------------------------------------------------


def test_sweeps_count_the_accesses_of_each_way():
    accesses = [sum(1 + ("write" in part) for part in parts) for parts in pictures.SWEEPS.values()]
    assert accesses == [3, 4, 3, 1]
    assert pictures.sweeps(Figure().subplots()).endswith("safe softmax 3, online softmax 2, "
                                                         "online, with values 1.")  # fmt: skip


def test_limits_are_where_exp_overflows():
    words = pictures.limits(Figure().subplots())
    assert "11.1" in words and "88.7" in words
    with np.errstate(over="ignore"):
        assert np.isfinite(np.exp(np.float32(88.7))) and np.isinf(np.exp(np.float32(88.8)))
        assert np.isfinite(np.exp(np.float16(11.08))) and np.isinf(np.exp(np.float16(11.1)))
    assert ex.fp16_limit.verdict(11.09)[0] == "right"


def test_both_merge_trees_end_in_one_state():
    words = pictures.merges(Figure().subplots(1, 2), (2, 3, 5, 2, 4, 0, -1, 2))
    assert words.count("m = 5, ℓ = 1.6618") == 2


def test_rescale_shows_alpha_times_the_old_sum():
    words = pictures.rescale(Figure().subplots(1, 2))
    assert "from 1.1353 to 0.4177" in words and "0.3679" in words
    assert "1.5530" not in words  # what the reader works out further down


def test_the_budget_is_the_one_of_the_cost_model():
    for block_q, block_kv, d in ((128, 64, 128), (16, 256, 64), (100, 7, 3)):
        parts = tile_pictures.budget(block_q, block_kv, d)
        assert sum(parts.values()) == cost.tile_bytes(block_q, block_kv, d)
    words = tile_pictures.sram(Figure().subplots(), 128, 64, 128, 228 * KiB)
    assert "Q 32 KiB, K 16 KiB, V 16 KiB, 64 KiB of 228 KiB" in words


# --- explorers --------------------------------------------------------------------------------


@pytest.mark.parametrize("row", online.ROWS)
def test_the_right_rule_holds_the_invariant_at_every_step(row):
    scores = online.ROWS[row]
    for block in range(1, online.KEYS + 1):
        for step in range(online.KEYS + 1):
            data = online.compute(row, block, step, online.RIGHT)
            assert online.judge(data)[0]
            np.testing.assert_allclose(data["terms"], data["expected"], rtol=1e-12)
        assert data["outputs"][-1] == pytest.approx(softmax(scores) @ data["values"], rel=1e-12)
        for m_old, m, alpha, l, _ in data["history"]:
            assert m >= m_old and 0 <= alpha <= 1 and (l >= 1 or m == -inf)


@pytest.mark.parametrize(
    ("rule", "row", "block", "good"),
    [
        (online.NO_ALPHA, "rising", 1, False),
        (online.NO_ALPHA, "falling", 1, True),
        (online.NO_ALPHA, "worked example", 4, True),
        (online.FROM_ZERO, "far below zero", 3, False),
        (online.FROM_ZERO, "rising", 3, True),
        (online.OWN, "steep fall", 4, False),
        (online.OWN, "rising", 2, True),
    ],
)
def test_a_broken_rule_goes_wrong_where_the_notebook_says(rule, row, block, good):
    data = online.compute(row, block, online.KEYS, rule)
    assert online.judge(data)[0] is good
    assert ("right" in online.describe(data)) is good


def test_a_wrong_maximum_breaks_the_invariant_even_where_nothing_is_seen():
    data = online.compute("−∞ first", 2, 2, online.FROM_ZERO)
    assert online.judge(data) == (False, "the invariant is broken")
    words = online.describe(online.compute("falling", 2, 6, online.OWN))
    assert "right (m is not the maximum)" in words


def test_what_the_notebook_asks_to_find_with_the_blocks():
    """Rows whose maximum comes first need no α, for any block size."""
    still = [
        row
        for row in online.ROWS
        if all(
            online.judge(online.compute(row, block, online.KEYS, online.NO_ALPHA))[0]
            for block in range(1, online.KEYS + 1)
        )
    ]
    assert still == ["falling", "all equal", "steep fall"]


@pytest.mark.parametrize("row", online.ROWS)
def test_the_ghosts_are_the_bars_of_the_step_before(row):
    for step in range(2, online.KEYS + 1):
        now, before = (online.compute(row, 1, at, online.RIGHT) for at in (step, step - 1))
        if now["step"] != before["step"]:
            np.testing.assert_array_equal(now["before"], before["terms"])
            old = slice(0, now["now"].start)
            np.testing.assert_array_equal(now["terms"][old], now["alpha"] * before["terms"][old])
            m_old, m, *_ = now["history"][-1]
            assert online.rescaled(now) is bool(-inf < m_old < m)


def test_the_factor_stands_beside_the_bars_that_it_shrinks():
    explorer = online.online(step=2)
    said = [text.get_text() for ax in explorer.figure.axes for text in ax.texts]
    assert "old terms × α = 0.3679" in said
    explorer.controls["step"].value = 1
    said = [text.get_text() for ax in explorer.figure.axes for text in ax.texts]
    assert not any("old terms" in text for text in said)


def test_blocks_seen_end_where_the_row_ends():
    explorer = online.online()
    step = explorer.controls["step"]
    assert step.max == 2
    explorer.controls["block"].value = 1
    assert step.max == 4
    explorer.controls["row"].value = "rising"
    assert step.max == 12
    step.value = 12
    explorer.controls["block"].value = 5
    assert step.max == step.value == explorer.data["steps"] == 3


@pytest.mark.parametrize("block_q", stepper.SIZES)
@pytest.mark.parametrize("block_kv", stepper.SIZES)
def test_the_stepper_is_the_librarys_loop_at_every_step(block_q, block_kv):
    """States by definition and bytes by hand, after every tile; the end is attention's and Hbm's."""
    n = stepper.N
    scores, values = stepper.Q @ stepper.K.T, stepper.V[:, 0]
    hbm, moments = Hbm(), iter(range(10**6))

    def moment():
        return stepper.compute(block_q, block_kv, next(moments))

    want, _ = attention.flash(
        stepper.Q, stepper.K, stepper.V, block_q=block_q, block_kv=block_kv, hbm=hbm
    )
    assert moment()["counted"] == {"Q": 0, "K": 0, "V": 0, "O": 0}
    for i in range(0, n, block_q):
        rows, loaded = slice(i, i + block_q), 2 * (i + block_q)
        data, passed = moment(), i // block_q * 2 * n
        assert data["does"] == "Q" and data["rows"] == rows
        assert data["counted"] == {"Q": loaded, "K": passed, "V": passed, "O": 2 * i}
        assert np.all(data["state"].m == -inf) and not np.any(data["state"].l)
        for j in range(0, n, block_kv):
            data, passed = moment(), passed + 2 * block_kv
            assert data["does"] == "V" and data["cols"] == slice(j, j + block_kv)
            assert data["counted"] == {"Q": loaded, "K": passed, "V": passed, "O": 2 * i}
            seen = scores[rows, : j + block_kv]
            m = seen.max(axis=1)
            terms = np.exp(seen - m[:, None])
            np.testing.assert_array_equal(data["state"].m, m)
            np.testing.assert_allclose(data["state"].l, terms.sum(axis=1), rtol=1e-14)
            o = terms @ values[: j + block_kv]
            np.testing.assert_allclose(data["state"].o[:, 0], o, rtol=1e-14)
        data = moment()
        assert data["does"] == "O" and data["counted"]["O"] == loaded
        np.testing.assert_array_equal(data["out"], want[: i + block_q, 0])
    assert data["step"] == data["steps"]
    np.testing.assert_allclose(
        data["out"], attention.naive(stepper.Q, stepper.K, stepper.V)[0][:, 0], rtol=1e-14
    )
    assert data["counted"] == data["in_all"] == {**hbm.read_by_name, **hbm.written_by_name}
    tiled = cost.attention(n, stepper.D, flow="tiled", block_q=block_q, block_kv=block_kv)
    assert sum(data["counted"].values()) == tiled.bytes
    assert str(cost.attention(n, stepper.D, flow="naive").bytes) in stepper.describe(data)


def test_what_the_notebook_asks_to_find_with_the_stepper():
    at_3 = stepper.describe(stepper.compute(2, 2, 3))
    assert "Row 1: m = 4, ℓ = 1.5530, o = 4.3269" in at_3
    k = {
        (b_r, b_c): stepper.compute(b_r, b_c, 99)["in_all"]["K"] for b_r in (2, 4) for b_c in (2, 4)
    }
    assert k == {(2, 2): 64, (2, 4): 64, (4, 2): 32, (4, 4): 32}
    assert 64 == 4 * 2 * stepper.K.size and stepper.NAIVE == 576 and 4 * 2 * stepper.N**2 == 512
    for words in ("64 bytes are 4 times K", "would move 576 bytes, 512 of them S and P"):
        assert words in PROSE


def test_the_stepper_begins_with_the_worked_example_and_goes_back():
    explorer = stepper.stepper()
    first, said = explorer.png(), []
    for step in (1, 2, 3):
        explorer.controls["step"].value = step
        said.append(explorer.picture.caption)
    assert all(digits in " ".join(said) for digits in WORKED[:4])
    for step in (2, 1, 0):
        explorer.controls["step"].value = step
    assert explorer.png() == first


@pytest.mark.parametrize("n", [512, 2048])
@pytest.mark.parametrize("d", [32, 256])
@pytest.mark.parametrize("block_q", [16, 256])
@pytest.mark.parametrize("block_kv", [16, 256])
def test_the_tile_explorer_counts_what_the_loop_moves(n, d, block_q, block_kv):
    data = tiles.compute(n, d, block_q, block_kv, 64, "H200")
    tiled = data["flows"]["tiled"]
    if n * n // block_q // block_kv <= 256:
        x, hbm = np.zeros((n, d)), Hbm()
        nb.flash(x, x, x, block_q, block_kv, hbm)
        assert tiled["bytes"] == hbm.bytes
    assert data["used"] == cost.tile_bytes(block_q, block_kv, d)
    assert tiles.fits(data) == (data["used"] <= 64 * KiB)
    assert tiled["intensity"] == pytest.approx(block_q / (1 + block_q / n), rel=1e-9)
    assert ("does not fit" in tiles.describe(data)) is not tiles.fits(data)


def test_what_the_notebook_asks_to_find_with_the_tiles():
    """The H200's ridge is passed with 256 rows and not with 128; a tile for the H100, not the T4."""
    bound = {b: tiles.compute(131072, 128, b, 64, 227, "H200")["flows"]["tiled"]["bound"]
             for b in tiles.ROWS}  # fmt: skip
    assert [b for b, side in bound.items() if side == "compute"] == [256]
    assert tiles.fits(tiles.compute(4096, 128, 256, 64, 227, "H200"))
    limits = [GPUS[name].smem_per_block for name in ("T4", "H100 SXM")]
    assert limits[0] < cost.tile_bytes(128, 128, 128) <= limits[1]
