"""The notebooks keep the conventions, and the tool that says so can say no."""

import copy
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import conftest
from tools import notebooks as tool

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_keeps_the_conventions(path):
    assert tool.problems(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda path: path.stem)
def test_every_notebook_has_exercises(path):
    code = "\n".join(
        "".join(c["source"]) for c in tool._code(json.loads(path.read_text(encoding="utf-8")))
    )
    assert len(re.findall(r"\.check\(", code)) >= 3


def test_they_are_read_in_order():
    """Each number of the series once, 00 first; what is still planned leaves a gap."""
    numbers = [int(path.name[:2]) for path in NOTEBOOKS]
    assert numbers[0] == 0 and numbers == sorted(set(numbers)) and set(numbers) <= set(range(13))
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+\.ipynb", path.name) for path in NOTEBOOKS)


# --- the tool itself --------------------------------------------------------------------------


OPENING = (
    "# A title\nYou will be able to add. **Time** 5 minutes. Needs nothing. The question: 1 + 1?"
)
GOOD = new_notebook(
    cells=[
        new_markdown_cell(OPENING, metadata={"slideshow": {"slide_type": "slide"}}),
        new_markdown_cell("![two dots become one](../figures/a.svg)"),
        new_code_cell("total = 1 + 1"),
        new_code_cell("print('a')\nprint('b')\ntotal"),
        new_code_cell("total"),
        new_markdown_cell("## Takeaways"),
        new_markdown_cell("## Exercises"),
        new_markdown_cell("## Next: what is 2 + 2?"),
    ]
)


def house(folder, text):
    """A notebook in a house of its own."""
    for name in ("figures", "notebooks"):
        (folder / name).mkdir()
    (folder / "figures" / "a.svg").write_text("<svg/>", encoding="utf-8")
    path = folder / "notebooks" / "00_a.ipynb"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def good(tmp_path):
    """As its author leaves it: nothing ran yet."""
    return house(tmp_path, nbformat.writes(GOOD))


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    path = house(tmp_path_factory.mktemp("house"), nbformat.writes(GOOD))
    assert tool.main([str(path)]) == 0
    return path.read_text(encoding="utf-8")


@pytest.fixture
def stored(tmp_path, after):
    """The same after `make notebooks`."""
    return house(tmp_path, after)


def edit(path, change):
    nb = json.loads(path.read_text(encoding="utf-8"))
    change(nb)
    path.write_text(tool.canonical(nbformat.from_dict(nb)), encoding="utf-8")


def test_run_stores_outputs_and_is_canonical(stored):
    nb = json.loads(stored.read_text(encoding="utf-8"))
    assert [c.get("execution_count") for c in nb["cells"]] == [
        None,
        None,
        1,
        2,
        3,
        None,
        None,
        None,
    ]
    stream, value = nb["cells"][3]["outputs"]
    assert stream["text"] == ["a\n", "b\n"] and value["data"]["text/plain"] == ["2"]
    assert set(nb["metadata"]) == {"kernelspec", "language_info"}
    assert nb["metadata"]["language_info"] == {"name": "python"}
    ids = [cell["id"] for cell in nb["cells"]]
    assert ids[:3] == ["a-title", "two-dots-become-one-figures-a-svg", "total-1-1"]
    assert stored.read_text(encoding="utf-8").endswith("}\n")


def test_running_twice_changes_nothing(stored):
    before = stored.read_text(encoding="utf-8")
    assert tool.main([str(stored)]) == 0
    assert stored.read_text(encoding="utf-8") == before


