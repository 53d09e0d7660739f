"""Notebook 02: the data behind its figures and its explorer, and the numbers that it shows."""

import importlib
import itertools
import math

import numpy as np
import pytest
from matplotlib.text import Annotation, Text

from course import cost, explore, hardware, records, roofline
from course.draw import roofline as picture
from course.draw import show
from course.draw.labels import place, text_size
from course.exercises import roofline as ex
from course.explore.explorer import positions
from course.hardware import DTYPES, GPUS, Gpu

H100, T4 = GPUS["H100 SXM"], GPUS["T4"]
module = importlib.import_module("course.explore.roofline")
compute, describe = module.compute, module.describe


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
        if common:
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
    for name in ("matmul 256", "matmul 512", "matmul 2048", "matmul 4096"):
        del measured[name]  # as in the notebook
    points = [picture.Point.measured(point) for point in measured.values()]
    figure = show(picture.roofline, GPUS["H200"], points, size=(10, 5.5)).figure
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
                 "naive: 62.1 FLOP per byte, memory", "fused: 2,048 FLOP per byte, compute",
                 "slow: 1 FLOP per byte, measured 335 GFLOP/s, 10% of the roof"):  # fmt: skip
        assert said in words, said


def test_words_of_the_other_figures():
    cards = [GPUS[name] for name in ("A100 80GB", "H200", "H100 SXM")]
    words = show(picture.ridges, cards, mark=250).words
    assert "A100 80GB: 153, H200: 206, H100 SXM: 295" in words
    assert "memory-bound: H100 SXM" in words and "compute-bound: A100 80GB, H200" in words
    words = show(picture.times, {"naive": cost.attention(4096, 128, flow="naive")}, H100).words
    assert "bytes 41.3 µs, FLOPs 8.68 µs" in words
    a, b = (picture.Point(name, x) for name, x in (("one", 1), ("sixteen", 16)))
    words = show(picture.moves, H100, [("batch", [a, b], 1)]).words
    assert "batch: from one to sixteen." in words
    words = show(picture.floor, [10, 1000], [1e-6, 1e-5], [335, 33500], H100).words
    assert "1 µs for 10 elements" in words and "0.1 ns and 10 ns" in words


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
    for dtype, rows, width in itertools.product(DTYPES, (1, 256, 2**17), (16, 128, 2**14)):
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
    assert data["overhead"] == shortest


HERE = Gpu("laptop", None, {"fp32": 2e11}, 3e10, None, None, None, None, "a test")


def test_this_machine_has_an_explorer_of_its_own():
    made = explore.roofline(here=HERE, overhead=5e-7, operation="add")
    caption = made.picture.caption
    assert "On this machine in fp32, add" in caption and "ridge is at 6.67" in caption
    made.controls["rows"].value = 1
    made.controls["width"].value = 16
    assert "a call alone takes 500 ns" in made.picture.caption
    made.controls["dtype"].value = "fp16"
    assert made.picture.caption.startswith("This machine has no peak rate for fp16.")


@pytest.mark.parametrize("here", (None, HERE))
def test_texts_of_the_explorer_are_apart_at_every_corner(here):
    made = explore.roofline(here=here)
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


def test_naive_attention_three_ways():
    """C13 (i): 62.4 with 3 FLOP a score; d/2 in the limit; 1 to 10 for the softmax or untidy code."""
    n, d = 4096, 128
    naive = cost.attention(n, d, flow="naive")
    assert f"{naive.intensity:.2f}" == "62.06"
    assert f"{(naive.flops + 3 * n * n) / naive.bytes:.1f}" == "62.4"
    assert cost.attention(10**6, d, flow="naive").intensity == pytest.approx(d / 2, rel=1e-3)
    untidy = cost.attention(n, 64, flow="naive", itemsize=4) + cost.Cost(0, 12 * n * n, 12 * n * n)
    low = [cost.elementwise(1, flops_per_element=k).intensity for k in (5, 9)]
    low += [cost.attention(n, 16, flow="naive").intensity, untidy.intensity]
    assert all(1 <= x <= 10 for x in low)
    assert untidy.bytes == 10 * n * n * 4 + 4 * n * 64 * 4
    a10 = Gpu("A10", None, {"fp16": 125e12}, 600e9, None, None, None, None, "C13")
    assert f"{roofline.ridge(a10):.1f}" == "208.3" and roofline.bound(naive, a10) == "memory"


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


def test_matmul_750_changes_sides_with_the_chip():
    matmul = cost.matmul(750, 750, 750)
    sides = {name: roofline.bound(matmul, GPUS[name]) for name in ("A100 80GB", "H200", "H100 SXM")}
    assert [*sides.values()] == ["compute", "compute", "memory"]


def test_this_machine_is_a_gpu_like_any_other():
    """The roof that the notebook draws of the machine at hand needs one peak and a bandwidth."""
    assert hardware.this_machine.__doc__
    words = show(picture.roofline, HERE, [picture.Point("add", 1 / 12, 2e9, "measured")],
                 dtype="fp32").words  # fmt: skip
    assert "ridge at 6.67" in words and "80% of the roof" in words


def test_the_floor_never_lies_under_its_own_bound():
    """A bandwidth measured too low would put the bytes' time above the measured one."""
    slow = Gpu("busy", None, {"fp32": 2e11}, 4e9, None, None, None, None, "a test")
    words = show(picture.floor, [64, 10**6], [4e-7, 1e-3], [768, 12 * 10**6], slow).words
    assert "1 ms for 1,000,000" in words and "64 ns and 1 ms" in words
