"""Notebook 02: the data behind its figures and its explorer, and the numbers that it shows."""

import importlib
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Annotation, Text

from course import cost, explore, measure, records, roofline
from course.draw import roofline as picture
from course.draw import show
from course.draw.labels import place, text_size
from course.exercises import roofline as ex
from course.explore.explorer import positions
from course.hardware import DTYPES, GPUS, Gpu
from course.records.memory import l2_bandwidth

H100, H200, T4 = GPUS["H100 SXM"], GPUS["H200"], GPUS["T4"]
module = importlib.import_module("course.explore.roofline")
compute, describe = module.compute, module.describe


NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "02_roofline.ipynb"


def source(name):
    """The text of a cell of the notebook."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    (text,) = ["".join(cell["source"]) for cell in cells if cell["id"] == name]
    return text


# --- labels -----------------------------------------------------------------------------------


def shared(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return max(width, 0) * max(height, 0)


@pytest.mark.parametrize("seed", range(20))
def test_labels_keep_clear_of_each_other_of_points_and_of_obstacles(seed):
    rng = np.random.default_rng(seed)
    anchors = rng.uniform((40, 40), (560, 260), (10, 2))
    sizes = np.stack([rng.uniform(20, 110, 10), np.full(10, 14.0)], axis=1)
    area, wall = (0, 0, 600, 300), (250, 100, 350, 160)
    corners = place(anchors, sizes, area, [wall])
    boxes = [(*corner, *(corner + size)) for corner, size in zip(corners, sizes, strict=True)]
    dots = [(*(anchor - 5), *(anchor + 5)) for anchor in anchors]
    covered = sum(shared(a, b) for a, b in itertools.combinations(boxes, 2))
    covered += sum(shared(box, other) for box in boxes for other in [wall, *dots])
    assert covered < 0.05 * sum(np.prod(size) for size in sizes)
    for x0, y0, x1, y1 in boxes:
        assert x0 >= -1e-9 and y0 >= -1e-9 and x1 <= 600 + 1e-9 and y1 <= 300 + 1e-9


def test_a_label_alone_sits_beside_its_point():
    (corner,) = place([(100, 100)], [(50, 14)], (0, 0, 600, 300))
    nearest = np.clip((100, 100), corner, corner + np.array([50, 14]))
    assert np.hypot(*(nearest - (100, 100))) < 10


def test_text_size_is_matplotlibs():
    width, height = text_size("matmul 8192", 12)
    pair = text_size("matmul 8192\nadd", 12)
    assert 60 < width < 110 and pair == (width, 2 * height)


# --- figures ----------------------------------------------------------------------------------


def boxes(figure):
    """What each text covers, in pixels; an annotation without its line."""
    figure.draw_without_rendering()
    found = [t for ax in figure.axes for t in (*ax.texts, ax.title) if t.get_text()]
    return {t: Text.get_window_extent(t) for t in found}


def assert_apart(figure, most=0.1):
    drawn = boxes(figure)
    for (a, one), (b, two) in itertools.combinations(drawn.items(), 2):
        common = one.intersection(one, two)
        if common and not (a.get_rotation() and b.get_rotation()):  # the boxes of slanted names
            least = min(one.width * one.height, two.width * two.height)
            overlap = common.width * common.height / least
            assert overlap < most, f"{a.get_text()!r} on {b.get_text()!r}"


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("width", (8, 12))
def test_names_on_every_roof_are_apart(name, width):
    figure = show(picture.roofline, GPUS[name], picture.examples(), size=(width, 5)).figure
    assert_apart(figure)
    inside = figure.axes[0].get_window_extent()
    for text, box in boxes(figure).items():
        if isinstance(text, Annotation):
            assert box.x0 >= inside.x0 - 2 and box.x1 <= inside.x1 + 2, text.get_text()
            assert box.y0 >= inside.y0 - 2 and box.y1 <= inside.y1 + 2, text.get_text()


def test_the_recorded_roofline_is_legible():
    points = [picture.Point.measured(p) for p in records.load("h200")["memory"]["roofline"]]
    assert_apart(show(picture.roofline, GPUS["H200"], points, size=(10, 6)).figure)


def test_a_name_reads_as_its_own_points():
    """Nearer to it than to any other point, or joined to it by a line."""
    measured = {p["name"]: p for p in records.load("h200")["memory"]["roofline"]}
    for name in ("matmul 256", "matmul 512", "matmul 2048", "matmul 4096", "decode, batch 64"):
        del measured[name]  # as in the notebook
    points = [picture.Point.measured(point) for point in measured.values()]
    figure = show(picture.roofline, H200, points, l2=6.7e12, size=(10, 5.5)).figure
    assert_apart(figure)
    found = {text.get_text(): (text, box) for text, box in boxes(figure).items()}
    spots = figure.axes[0].transData.transform([(point.intensity, point.rate) for point in points])
    for point, spot in zip(points, spots, strict=True):
        text, box = found[point.name]
        away = np.hypot(*(np.clip(spots, box.min, box.max) - spots).T)
        own = np.hypot(*(np.clip(spot, box.min, box.max) - spot))
        assert own == min(away) or text.arrow_patch, point.name


def test_points_lie_on_the_roof_or_where_they_were_measured():
    add = cost.elementwise(6, inputs=2)
    assert picture.Point.of("add", add).intensity == pytest.approx(1 / 6)
    record = {"name": "add", "flops": 6, "bytes": 36, "seconds": 2.0}
    assert picture.Point.measured(record) == ("add", 6 / 36, 3.0, "measured")
    assert picture.Point.of("add", add, seconds=2.0).rate == 3.0


def test_the_roof_is_drawn_where_it_is():
    ax = show(picture.roofline, H100).figure.axes[0]
    slope, flat = (line.get_xydata() for line in ax.lines[:2])
    assert slope[0, 1] / slope[0, 0] == pytest.approx(3.35e12)
    assert slope[-1].tolist() == flat[0].tolist() == pytest.approx([989.4 / 3.35, 989.4e12])
    assert flat[1, 1] == 989.4e12


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("intensity", (0.05, 0.6, 10, 100, 1e3, 1e5))
def test_the_names_of_the_roof_stay_inside(name, intensity):
    figure = show(picture.roofline, GPUS[name], [picture.Point("it", intensity)]).figure
    inside, drawn = figure.axes[0].get_window_extent(), boxes(figure)
    for box in (box for text, box in drawn.items() if text.get_text().endswith("/s")):
        assert box.x0 >= inside.x0 - 2 and box.x1 <= inside.x1 + 2


def test_words_say_what_the_roofline_shows():
    points = [*picture.examples(), picture.Point("slow", 1.0, 0.335e12, "measured")]
    words = show(picture.roofline, H100, points).words
    for said in ("3.35 TB/s", "295 FLOP per byte", "989 TFLOP/s", "add: 0.167 FLOP per byte, memory",
                 "8192: 2,731 FLOP per byte, compute",
                 "slow: 1 FLOP per byte, measured 335 GFLOP/s, 10% of the roof"):  # fmt: skip
        assert said in words, said


def test_words_of_the_other_figures():
    cards = [GPUS[name] for name in ("A100 80GB", "H200", "H100 SXM")]
    words = show(picture.ridges, cards, mark=250, what="decode").words
    assert "A100 80GB: 153, H200: 206, H100 SXM: 295" in words
    assert "memory-bound: H100 SXM" in words and "compute-bound: A100 80GB, H200" in words
    words = show(picture.times, {"naive": cost.attention(4096, 128, flow="naive")}, H100).words
    assert "bytes 41.3 µs, FLOPs 8.68 µs" in words
    a, b = (picture.Point(name, x) for name, x in (("one", 1), ("sixteen", 16)))
    words = show(picture.moves, H100, [("batch", [a, b], 1)]).words
    assert "batch: from one to sixteen." in words
    words = show(picture.floor, [10, 100, 1000], [1e-6, 1.1e-6, 1e-5]).words
    assert "1 µs for 10 elements, 1.1 µs for 100, and 10 µs for 1,000" in words


def test_a_readers_function_draws_the_roof_and_what_lies_on_it():
    """A wrong one must be seen to be wrong: nothing of the course's own roof is drawn over it."""
    half = lambda intensity, peak, bandwidth: np.minimum(peak, intensity * bandwidth) / 2  # noqa: E731
    figure = show(picture.roofline, H100, [picture.Point("it", 10.0)], rates=half).figure
    slope, flat, *_rest, point = (line.get_xydata() for line in figure.axes[0].lines)
    assert slope[:, 1] == pytest.approx(slope[:, 0] * 3.35e12 / 2)
    assert flat[:, 1] == pytest.approx(989.4e12 / 2)
    assert point.tolist() == [[10, 10 * 3.35e12 / 2]]


