"""Notebook 04: its counts, its figures' data, its explorer, its exercises, and what it says of the record."""

import ast
import json
import math
from dataclasses import replace
from importlib import import_module
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import torch
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle

from course import attention, cost, explore, letters, measure, records, roofline
from course.cost import Cost
from course.draw import attention as pictures
from course.draw.theme import FLOWS
from course.exercises import attention_bytes as ex
from course.hardware import DTYPES, GPUS, GiB, MiB
from course.hbm import Hbm
from course.records.memory import l2_bandwidth
from course.units import decimal, seconds

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "04_attention_bytes.ipynb"
CELLS = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
CODE = ["".join(c["source"]) for c in CELLS if c["cell_type"] == "code"]
PROSE = "\n".join("".join(c["source"]) for c in CELLS if c["cell_type"] == "markdown")
SAID = "\n".join(
    "".join(o.get("text") or o["data"].get("text/plain", ""))
    for c in CELLS
    for o in c.get("outputs", ())
)
H100, H200 = GPUS["H100 SXM"], GPUS["H200"]
explorer, sentence = (
    import_module(f"course.explore.{name}") for name in ("attention_bytes", "sentence")
)
SIZES = list(product((1, 100, 4096), (1, 64, 128), (1, 8), (1, 3), (1, 2, 4)))


@pytest.fixture(scope="module")
def section():
    return records.load("h200")["attention_bytes"]


@pytest.fixture(scope="module")
def points(section):
    return {(p["flow"], p["n"]): p for p in section["points"]}


def run_of(section, flow, heads, n, caches="kept"):
    [run] = [r for r in pictures.cases(section, flow, caches) if (r["heads"], r["n"]) == (heads, n)]
    return run


# --- the count --------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d", "heads", "batch", "itemsize"), SIZES)
def test_three_kernels_move_what_naive_attention_moves(n, d, heads, batch, itemsize):
    size = dict(heads=heads, batch=batch, itemsize=itemsize)
    steps = pictures.steps(n, d, **size)
    total, whole = sum(steps.values(), Cost()), cost.attention(n, d, flow="naive", **size)
    assert (total.read, total.written) == (whole.read, whole.written)
    assert ex.by_kernel(n, d, heads, batch, itemsize) == tuple(s.bytes for s in steps.values())
    matmuls = total.flops - steps["P = softmax(S)"].flops
    assert matmuls == whole.flops == batch * heads * 4 * n * n * d
    assert steps["P = softmax(S)"].flops == 5 * batch * heads * n * n


@pytest.mark.parametrize(
    "text",
    [
        "8,589,934,592 FLOP, 8.59 GFLOP",
        "S or P:\n33,554,432 bytes = 32 MiB = 33.6 MB",
        "together 138,412,032 bytes, 97% of them N × N",
        "once each: 4 MiB, 33 times fewer",
        "bytes 41.3 µs, arithmetic 8.68 µs, 62 FLOP/byte; the ridge is at 295",
        "bytes 1.25 µs, arithmetic 8.68 µs, 2,048 FLOP/byte: compute-bound",
        "= 4.8 times faster at best",
        "one head of 128 with a causal mask: 31.0 FLOP/byte",
        "N =   8,192: 128 MiB, 4 GiB",
        "N =  32,768: 2 GiB, 64 GiB",
        "N = 131,072: 32 GiB, 1 TiB",
        "an H100 has 80 GB",
        "64 · 2 MiB + 2 MiB = 130 MiB",
        "32 · 2 MiB + 2 MiB = 66 MiB",
    ],
)
def test_facts_are_printed(text):
    assert text in SAID


