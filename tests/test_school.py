"""Notebook 01: the school as arithmetic, its sliders, the staircase and the ladder."""

import heapq
import json
import random
from itertools import pairwise
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from course import cost, records, school
from course.draw import show
from course.draw.levels import capacities, ladder, staircase, stairs
from course.explore import day as day_explorer
from course.explore import hiding as hiding_explorer
from course.explore import pyramid as pyramid_explorer
from course.explore import school as school_explorer
from course.hardware import GPUS, LADDER, THREADS_PER_SM, KiB, Level, MiB
from course.roofline import attainable
from course.units import decimal

ROOT = Path(__file__).parents[1]
compute_hiding = hiding_explorer.__globals__["compute"]
compute_day = day_explorer.__globals__["compute"]
compute_pyramid = pyramid_explorer.__globals__["compute"]
compute_school = school_explorer.__globals__["compute"]
HOMEWORKS = [
    (steps, pages, shelf) for steps in (1, 2, 4, 7) for pages in (1, 5, 12, 13) for shelf in (1, 5, 12, 40)
]  # fmt: skip


def walked(steps, pages, shelf, flow):
    """The day acted out page by page: (walks, crossings)."""
    walks = crossings = 0
    in_class, out = set(), list(range(pages))

    def cross(some):
        nonlocal walks, crossings
        walks, crossings = walks + 1, crossings + len(some)
        assert 0 < len(some) <= shelf

    def loads(some):
        return [some[i : i + shelf] for i in range(0, len(some), shelf)]

    if flow == "tiled":
        for load in loads(out):
            cross(load)
            cross(load)
        return walks, crossings
    if flow == "fused":
        in_class = set(out[:shelf])
        cross(in_class)
    for _ in range(steps):
        for load in loads([page for page in out if page not in in_class]):
            cross(load)
            cross(load)
    if in_class:
        cross(in_class)
    return walks, crossings


@pytest.mark.parametrize("flow", school.FLOWS)
@pytest.mark.parametrize("homework", HOMEWORKS)
def test_a_day_is_what_happens_when_it_is_acted_out(homework, flow):
    day = school.day(*homework, flow)
    assert (day.walks, day.crossings) == walked(*homework, flow)


def test_four_steps_are_eight_crossings_of_each_page_or_two():
    naive, fused = (school.day(4, 5, 5, flow) for flow in ("naive", "fused"))
    assert (naive.crossings, fused.crossings) == (5 * 8, 5 * 2)
    assert (naive.walks, fused.walks) == (8, 2)
    assert naive.working == fused.working
    assert naive.walking == 4 * fused.walking and naive.queueing == 4 * fused.queueing


@pytest.mark.parametrize("homework", HOMEWORKS)
def test_pages_carried_are_the_bytes_of_a_chain(homework):
    """A page of n elements: what the school carries is what `cost.chain` counts."""
    steps, pages, _ = homework
    n, itemsize = 1000, 2
    ops = [cost.Op()] * steps
    naive, tiled = (school.day(*homework, flow).crossings for flow in ("naive", "tiled"))
    assert naive * n * itemsize == cost.chain(ops, pages * n, fused=False).bytes
    assert tiled * n * itemsize == cost.chain(ops, pages * n, fused=True).bytes


@pytest.mark.parametrize("homework", HOMEWORKS)
def test_tiled_is_never_worse_and_equals_fused_where_the_homework_fits(homework):
    naive, fused, tiled = (school.day(*homework, flow).minutes for flow in school.FLOWS)
    assert tiled <= fused <= naive + 1e-9
    assert (fused == tiled) == (homework[1] <= homework[2] or homework[0] == 1)


def test_work_is_to_scale():
    """One FLOP an element against one FP16 read: the ratio of an add without operands."""
    h100 = GPUS["H100 SXM"]
    waiting = attainable(1 / 2, h100, "fp32") / h100.peak["fp32"]  # 1 FLOP for 2 bytes
    assert school.STEP_MINUTES / school.PAGE_MINUTES == pytest.approx(waiting)
    assert 30 < school.PAGE_MINUTES / school.STEP_MINUTES < 50


