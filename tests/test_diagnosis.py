"""What binds, on kernels whose limit is known: the course's own records, and made-up ones."""

import itertools
import math

import pytest

from course import cost, diagnosis, records, roofline
from course.draw.fusion import predicted
from course.hardware import GPUS
from course.records.fusion import at

H200, RECORD = GPUS["H200"], records.load("h200")
POINTS = {p["name"]: p for p in RECORD["memory"]["roofline"]}
LARGE = max(p["n"] for p in RECORD["fusion"]["points"])


def of_roofline(name):
    point = POINTS[name]
    return diagnosis.diagnose(cost.Cost(point["flops"], point["bytes"]), point["seconds"], H200)


def of_chain(flow, n):
    point = at(RECORD["fusion"], flow, n)
    count = predicted(flow, n)
    return diagnosis.diagnose(count, point["seconds"], H200, launches=point["launches"])


@pytest.mark.parametrize(
    "name, binds",
    [  # the five cases of notebook 02, as their own answers say
        ("add", "memory"),
        ("decode (matrix × vector)", "memory"),
        ("matmul 128", "launches"),
        ("decode, batch 512", "compute"),
        ("decode, batch 8", "memory"),
        ("matmul 8192", "compute"),
        ("softmax", "something else"),  # in plain steps: notebook 03 finds them
    ],
)
def test_the_cases_of_notebook_02(name, binds):
    assert of_roofline(name).binds == binds


@pytest.mark.parametrize(
    "flow, n, binds",
    [
        ("eager", LARGE, "memory"),
        ("compiled", LARGE, "something else"),  # its random draws, which nobody counted
        ("hand-written", LARGE, "memory"),
        *((flow, 1024, "launches") for flow in ("eager", "compiled", "hand-written")),
    ],
)
def test_the_chain_of_notebook_03(flow, n, binds):
    assert of_chain(flow, n).binds == binds


def test_attention_and_the_notebook_kernel():
    found = {
        name: diagnosis.diagnose(one, took, H200, launches=n).binds
        for name, one, took, n in diagnosis.known(RECORD)
    }
    assert found["naive attention"] == found["notebook kernel"] == "something else"
    assert found["cuDNN's attention"] == found["matmul 8,192"] == "compute"


def test_against_a_slow_reading_of_the_rule():
    for needed in itertools.product((1e-6, 4e-6, 9e-6), repeat=3):
        for took in (5e-7, 4e-6, 8e-6, 1.7e-5, 1e-4):
            _, memory, compute = needed
            if memory > took or compute > took:
                expected = {"the count"}
            else:
                over = {
                    name
                    for name, t in zip(("launches", "memory", "compute"), needed, strict=True)
                    if 2 * t > took and t == max(needed)
                }
                expected = over or {"something else"}
            named = dict(zip(("launches", "memory", "compute"), needed, strict=True))
            assert diagnosis.binds(named, took) in expected


def test_the_gain_is_what_stays():
    count = cost.Cost(10**12, 10**9)  # 1.01 ms of arithmetic, 208 µs of bytes
    found = diagnosis.diagnose(count, 1.5e-3, H200)
    assert found.binds == "compute"
    assert found.gain == pytest.approx(1.5e-3 / roofline.memory_time(count, H200))
    assert diagnosis.diagnose(count, 5e-4, H200).gain is None
    alone = diagnosis.diagnose(cost.Cost(1, 1), 2 * diagnosis.lone_call() - 1e-9, H200)
    assert alone.binds == "launches" and alone.gain < 2 * diagnosis.lone_call() / 2e-6


def test_every_diagnosis_says_what_to_try():
    for took in (1e-9, 1e-5, 3e-4, 1.1e-3, 1):
        found = diagnosis.diagnose(cost.Cost(10**12, 10**9), took, H200)
        assert found.binds in diagnosis.TRY and found.first in repr(found).replace("\n", " ")


@pytest.mark.parametrize("took", [0, -1, math.nan, math.inf, None, "1"])
def test_no_time_is_refused_in_one_line(took):
    with pytest.raises(ValueError, match="seconds above 0") as refusal:
        diagnosis.diagnose(cost.Cost(1, 1), took, H200)
    assert "\n" not in str(refusal.value)


def test_a_launch_is_a_whole_number():
    with pytest.raises(ValueError, match="launches"):
        diagnosis.diagnose(cost.Cost(1, 1), 1.0, H200, launches=0)


def test_a_function_of_the_reader_is_timed_here():
    import numpy as np

    x = np.ones(2_000_000, "float32")
    found = diagnosis.of(lambda: x + x, cost.elementwise(len(x), itemsize=4))
    assert found.seconds > 0 and found.needed["memory"] > 0 and found.binds in diagnosis.TRY