def test_the_l2_is_a_roof_of_its_own():
    """FACTS 16: 5.6 TB/s for the copy as a whole, 6.7 by the slope; 1.3 to 1.6 times HBM."""
    record = records.load("h200")["memory"]
    time = {p["bytes"]: p["bytes"] / p["bandwidth"] for p in record["staircase"]}
    at_least, slope = l2_bandwidth(record)
    assert at_least == 2**25 / time[2**25] and slope == 2**24 / (time[2**25] - time[2**24])
    hbm = record["staircase"][-1]["bandwidth"]
    assert [f"{b / 1e12:.1f}" for b in (at_least, slope)] == ["5.6", "6.7"]
    assert [f"{b / hbm:.1f}" for b in (at_least, slope)] == ["1.3", "1.6"]
    assert [round(H200.peak["fp16"] / b) for b in (at_least, slope)] == [176, 148]

    shown = show(picture.roofline, H200, l2=slope)
    lines = [line.get_xydata() for line in shown.figure.axes[0].lines]
    (cache,) = [xy for xy in lines if len(xy) and np.allclose(xy[:, 1], xy[:, 0] * slope)]
    assert cache[-1].tolist() == pytest.approx([H200.peak["fp16"] / slope, H200.peak["fp16"]])
    assert "6.67 TB/s, and a ridge at 148" in shown.words