def test_the_tiny_example_by_hand():
    q = np.array([[2.0, 0, 0, 0], [0, 2, 0, 0], [1, 1, 0, 0]])
    k = np.array([[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0]])
    s, p, o = ex.attend(q, k, np.array([[10.0], [20], [30]]))
    assert "Row 1 of S is 4, 0, 0, divided by √4: 2, 0, 0" in PROSE and [*s[0]] == [2, 0, 0]
    assert "79 % of the weight goes to token 1 and 11 % to each" in PROSE
    assert [*p[0].round(2)] == [0.79, 0.11, 0.11]
    assert "takes 42 % from each, 16 % from itself" in PROSE
    assert [*p[2].round(2)] == [0.42, 0.42, 0.16]
    assert "about 13.2" in PROSE and o[0, 0] == pytest.approx(13.2, abs=0.05)


# --- the sentence -----------------------------------------------------------------------------


def test_the_sentences_are_new_to_the_model():
    book = " ".join((letters.DATA / "alice.txt").read_text(encoding="ascii").lower().split())
    assert "very tired of sitting by her sister on the bank" in book
    assert not any(text.lower() in book for text in sentence.SENTENCES)
    assert "twinkle" not in book


def test_the_model_looks_where_the_same_two_letters_stood_before():
    """Most weight is on a letter that came after them: nearly always, and in every "twinkle"."""
    found = {}
    for text in sentence.SENTENCES:
        known = ". " + text.lower()
        for query in range(1, 30):
            after = [j for j in range(query) if known[j : j + 2] == known[query : query + 2]]
            if after:
                best = sentence.compute(text, query)["p"][query - 1].argmax()
                found[known[2 : query + 2]] = best in after
    assert len(found) == 24 and sum(found.values()) >= 20
    assert all(found["twinkle, twinkle, "[:end]] for end in range(10, 19))


def test_the_numbers_of_the_sentence():
    """S, P and O beside scipy; the mask hides what comes later; what the page says of "twi"."""
    for text in sentence.SENTENCES:
        q, k, v = letters.rows(text)
        data = sentence.compute(text, 12)
        mask = np.triu(np.full((29, 29), -np.inf), 1)
        p = scipy.special.softmax(q @ k.T / 8**0.5 + mask, axis=1)
        np.testing.assert_allclose(data["p"], p, atol=1e-15)
        np.testing.assert_allclose(data["o"], p @ v, rtol=1e-12)
        assert (data["s"].shape, data["o"].shape) == ((29, 29), (29, 8))
        shown = [data["s"][np.isfinite(data["s"])], [*sentence.SCORES]]
        assert min(shown[1]) < shown[0].min() and shown[0].max() < max(shown[1])
        assert abs(v).max() <= sentence.MOST
    data = sentence.compute(sentence.SENTENCES[0], 12)
    assert data["p"][11].argmax() == 3 and "On the first *n*" in PROSE
    assert "S and P are 29 × 29, while Q, K, V and O are 29 × 8" in PROSE
    assert "gives 69% to “n” in place 4" in sentence.describe(data)


def test_the_letters_of_the_sentence_stand_over_their_cells():
    shown = explore.sentence()
    square, scores, *_ = shown.figure.axes
    drawn = [p for p in shown.figure.patches + shown.figure.artists if isinstance(p, PathPatch)]
    boxes = [p.get_window_extent() for p in drawn]
    for ax in (square, scores):
        frame = ax.get_window_extent()
        wide = [b for b in boxes if b.height < 20 and abs(b.x0 - frame.x0) < 10]
        assert any(abs(b.width - frame.width) < 16 and 0 < b.y0 - frame.y1 < 10 for b in wide)
    shown.close()


def test_a_stranger_in_the_text_is_named():
    with pytest.raises(ValueError, match="not '#é'"):
        letters.rows("no é and no #")
    q, k, v = letters.rows("A")
    assert q.shape == k.shape == v.shape == (1, 8)


def test_learning_learns_and_is_what_is_stored():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    weights, losses = letters.learn(40)
    assert np.mean(losses[-10:]) < losses[0] - 0.2
    stored = json.loads((letters.DATA / "letters.json").read_text(encoding="utf-8"))
    assert f"{letters.STEPS} steps" in stored["stamp"]["method"] and stored["stamp"]["date"]
    for name, table in weights.items():
        assert np.shape(table) == np.shape(stored[name])
    assert letters.learn(2)[1] == losses[:2], "the same seed, the same pieces"
    torch.set_num_threads(threads)


