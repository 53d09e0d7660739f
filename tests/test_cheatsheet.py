"""The sheet of paper: for every GPU, all of it on the page, and no number but from the course."""

import re
import subprocess
import sys
from itertools import combinations

import pytest
from matplotlib.transforms import Bbox

from course import cheatsheet, cost, roofline
from course.hardware import GPUS


@pytest.mark.parametrize("name", GPUS)
def test_all_of_it_is_on_the_page_and_nothing_covers_anything(name):
    figure = cheatsheet.sheet(GPUS[name])
    boxes = {text: text.get_window_extent() for text in figure.texts}
    page = figure.bbox.padded(-0.04 * figure.bbox.width)
    for text, box in boxes.items():
        assert page.contains(*box.min) and page.contains(*box.max), text.get_text()
    for (a, one), (b, other) in combinations(boxes.items(), 2):
        both = Bbox.intersection(one, other)
        assert not both or both.height * both.width < 2, (a.get_text(), b.get_text())


def test_its_numbers_are_those_of_the_course():
    h100 = GPUS["H100 SXM"]
    said = " ".join(text.get_text() for text in cheatsheet.sheet(h100).texts)
    for number in ("295", "138 MB", "4.19 MB", "41.3 µs", "4.78 ms", "128 KiB", "0.167"):
        assert number in said
    assert cheatsheet.OPERATIONS["attention, naive"][1] == cost.attention(4096, 128, flow="naive")
    faster = " ".join(text.get_text() for text in cheatsheet.sheet(GPUS["H200"]).texts)
    assert f"{roofline.ridge(GPUS['H200']):.0f}" in faster and "41.3 µs" not in faster


def test_it_writes_svg_and_pdf_with_text_in_them(tmp_path):
    svg, pdf = cheatsheet.save("A100 80GB", tmp_path)
    assert "A100 80GB: the course on one page" in svg.read_text(encoding="utf-8")
    width, height = re.search(
        r'width="([\d.]+)pt" height="([\d.]+)pt"', svg.read_text("utf-8")
    ).groups()
    assert (float(width), float(height)) == pytest.approx((595, 842), abs=1)  # A4
    assert pdf.read_bytes().startswith(b"%PDF")


def test_an_unknown_gpu_is_one_line():
    command = [sys.executable, "-m", "course.cheatsheet", "H99"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode and done.stderr.count("\n") == 1 and "H100 SXM" in done.stderr
