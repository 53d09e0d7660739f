"""Recorded measurements: kept whole, stamped, and plausible."""

import json

import pytest

from course import cost, measure, records
from course.hardware import GPUS
from course.records.__main__ import main

STAMP = {"device": "NVIDIA H200", "date": "2026-01-02", "versions": {"torch": "2.0"}, "method": "m"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "HERE", tmp_path)
    return tmp_path


def test_save_keeps_the_other_sections_and_load_gives_them_back(folder):
    records.save({"b": {"x": 1.23456789, "stamp": STAMP}}, "card")
    records.save({"a": {"points": [{"n": 1, "kernels": ["k"]}], "stamp": STAMP}}, "card")
    loaded = records.load("card")
    assert list(loaded) == ["a", "b"]
    assert loaded["b"]["x"] == 1.235
    assert loaded["a"]["points"] == [{"n": 1, "kernels": ["k"]}]


def test_the_file_is_the_same_whatever_the_order_of_saving(folder):
    sections = {name: {"y": [1, 2.5, None, True], "stamp": STAMP} for name in "ab"}
    for name in "ab":
        records.save({name: sections[name]}, "first")
    for name in "ba":
        records.save({name: sections[name]}, "second")
    assert (folder / "first.json").read_text(encoding="utf-8") == (
        folder / "second.json"
    ).read_text(encoding="utf-8")


def test_dumps_is_json_with_short_lines():
    value = {"points": [{"n": 10**k, "seconds": 10.0**-k, "name": "β"} for k in range(20)]}
    text = records.dumps(value)
    assert json.loads(text) == value
    assert max(map(len, text.splitlines())) <= 121
    assert len(text.splitlines()) < 30


def test_a_section_without_a_stamp_is_refused(folder):
    with pytest.raises(ValueError, match="no stamp"):
        records.save({"a": {"x": 1}}, "card")


def test_an_unknown_device_is_named_with_what_there_is(folder):
    records.save({"a": {"stamp": STAMP}}, "card")
    with pytest.raises(ValueError, match=r"nothing was recorded on 'h300'; recorded: card"):
        records.load("h300")


def test_provenance_is_one_line():
    assert (
        records.provenance({"stamp": STAMP}) == "measured on NVIDIA H200, 2026-01-02, torch 2.0, m"
    )
    assert records.file_name("NVIDIA H200") == "h200"


def test_without_a_gpu_nothing_is_recorded_and_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(measure, "cuda_available", lambda: False)
    assert main([]) == 1
    assert main(["nonsense"]) == 2
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2
    assert "needs a CUDA GPU" in out[0] and "nonsense" in out[1]


def test_a_section_that_fails_does_not_cost_the_others(folder, monkeypatch, capsys):
    monkeypatch.setattr(measure, "cuda_available", lambda: True)
    monkeypatch.setattr(measure, "stamp", lambda *_: STAMP)
    sections = {"bad": "course.no_such_module:record", "good": f"{__name__}:good_section"}
    monkeypatch.setattr("course.records.__main__.SECTIONS", sections)
    monkeypatch.setattr(
        "course.records.__main__.import_module", lambda name: {__name__: _Here}[name]
    )
    assert main([]) == 1
    assert records.load("h200") == {"good": {"x": 1, "stamp": STAMP}}
    assert "bad: FAILED" in capsys.readouterr().out


class _Here:
    @staticmethod
    def good_section():
        return {"x": 1, "stamp": STAMP}


@pytest.fixture(scope="module")
def h200():
    return records.load("h200")


def test_every_section_of_the_h200_says_where_it_comes_from(h200):
    for section in h200.values():
        assert "\n" not in records.provenance(section)
        assert records.provenance(section).startswith("measured on NVIDIA H200, 20")
        assert section["stamp"]["versions"]["torch"] and section["stamp"]["method"]


def test_case_c7_no_recorded_rate_is_above_a_dense_peak(h200):
    """A utilisation above 100 % would be a miscount, or a peak printed for sparse weights."""
    memory, gpu = h200["memory"], GPUS["H200"]
    for point in memory["matmul"]:
        assert 0 < point["rate"] < gpu.peak[point["dtype"]]
    for point in memory["roofline"]:
        assert point["flops"] / point["seconds"] < gpu.peak["fp16"]
        assert point["bytes"] / point["seconds"] < gpu.bandwidth
    large = [p for p in memory["matmul"] if p["n"] == 8192 and p["dtype"] in ("fp16", "bf16")]
    assert all(p["rate"] > 0.6 * gpu.peak["fp16"] for p in large)


def test_the_staircase_has_the_step_from_l2_to_hbm(h200):
    stairs = {p["bytes"]: p["bandwidth"] for p in h200["memory"]["staircase"]}
    assert max(stairs.values()) == stairs[32 * 2**20]  # the last that fits in 60 MB
    large = [rate for size, rate in stairs.items() if size >= 2**30]
    assert all(4.0e12 < rate < GPUS["H200"].bandwidth for rate in large)


def test_fusion_s_bytes_are_what_was_counted_once_the_l2_is_small(h200):
    """19 bytes an element in four kernels (the mask is stored), 6 in one; launches 4, 2, 1."""
    points = {(p["flow"], p["n"]): p for p in h200["fusion"]["points"]}
    n = 1_024_000_000
    for flow, each, launches in (("eager", 19, 4), ("compiled", 6, 2), ("hand-written", 6, 1)):
        point = points[flow, n]
        assert point["dram_read"] + point["dram_written"] == pytest.approx(each * n, rel=0.01)
        assert point["launches"] == launches
    assert points["hand-written", n]["seconds"] == pytest.approx(6 * n / 4.3e12, rel=0.15)
    assert points["hand-written", 1024]["graph"] < points["eager", 1024]["graph"]


def test_attention_s_bytes_by_counter(h200):
    """With eight heads at N = 8192 count and counter agree; with one at 4096 the L2 hides most."""
    section = h200["attention_bytes"]
    dram = {(r["flow"], r["heads"], r["n"], r["caches"]): r["kernels"] for r in section["dram"]}
    assert len(dram) == len(section["dram"])
    s = 8 * 8192**2 * 2
    scores, softmax, values = dram["naive", 8, 8192, "kept"]
    assert scores["written"] == pytest.approx(s, rel=0.05)
    assert softmax["read"] == pytest.approx(s, rel=0.05)
    assert softmax["written"] == pytest.approx(s, rel=0.05)
    assert values["read"] == pytest.approx(s, rel=0.05)
    hidden = sum(k["read"] + k["written"] for k in dram["naive", 1, 4096, "kept"])
    counted = cost.attention(4096, 128, flow="naive").bytes
    assert hidden < 0.8 * counted
    for flow in ("flash", "cudnn"):
        ideal = cost.attention(8192, 128, heads=8, flow="flash").bytes
        [fused] = dram[flow, 8, 8192, "kept"]
        assert fused["read"] + fused["written"] < 1.1 * ideal


def test_naive_attention_runs_out_of_memory_and_fused_does_not(h200):
    section = h200["attention_bytes"]
    points = {(p["flow"], p["n"]): p for p in section["points"]}
    for n in (4096, 8192, 16384, 32768):  # S, P and O
        predicted = 2 * section["heads"] * (2 * n * n + n * section["d"])
        assert points["naive", n]["peak_bytes"] == pytest.approx(predicted, rel=0.001)
    assert points["naive", 65536] == {"flow": "naive", "n": 65536, "out_of_memory": True}
    assert points["flash", 131072]["peak_bytes"] < 1e9