def test_the_measured_roof_is_under_nothing_that_was_measured():
    here = Gpu("laptop", None, {"fp32": 2e11}, 3e10, None, None, None, None, "a test")
    reads, works = (picture.Point("", x, rate, "measured") for x, rate in ((0.5, 2e10), (99, 3e11)))
    roof = picture.measured_roof(here, [reads, works], "fp32")
    assert (roof.bandwidth, roof.peak["fp32"]) == (4e10, 3e11)
    slow = picture.measured_roof(
        here, [picture.Point("", 0.5, 1e9), picture.Point("", 99, 1e9)], "fp32"
    )
    assert slow == here


def test_no_name_lies_on_a_line_of_the_ridges():
    """Each stands below the axis, under its own ridge."""
    cards = [GPUS[name] for name in ("A100 80GB", "H200", "H100 SXM")]
    figure = show(picture.ridges, cards, mark=250, what="decode, batch 250", size=(10, 4.5)).figure
    figure.draw_without_rendering()
    (ax,) = figure.axes
    labels = ax.get_xticklabels()
    assert [label.get_text().split("\n")[1] for label in labels] == [card.name for card in cards]
    boxes = [label.get_window_extent() for label in labels]
    assert all(box.y1 < ax.bbox.y0 for box in boxes)
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    (mark,) = ax.texts
    lines = [line.get_xydata() for line in ax.lines]
    pixels = np.concatenate(
        [ax.transData.transform(xy[xy[:, 1] > 1]) for xy in lines if len(xy) == 2]
    )
    box = Text.get_window_extent(mark)
    assert not any(box.contains(*pixel) for pixel in pixels) and box.y0 > pixels[:, 1].max()


# --- the explorer -----------------------------------------------------------------------------


