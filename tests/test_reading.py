"""The path of a notebook, its boxes, its questions and its minutes, each rule able to say no."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import reading

COLLAPSED = {reading.COLLAPSED: True, "slideshow": {"slide_type": "skip"}}
COVERED = {"jupyter": {"outputs_hidden": True}, "slideshow": {"slide_type": "fragment"}}


def say(text, **metadata):
    return new_markdown_cell(text, metadata=metadata)


def do(text, output="", **metadata):
    outputs = [new_output("stream", text=output)] if output else []
    return new_code_cell(text, metadata=metadata, outputs=outputs)


def book(*cells):
    return nbformat.from_dict(new_notebook(cells=list(cells)))


def found(rule, *cells, path=Path("00_a.ipynb")):
    return [what for _cell, what in rule(book(*cells), path)]


# --- boxes and the path -----------------------------------------------------------------------


def test_a_box_ends_at_the_next_heading_of_its_level():
    nb = book(
        say("# Title"),
        say("## One"),
        say("### Second reading: more", **COLLAPSED),
        do("x = 1"),
        say("#### Deeper, and still inside"),
        say("### Two, on the path"),
        say("## Second reading: all of it", **COLLAPSED),
        say("### inside"),
        say("## Three"),
    )
    assert reading.boxed(nb) == [False, False, True, True, True, False, True, True, False]


def test_exercises_and_boxes_are_not_on_the_path():
    nb = book(
        say("## One"), say("## 2. Exercises"), do("x"), say("### Last exercise"), say("## Next")
    )
    path, exercises = reading.parts(nb)
    assert [reading.source(c) for c in path] == ["## One", "## Next"]
    assert len(exercises) == 3


def test_words_of_a_comparison_count_and_those_of_a_box_do_not():
    compare = "<details><summary>Compare</summary>\n\none two three\n\n</details>"
    box = "<details><summary>Second reading: x</summary>\n\none two three\n\n</details>"
    assert reading.words([say(compare)]) == 3
    assert reading.words([say(box)]) == 0
    assert reading.words([say(f"zero [four](five.ipynb) ![six seven](a.svg)\n{box}")]) == 2


# --- questions --------------------------------------------------------------------------------


QUESTIONS = {
    "an open output": ((say("**Predict.** a?"), do("print(1)", "1")), "in the open"),
    "no fragment": (
        (say("**Predict** it."), do("1", "1", jupyter={"outputs_hidden": True})),
        "fragment",
    ),
    "words in the open": ((say("**Predict.**"), do("1", "a\n1", **COVERED), say("1.")), "Compare"),
    "words at once": ((say("**Predict.**"), say("It is one.")), "may answer"),
    "its first line": ((say("**Predict.**"), do("1", "42 apples\n", **COVERED)), "first line"),
    "the second output": (
        (say("**Predict.**"), do("1", "a\n1", **COVERED), do("2", "2")),
        "in the open",
    ),
    "after a check": ((do("ex.a.check(...)", "not attempted yet"), do("1", "1")), "in the open"),
    "words after a check": ((do("ex.a.check(...)", "not yet"), say("One.")), "may answer"),
}


@pytest.mark.parametrize(("cells", "problem"), QUESTIONS.values(), ids=QUESTIONS)
def test_an_answer_in_the_open_is_found(cells, problem):
    (what, *_more) = found(reading.questions_come_first, *cells)
    assert problem in what


def test_a_covered_answer_is_fine():
    compare = say("<details><summary>Compare</summary>\n\nIt is 1.\n\n</details>")
    assert not found(
        reading.questions_come_first,
        say("**Predict.** What is it?"),
        do("ex.a.check(...)", "not attempted yet"),
        do("print(1)", "apples:\n1", **COVERED),
        compare,
        do("print(2)", "2"),  # what follows the comparison is open again
        say("**Predict.** And now?"),
        say("## The next section"),
        do("ex.write.check(mine)", "not attempted yet"),  # code to write asks and answers nothing
        say("It goes on."),
    )


# --- what else the rules hold -----------------------------------------------------------------


def test_a_long_path_is_found_and_a_long_box_is_not():
    many = " ".join(["word"] * 2501)
    assert "2,501 words" in found(reading.path_is_short, say(many))[0]
    assert "101 cells" in found(reading.path_is_short, *(do("x") for _ in range(101)))[0]
    box = say(f"## Second reading: long\n{many}", **COLLAPSED)
    assert not found(reading.path_is_short, box, *(do("x") for _ in range(101)))


def test_a_box_is_no_slide():
    heading = say("## Second reading: x", **{reading.COLLAPSED: True})
    assert found(reading.boxes_are_skipped, heading)
    assert not found(reading.boxes_are_skipped, say("## Second reading: x", **COLLAPSED))


def test_a_path_that_needs_a_box_is_found():
    box = say("## Second reading: x", **COLLAPSED), do("width = 3"), say("## On")
    assert "uses width" in found(reading.boxes_may_be_left_shut, *box, do("print(width)"))[0]
    assert not found(reading.boxes_may_be_left_shut, *box, do("width = 4\nprint(width)"))
    assert not found(reading.boxes_may_be_left_shut, do("width = 2"), *box, do("print(width)"))


def test_minutes_are_those_of_words_code_checks_and_figures():
    opening = "**Time** {} minutes, and {} for the exercises."
    cells = [
        say(opening.format(10, 5) + " word" * 591),  # 600 words: 4 minutes
        do("from course.exercises import start as ex\n" + "x = 1\n" * 7),  # 8 lines: 1 minute
        do("ex.megabytes.check(f)\n" + "x = 1\n" * 7),  # 1 minute and the 2 that the check states
        say("![a picture of two dots](a.svg)"),  # 1 minute; 9 in all
        say("## Exercises"),
        do("ex.truth.check(...)"),
    ]
    assert reading.minutes(book(*cells)) == (10, 5)
    assert not found(reading.minutes_are_honest, *cells)
    cells[0] = say("**Time** 5 minutes." + " word" * 597)
    assert "**Time** 10 minutes, and 5" in found(reading.minutes_are_honest, *cells)[0]


def test_missing_links_are_found(tmp_path):
    for name in ("00_a", "01_b", "02_c", "03_d"):
        (tmp_path / f"{name}.ipynb").touch()
    where = tmp_path / "02_c.ipynb"
    links = "[b](01_b.ipynb) [map](00_a.ipynb) [d](03_d.ipynb#cell-id=x)"
    assert not found(reading.links_lead_on, say(links), path=where)
    assert found(reading.links_lead_on, say("[b](01_b.ipynb)"), path=where) == [
        "no link to 00_a.ipynb",
        "no link to 03_d.ipynb",
    ]
