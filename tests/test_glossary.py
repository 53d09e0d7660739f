"""The glossary and the notebooks agree: explained in bold, where it says, and not used before."""

import functools
import json
import re

import pytest

from course.glossary import PAGE, TERMS, page
from tools import reading

BOOKS = {path.stem: path for path in sorted(PAGE.parent.glob("[0-9]*.ipynb"))[1:]}  # all but 00
NAMES = [term.name for term in TERMS]


@functools.cache
def cells(stem):
    return json.loads(BOOKS[stem].read_text(encoding="utf-8"))["cells"]


@functools.cache
def path():
    """[(notebook, cell id, words)] of the series: no opening, heading, Compare or second reading."""
    found = []
    for stem, file in BOOKS.items():
        on_path, exercises = reading.parts(json.loads(file.read_text(encoding="utf-8")))
        for cell in [*on_path, *exercises]:
            if cell["cell_type"] == "markdown" and cell["id"] != cells(stem)[0]["id"]:
                found.append((stem, cell["id"], words(reading.source(cell))))
    return found


def words(markdown):
    """What is read at first: no boxes, headings, code, targets and texts of links, or formulas."""
    text = re.sub(r"<details>.*?</details>", " ", markdown, flags=re.DOTALL)
    text = re.sub(r"^#+ .*$", " ", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[[^]]*\]\([^)]*\)|`[^`]*`|\$\$?[^$]*\$\$?|<[^>]*>", " ", text)
    return re.sub(r"\*", "", text)


def uses(term):
    """A regular expression that finds the term in its sense."""
    plain = [re.escape(term.name) + ("" if term.name.endswith("s") else "s?"), *term.forms]
    return re.compile(rf"\b(?:{term.sense or '|'.join(plain)})\b", flags(term))


def flags(term):
    return 0 if term.name.isupper() else re.IGNORECASE


def test_the_page_is_what_the_glossary_says():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m course.glossary"


def test_each_word_stands_once_and_in_order():
    shown = re.findall(r"^\| \*\*(.+?)\*\*", page(), re.MULTILINE)
    assert sorted(shown) == sorted(set(NAMES)) and shown == sorted(shown, key=str.casefold)


@pytest.mark.parametrize("term", TERMS, ids=NAMES)
def test_it_is_bold_where_it_is_explained(term):
    (text,) = (reading.source(c) for c in cells(term.notebook) if c["id"] == term.cell)
    bold = " | ".join(re.findall(r"\*\*(.+?)\*\*", text))
    stem = re.escape(term.name.removesuffix("s"))
    assert re.search(rf"(^|\W){stem}(e?s|d)?(\W|$)", bold, flags(term)), f"{text!r}"


@pytest.mark.parametrize("term", TERMS, ids=NAMES)
def test_no_path_uses_it_before(term):
    order = [(stem, cell["id"]) for stem in BOOKS for cell in cells(stem)]
    explained = order.index((term.notebook, term.cell))
    early = [
        f"{stem} {cell}: {found[0]}"
        for stem, cell, text in path()
        if order.index((stem, cell)) < explained and (found := uses(term).search(text))
    ]
    assert not early, early


@pytest.mark.parametrize("term", [term for term in TERMS if term.sense], ids=lambda t: t.name)
def test_what_is_looked_for_is_there(term):
    text = " ".join(words(reading.source(cell)) for stem in BOOKS for cell in cells(stem))
    assert uses(term).search(text), "the expression finds no use at all, so it guards nothing"


def test_a_word_used_too_early_is_found():
    (ridge,) = (term for term in TERMS if term.name == "ridge")
    assert uses(ridge).search(words("# x\n\nTwo ridges.")) and not uses(ridge).search("bridge")
    hidden = "## The ridge\n\n<details><summary>Compare</summary>\n\nridge\n\n</details> `ridge`"
    assert not uses(ridge).search(words(hidden))