@pytest.mark.parametrize("flow", ["naive", "tiled"])
@pytest.mark.parametrize("homework", HOMEWORKS)
def test_the_path_takes_as_long_as_the_day(homework, flow):
    visits, day = school.visits(*homework, flow), school.day(*homework, flow)
    path = school.path(visits)
    assert path[-1] == (pytest.approx(day.minutes), school.LIBRARY)
    assert all(a[0] <= b[0] for a, b in pairwise(path))
    assert 2 * len(visits) == day.walks
    assert 2 * sum(visit.pages for visit in visits) == day.crossings
    assert sum(v.pages * v.steps for v in visits) == homework[0] * homework[1]


@pytest.mark.parametrize("wrong", [(0, 1, 1, "naive"), (1, 0, 1, "tiled"), (1, 1, 0, "fused")])
def test_sizes_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match="must be 1 or more"):
        school.day(*wrong)


def test_unknown_flows_are_refused():
    with pytest.raises(ValueError, match="one of naive, fused, tiled"):
        school.day(1, 1, 1, "flash")
    with pytest.raises(ValueError, match="naive and a tiled day"):
        school.visits(1, 1, 1, "fused")


def test_a_visit_takes_twenty_minutes_and_the_work_half_a_minute():
    """As notebook 01 reckons by hand: 5 in the queue, 5 over, 5 back, 5 in the queue."""
    naive, fused = (school.day(4, 5, 5, flow) for flow in ("naive", "fused"))
    assert naive.walking + naive.queueing == 80 and fused.walking + fused.queueing == 20
    assert f"{naive.minutes:.1f} {fused.minutes:.1f} {60 * fused.working:.0f}" == "80.5 20.5 30"
    assert 60 * (school.day(6, 5, 5, "fused").minutes - fused.minutes) == pytest.approx(
        15, rel=0.01
    )


# --- the sliders ------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 4, 6])
def test_the_day_only_goes_forward_and_ends_done(steps):
    days = [compute_day(moment, steps) for moment in range(49)]
    for name in ("naive", "fused"):
        lanes = [day["lanes"][name] for day in days]
        for key in ("crossings", "page_steps"):
            counts = [lane[key] for lane in lanes]
            assert counts == sorted(counts)
            assert counts[0] == 0 and counts[-1] == lanes[-1][f"all_{key}"]
        assert lanes[0]["doing"] == "at the counter" and lanes[-1]["doing"] == "done"
        assert all(0 <= lane["place"] <= 1 for lane in lanes)
        walking = [lane for lane in lanes if lane["carries"]]
        assert all(
            lane["doing"] == "walking" and lane["crossings"] < lane["all_crossings"]
            for lane in walking
        )
    assert days[-1]["now"] == days[-1]["end"]


def test_the_ticks_of_the_day_are_at_the_minutes_they_name():
    explorer = day_explorer(moment=0, steps=6)
    ticks = [text for text in explorer.figure.axes[1].texts if text.get_text().endswith(" min")]
    assert [tick.get_text() for tick in ticks] == [f"{30 * i} min" for i in range(5)]
    end = school.day(6, 5, 5, "naive").minutes
    assert [tick.get_position()[1] for tick in ticks] == pytest.approx(
        [30 * i / end for i in range(5)]
    )


def test_the_school_slider_shows_the_days():
    data = compute_school(4, 20, 12)
    assert data["days"]["tiled"] == school.day(4, 20, 12, "tiled")
    assert data["curves"]["naive"][19] == data["days"]["naive"].minutes


def test_the_pyramid_is_one_for_each_user_and_none_for_an_sm():
    sizes = {
        share: [level["bytes"] for level in compute_pyramid("H100 SXM", share)["levels"]]
        for share in ("one", "sm", "all")
    }
    assert sizes["one"] == [1020, 227 * KiB, 50 * MiB, 80 * 10**9]
    assert sizes["sm"][:2] == [256 * KiB, 228 * KiB]
    assert sizes["all"][:2] == [132 * 256 * KiB, 132 * 228 * KiB]


