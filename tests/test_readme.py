"""What the README says was measured is what the record says."""

import re
from pathlib import Path

import pytest

from course.records import load
from course.tables import Table
from course.units import decimal

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
H200 = load("h200")


def speeds():
    """TFLOP/s and per cent of cuDNN, FP16, N = 8,192."""
    points = {
        (p["flow"], p["d"], p["causal"]): p
        for p in H200["attention_speed"]["points"]
        if p["dtype"] == "fp16" and p["n"] == 8192
    }
    rows = []
    for d in (128, 64):
        for causal in (False, True):
            row = [f"d = {d}, {'causal' if causal else 'full'}"]
            for way in ("forward", "backward"):
                ours = points["ours", d, causal][way]
                theirs = points["cuDNN", d, causal][way]
                row += [
                    f"{ours['flops'] / 1e12:.0f}",
                    f"{theirs['flops'] / 1e12:.0f}",
                    f"{ours['flops'] / theirs['flops']:.0%}",
                ]
            rows.append(row)
    headers = "TFLOP/s,forward,cuDNN,share,backward,cuDNN,share"
    return Table(headers.split(","), rows)


def memory():
    """Training at two lengths: peak memory and tokens a second."""
    points = {(p["flow"], p["n"]): p for p in H200["training"]["points"]}
    rows = []
    for n in (16_384, 32_768):
        row = [f"N = {n:,}"]
        for flow in ("naive", "ours"):
            p = points[flow, n]
            if "peak_bytes" in p:
                row += [decimal(p["peak_bytes"]), f"{p['tokens_per_second']:,.0f}"]
            else:
                row += ["out of memory", "none"]
        rows.append(row)
    headers = "training,naive: peak memory,tokens/s,ours: peak memory,tokens/s"
    return Table(headers.split(","), rows)


@pytest.mark.parametrize("table", [speeds, memory])
def test_measured_tables_are_the_records(table):
    expected = table()._repr_markdown_()
    assert expected in README, f"put this into README.md:\n\n{expected}"


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