def by_hand(operation, rows, width, size):
    """FLOPs and bytes, written out again without course.cost."""
    heads, d = max(1, width // 128), min(width, 128)
    n, qkvo = rows * width, 4 * rows * heads * d
    return {
        "add": (n, 3 * n * size),
        "ReLU": (n, 2 * n * size),
        "dropout": (2 * n, 2 * n * size),
        "softmax": (5 * n, 2 * n * size),
        "layer norm": (8 * n, 2 * n * size),
        "matmul": (2 * rows * width**2, (2 * rows * width + width**2) * size),
        "decode": (24 * rows * width**2, (13 * rows * width + 12 * width**2) * size),
        "attention, naive": (4 * heads * rows**2 * d, (4 * heads * rows**2 + qkvo) * size),
        "attention, fused": (4 * heads * rows**2 * d, qkvo * size),
    }[operation]


@pytest.mark.parametrize("operation", module.OPERATIONS)
@pytest.mark.parametrize("gpu", GPUS)
def test_explorer_at_every_corner(gpu, operation):
    for dtype, rows, width in itertools.product(DTYPES, (1, 256, 2**15), (16, 128, 2**14)):
        data = compute(gpu, dtype, operation, rows, width)
        flops, moved = by_hand(operation, rows, width, DTYPES[dtype])
        assert (data["cost"].flops, data["cost"].bytes) == (flops, moved)
        if dtype not in GPUS[gpu].peak:
            assert not data["supported"]
            assert f"{gpu} has no peak rate for {dtype}".lower() in describe(data).lower()
            continue
        memory, arithmetic = moved / GPUS[gpu].bandwidth, flops / GPUS[gpu].peak[dtype]
        assert data["time"] == pytest.approx(max(memory, arithmetic))
        assert data["bound"] == ("memory" if memory > arithmetic else "compute")
        assert data["rate"] == pytest.approx(flops / max(memory, arithmetic))
        longest = max(memory, arithmetic, data["overhead"])
        regime = {memory: "memory", arithmetic: "compute", data["overhead"]: "overhead"}[longest]
        assert data["regime"] == regime
        assert module.LEFT < data["cost"].intensity < module.RIGHT
        assert data["help"] and all(line.endswith(".") for line in data["help"])


def test_every_chip_is_offered_and_the_facts_are_shown():
    made = explore.roofline(operation="attention, naive", rows=4096, width=128)
    assert [*made.controls["gpu"].options] == [*GPUS]
    for said in ("62.1 FLOP per byte", "ridge is at 295", "41.3 µs", "8.68 µs", "memory-bound"):
        assert said in made.picture.caption
    made.controls["operation"].value = "attention, fused"
    assert "2,048 FLOP per byte" in made.picture.caption
    assert "compute-bound" in made.picture.caption


def test_what_helps_really_reaches_the_ridge():
    for operation, said in (("matmul", 346), ("decode", 321)):
        data = compute("H100 SXM", "fp16", operation, 256, 4096)
        assert f"Batch: {said} " in data["help"][0]
        for rows, bound in ((said - 1, "memory"), (said, "compute")):
            assert compute("H100 SXM", "fp16", operation, rows, 4096)["bound"] == bound
    narrow = compute("H100 SXM", "fp16", "matmul", 2**17, 512)
    assert narrow["bound"] == "memory" and "no number of rows" in narrow["help"][0]
    faster = compute("T4", "fp16", "matmul", 4096, 4096)
    assert faster["help"][0] == "A data type with a higher peak: int8."


def test_a_chip_without_the_data_type_says_so_in_the_picture_too():
    made = explore.roofline(gpu="T4", dtype="bf16")
    assert made.picture.caption.startswith("T4 has no peak rate for bf16. It has fp32, fp16, int8.")
    seen = [t.get_text() for t in made.figure.axes[0].texts if t.get_visible()]
    assert "T4 has no peak rate for bf16." in " ".join(" ".join(seen).split())
    made.controls["dtype"].value = "fp16"
    assert "no peak" not in made.picture.caption


def test_what_does_not_fit_is_said():
    fits = describe(compute("H100 SXM", "fp16", "attention, naive", 2**14, 4096))
    large = describe(compute("H100 SXM", "fp16", "attention, naive", 2**16, 4096))
    assert "of memory" not in fits  # S and P: 2 × 32 heads × 2^28 × 2 bytes = 34 GB
    assert "It needs 552 GB of memory, and there are 80 GB." in large


def test_small_work_is_overhead():
    data = compute("H100 SXM", "fp16", "add", 1, 16)
    assert data["regime"] == "overhead" and "overhead decides" in describe(data)
    assert "Moving the bytes takes less than 1 ns, the arithmetic less than 1 ns" in describe(data)
    shortest = min(p["seconds"] for p in records.load("h200")["memory"]["roofline"])
    assert data["overhead"] == shortest == module.measured()[0]


def test_the_h200_shows_its_l2_and_no_other_chip_does():
    made = explore.roofline(gpu="H200")
    names = {text.get_text() for text in made.figure.axes[0].texts}
    assert {"L2 6.67 TB/s", "HBM 4.8 TB/s"} <= names
    assert "Its L2 gives 6.67 TB/s, so what it serves has a ridge at 148." in made.picture.caption
    for gpu in GPUS.keys() - {"H200"}:
        made.controls["gpu"].value = gpu
        assert not any(text.get_text().startswith("L2") for text in made.figure.axes[0].texts)
        assert "L2" not in made.picture.caption


def test_the_axes_of_the_explorer_hold_what_they_must_and_little_more():
    """Nine decades once made every roof look alike."""
    decades = np.log10(module.RIGHT / module.LEFT), np.log10(module.TOP / module.BOTTOM)
    assert max(decades) < 7


def test_texts_of_the_explorer_are_apart_at_every_corner():
    made = explore.roofline()
    ends = [positions(control, 3) for control in made.controls.values()]
    every = list(itertools.product(*ends))
    for i in np.random.default_rng(0).permutation(len(every))[:40]:
        for control, value in zip(made.controls.values(), every[i], strict=True):
            control.value = value
        drawn = {}
        for ax in made.figure.axes:
            drawn |= {t: t.get_window_extent() for t in (*ax.texts, ax.title)
                      if t.get_visible() and t.get_text()}  # fmt: skip
        inside = made.figure.axes[0].get_window_extent()
        for text in made.figure.axes[0].texts:
            if text in drawn and text.get_rotation():
                assert drawn[text].x0 >= inside.x0 - 2, (every[i], text.get_text())
        for (a, one), (b, two) in itertools.combinations(drawn.items(), 2):
            if {a.get_rotation(), b.get_rotation()} != {0.0}:
                continue  # the box around a slanted name is mostly empty
            common = one.intersection(one, two)
            share = common.width * common.height if common else 0
            least = min(one.width * one.height, two.width * two.height)
            assert share < 0.12 * least, (every[i], a.get_text(), b.get_text())


# --- numbers of the page ----------------------------------------------------------------------


def test_why_sources_differ():
    """FACTS: 295 or 296, 156 or 153, 200.6, and the sparse 591."""
    assert [round(peak / 3.35) for peak in (989.4, 989.5, 990)] == [295, 295, 296]
    assert [round(312 / b, 1) for b in (2.0, 2.039, 1.555)] == [156.0, 153.0, 200.6]
    assert round(1979 / 3.35) == 591
    assert 1 / 6 * roofline.ridge(H100) ** -1 == pytest.approx(1 / 1772, rel=1e-3)


def test_field_cases_in_the_quizzes():
    """C7 (i), (iii); C9 (i), (ii), (iv); C12; C13 (ii); C14."""
    assert f"{ex.sparse_peak.answer:.1f}" == "48.5" and ex.book_bandwidth.answer == 35
    assert f"{ex.brackets.answer:.1f}" == "83.9"
    assert f"{2 * (2 * 1024**2) + 4 * 1024**2 * 1e-9 / 1e-4:.3g}" == "4.19e+06"
    assert f"{ex.capacity.answer:.1f}" == "74.5" and f"{141e9 / 2**30:.1f}" == "131.3"
    assert ex.mac_or_flop.answer == 8
    assert f"{ex.gemv.answer:.4f}" == "0.9995"
    assert f"{ex.tpu_batch.answer:.1f}" == "240.2"
    assert f"{ex.critical_batch.answer(3.94e14, 8.1e11, 1):.1f}" == "243.2"
    assert f"{ex.critical_batch.answer(1.97e14, 8.2e11, 1):.1f}" == "120.1"
    assert ex.ridge.answer(1513 / 2, 2000) == pytest.approx(378.25)  # C7 (iv): H100 PCIe is dense
    assert "10e9" in ex.ridge.verdict(lambda t, g: t * 1e12 / (g * 10e9), 0)[1]


def test_the_critical_batch_is_where_decoding_turns():
    model = 16 * 10**9
    critical = ex.critical_batch.answer(H100.peak["fp16"], H100.bandwidth, 2)
    for batch, bound in ((math.floor(critical), "memory"), (math.ceil(critical), "compute")):
        step = cost.decode_step(weight_bytes=model, batch=batch)
        assert roofline.bound(step, H100) == bound
    one = roofline.time(cost.decode_step(weight_bytes=model), H100)
    assert f"{one * 1e3:.3f}" == "4.776" and f"{1 / one:.1f}" == "209.4"


def test_a_step_of_decode_changes_sides_with_the_chip():
    """Its bounds are milliseconds, so no launch hides them."""
    step = cost.decode_step(weight_bytes=16 * 10**9, batch=250)
    sides = {name: roofline.bound(step, GPUS[name]) for name in ("A100 80GB", "H200", "H100 SXM")}
    assert [*sides.values()] == ["compute", "compute", "memory"]
    assert all(roofline.time(step, GPUS[name]) > 1e-3 for name in sides)


def test_the_two_critical_batches():
    """FACTS 18: 295 counts the weights alone, 321 also the vectors of a layer 4,096 wide."""
    assert math.floor(ex.critical_batch.answer(H100.peak["fp16"], H100.bandwidth, 2)) == 295
    layer = {m: compute("H100 SXM", "fp16", "decode", m, 4096)["bound"] for m in (320, 321)}
    assert [*layer.values()] == ["memory", "compute"]


def test_what_a_launch_costs():
    """FACTS 17: 5.71 µs alone, 0.89 µs for a copy in a graph, 5.97 µs for four kernels in one."""
    record = records.load("h200")
    memory, chains = record["memory"], record["fusion"]["points"]
    copy = memory["staircase"][0]
    (tiny,) = [p for p in chains if p["flow"] == "eager" and p["n"] == 1024]
    took = module.measured()[0], copy["bytes"] / copy["bandwidth"], tiny["graph"]
    assert [f"{1e6 * t:.2f}" for t in took] == ["5.71", "0.89", "5.97"]


# --- five cases -------------------------------------------------------------------------------

CASES = (ex.case_add, ex.case_queue, ex.case_loop, ex.case_full, ex.case_team)
RECORDED = ("add", "decode (matrix × vector)", "matmul 128", "decode, batch 512", "decode, batch 8")


@pytest.mark.parametrize(("case", "name"), [*zip(CASES, RECORDED, strict=True)], ids=RECORDED)
def test_the_regime_of_a_case_is_what_its_own_numbers_say(case, name):
    """Read from the task: FLOPs, bytes and time, divided by the H200's data sheet."""
    units = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "µs": 1e-6}
    task = " ".join(case.task.split())
    (flops, a), (moved, b), (took, c) = (
        found.groups()
        for found in (re.search(p, task) for p in (r"([\d.]+) ([MG])FLOP", r"([\d.]+) ([kM])B", r"measured ([\d.]+) (µs)"))
    )  # fmt: skip
    flops, moved, took = float(flops) * units[a], float(moved) * units[b], float(took) * units[c]
    memory, compute = moved / 4.8e12, flops / 989.4e12
    longest = max(memory, compute)
    if longest < 0.1 * took:
        regime = "overhead"
        assert took < 10e-6
    else:
        assert 0.7 * took < longest < took
        regime = "memory" if memory > compute else "compute"
    assert case.answer.split(", ")[0] == regime
    (point,) = [p for p in records.load("h200")["memory"]["roofline"] if p["name"] == name]
    assert flops == pytest.approx(point["flops"], rel=5e-3)
    assert took == pytest.approx(point["seconds"], rel=5e-3)


