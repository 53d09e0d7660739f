"""What a reader has done: which exercises are right, which hints were taken. It stays on this machine.

One small file, .progress.json in the folder of the course, or where COURSE_PROGRESS says:

    {"05 softmax": {"Merge two states": {"hints": 2, "right": true}}}
"""

import contextlib
import importlib
import io
import json
import os
import pkgutil
import re
import sys
import tempfile
from pathlib import Path

from course.tables import Table


def path() -> Path:
    """Where the file is, or will be."""
    return Path(os.environ.get("COURSE_PROGRESS") or Path(__file__).parents[2] / ".progress.json")


def read() -> dict:
    """{notebook: {exercise: what was done}}. ValueError, in one line, where the file makes no sense."""
    try:
        done = json.loads(path().read_text(encoding="utf-8"))
        return {
            page: {name: dict(what) for name, what in items.items()} for page, items in done.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        raise ValueError(
            f"{path()} cannot be read. To begin anew: python -m course.exercises --reset"
        ) from None


def note(item, **what) -> None:
    """Write down what was done with an exercise of the course: right=True, hints=2, solution=True.

    A file that cannot be read or written stays as it is: no check fails for it.
    """
    found = _page(item)
    if found is None:
        return
    with contextlib.suppress(OSError, ValueError):
        done = read()
        mine = done.setdefault(found, {}).setdefault(item.name, {})
        new = {key: max(mine.get(key, 0), value) for key, value in what.items()}
        if new.items() <= mine.items():
            return
        mine |= new
        text = json.dumps(done, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path().parent, prefix=path().name, delete=False
        ) as new_file:
            new_file.write(text)
        os.replace(new_file.name, path())  # all of it or nothing


def reset() -> str:
    """Forget everything; a line that says so."""
    path().unlink(missing_ok=True)
    return f"Nothing is done yet: {path()} is gone."


def progress(module=None):
    """A table: of a notebook, `progress(ex)`, its exercises; of the whole course, its notebooks."""
    try:
        done = read()
    except ValueError as error:
        return print(error)
    if module:
        mine = done.get(_title(module), {})
        rows = [(item.name, *_marks(mine.get(item.name, {}), item)) for item in items(module)]
        return Table(("exercise", "", "hints taken"), rows)
    rows = []
    for page in modules():
        every = items(page)
        mine = [done.get(_title(page), {}).get(item.name, {}) for item in every]
        right, hints = (sum(what.get(key, 0) for what in mine) for key in ("right", "hints"))
        rows.append((_title(page), f"{right} of {len(every)}", hints or ""))
    return Table(("notebook", "right", "hints taken"), rows)


def _marks(what, item):
    hints = f"{what['hints']}" if what.get("hints") else ""
    return "right" if what.get("right") else "", hints + ", the solution" * bool(
        what.get("solution")
    )


def items(module) -> list:
    """The exercises and questions of a module, in the order in which it defines them."""
    from course.exercises import Exercise, Question

    return [item for item in vars(module).values() if isinstance(item, Exercise | Question)]


def modules() -> list:
    """The modules of exercises, in the order of the notebooks; those that this machine can import."""
    import course.exercises as package

    found = []
    for name in (m.name for m in pkgutil.iter_modules(package.__path__) if m.name[0] != "_"):
        with contextlib.suppress(ImportError), contextlib.redirect_stdout(io.StringIO()):
            found.append(importlib.import_module(f"{package.__name__}.{name}"))
    return sorted(found, key=_title)


def _page(item):
    """The title of the notebook that an exercise belongs to; None for an exercise of nobody."""
    for name, module in list(sys.modules.items()):
        if name.startswith("course.exercises.") and any(x is item for x in vars(module).values()):
            return _title(module)
    return None


def _title(module):
    """ "05 softmax", from the number in the first line of its docstring and its name."""
    number = re.search(r"otebook (\d\d)", module.__doc__ or "")
    return f"{number[1] if number else '??'} {module.__name__.rsplit('.', 1)[-1]}"