# --- hiding the latency -------------------------------------------------------------------------

H100 = GPUS["H100 SXM"]
LATENCY = 500 / 1.83e9


def act_out(rows, each, until):
    """Rows that ask, wait, are served one by one and ask again: when each service begins."""
    serving = rows and 32 * each * 132 / 3.35e12  # seconds at the counter, for the share of a room
    arrivals = [(0.0, row) for row in range(rows)]  # at the counter
    free, begun = 0.0, []
    while arrivals[0][0] < until:
        arrives, row = heapq.heappop(arrivals)
        begins = max(arrives, free)
        free = begins + serving
        begun.append((begins, row))
        heapq.heappush(arrivals, (free + LATENCY - serving, row))  # all the way, there and back
    return begun, serving


@pytest.mark.parametrize("each", [2, 4, 8, 16])
@pytest.mark.parametrize("rows", [1, 2, 13, 14, 27, 54, 55, 64])
def test_rows_that_wait_keep_the_counter_as_busy_as_when_acted_out(rows, each):
    data, until = compute_hiding(rows, each), 400 * LATENCY
    begun, serving = act_out(rows, each, until)
    busy = sum(min(serving, until - begins) for begins, _ in begun if begins < until) / until
    assert data["busy"] == pytest.approx(busy, rel=0.01)
    assert data["delivered"] == pytest.approx(busy * H100.bandwidth, rel=0.01)
    shown = sorted(start for start in data["starts"].ravel() if start < 3 * LATENCY)
    assert shown == pytest.approx([b for b, _ in begun if b < 3 * LATENCY - 1e-15], abs=1e-12)


def test_littles_law():
    """Just enough on the way keeps the counter busy; less delivers in proportion."""
    needed = H100.bandwidth * LATENCY
    for rows in (1, 20, 54, 55, 64):
        data = compute_hiding(rows, 4)
        assert data["on_the_way"] == rows * 32 * 4 * 132
        assert data["delivered"] == pytest.approx(
            H100.bandwidth * min(1, data["on_the_way"] / needed)
        )
    assert decimal(needed) == "915 kB" and f"{needed / (132 * 2048):.1f}" == "3.4"
    assert "counter is never idle" in hiding_explorer(rows=55).picture.caption
    assert "busy 99.7% of the time" in hiding_explorer(rows=54).picture.caption


# --- staircase and ladder -----------------------------------------------------------------------


def level(name, capacity):
    return Level(name, "", "", capacity, None, None, "", "")


def test_each_level_is_told_by_a_point_that_is_surely_on_it():
    points = [dict(bytes=2**e, bandwidth=float(e)) for e in range(14, 29)]
    levels = [level("l1", 2**15), level("l2", 2**20), level("l3", 2**25), level("ram", None)]
    steps = stairs(points, levels)
    assert [step["bandwidth"] for step in steps] == [14, 19, 24, 28]
    assert [step["paint"] for step in steps] == ["registers", "shared", "l2", "hbm"]


def test_a_level_that_no_point_reached_is_left_out():
    points = [dict(bytes=2**e, bandwidth=1.0) for e in (18, 22)]
    levels = [level("l1", 2**15), level("l2", 2**18), level("ram", None)]
    assert [step["level"].name for step in stairs(points, levels)] == ["l2", "ram"]


def test_a_machine_that_names_no_cache_has_one_step():
    points = [dict(bytes=2**e, bandwidth=1.0) for e in random.Random(0).sample(range(14, 28), 5)]
    assert len(stairs(points, [level("ram", None)])) == 1


def test_a_staircase_says_how_far_it_falls_also_where_no_cache_is_named():
    points = [dict(bytes=2**e, bandwidth=b, low=b, high=b) for e, b in ((15, 2e11), (28, 1e10))]
    words = show(staircase, points, [level("ram", None)], "here").words
    assert "By level: RAM 10 GB/s. The fastest copy is 20.0 times as fast as the largest." in words


