"""Recorded measurements: kept whole, stamped, and plausible."""

import json

import pytest

from course import measure, records
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
    assert (folder / "first.json").read_text() == (folder / "second.json").read_text()


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