def test_five_cases_three_regimes_five_moves():
    regimes, moves = zip(*(case.answer.split(", ") for case in CASES), strict=True)
    assert set(regimes) == set(ex.REGIMES) and set(moves) == set(ex.MOVES)


@pytest.mark.parametrize("case", CASES, ids=RECORDED)
def test_every_pair_is_answered_and_a_pair_may_be_written_in_many_ways(case):
    regime, move = case.answer.split(", ")
    for attempt in ((regime, move), f"{regime},{move}", f" {regime.upper()} ,  {move.title()}"):
        assert case.verdict(attempt)[0] == "right", attempt
    for attempt in (..., (..., ...), (regime, ...)):
        assert case.verdict(attempt)[0] == "open"
    for attempt in (
        regime,
        move,
        "",
        f"{move}, {regime}",
        f"{regime}, hurry",
        3,
        None,
        ("a", 1, 2),
    ):
        status, said = case.verdict(attempt)
        assert status == "wrong" and "Regimes: memory, compute, overhead. Moves: fuse," in said
    for pair, diagnosis in case.wrong.items():
        guess, step = pair.split(", ")
        assert ("regime is right" in diagnosis) == (guess == regime)
        assert ("move is right" in diagnosis) == (step == move)


def test_the_notebook_names_every_move_of_the_cases():
    page = source("five-cases")
    assert all(f"| {move} |" in page for move in ex.MOVES)


