"""Every link inside the repository leads to a file that is there, and to a place in it."""

import html
import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "notebooks").glob("*.[im][pd]*"))]
LINK = re.compile(
    r"\]\(<?([^)>\s]+)|^\[[^]]+\]:\s*(\S+)|\b(?:href|src)=[\"']([^\"']+)", re.MULTILINE
)
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:")  # https:, mailto:, data:


def readable(path):
    """The Markdown of a page; of a notebook also what its cells show as Markdown or HTML."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    parts = []
    for cell in json.loads(text)["cells"]:
        parts += ["".join(cell["source"])] if cell["cell_type"] == "markdown" else []
        for output in cell.get("outputs", ()):
            parts += [
                "".join(output.get("data", {}).get(f"text/{x}", "")) for x in ("markdown", "html")
            ]
    return "\n\n".join(parts)


def anchors(path):
    """The fragments that lead somewhere in a page: GitHub's of a Markdown file, JupyterLab's of a
    notebook, where they name a heading or a cell.
    """
    text = readable(path)
    found = set(re.findall(r"\b(?:id|name)=[\"']([^\"']+)", text))
    notebook = path.suffix == ".ipynb"
    for heading in re.findall(r"^#+ +(.*?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)|[*`]", r"\1", heading)
        found.add(words.replace(" ", "-") if notebook else _github(words))
    if notebook:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found |= {f"cell-id={cell['id']}" for cell in cells}
    return found


def _github(words):
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


def lost(path, root=ROOT):
    """The links of a page that lead nowhere."""
    for groups in LINK.findall(readable(path)):
        link = html.unescape("".join(groups))
        if ELSEWHERE.match(link):
            continue
        name, _, fragment = link.partition("#")
        target = (path.parent / unquote(name)).resolve() if name else path
        if not (target.exists() and target.is_relative_to(root)):
            yield f"{link}: no such file"
        elif fragment and unquote(fragment) not in anchors(target):
            yield f"{link}: no such place"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path):
    assert not [*lost(path)]


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "b.md").write_text("# Two words, `x`\n<a id='here'></a>", encoding="utf-8")
    cells = [
        {"cell_type": "markdown", "id": "m", "source": ["## Two words"]},
        {"cell_type": "code", "id": "c", "source": ["[x](code.md)"],
         "outputs": [{"data": {"text/markdown": ["[f](lost.ipynb)"]}}]},
    ]  # fmt: skip
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    good = ["b.md", "b.md#two-words-x", "b.md#here", "n.ipynb#Two-words", "n.ipynb#cell-id=c", "#a-b",
            "https://x.org/y.md#z", "data:image/png;base64,aGk="]  # fmt: skip
    bad = ["a/b.md", "..", "b.md#two", "n.ipynb#two-words", "n.ipynb#cell-id=d", "#b", "B.md"]
    page = tmp_path / "page.md"
    page.write_text("# a b\n" + "".join(f"[text]({x}) " for x in good + bad), encoding="utf-8")
    assert [what.split(":")[0] for what in lost(page, tmp_path)] == bad
    page.write_text('<img src="c.png"> <a href="b.md">\n\n[r]: c.md\n', encoding="utf-8")
    assert [*lost(page, tmp_path)] == ["c.png: no such file", "c.md: no such file"]
    assert [*lost(tmp_path / "n.ipynb", tmp_path)] == ["lost.ipynb: no such file"]