# --- formulas and prose -----------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(512, 16), (4096, 128), (100_000, 256)])
def test_the_formulas_of_the_intensities(n, d):
    assert cost.attention(n, d, flow="naive").intensity == pytest.approx(d / 2 / (1 + d / n))
    assert cost.attention(n, d, flow="flash").intensity == pytest.approx(n / 2)
    naive, fused = (cost.attention(n, d, flow=flow).bytes for flow in ("naive", "flash"))
    assert naive / fused == pytest.approx(n / d + 1)


def test_numbers_in_prose():
    passes = 4 * 4096**2 * 2
    assert "97 % of all bytes" in PROSE and "N/d = 32 of S" in PROSE and 4096 // 128 == 32
    assert round(100 * passes / cost.attention(4096, 128, flow="naive").bytes) == 97
    assert "some 700 wide" in PROSE and ex.width_needed(
        roofline.ridge(H100), 4096
    ) == pytest.approx(700, rel=0.03)
    naive = cost.attention(4096, 128, flow="naive")
    idle = 1 - roofline.compute_time(naive, H100) / roofline.memory_time(naive, H100)
    assert "four fifths of the time" in PROSE and idle == pytest.approx(0.8, abs=0.02)
    held = [pictures.held(n, 128, flow="naive", heads=8) for n in (32768, 65536, 131072)]
    b200 = GPUS["B200"].hbm_bytes
    assert "On an H100 at 65,536, on a B200 at 131,072" in PROSE
    assert held[0] < H100.hbm_bytes < held[1] < b200 < held[2]
    assert "K and V are 2 MiB, and an SM has 228 KiB" in PROSE
    assert 2 * 4096 * 128 * 2 == 2 * MiB > H200.smem_per_sm == H100.smem_per_sm == 228 * 1024
    short = explorer.compute("H100 SXM", "fp16", 1024, 128, 1, 1)["flows"]["flash"]
    assert "half a microsecond is less than any launch" in PROSE and short["bound"] == "compute"
    assert short["times"][0] == pytest.approx(0.5e-6, rel=0.1)
    before = explorer.compute("H100 SXM", "fp16", 512, 128, 1, 1)["flows"]["flash"]
    assert before["bound"] == "memory", "N = 1,024 is the first on the slider"
    assert "130 MiB, when the naive flow moves 132 MiB (138 MB)" in PROSE
    assert naive.bytes == 132 * MiB and decimal(naive.bytes) == "138 MB"


def test_the_three_published_intensities():
    """FACTS 6: 62, about d, 1 to 10; and N/2 for the ideal."""
    n, d = 4096, 128
    assert "the first is 62" in PROSE and f"{4 * n * d / (8 * n + 8 * d):.0f}" == "62"
    passes = cost.Cost(4 * n * n * d, 4 * 2 * n * n)
    assert "is d/2, so 64" in PROSE and passes.intensity == d / 2 == 64
    assert (
        "5 FLOP on 4 bytes" in PROSE and pictures.steps(n, d)["P = softmax(S)"].intensity == 5 / 4
    )
    tidy = cost.Cost(4 * n * n * 64, 10 * 4 * n * n)
    assert "4 · 64 FLOP on 10 · 4 bytes, 6.4" in PROSE and tidy.intensity == 6.4
    assert "2,048 here" in PROSE and cost.attention(n, d, flow="flash").intensity == n / 2 == 2048


