"""What 00 and the README say of the series is what the notebooks are: titles, minutes, the map."""

import functools
import json
import re
from pathlib import Path

import pytest

from course import check
from course.draw import show
from course.draw.ideas import IDEAS, ideas, planned
from tools import reading

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = {path.name[:2]: path for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))}
README = (ROOT / "README.md").read_text(encoding="utf-8")


@functools.cache
def book(number):
    return json.loads(NOTEBOOKS[number].read_text(encoding="utf-8"))


def title(number):
    """'03 Elementwise fusion': the heading, without its dot."""
    heading = reading.source(book(number)["cells"][0]).splitlines()[0]
    return heading.removeprefix("# ").replace(" · ", " ")


def text(number):
    return "\n".join(
        reading.source(c) for c in book(number)["cells"] if c["cell_type"] == "markdown"
    )


def minutes(number):
    """(of the path, of the exercises), as the notebook's own words, code and checks give them."""
    return reading.minutes(book(number))


@pytest.mark.parametrize("number", NOTEBOOKS)
def test_the_readme_has_a_row_for_every_notebook(number):
    path, exercises = minutes(number)
    link = f"| [{title(number)}](notebooks/{NOTEBOOKS[number].name}) |"
    row = next((line for line in README.splitlines() if line.startswith(link)), None)
    assert row, f"no row begins with {link}"
    assert row.endswith(f"? | {path} | {exercises or ''} |".replace("|  |", "| |")), (
        f"{title(number)}: {path} and {exercises} minutes"
    )


def test_planned_notebooks_say_so_in_the_readme():
    rows = re.findall(r"^\| (\d\d) .*\(planned\) \|", README, re.MULTILINE)
    assert rows == sorted({idea.notebook for idea in IDEAS.values() if planned(idea.notebook)})
    assert not set(rows) & set(NOTEBOOKS)


def test_the_map_is_told_in_its_own_words():
    words = repr(show(ideas, size=(10, 5.7)))
    assert f"![{words}](figures/ideas.svg)" in README, words
    assert f"![{words}](../figures/ideas.svg)" in text("00"), words


def test_every_notebook_is_on_the_map_and_what_is_not_written_is_dim():
    on_boxes = {idea.notebook for idea in IDEAS.values()} | {"06"}  # 06 is the frame around three
    assert on_boxes == {f"{n:02}" for n in range(1, 13)}
    assert {number for number in on_boxes if planned(number)} == on_boxes - set(NOTEBOOKS)


def test_the_machine_check_names_every_notebook_by_its_title():
    titles = [title(number) for number in NOTEBOOKS if number != "00"]
    assert list(check.PAGES)[: len(titles)] == titles


def test_the_timetables_add_up():
    """Read whole, a notebook takes its own minutes; read in part, less."""
    table = re.search(r"\| time \| plan \|.*?\n\n", text("00"), re.DOTALL)[0]
    spans = re.findall(r"((?:\d\d, )*\d\d)(, [^()·;]+)? \((\d+)\)", table)
    assert len(spans) >= 15
    for numbers, part, stated in spans:
        whole = sum(minutes(number)[0] for number in numbers.split(", "))
        assert int(stated) < whole if part else int(stated) == whole, f"{numbers}: {whole} minutes"
    for plan, most in (("90 minutes", 90), ("one day", 480)):
        row = next(line for line in table.splitlines() if line.startswith(f"| **{plan}**"))
        assert sum(map(int, re.findall(r"\((\d+)\)", row))) <= most, plan
    week = next(line for line in table.splitlines() if line.startswith("| **a week**"))
    assert re.findall(r"\d\d(?=[, ])(?! ·)", re.sub(r"\(\d+\)", "", week)) == list(NOTEBOOKS)