def test_canonical_drops_what_changes_from_run_to_run(stored):
    clean = stored.read_text(encoding="utf-8")
    nb = json.loads(clean)
    nb["metadata"]["widgets"] = {"state": {}}
    nb["metadata"]["language_info"]["version"] = "3.11.2"
    for n, cell in enumerate(nb["cells"]):
        cell["metadata"]["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
        cell["metadata"]["collapsed"] = False
        if cell["cell_type"] == "code":
            cell["execution_count"] = 40 + n
    assert tool.canonical(nbformat.from_dict(nb)) == clean


@pytest.mark.filterwarnings("ignore::nbformat.warnings.DuplicateCellId")
def test_ids_are_kept_or_made_from_the_words():
    cells = [
        new_code_cell("x = 1", id="own"),
        new_code_cell("x = 1", id="own"),
        new_code_cell("x = 1", id="1f2e3d4c"),
        new_code_cell("", id="4d2c8a4e-2f1b-4a53-9a3e-0c86d1d0a111"),
    ]
    once = tool.canonical(new_notebook(cells=cells))
    assert [c["id"] for c in json.loads(once)["cells"]] == ["own", "x-1", "x-1-2", "cell"]
    assert tool.canonical(nbformat.reads(once, 4)) == once


def test_widget_ids_are_made_stable():
    def widget(model):
        data = {tool.VIEW: {"model_id": model, "version_major": 2, "version_minor": 0}}
        return new_notebook(
            cells=[new_code_cell("s", id="s", outputs=[new_output("display_data", data)])]
        )

    assert tool.canonical(widget("abc")) == tool.canonical(widget("xyz"))


def test_outputs_stored_on_a_gpu_are_kept(stored, capsys):
    edit(stored, said("stdout", "Kernels run on: NVIDIA H200\n"))
    before = stored.read_text(encoding="utf-8")
    tool.main([str(stored)])
    assert "keeps its outputs from NVIDIA H200; --force" in capsys.readouterr().out
    assert stored.read_text(encoding="utf-8") == before
    assert tool.main(["--force", str(stored)]) == 0
    assert "H200" not in stored.read_text(encoding="utf-8")


@pytest.mark.parametrize("source", ["print('These cells run on:', 'NVIDIA L4')", "print('no GPU')"])
def test_a_notebook_says_itself_where_it_ran(stored, source):
    """So one that a reader ran on another machine does not claim the first."""
    edit(stored, code(f"total = 2\n{source}"))
    tool.main(["--force", str(stored)])
    nb = json.loads(stored.read_text(encoding="utf-8"))
    assert tool.stored_on(nb) == ("NVIDIA L4" if "L4" in source else None)
    assert "course" not in nb["metadata"]


def test_an_error_stops_and_changes_nothing(good, capsys):
    edit(good, lambda nb: nb["cells"][2].update(source=["1 / 0"]))
    before = good.read_text(encoding="utf-8")
    assert tool.main([str(good)]) == 1
    assert good.read_text(encoding="utf-8") == before
    assert "00_a.ipynb: stopped by ZeroDivisionError" in capsys.readouterr().out


def code(source):
    return lambda nb: nb["cells"][2].update(source=[source])


def output(**out):
    return lambda nb: nb["cells"][2].update(outputs=[{"metadata": {}, **out}])


def shown(**data):
    return output(output_type="display_data", data=data)


def prose(source):
    return lambda nb: nb["cells"][1].update(source=[source])


def said(name, text):
    return lambda nb: nb["cells"][2].update(
        outputs=[{"output_type": "stream", "name": name, "text": [text]}]
    )


def cleared(nb):
    for cell in nb["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)


BREAKS = {
    "D5: cleared outputs": (cleared, "the outputs were cleared"),
    "D5: a cell that never ran": (
        lambda nb: nb["cells"][2].update(execution_count=None),
        "never ran",
    ),
    "D5: one output cleared": (
        lambda nb: nb["cells"][3].update(outputs=[]),
        "has no output stored",
    ),
    "an error": (
        output(output_type="error", ename="ValueError", evalue="", traceback=[]),
        "ends in ValueError",
    ),
    "a warning": (said("stderr", "UserWarning: no\n"), "writes to stderr: UserWarning: no"),
    "a long cell": (code("\n".join(["x = 1"] * 26)), "has 26 lines, over 25"),
    "long cells": (
        lambda nb: [c.update(source=["x = 1\n"] * 9) for c in tool._code(nb)],
        "the median code cell has 9 lines",
    ),
    "a semicolon": (code("x = 1;"), "semicolon"),
    "a shell line": (code("!ls"), "a shell line or a magic"),
    "a magic": (code("%%capture\nx = 1"), "a shell line or a magic"),
    "an install": (code("run('pip install x')"), "installs something"),
    "a filter": (code("warnings.simplefilter('ignore')"), "hides warnings"),
    "no question": (lambda nb: nb["cells"][0].update(source=["# T\nable"]), "no the one question"),
    "no minutes": (
        lambda nb: nb["cells"][0].update(source=["# T\nneeds question"]),
        "opening: no minutes",
    ),
    "no takeaways": (lambda nb: nb["cells"].pop(5), 'no "Takeaways"'),
    "no exercises": (lambda nb: nb["cells"].pop(6), 'no "Exercises"'),
    "no next": (lambda nb: nb["cells"].pop(7), "no the next question"),
    "no slide": (lambda nb: nb["cells"][0].update(metadata={}), "marked as a slide"),
    "a picture of the web": (prose("![a long alt text](https://x.org/a.svg)"), "not a file of"),
    "a lost picture": (prose("![a long alt text](../figures/b.svg)"), "not a file of figures/"),
    "a picture elsewhere": (prose("![a long alt text](a.svg)"), "not a file of figures/"),
    "no alt": (prose("![](../figures/a.svg)"), "no text alternative"),
    "no alt in HTML": (prose('<img src="../figures/a.svg" alt="">'), "no text alternative"),
    "a bare PNG": (shown(**{"image/png": "aGVsbG8="}), "a picture without words"),
    "an HTML picture without alt": (
        shown(**{"text/html": '<img src="data:image/png;base64,aGVs">'}),
        "no text alternative",
    ),
    "a home directory": (said("stdout", "/home/ada/course\n"), "names this machine: /home/"),
    "this checkout": (said("stdout", f"{ROOT}/course\n"), "names this machine"),
    "a Windows path": (said("stdout", r"C:\Users\ada"), "names this machine"),
    "an address": (said("stdout", "<object at 0x7f0011223344>"), "names this machine: at 0x"),
}


@pytest.mark.parametrize(("change", "problem"), BREAKS.values(), ids=BREAKS)
def test_each_rule_can_say_no(stored, change, problem, capsys):
    edit(stored, change)
    assert tool.main(["--check", str(stored)]) == 1
    assert problem in capsys.readouterr().out


def test_check_changes_nothing_and_sees_what_is_not_canonical(stored, capsys):
    stored.write_text(stored.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    before = stored.read_text(encoding="utf-8")
    assert tool.main(["--check", str(stored)]) == 1
    assert (
        "not canonical" in capsys.readouterr().out and stored.read_text(encoding="utf-8") == before
    )
    assert tool.main(["--no-run", str(stored)]) == 0


def test_what_is_allowed_is_allowed(stored):
    """Kernels may be long; a cell about warnings may show one; a picture with words is fine."""
    kernel = "@triton.jit\ndef kernel(x):\n" + "    x = 1\n" * 24
    edit(stored, code(kernel.strip()))
    assert tool.problems(stored) == []
    edit(stored, said("stderr", "UserWarning: look\n"))
    edit(stored, lambda nb: nb["cells"][2]["metadata"].update(tags=[tool.SHOWS_STDERR]))
    assert tool.problems(stored) == []
    picture = "<img alt=\"the dot isn't there > any more\" src='data:image/png;base64,/tmp/aGVs'>"
    edit(stored, code("picture"))
    edit(stored, shown(**{"text/html": picture}))
    assert tool.problems(stored) == []


def test_nbval_summary_names_each_notebook():
    class Report:
        nodeid, duration = "notebooks/00_a.ipynb::Cell 0", 61.0

    class Terminal:
        def __init__(self):
            self.lines = []

        def section(self, title):
            self.lines.append(title)

        write_line = section

    before = copy.copy(conftest.seconds)
    try:
        conftest.pytest_runtest_logreport(Report)
        conftest.pytest_terminal_summary(terminal := Terminal())
    finally:
        conftest.seconds.clear()
        conftest.seconds.update(before)
    assert any("61.0 s  00_a.ipynb  over budget" in line for line in terminal.lines)