def test_what_the_roof_of_the_l2_allows():
    l2 = l2_bandwidth(records.load("h200")["memory"])[1]
    assert "with 64 rows of Q the L2 allows less than half of the peak, with 128 some five" in PROSE
    shares = [l2 * cost.attention(4096, 128, flow="tiled", block_q=rows).intensity
              / H200.peak["fp16"] for rows in (64, 128, 256)]  # fmt: skip
    assert 0.35 < shares[0] < 0.5 and shares[1] == pytest.approx(5 / 6, abs=0.02) and shares[2] > 1
    ax = Figure(figsize=(10.5, 4.8), layout="constrained").subplots()
    words = pictures.two_roofs(ax, H200, l2)
    ax.figure.draw_without_rendering()
    assert "128 rows of Q: 124" in words and "HBM: 2,048" in words and "a ridge at 206" in words
    level = [t for t in ax.texts if t.get_text() and not t.get_rotation()]
    boxes = [t.get_window_extent() for t in level]
    assert len(boxes) == 6 and not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert all(ax.get_window_extent().containsy(b.y1) for b in boxes)


def test_without_a_softmax_no_square_is_needed():
    q, k, v = np.random.default_rng(0).normal(size=(3, 50, 4))
    np.testing.assert_allclose((q @ k.T) @ v, q @ (k.T @ v), rtol=1e-9)


# --- cases from the field ---------------------------------------------------------------------


def test_c13_naive_attention_with_and_without_the_softmax():
    assert ex.softmax_counted.answer == pytest.approx(62.4, abs=0.05)
    assert ex.softmax_counted.verdict(62.4)[0] == "right"
    assert "without the 3N²" in ex.softmax_counted.verdict(62.06)[1]
    a10 = replace(H100, name="A10", peak={"fp16": 125e12}, bandwidth=600e9)
    assert roofline.ridge(a10) == pytest.approx(208.3, abs=0.05)
    assert roofline.bound(cost.attention(4096, 128, flow="naive"), a10) == "memory"
    assert ex.a10_share.answer == pytest.approx(100 * 62.4 / 208.3, rel=1e-3)
    stream = roofline.memory_time(cost.decode_step(weight_bytes=14 * 10**9), a10)
    assert stream == pytest.approx(23.3e-3, rel=2e-3)


def test_c10_and_c12_flops_of_a_layer_and_the_slip_of_the_multiply_add():
    layer = cost.attention(1024, 64, flow="flash", heads=16, batch=64)
    assert layer.flops == 274_877_906_944
    assert ex.forward_flops.verdict(274.877906944)[0] == "right"
    assert "multiply-add is two FLOP" in ex.forward_flops.verdict(137.4)[1]
    causal = cost.attention(1024, 64, flow="flash", heads=16, batch=64, causal=True)
    assert causal.flops == pytest.approx(layer.flops / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("n", "d", "block_q"), [(200, 8, 64), (64, 4, 64), (65, 4, 64), (7, 3, 16)]
)
def test_c16_k_and_v_are_read_again_for_every_q_block(n, d, block_q):
    x, hbm = np.ones((n, d)), Hbm()
    attention.flash(x, x, x, block_q=block_q, block_kv=block_q, hbm=hbm)
    ideal, asked = ex.ideal_and_asked(n, d, block_q)
    assert asked == hbm.bytes == cost.attention(n, d, flow="tiled", block_q=block_q).bytes
    assert ideal == cost.attention(n, d, flow="flash").bytes


def test_d13_no_torch_and_no_triton_is_needed():
    modules = {
        name.split(".")[0]
        for cell in CODE
        for node in ast.walk(ast.parse(cell))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert modules == {"course", "math", "numpy", "textwrap"}  # letters learns with torch
    assert all("letters.learn" not in cell for cell in CODE)


def test_a_name_that_later_cells_read_is_made_in_one_cell():
    """So that a reader may go back and run any cell again."""
    made, read = {}, {}
    for i, cell in enumerate(CODE):
        tree = ast.parse(cell)
        inner = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.DictComp)
        own = {id(n) for node in ast.walk(tree) if isinstance(node, inner) for n in ast.walk(node)}
        names = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in own]
        stored = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        for name in stored:
            made.setdefault(name, []).append(i)
        for name in {n.id for n in names} - stored:
            read.setdefault(name, []).append(i)
    assert len(made) > 30
    assert not {name for name in read if len(made.get(name, ())) > 1}


