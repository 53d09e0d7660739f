"""What a reader of a notebook reads: its path, its boxes, its questions, its minutes.

The **path** is what must be read to go on. What is for a second reading stands in a **box**: a
`<details>` in a Markdown cell, or all cells below a heading that is stored collapsed
(`"jp-MarkdownHeadingCollapsed": true`), up to the next heading of its level or a higher one.

A **question** is a cell that says **Predict**, or a check that waits for an answer,
`ex.name.check(...)`. What answers it is covered: outputs are collapsed (`outputs_hidden`) and the
words stand in `<details><summary>Compare</summary>`, which belong to the path all the same.
"""

import ast
import functools
import importlib
import math
import re

WORDS, LINES = 150, 8  # per minute; the lines of code fitted to the logs of readers of 03 to 07
COLLAPSED = "jp-MarkdownHeadingCollapsed"
COMPARE = "<summary>Compare"
DETAILS = re.compile(r"<details>\s*(<summary>.*?</summary>)(.*?)</details>", re.DOTALL)
QUESTION = re.compile(r"\*\*Predict")
OPEN_CHECK = re.compile(r"\.check\(\.\.\.\)")


def source(cell):
    """The text of a cell."""
    return "".join(cell["source"])


def heading(cell):
    """The level of the heading that a cell begins with, 0 if it begins with none."""
    found = re.match(r"(#+) ", source(cell)) if cell["cell_type"] == "markdown" else None
    return len(found[1]) if found else 0


def boxed(nb):
    """For each cell, whether it is in a box of cells; a box's own heading is in it."""
    inside, flags = 0, []
    for cell in nb["cells"]:
        level = heading(cell)
        if inside and level and level <= inside:
            inside = 0
        if level and cell["metadata"].get(COLLAPSED) and not inside:
            inside = level
        flags.append(bool(inside))
    return flags


def parts(nb):
    """The cells of the path, and those below the heading "Exercises"; boxes are in neither."""
    path, exercises, within = [], [], False
    for cell, box in zip(nb["cells"], boxed(nb), strict=True):
        if heading(cell) == 2:
            within = bool(re.match(r"## .*exercises", source(cell), re.IGNORECASE))
        if not box:
            (exercises if within else path).append(cell)
    return path, exercises


def prose(cell):
    """The words of a Markdown cell that are on the path: no box, no target of a link, no alt."""
    text = DETAILS.sub(lambda m: m[2] if COMPARE in m[1] else "", source(cell))
    text = re.sub(r"!\[[^]]*\]\([^)]*\)|\]\([^)]*\)|<[^>]*>", " ", text)
    return re.findall(r"\w[\w'’.,/-]*", text)


def words(cells):
    """How many words of Markdown are on the path."""
    return sum(len(prose(cell)) for cell in cells if cell["cell_type"] == "markdown")


def figures(cell):
    """How many pictures a cell shows; an explorer is one."""
    if cell["cell_type"] == "markdown":
        return len(re.findall(r"!\[|<img\b", DETAILS.sub("", source(cell))))
    shown = ("".join(out.get("data", {}).get("text/html", "")) for out in cell["outputs"])
    return sum("<img" in text for text in shown)


@functools.cache
def _exercises(module):
    return importlib.import_module(f"course.exercises.{module}")


def check_minutes(nb, cells):
    """The minutes that the checks among these cells state; each exercise is counted once."""
    code = "\n".join(source(cell) for cell in nb["cells"] if cell["cell_type"] == "code")
    imported = re.search(r"from course\.exercises import (\w+) as ex", code)
    if not imported:
        return 0
    text = "\n".join(source(cell) for cell in cells if cell["cell_type"] == "code")
    names = dict.fromkeys(re.findall(r"\bex\.(\w+)\.check\(", text))
    return sum(getattr(_exercises(imported[1]), name).minutes for name in names)


def minutes(nb):
    """Minutes of the path and of the exercises after it, each rounded up to 5."""
    both = []
    for cells in parts(nb):
        lines = sum(
            bool(line.strip())
            for cell in cells
            if cell["cell_type"] == "code"
            for line in source(cell).splitlines()
        )
        took = words(cells) / WORDS + lines / LINES + check_minutes(nb, cells)
        took += sum(map(figures, cells))
        both.append(5 * math.ceil(took / 5))
    asked = check_minutes(nb, parts(nb)[1])
    return both[0], both[1] if asked else 0


