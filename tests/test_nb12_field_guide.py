"""Notebook 12: its claims hold in the records, its drawn questions for any numbers, its picture is true."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest

from course import banks, records
from course.draw import field as pictures
from course.exercises import field as ex
from course.exercises.field import Drawn

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "12_field_guide.ipynb"
CELLS = {c["id"]: c for c in json.loads(PATH.read_text(encoding="utf-8"))["cells"]}
RECORD = records.load("h200")
DRAWN = {name: item for name, item in vars(ex).items() if isinstance(item, Drawn)}


def said(name):
    """The text that a cell stored."""
    texts = (o.get("text") or o["data"].get("text/plain", "") for o in CELLS[name]["outputs"])
    return "".join("".join(text) for text in texts)


def words(name):
    return "".join(CELLS[name]["source"])


def test_two_of_the_known_kernels_are_something_else():
    assert said("known").count("something else") == 2 and "2.9e+02 times" in said("known")


def test_the_third_that_fusing_leaves_is_the_bytes_of_the_chain():
    """ "Fusing leaves a third of them, and the second row shows what it gained"."""
    from course import cost

    apart, one = (cost.chain(["bias", "gelu", "dropout", "residual"], 1, fused=f) for f in (0, 1))
    assert apart.bytes == 3 * one.bytes


def test_the_evidence_of_the_cases():
    assert "672" in said("case-tile-evidence") and "189 TFLOP/s" in said("case-tile-evidence")
    lines = said("case-wrong-evidence").splitlines()
    assert lines[1] == "falling scores: 1.00" and float(lines[2].split()[-1]) > 2
    assert "5.97 µs" in said("case-small-evidence")


def test_without_alpha_is_what_the_case_says():
    (wrong,) = (n for n in ast.parse(words("case-wrong-evidence")).body if hasattr(n, "args"))
    space = {"np": np}
    exec(compile(ast.Module([wrong], []), PATH.name, "exec"), space)
    scores = np.random.default_rng(1).standard_normal(12)
    right = np.exp(scores - scores.max()).sum()
    ordered = np.sort(scores)[::-1]
    assert space["your_kernel"](ordered) == pytest.approx(right)
    assert space["your_kernel"](ordered[::-1]) > 1.1 * right


def test_products_take_little_more_than_half_and_less_at_64():
    rows = {int(line.split()[0]): line.split()[-1] for line in said("exp-table").splitlines()[1:]}
    assert rows[128] == "55%" and int(rows[64].rstrip("%")) < 50


def test_the_pin_slows_the_full_mask_and_not_the_causal_one():
    assert ex.pin.answer == "c" and ex.PIN < 0.95
    assert abs(ex._pinned(True, True) / ex._pinned(True, False) - 1) < 0.05


def test_what_you_should_have_seen_at_the_walk():
    from importlib import import_module

    compute = import_module("course.explore.diagnosis").compute

    def binds(**change):
        start = dict(gpu="H200", log_bytes=9, log_flops=9, log_seconds=-3.5, launches=1)
        return compute(**start | change)["found"].binds

    assert binds() == "memory" and binds(log_bytes=8) == "something else"
    assert binds(log_bytes=8, log_seconds=-4.5) == "memory"  # 31.6 µs
    assert binds(log_bytes=8, log_seconds=-4.25) == "something else"
    assert binds(log_bytes=8, log_seconds=-4.75) == "the count"  # 17.8 µs
    assert binds(launches=1000) == "launches"


def test_the_figure_of_the_banks_counts_with_the_model():
    turns = [banks.turns(access) for access in pictures.ACCESSES.values()]
    assert turns == [32, 1, 1]


def test_the_order_in_the_figure_is_what_the_compiler_does():
    from importlib.util import find_spec

    if find_spec("triton") is None:
        pytest.skip("Triton has no wheel for this platform")
    from course.kernels.hopper_forward import Schedule
    from course.kernels.hopper_report import listing

    for (name, order), pinned in zip(pictures.ORDERS.items(), (False, True), strict=True):
        compiled = listing(128, False, Schedule(pinned=pinned))["order"]
        names = tuple(what for what, _ in compiled)
        steps = [names[i : i + 4] for i in range(len(names)) if names[i : i + 2] == order[:2]]
        assert steps and set(steps) == {order}, name
        assert dict(map(tuple, compiled))["exp2"] == 66


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawn_question_holds_for_any_numbers(name, capsys):
    item, tasks = DRAWN[name], set()
    for seed in range(60):
        made = item.make(np.random.default_rng(seed))
        fresh = Drawn("drawn", **made, make=item.make, factor=item.factor)
        assert fresh.verdict(fresh.answer)[0] == "right"
        for wrong, diagnosis in fresh.wrong.items():
            status, text = fresh.verdict(wrong)
            assert status == "wrong" and " ".join(diagnosis.split()) in " ".join(text.split()), seed
        tasks.add(fresh.task)
        fresh.again(seed)
        assert fresh.task == made["task"]
    assert len(tasks) > 5 and capsys.readouterr().out


def test_the_drawn_update_is_an_online_softmax():
    import re

    from scipy.special import softmax

    for seed in range(20):
        made = ex.update.make(np.random.default_rng(seed))
        numbers = [int(x) for x in re.findall(r"\d+", made["task"].split("two blocks")[0])]
        scores, values = np.array(numbers[:4]), np.array(numbers[4:])
        assert made["answer"] == pytest.approx(softmax(scores) @ values)