def test_d16_the_record_says_how_it_was_timed(section):
    method = section["stamp"]["method"]
    assert "CUDA events" in method and "L2 flushed" in method and "caches kept or emptied" in method


# --- what the notebook says of the record -----------------------------------------------------


def test_memory_is_predicted_to_the_digit(section, points):
    shortest = min(points[flow, 1024]["seconds"] for flow in ("naive", "flash", "cudnn"))
    assert "a call takes some tens of microseconds" in PROSE and 20e-6 < shortest < 100e-6
    for flow in ("naive", "flash"):
        for n in (1024, 2048, 4096, 8192, 16384, 32768):
            predicted = pictures.peak_bytes(flow, n, section)
            assert points[flow, n]["peak_bytes"] == pytest.approx(predicted, rel=1e-3)
    needed = pictures.peak_bytes("naive", 65536, section)
    assert points["naive", 65536]["out_of_memory"] and 1.8 < needed / H200.hbm_bytes < 2.1
    assert points["flash", 131072]["peak_bytes"] == pytest.approx(0.5e9, rel=0.15)


def test_time_stands_above_its_prediction_and_softmax_takes_most(points):
    fused = cost.attention(4096, 128, flow="flash", heads=16)
    assert roofline.bound(fused, H200) == "compute"
    share = {f: roofline.time(fused, H200) / points[f, 4096]["seconds"] for f in ("flash", "cudnn")}
    assert share["cudnn"] == pytest.approx(2 / 3, abs=0.08)
    assert share["flash"] == pytest.approx(1 / 3, abs=0.05)
    assert "quotes 35 % for it" in PROSE and share["flash"] == pytest.approx(0.35, abs=0.03)
    naive = cost.attention(4096, 128, flow="naive", heads=16)
    best = roofline.time(naive, H200) / roofline.time(fused, H200)
    gain = points["naive", 4096]["seconds"] / points["cudnn", 4096]["seconds"]
    assert "more than the roofline's 3.3" in PROSE and f"{best:.1f}" == "3.3" and gain > best
    alone = {p["cols"]: 4 * p["n"] / p["seconds"] for p in records.load("h200")["fusion"]["softmax"]
             if p["flow"] == "torch"}  # fmt: skip
    for n in (4096, 16384):
        softmax = 16 * 4 * n * n / alone[n]
        assert 0.55 < softmax / points["naive", n]["seconds"] < 0.85
        assert alone[n] < 0.6 * H200.bandwidth
        assert f"{alone[n] / H200.bandwidth:.0%} of the bandwidth" in SAID
    assert alone[16384] > 1.5 * alone[4096], "better on the longer rows"
    assert points["naive", 16384]["seconds"] < 3 * points["naive", 8192]["seconds"], "the bend"
    ours = [4 * p["n"] / p["seconds"] for p in records.load("h200")["fusion"]["softmax"]
            if p["flow"] == "hand-written" and p["cols"] in alone and 4096 <= p["cols"] <= 16384]  # fmt: skip
    assert "came above 80 % in notebook 03" in PROSE
    assert len(ours) == 2 and min(ours) > 0.8 * H200.bandwidth


def test_one_head_half_of_the_reads_and_most_writes_reach_dram(section):
    run = run_of(section, "naive", 1, 4096)
    steps = list(pictures.steps(4096, 128).values())
    reads = sum(k["read"] for k in run["kernels"]) / sum(s.read for s in steps)
    writes = sum(k["written"] for k in run["kernels"]) / sum(s.written for s in steps)
    assert reads == pytest.approx(0.5, abs=0.1) and 0.7 < writes < 1.02
    assert run["kernels"][1]["written"] > steps[1].written, "part of S is written meanwhile"
    assert 1 < 4 * 4096**2 / H200.l2_bytes < 1.1, "just over one L2"


def test_eight_heads_count_and_counter_agree(section):
    run = run_of(section, "naive", 8, 8192)
    for kernel, step in zip(
        run["kernels"], pictures.steps(8192, 128, heads=8).values(), strict=True
    ):
        assert kernel["read"] + kernel["written"] == pytest.approx(step.bytes, rel=0.03)
    assert "34 times the L2" in PROSE
    assert round(4 * 8 * 8192**2 / H200.l2_bytes) == 34