# --- the two lanes ----------------------------------------------------------------------------

lanes = importlib.import_module("course.explore.lanes")


@pytest.mark.parametrize("tiles", (1, 2, 3, 7, 32))
@pytest.mark.parametrize("work", (1.0, 30.0, 47.0, 1000.0))
def test_two_lanes_keep_the_rules_of_the_room(tiles, work):
    loads, works = lanes.schedule(30.0, work, tiles)
    for lane, each in ((loads, 30 / tiles), (works, work / tiles)):
        assert len(lane) == tiles
        assert [end - start for start, end in lane] == pytest.approx([each] * tiles)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(lane))
    for tile in range(tiles):
        assert loads[tile][1] <= works[tile][0] + 1e-9, "worked on before it was there"
        if tile >= 2:
            assert works[tile - 2][1] <= loads[tile][0] + 1e-9, "three tiles in a room for two"
    # In closed form: the first load and the last work stick out of the longer lane.
    end = 30 / tiles + work / tiles + (tiles - 1) / tiles * max(30, work)
    assert works[-1][1] == pytest.approx(end)
    assert max(30, work) <= works[-1][1] <= 30 + work + 1e-9


def test_one_tile_is_the_sum_and_many_are_the_maximum():
    one, many = (explore.lanes(tiles=tiles, work=15) for tiles in (1, 32))
    assert one.data["end"] == pytest.approx(one.data["sum"]) == pytest.approx(45e-6)
    assert many.data["end"] == pytest.approx(30e-6, rel=0.02)
    assert "45 µs. In two lanes" in one.picture.caption and "67%" not in one.picture.caption
    assert "50% more than the longer of the two" in one.picture.caption


