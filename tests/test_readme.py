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


def top():
    """Forward as attention does it on a Hopper GPU, beside the libraries, FP16."""
    from course.kernels.auto import SCHEDULES
    from course.kernels.hopper_forward import Schedule

    rows = []
    for (d, causal), (least, schedule) in sorted(SCHEDULES.items(), reverse=True):
        for n in (4096, 16_384):
            if n < least:
                continue
            cell = [
                p
                for p in H200["hopper_forward"]["points"]
                if (p["d"], p["causal"], p["n"], p["dtype"]) == (d, causal, n, "fp16")
            ]
            found = {p["flow"]: p["flops"] for p in cell}
            chosen = [p for p in cell if p["flow"] == "hopper" and _is(p, Schedule(**schedule))]
            found["ours"] = chosen[0]["flops"]
            rates = [f"{found[flow] / 1e12:.0f}" for flow in ("ours", "readable", "cuDNN", "FA-2")]
            share = f"{found['ours'] / found['cuDNN']:.0%}"
            what = f"d = {d}, {'causal' if causal else 'full'}, N = {n:,}"
            rows.append([what, *rates[:3], share, rates[3]])
    return Table("TFLOP/s,Hopper kernel,readable kernel,cuDNN,share,FA-2".split(","), rows)


def _is(point, schedule):
    return all(point[name] == value for name, value in schedule._asdict().items())


def cache():
    """Decode: share of the data sheet's bandwidth, caches in one piece and in pages."""
    points = {
        (p["queries"], p["batch"], p["keys"], p["flow"]): p["bandwidth"] / 4.8e12
        for p in H200["decode"]["points"]
    }
    rows = []
    for queries, batch, keys in (
        (1, 1, 131_072),
        (1, 32, 8192),
        (1, 128, 8192),
        (4, 32, 8192),
        (16, 32, 8192),
    ):
        flows = ("ours", "ours, pages of 128", "cuDNN", "FA-2")
        shares = [f"{points[queries, batch, keys, flow]:.0%}" for flow in flows]
        rows.append([f"{batch} × {keys:,} keys", str(queries), *shares])
    return Table("cache,queries,ours,pages of 128,cuDNN,FA-2".split(","), rows)


@pytest.mark.parametrize("table", [speeds, top, memory, cache])
def test_measured_tables_are_the_records(table):
    expected = table()._repr_markdown_()
    assert expected in README, f"put this into README.md:\n\n{expected}"


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