def test_emptied_caches_read_everything_and_leave_writes_behind(section):
    run = run_of(section, "naive", 1, 4096, "emptied")
    for kernel, step in zip(run["kernels"], pictures.steps(4096, 128).values(), strict=True):
        assert kernel["read"] == pytest.approx(step.read, rel=0.02)
    assert run["kernels"][0]["written"] < 0.25 * 4096**2 * 2


def test_any_further_case_in_the_l2_moves_less_than_the_count(section):
    for run in pictures.cases(section, "naive"):
        if 4 * run["heads"] * run["n"] ** 2 < H200.l2_bytes:
            counted = cost.attention(run["n"], 128, flow="naive", heads=run["heads"]).bytes
            assert pictures.moved(run) < 0.5 * counted


def test_three_numbers_for_the_fused_kernel(section):
    ideal = cost.attention(4096, 128, flow="flash").bytes
    measured = pictures.moved(run_of(section, "flash", 1, 4096))
    assert 3.1e6 < measured < ideal
    assert pictures.moved(run_of(section, "naive", 1, 4096)) / measured == pytest.approx(
        30, rel=0.15
    )
    for flow in ("flash", "cudnn"):
        large = cost.attention(8192, 128, flow="flash", heads=8).bytes
        assert 0.75 * large < pictures.moved(run_of(section, flow, 8, 8192)) < large
    asked = cost.attention(8192, 128, flow="tiled", heads=8, block_q=128).bytes
    naive = cost.attention(8192, 128, flow="naive", heads=8).bytes
    assert asked / naive == pytest.approx(0.5, rel=0.01)


def test_naive_grows_fourfold_and_tiled_twofold_on_this_machine():
    space = {}
    exec(CODE[0], space)
    exec(next(cell for cell in CODE if "def peak" in cell).split("\n\n\n")[0], space)
    large, small = (space["peak"](attention.naive, n) for n in (512, 256))
    assert large / small == pytest.approx(4, rel=0.15)
    large, small = (space["peak"](attention.flash, n) for n in (1024, 512))
    assert large / small == pytest.approx(2, rel=0.2)


# --- figures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu", "dtype"), [("H100 SXM", "fp16"), ("T4", "fp32"), ("B200", "fp8")])
def test_the_time_line_is_as_long_as_its_kernels(gpu, dtype):
    ax, chip = Figure().subplots(), GPUS[gpu]
    pictures.timeline(ax, 8192, 64, chip, heads=4, dtype=dtype)
    size = dict(heads=4, itemsize=DTYPES[dtype])
    widths = [
        p.get_width() for p in ax.patches if isinstance(p, Rectangle) and p.get_height() == 1.4
    ]
    steps = pictures.steps(8192, 64, **size)
    wanted = [max(s.bytes / chip.bandwidth, pictures.work_time(name, s, chip, dtype))
              for name, s in steps.items()]  # fmt: skip
    wanted.append(roofline.time(cost.attention(8192, 64, flow="flash", **size), chip, dtype))
    assert widths == pytest.approx(wanted)


def test_the_static_time_line_says_the_facts():
    svg = (PATH.parents[1] / "figures" / "attention_timeline.svg").read_text(encoding="utf-8")
    assert "together 138 MB, 41.3 µs. Fused, one kernel: 4.19 MB, 8.68 µs." in svg