# --- the notebook -----------------------------------------------------------------------------


def test_the_arrays_of_this_machine_take_the_words_of_the_page():
    xp, (x, y, out) = measure.arrays(3, 5)
    xp.add(x, y, out=out)
    assert np.allclose(
        np.asarray(out.tolist()), np.asarray(x.tolist()) + np.asarray(y.tolist()), atol=1e-2
    )
    xp.clip(x, 0, None, out=out)
    assert out.min() == 0 and x.min() < 0
    assert x.itemsize in (2, 4) and x.mean(-1, keepdims=True).shape == (3, 1)
    assert (x[:3, :3] @ y[:3, 0]).shape == (3,)


def test_the_layer_norm_of_the_page_makes_eight_trips():
    """Counted, not believed: every whole matrix that a NumPy operation reads or writes."""

    class Counted(np.ndarray):
        trips = 0

        def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
            result = getattr(ufunc, method)(*map(np.asarray, inputs), **options)
            read = {id(x): np.size(x) for x in inputs}  # x · x reads x once
            Counted.trips += [*read.values(), np.size(result)].count(15)
            return np.asarray(result).view(Counted)

    x = np.random.default_rng(0).standard_normal((3, 5)).view(Counted)
    names = dict(measure=measure, cost=cost)
    exec(source("rows-4096").replace("4096, 4096", "3, 5"), names)
    out = np.asarray(names["layer_norm"](x))
    plain = np.asarray(x)
    exact = (plain - plain.mean(-1, keepdims=True)) / np.sqrt(plain.var(-1, keepdims=True) + 1e-5)
    assert np.allclose(out, exact)
    assert Counted.trips == 8