def stated_minutes(nb):
    """What the opening says: (minutes of the path, minutes of the exercises); None if nothing."""
    opening = "\n".join(source(cell) for cell in nb["cells"][:3] if cell["cell_type"] == "markdown")
    line = re.search(r"\*\*Time\*\* (\d+) minutes(?:, and (\d+) for the exercises)?", opening)
    return (int(line[1]), int(line[2] or 0)) if line else None


def first_line(cell):
    """What JupyterLab shows of a collapsed output that is text: the first line, if any."""
    first = cell["outputs"][0]
    shown = first.get("text") or first.get("data", {}).get("text/markdown") or ""
    if not shown and "text/html" not in first.get("data", {}):
        shown = first.get("data", {}).get("text/plain", "")
    return "".join(shown)[:100].split("\n")[0].strip()


# --- rules: each yields (cell id, what is wrong) ----------------------------------------------


def questions_come_first(nb, path):
    """What answers a question is covered until the reader asks for it."""
    cells = nb["cells"]
    for i, cell in enumerate(cells):
        markdown = cell["cell_type"] == "markdown"
        if not (QUESTION if markdown else OPEN_CHECK).search(source(cell)):
            continue
        for later in cells[i + 1 :]:
            text = source(later)
            if later["cell_type"] == "markdown":
                if not (heading(later) or QUESTION.search(text) or text.startswith("<details>")):
                    yield later["id"], f"may answer {cell['id']}: {COMPARE}</summary> covers it"
                break
            if OPEN_CHECK.search(text):
                break  # the place for the guess, or the next question: it has a turn of its own
            slide = later["metadata"].get("slideshow", {}).get("slide_type")
            if later["outputs"] and ".check(" not in text:
                if not later["metadata"].get("jupyter", {}).get("outputs_hidden"):
                    yield later["id"], f"answers {cell['id']} in the open: collapse its output"
                if slide not in ("fragment", "skip", "notes"):
                    yield later["id"], "answers a question, so in slides it is a fragment"
                if re.search(r"\d", first := first_line(later)) and not re.search(r":$|^\|", first):
                    yield later["id"], f"a collapsed output shows its first line: {first!r}"


def path_is_short(nb, path):
    """At most 2,500 words and 100 cells."""
    cells, _ = parts(nb)
    if words(cells) > 2500:
        yield "", f"the path has {words(cells):,} words, over 2,500: fold, link or cut"
    if len(cells) > 100:
        yield "", f"the path has {len(cells)} cells, over 100"


def boxes_are_skipped(nb, path):
    """What is for a second reading is no slide."""
    for cell, box in zip(nb["cells"], boxed(nb), strict=True):
        if box and cell["metadata"].get("slideshow", {}).get("slide_type") not in ("skip", "notes"):
            yield cell["id"], "is in a box, so in slides it is skipped"


def boxes_may_be_left_shut(nb, path):
    """No cell of the path uses a name that only a box defines: the reader may not have run it."""
    known = set()
    for cell, box in zip(nb["cells"], boxed(nb), strict=True):
        if cell["cell_type"] != "code":
            continue
        try:
            nodes = [*ast.walk(ast.parse(source(cell)))]
        except SyntaxError:  # a magic
            continue
        made = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        made |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        if box:
            only_here = made - known
            known |= {f"{name} of {cell['id']}" for name in only_here}
            continue
        used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        for name in sorted(used - made - known):
            if any(other.startswith(f"{name} of ") for other in known):
                yield cell["id"], f"uses {name}, which only a box defines"
        known |= made


def minutes_are_honest(nb, path):
    """The opening states what the words, checks, figures and code of the notebook take."""
    (path_minutes, exercises), stated = minutes(nb), stated_minutes(nb)
    wanted = f"**Time** {path_minutes} minutes" + (
        f", and {exercises} for the exercises" if exercises else ""
    )
    if stated != (path_minutes, exercises):
        yield "", f'the opening says {stated}; by its words, checks and figures: "{wanted}"'


def links_lead_on(nb, path):
    """The opening links the notebook before and the map, the end the one after."""
    stems = sorted(other.name for other in path.parent.glob("[0-9][0-9]_*.ipynb"))
    here = stems.index(path.name)
    text = "\n".join(source(cell) for cell in nb["cells"] if cell["cell_type"] == "markdown")
    wanted = {*stems[max(here - 1, 0) : here + 2], stems[0]} - {path.name}
    for name in sorted(wanted):
        if f"]({name}" not in text:
            yield "", f"no link to {name}"


RULES = (
    questions_come_first,
    path_is_short,
    boxes_are_skipped,
    boxes_may_be_left_shut,
    minutes_are_honest,
    links_lead_on,
)
