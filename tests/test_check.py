"""Notebook 00: the machine check on each kind of machine, the map of ideas, tables."""

import subprocess
import sys
from pathlib import Path

import pytest

from course import check
from course.check import Found
from course.draw.ideas import ARROWS, IDEAS
from course.tables import Table

LAPTOP = Found("a laptop (8 cores)", 16 * 2**30, "2.13.0", None, None, "3.7.1")
WITH_GPU = Found("a server (16 cores)", None, "2.13.0", "NVIDIA H200", (9, 0), "3.7.1")
OLD_GPU = Found("a server (4 cores)", None, "2.13.0", "Tesla T4", (7, 5), "3.7.1")
NO_TRITON = Found("arm (8 cores)", None, "2.13.0", None, None, None)
NO_TORCH = Found("arm (8 cores)", None, None, None, None, None)


ROOT = Path(__file__).parent.parent


def cells(table):
    return " ".join(cell for row in table.rows for cell in row)


@pytest.mark.parametrize(
    ("found", "says", "never"),
    [
        (
            LAPTOP,
            ["Nothing is lost", "interpreter", "16 GiB", "recorded on an H200"],
            ["full speed"],
        ),
        (WITH_GPU, ["NVIDIA H200", "full speed", "your numbers"], ["interpreter", "BF16"]),
        (OLD_GPU, ["Tesla T4", "no BF16"], ["interpreter"]),  # D12
        (NO_TRITON, ["wheels for Linux only", "recorded result"], ["interpreter"]),  # D13
        (NO_TORCH, ["PyTorch is not installed", "make env"], ["full speed"]),
    ],
)
def test_the_check_says_what_a_machine_can_do(found, says, never):
    text = cells(check.machine(found))
    assert all(words in text for words in says), text
    assert not any(words in text for words in never), text


def test_pages_say_what_is_live_and_what_is_recorded():
    laptop, gpu, mac = (check.pages(found).rows for found in (LAPTOP, WITH_GPU, NO_TRITON))
    row = dict(zip((r[0] for r in laptop), range(len(laptop)), strict=True))[
        "06 FlashAttention forward in Triton"
    ]
    assert "kernels (interpreter)" in laptop[row][1] and "speed" in laptop[row][2]
    assert "speed" in gpu[row][1] and "to compare" in gpu[row][2]
    assert "kernels" not in mac[row][1] and "results of kernels" in mac[row][2]
    assert all(cell for rows in (laptop, gpu, mac) for r in rows for cell in r)


def test_pages_name_the_notebooks_in_order():
    there = sorted(path.name[:2] for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
    assert [name[:2] for name in check.PAGES] == there[1:]  # 00 is the page that shows it


def test_looking_imports_no_triton():
    """D10: whoever imports it first decides about its interpreter."""
    code = "import sys; from course import check; check.look(); print('triton' in sys.modules)"
    root = Path(__file__).parent.parent
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, encoding="utf-8"
    )
    assert run.stdout.strip() == "False", run.stderr


def test_this_machine_is_described():
    found = check.look()
    assert "cores" in found.processor
    assert len(check.machine(found).rows) == 3


def test_the_map_has_no_loose_end():
    assert {key for arrow in ARROWS for key in arrow} == set(IDEAS)
    assert ("fa2", "fa3") in ARROWS and ("fa3", "fa4") in ARROWS


def test_a_table_reads_well_as_text_and_as_markdown():
    table = Table(("a", "b"), [(1, "x|y"), ("long", 2)])
    assert repr(table).splitlines() == ["a     b", "1     x|y", "long  2"]
    assert table._repr_markdown_().splitlines()[1:3] == ["| --- | --- |", "| 1 | x\\|y |"]
    with pytest.raises(ValueError, match="2 headers"):
        Table(("a", "b"), [(1,)])
