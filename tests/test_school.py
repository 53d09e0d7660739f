"""Notebook 01: the school as arithmetic, its sliders, the staircase and the ladder."""

import random
from itertools import pairwise

import numpy as np
import pytest

from course import cost, school
from course.draw import show
from course.draw.levels import ladder, staircase, stairs
from course.explore import day as day_explorer
from course.explore import pyramid as pyramid_explorer
from course.explore import school as school_explorer
from course.hardware import GPUS, LADDER, KiB, Level, MiB
from course.roofline import attainable

compute_day = day_explorer.__globals__["compute"]
compute_pyramid = pyramid_explorer.__globals__["compute"]
compute_school = school_explorer.__globals__["compute"]
HOMEWORKS = [
    (steps, pages, shelf) for steps in (1, 2, 4, 7) for pages in (1, 5, 12, 13) for shelf in (1, 5, 12, 40)
]  # fmt: skip


def walked(steps, pages, shelf, flow):
    """The day acted out page by page: (crossings, pages carried)."""
    crossings = carried = 0
    in_class, out = set(), list(range(pages))

    def cross(some):
        nonlocal crossings, carried
        crossings, carried = crossings + 1, carried + len(some)
        assert 0 < len(some) <= shelf

    def loads(some):
        return [some[i : i + shelf] for i in range(0, len(some), shelf)]

    if flow == "tiled":
        for load in loads(out):
            cross(load)
            cross(load)
        return crossings, carried
    if flow == "fused":
        in_class = set(out[:shelf])
        cross(in_class)
    for _ in range(steps):
        for load in loads([page for page in out if page not in in_class]):
            cross(load)
            cross(load)
    if in_class:
        cross(in_class)
    return crossings, carried


@pytest.mark.parametrize("flow", school.FLOWS)
@pytest.mark.parametrize("homework", HOMEWORKS)
def test_a_day_is_what_happens_when_it_is_acted_out(homework, flow):
    day = school.day(*homework, flow)
    assert (day.crossings, day.carried) == walked(*homework, flow)


def test_four_steps_are_eight_crossings_or_two():
    naive, fused = (school.day(4, 5, 5, flow) for flow in ("naive", "fused"))
    assert (naive.crossings, fused.crossings) == (8, 2)
    assert naive.working == fused.working
    assert naive.walking == 4 * fused.walking and naive.queueing == 4 * fused.queueing


@pytest.mark.parametrize("homework", HOMEWORKS)
def test_pages_carried_are_the_bytes_of_a_chain(homework):
    """A page of n elements: what the school carries is what `cost.chain` counts."""
    steps, pages, _ = homework
    n, itemsize = 1000, 2
    ops = [cost.Op()] * steps
    naive, tiled = (school.day(*homework, flow).carried for flow in ("naive", "tiled"))
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
    assert 2 * len(visits) == day.crossings
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


@pytest.mark.parametrize("loads", [1, 2])
@pytest.mark.parametrize("steps", [1, 4, 6])
def test_the_day_only_goes_forward_and_ends_done(steps, loads):
    days = [compute_day(moment, steps, loads) for moment in range(49)]
    for name in ("naive", "fused"):
        lanes = [day["lanes"][name] for day in days]
        for key in ("crossings", "page_steps"):
            counts = [lane[key] for lane in lanes]
            assert counts == sorted(counts)
            assert counts[0] == 0 and counts[-1] == lanes[-1][f"all_{key}"]
        assert lanes[0]["doing"] == "in the queue" and lanes[-1]["doing"] == "done"
        assert all(0 <= lane["place"] <= 1 for lane in lanes)
        walking = [lane for lane in lanes if lane["carries"]]
        assert all(
            lane["doing"] == "walking" and lane["crossings"] < lane["all_crossings"]
            for lane in walking
        )
    assert days[-1]["now"] == days[-1]["end"]


def test_the_ticks_of_the_day_are_at_the_minutes_they_name():
    explorer = day_explorer(moment=0, steps=6, loads=2)
    ticks = [text for text in explorer.figure.axes[1].texts if text.get_text().endswith(" min")]
    assert [tick.get_text() for tick in ticks] == [f"{60 * i} min" for i in range(5)]
    end = school.day(6, 10, 5, "naive").minutes
    assert [tick.get_position()[1] for tick in ticks] == pytest.approx(
        [60 * i / end for i in range(5)]
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
    assert "HBM 299 µs" in words and "host memory 15.6 ms" in words
    relative = [LADDER[3].bandwidth / far.bandwidth for far in LADDER[4:]]
    assert np.round(relative).tolist() == [52, 479]