def test_pictures_of_the_record_say_what_it_holds(section):
    ax = Figure().subplots()
    words = pictures.memory(ax, section, H200, [{"flow": "naive", "n": 4096, "peak_bytes": 10**9}])
    assert "ran out of memory at N = 65,536 and 131,072" in words
    assert any("here: naive" in str(line.get_label()) for line in ax.lines)
    count = len(pictures.cases(section, "naive"))
    axes = Figure(layout="constrained").subplots(1, count)
    words = pictures.dram(axes, section, H200)
    assert len({ax.get_ylim() for ax in axes}) == 1, "pictures to compare share an axis"
    softmax = [ax.patches[4].get_height() + ax.patches[5].get_height() for ax in axes]
    assert softmax == pytest.approx([2] * count), "of the count, in passes"
    for name, heads, n in (("1 head", 1, 4096), ("8 heads", 8, 8192)):
        counter = decimal(pictures.moved(run_of(section, "naive", heads, n)))
        count = decimal(cost.attention(n, 128, flow="naive", heads=heads).bytes)
        assert f"{name}, N = {n:,}: {counter} by the counter, {count} by the count" in words
    first = next(p for p in section["points"] if p["flow"] == "cudnn")
    assert f"cuDNN: {seconds(first['seconds'])} at N = {first['n']:,}" in pictures.times(
        Figure().subplots(), section, H200
    )


@pytest.mark.parametrize("draw", [pictures.memory, pictures.times])
def test_both_fused_kernels_are_seen_and_in_the_colour_of_fused(section, draw):
    ax = Figure().subplots()
    draw(ax, section, H200)
    assert not {FLOWS["tiled"].colour} & {line.get_color() for line in ax.lines}
    below, above = (
        next(line for line in ax.lines if line.get_marker() == mark) for mark in ("P", "v")
    )
    assert below.get_color() == above.get_color() == FLOWS["flash"].colour
    assert below.get_linestyle() != above.get_linestyle()
    assert below.get_markersize() > 1.5 * above.get_markersize(), "one may lie on the other"
    assert above.get_markerfacecolor() != below.get_markerfacecolor()


@pytest.mark.parametrize(
    ("draw", "count"), [(pictures.memory, 4), (pictures.times, 4), (pictures.intensity, 6)]
)
def test_every_line_is_named_at_its_end_and_no_name_covers_another(section, draw, count):
    ax = Figure(figsize=(10.5, 5.2), layout="constrained").subplots()
    draw(ax, *(([1024, 4096, 16384], H100) if draw is pictures.intensity else (section, H200)))
    ax.figure.draw_without_rendering()
    boxes = [word.get_window_extent() for word in ax.texts]
    ends = [box for box in boxes if box.x1 > ax.get_window_extent().x1]
    assert len(ends) == count
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


# --- the explorer -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "dtype", "n", "d", "heads", "batch"),
    [
        ("H100 SXM", "fp16", 4096, 128, 1, 1),
        ("H200", "fp32", 512, 256, 128, 64),
        ("B200", "fp8", 131072, 16, 32, 2),
        ("T4", "bf16", 2048, 64, 2, 1),  # no such arithmetic there
        ("laptop GPU", "fp16", 131072, 64, 128, 64),
    ],
)
def test_the_explorer_counts_what_the_course_counts(gpu, dtype, n, d, heads, batch):
    data, chip = explorer.compute(gpu, dtype, n, d, heads, batch), GPUS[gpu]
    size = dict(heads=heads, batch=batch, itemsize=DTYPES[dtype])
    for flow in ("naive", "flash"):
        found, total = data["flows"][flow], cost.attention(n, d, flow=flow, **size)
        assert sum(found["bytes"]) == found["total"] == total.bytes
        assert sum(found["moving"]) == pytest.approx(total.bytes / chip.bandwidth)
        assert all(t >= max(m, w) for t, m, w in zip(found["times"], found["moving"],
                                                     found["working"], strict=True))  # fmt: skip
        square = 2 * heads * batch * n * n * DTYPES[dtype] if flow == "naive" else 0
        lse = 4 * heads * batch * n if flow == "flash" else 0
        assert found["held"] == 4 * heads * batch * n * d * DTYPES[dtype] + square + lse
        room = chip.hbm_bytes
        assert explorer.full(data, flow) == (room and found["held"] > room)
    assert data["can"] == (dtype in chip.peak)
    assert ("arithmetic" in explorer.describe(data)) == (not data["can"])


