"""Run notebooks, store their outputs, make their JSON canonical, and hold them to the conventions.

    python tools/notebooks.py notebooks/*.ipynb            # run, store, make canonical
    python tools/notebooks.py --no-run notebooks/*.ipynb   # only make canonical
    python tools/notebooks.py --check notebooks/*.ipynb    # change nothing; one line a problem
    python tools/notebooks.py --force notebooks/06*.ipynb  # run it even if a GPU's outputs are kept

A notebook whose first cell shows "... run on: NVIDIA H200" keeps the outputs it was given there,
unless --force. Run on a machine without a GPU, that cell shows no such line.
"""

import argparse
import ast
import html
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, it finds its sibling and the course

from tools import reading  # noqa: E402

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
VIEW = "application/vnd.jupyter.widget-view+json"
KEPT = ("tags", "slideshow", "jupyter", reading.COLLAPSED)  # of a cell's metadata
SHOWS_STDERR = "shows-stderr"  # the tag of a cell that is about a warning

# --- run and make canonical -------------------------------------------------------------------


def run(nb, folder):
    """Execute every cell in `folder`; returns the seconds it took. Raises CellExecutionError."""
    start = time.perf_counter()
    client = NotebookClient(
        nb,
        kernel_name="python3",
        timeout=600,
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    with tempfile.TemporaryDirectory() as nobody:  # nobody's progress is stored
        client.execute(env=os.environ | {"COURSE_PROGRESS": str(Path(nobody) / "progress.json")})
    return time.perf_counter() - start


def stored_on(nb):
    """The GPU that the first code cell says the notebook ran on, or None."""
    first = next((cell for cell in nb["cells"] if cell["cell_type"] == "code"), {"outputs": []})
    shown = "\n".join(text for output in first["outputs"] for text in _texts(output))
    found = re.search(r"\brun on: (.+)", shown)
    return found and found[1]


def canonical(nb):
    """The one text of a notebook: what its author wrote and what its cells showed, no more."""
    nb = json.loads(nbformat.writes(nbformat.convert(nb, 4)))
    nb["metadata"] = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"}}
    nb["nbformat"], nb["nbformat_minor"] = 4, 5
    taken, count = set(), 0
    for cell in nb["cells"]:
        cell["id"] = _id(cell, taken)
        cell["metadata"] = {k: v for k, v in cell["metadata"].items() if k in KEPT and v}
        cell["source"] = _split("".join(cell["source"]).strip("\n"))
        if cell["cell_type"] != "code":
            continue
        ran = cell["execution_count"] is not None
        count += ran
        cell["execution_count"] = count if ran else None
        cell["outputs"] = _outputs(cell)
    return json.dumps(nb, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def _id(cell, taken):
    """The cell's own id where it is one; else, or where a tool drew it, from its first words."""
    own, first = cell.get("id", ""), "".join(cell["source"]).strip().split("\n")[0]
    drawn = re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8}", own)
    if drawn or own in taken or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", own):
        slug = re.sub(r"[^a-z0-9]+", "-", first.lower()).strip("-")[:40].strip("-") or "cell"
        # a slug of eight hex digits would look drawn
        slug = slug + "-" if re.fullmatch(r"[0-9a-f]{8}", slug) else slug
        own = next(
            i for n in range(1, 9999) if (i := slug if n == 1 else f"{slug}-{n}") not in taken
        )
    taken.add(own)
    return own


def _split(text):
    return text.splitlines(keepends=True)


def _outputs(cell):
    """Outputs with chunks of one stream joined and numbers that change from run to run replaced."""
    joined = []
    for out in cell["outputs"]:
        last = joined[-1] if joined else {}
        if out["output_type"] == "stream" and last.get("name") == out["name"]:
            last["text"] = _split("".join(last["text"]) + "".join(out["text"]))
            continue
        joined.append(out)
        if out["output_type"] == "execute_result":
            out["execution_count"] = cell["execution_count"]
        if VIEW in out.get("data", {}):
            out["data"][VIEW]["model_id"] = f"{cell['id']}-{len(joined)}"
    return joined


# --- the conventions, one rule a function -----------------------------------------------------


def _lines(cell):
    return [line for line in reading.source(cell).splitlines() if line.strip()]


def _code(nb):
    return [cell for cell in nb["cells"] if cell["cell_type"] == "code"]


def _prose(nb):
    return [cell for cell in nb["cells"] if cell["cell_type"] == "markdown"]


def _texts(output):
    """Everything readable in an output; pictures are taken out of it."""
    if output["output_type"] == "stream":
        return ["".join(output["text"])]
    data = output.get("data", {}).items()
    texts = ["".join(v) for kind, v in data if isinstance(v, str | list) and "image/" not in kind]
    return [re.sub(r"base64,[A-Za-z0-9+/=]+", "base64,", text) for text in texts]


def outputs_are_stored(nb, path):
    """Cleared outputs would leave nbval nothing to compare."""
    code = _code(nb)
    if code and not any(cell["outputs"] for cell in code):
        yield "", "the outputs were cleared: make notebooks"
    for cell in code:
        if cell["execution_count"] is None:
            yield cell["id"], "never ran: make notebooks"
        elif _shows(reading.source(cell)) and not cell["outputs"]:
            yield cell["id"], "shows something, yet has no output stored"


def _shows(source):
    """Whether a cell ends in a value, or prints at its top level."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a magic
        return False
    calls = [node.value for node in body if isinstance(node, ast.Expr)]
    prints = any(isinstance(c, ast.Call) and ast.unparse(c.func) == "print" for c in calls)
    return prints or bool(body and isinstance(body[-1], ast.Expr))


def no_errors_no_warnings(nb, path):
    """No cell stores an error, or writes to stderr unless that is what it shows."""
    for cell in _code(nb):
        tags = cell["metadata"].get("tags", [])
        for output in cell["outputs"]:
            if output["output_type"] == "error":
                yield cell["id"], f"ends in {output['ename']}"
            if output.get("name") == "stderr" and SHOWS_STDERR not in tags:
                yield cell["id"], f"writes to stderr: {_texts(output)[0].strip().splitlines()[0]}"


def cells_are_short(nb, path):
    """Median at most 8 lines; none over 25 but a Triton kernel."""
    lengths = {cell["id"]: len(_lines(cell)) for cell in _code(nb)}
    if lengths and statistics.median(lengths.values()) > 8:
        yield "", f"the median code cell has {statistics.median(lengths.values()):g} lines, over 8"
    for cell in _code(nb):
        if lengths[cell["id"]] > 25 and "@triton.jit" not in reading.source(cell):
            yield cell["id"], f"has {lengths[cell['id']]} lines, over 25"


HIDDEN = {
    r";\s*$": "a line ends in a semicolon",
    r"^\s*[!%]|get_ipython": "a shell line or a magic",
    r"\bpip3? install\b": "installs something",
    r"filterwarnings|simplefilter|catch_warnings|logging\.disable": "hides warnings",
}


def nothing_is_hidden(nb, path):
    """No cell hides an install, a warning or an output."""
    for cell in _code(nb):
        for pattern, what in HIDDEN.items():
            if re.search(pattern, reading.source(cell), re.MULTILINE):
                yield cell["id"], what


OPENING = {
    r"^# \S": "title (`# ...`)",
    r"you will be able": '"you will be able to"',
    r"\bmin(utes)?\b": "minutes",
    r"\bneeds?\b": "what it needs",
    r"\bquestion\b": "the one question",
}
CLOSING = {
    r"^#+ .*takeaways?": '"Takeaways"',
    r"^#+ .*exercises?": '"Exercises"',
    r"^#+ .*next": 'the next question ("Next: ...")',
}


def opens_and_closes(nb, path):
    """What you will be able to do, minutes, needs, question; takeaways, exercises, next."""
    cells = _prose(nb)
    parts = ("opening", OPENING, cells[:3]), ("headings", CLOSING, cells[len(cells) // 3 :])
    for where, wanted, some in parts:
        text = "\n".join(map(reading.source, some))
        for pattern, what in wanted.items():
            if not re.search(pattern, text, re.MULTILINE | re.IGNORECASE):
                yield "", f"{where}: no {what}"


def is_a_lecture(nb, path):
    """At least one cell is marked as a slide."""
    kinds = [cell["metadata"].get("slideshow", {}).get("slide_type") for cell in nb["cells"]]
    if "slide" not in kinds:
        yield "", "no cell is marked as a slide"


def pictures_speak(nb, path):
    """Images come from figures/ or from code, never from the web, and have a text alternative."""
    for cell in nb["cells"]:
        shown = [reading.source(cell)] if cell["cell_type"] == "markdown" else []
        for output in cell.get("outputs", []):
            shown += _texts(output)
            if any(kind.startswith("image/") for kind in output.get("data", {})):
                yield cell["id"], "a picture without words: show it with course.draw.show"
        for alt, source in _images("\n".join(shown)):
            if len(alt.strip()) < 10:
                yield cell["id"], f"no text alternative for {source[:40]}"
            if source.startswith("data:"):
                continue
            file = (path.parent / source).resolve()
            if not (file.is_file() and file.parent == path.resolve().parents[1] / "figures"):
                yield cell["id"], f"{source[:60]} is not a file of figures/"


def _images(text):
    yield from re.findall(r"!\[([^]]*)\]\(([^)\s]+)", text)
    for tag in re.findall(r"""<img\b(?:[^>"']|"[^"]*"|'[^']*')*>""", text):
        found = {m[1]: m[3] for m in re.finditer(r"\b(alt|src)\s*=\s*([\"'])(.*?)\2", tag, re.S)}
        yield html.unescape(found.get("alt", "")), found.get("src", "")


MACHINE = r"(?<![\w./:])(/home/|/Users/|/root\b|/tmp\b)|[A-Z]:\\Users|\bat 0x[0-9a-f]{6,}"


def names_no_machine(nb, path):
    """No path of the machine it ran on, and no address in memory."""
    here = {str(ROOT), str(Path.home()), tempfile.gettempdir(), sys.prefix} - {"/", "/usr"}
    pattern = "|".join([MACHINE, *map(re.escape, here)])
    for cell in nb["cells"]:
        texts = [
            reading.source(cell),
            *(text for out in cell.get("outputs", []) for text in _texts(out)),
        ]
        if found := re.search(pattern, "\n".join(texts)):
            yield cell["id"], f"names this machine: {found[0]}"


RULES = (
    outputs_are_stored,
    no_errors_no_warnings,
    cells_are_short,
    nothing_is_hidden,
    opens_and_closes,
    is_a_lecture,
    pictures_speak,
    names_no_machine,
    *reading.RULES,
)


def problems(path):
    """One line for each thing that is wrong with the notebook at `path`."""
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    nb = json.loads(text)
    found = [(cell, what) for rule in RULES for cell, what in rule(nb, path)]
    if text != canonical(nbformat.reads(text, 4)):
        found.append(("", "the JSON is not canonical: python tools/notebooks.py --no-run"))
    return [f"{path.name}: {cell and f'cell {cell}: '}{what}" for cell, what in found]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--no-run", action="store_true", help="only make the JSON canonical")
    parser.add_argument("--check", action="store_true", help="change nothing, list the problems")
    parser.add_argument("--force", action="store_true", help="run those stored on a GPU too")
    args = parser.parse_args(argv)
    found = []
    for path in args.notebooks:
        if not args.check:
            nb = nbformat.read(path, 4)
            if (device := stored_on(nb)) and not args.force:
                print(f"{path.name}: keeps its outputs from {device}; --force runs it here")
            elif not args.no_run:
                try:
                    print(f"{path.name}: {run(nb, path.parent):.1f} s", flush=True)
                except CellExecutionError as error:
                    print(error, file=sys.stderr)
                    found.append(f"{path.name}: stopped by {error.ename}: {error.evalue}")
                    continue
            path.write_text(canonical(nb), encoding="utf-8")
        found += problems(path)
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