def test_the_ladder_speaks_its_numbers():
    words = show(ladder).words
    assert words.endswith("shared memory 0.11 s, HBM 1 s, host memory 52 s, disk 479 s, 8 min.")
    relative = [LADDER[3].bandwidth / far.bandwidth for far in LADDER[4:]]
    assert np.round(relative).tolist() == [52, 479]


def test_the_ladder_is_true_to_scale():
    """As much is painted for a level as it takes, in seconds, and no line is longer than a minute."""
    figure = show(ladder).figure
    painted = {}
    for bar in figure.axes[0].patches:
        painted[bar.get_facecolor()] = painted.get(bar.get_facecolor(), 0) + bar.get_width()
        assert bar.get_x() == 0 and 0 < bar.get_width() <= 60
    hbm = GPUS["H100 SXM"].bandwidth
    times = [hbm / level.bandwidth for level in LADDER if level.bandwidth]
    assert list(painted.values()) == pytest.approx(times)


def test_the_table_of_levels():
    rows = {row[0]: row for row in capacities(GPUS["H100 SXM"]).rows}
    assert [row[3] for row in rows.values()] == [
        "256 KiB per SM",
        "228 KiB per SM",
        "50 MiB",
        "80 GB",
    ]
    assert rows["HBM"][1:3] == ("the library across the street", "the whole GPU")


# --- what the page says in words ------------------------------------------------------------------

PAGE = json.loads((ROOT / "notebooks/01_the_school.ipynb").read_text(encoding="utf-8"))
PROSE = "\n".join("".join(c["source"]) for c in PAGE["cells"] if c["cell_type"] == "markdown")


def test_numbers_in_the_prose_are_computed():
    h100, a100 = GPUS["H100 SXM"], GPUS["A100 80GB"]
    naive, _, tiled = (school.day(4, 20, 12, flow) for flow in school.FLOWS)
    latency = h100.levels[-1].latency / h100.clock
    in_flight, threads = h100.bandwidth * latency, h100.sms * THREADS_PER_SM
    full = threads * 2
    operations = h100.peak_for("fp32") / h100.bandwidth
    rows = in_flight / (h100.sms * 32 * 16)
    sram = h100.l2_bytes * 8 * 6 / 80e9
    shelf = h100.levels[1].bandwidth / h100.bandwidth
    for said in (
        f"by a factor of {h100.peak['fp16'] / a100.peak['fp16']:.1f}",
        f"{threads:,} students",
        f"{in_flight / threads:.1f} bytes for each of {threads:,} threads",
        f"{decimal(full)} are on the way, and the counter is busy {full / in_flight:.0%}".replace(
            "%", " %"
        ),
        f"With 16 bytes each, {ceil(rows)} rows",
        f"operations per second: {operations:.0f} per byte, {2 * operations:.0f} per number",
        f"the pages make {naive.crossings} crossings. How many, tiled?",
        f"takes {sram:.0%} of its transistors".replace("%", " %"),
        f"{h100.clock / 1e9} GHz",
    ):
        assert said in PROSE, said
    assert tiled.crossings == 40 and "Forty: two per page" in PROSE
    assert round(shelf) == 9 and "factor of nine" in PROSE


def test_the_step_from_l2_to_hbm():
    """Of the copies themselves, and of what the last 16 MiB cost once all is running."""
    points = {p["bytes"]: p["bandwidth"] for p in records.load("h200")["memory"]["staircase"]}
    hbm, copy = points[8 * 2**30], points[32 * MiB]
    took = {size: size / points[size] for size in (16 * MiB, 32 * MiB)}
    running = 16 * MiB / (took[32 * MiB] - took[16 * MiB])
    assert f"at least {copy / hbm:.1f}-fold and at most some {running / hbm:.1f}-fold" in PROSE
    assert f"The {decimal(copy, 'B/s', 2)} are those of the copy of 32 MiB" in PROSE