@pytest.mark.parametrize(
    "setting",
    [
        {},
        dict(gpu="B200", dtype="fp32", n=512, d=256),  # the softmax is too short for words
        dict(gpu="T4", dtype="fp32", n=131072, d=256, heads=128, batch=64),
        dict(gpu="B200", dtype="fp8", n=131072, d=256, heads=128, batch=64),
        dict(heads=128),
        dict(batch=64),
        dict(n=131072),
        dict(n=512, d=16, dtype="fp8"),
        dict(gpu="laptop GPU", n=131072, heads=128, batch=64),
    ],
)
def test_no_word_of_the_explorer_leaves_its_box_or_crosses_the_memory_of_the_gpu(setting):
    shown = explore.attention_bytes(**setting)
    line, room, roof = shown.figure.axes
    boxes = [p.get_window_extent() for p in line.patches if p.get_height() == 0.92]
    for word in line.texts:
        if word.get_text().startswith(explorer.SHORT):
            here = word.get_window_extent()
            assert any(box.contains(*here.min) and box.contains(*here.max) for box in boxes), word
    limit = next(line for line in room.lines if line.get_marker() == "None")
    words = [word.get_window_extent() for word in room.texts if word.get_visible()]
    assert not any(a.overlaps(b) for a, b in combinations(words, 2))
    for word in words if limit.get_visible() else ():
        x, (low, high) = limit.get_window_extent().x0, limit.get_window_extent().intervaly
        assert not (word.x0 < x < word.x1 and word.y0 < high - 1 and word.y1 > low)
    assert all(word.x1 < roof.get_window_extent().x0 - 40 for word in words), "off its numbers"
    shown.close()


# --- exercises --------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [10**6, 24 * 10**9, 2 * 8 * 2 * 2 * 4096**2])
def test_the_longest_sequence_fits_and_the_next_does_not(memory):
    n = ex.longest(memory, 8, 2, 2)
    assert 2 * 8 * 2 * 2 * n * n <= memory < 2 * 8 * 2 * 2 * (n + 1) ** 2


@pytest.mark.parametrize("gpu", ["H100 SXM", "A100 80GB", "H200", "laptop GPU"])
def test_at_the_width_needed_the_intensity_is_the_ridge(gpu):
    ridge = roofline.ridge(GPUS[gpu])
    d = ex.width_needed(ridge, 4096)
    assert d / 2 / (1 + d / 4096) == pytest.approx(ridge)
    for n in (1, 100, int(2 * ridge)):  # and where it is inf, the limit d → ∞ is n/2, too low
        assert ex.width_needed(ridge, n) == math.inf and n / 2 <= ridge


def test_the_footprint_of_a_model():
    """Llama-3-8B has 32 layers, 32 query heads on 8 K heads."""
    assert ex.scores_held(32768, 32, 32, 8, 1, False) == 2 * 64 * GiB
    assert ex.scores_held(8192, 32, 32, 8, 1, True) == 33 * 4 * GiB


def test_practice_problem_one():
    assert (ex.naive_8k.answer, ex.fused_8k.answer) == (512, 8)
    assert ex.naive_8k.verdict(520)[0] == "wrong" and "64 times" in ex.fused_8k.explanation
    assert "256 MiB" in PROSE and 2 * 8192**2 * 2 == 256 * MiB


def test_the_rows_of_the_counter_table_are_what_they_are_named(section):
    table, square = ex.counter_table(), 4096**2 * 2
    assert table["A"][0] == pytest.approx(square, rel=0.01)
    assert table["B"][0] == pytest.approx(3 * 4096 * 128 * 2, rel=0.05) and table["B"][1] < square
    assert table["C"][0] == pytest.approx(8 * 8192**2 * 2, rel=0.01)
    assert table["D"][0] < 0.7 * square < square < table["D"][1]


def test_the_counter_says_why_it_is_missing(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(RuntimeError, match="not available"):
        measure.dram_bytes("course.records.attention_bytes:prepare", [["naive", 1, 4096]])
