"""No test writes a reader's progress; and how long each notebook took under --nbval, beside its budget."""

import atexit
import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

nobody = tempfile.mkdtemp(prefix="course-tests-")
atexit.register(shutil.rmtree, nobody, ignore_errors=True)
os.environ["COURSE_PROGRESS"] = str(
    Path(nobody) / "progress.json"
)  # the kernels of nbval inherit it

BUDGET_ONE, BUDGET_ALL = 60, 360  # seconds, on two cores

seconds = defaultdict(float)


def pytest_runtest_logreport(report):
    """Add up what the cells of a notebook took; the first one's set-up starts the kernel."""
    file = report.nodeid.split("::")[0]
    if file.endswith(".ipynb"):
        seconds[file] += report.duration


def pytest_terminal_summary(terminalreporter):
    """Print one line a notebook and one for all of them."""
    if not seconds:
        return
    terminalreporter.section(f"notebooks, budget {BUDGET_ONE} s each and {BUDGET_ALL} s all")
    rows = [(file.rsplit("/", 1)[-1], took, BUDGET_ONE) for file, took in seconds.items()]
    for name, took, budget in [*rows, ("all", sum(seconds.values()), BUDGET_ALL)]:
        over = "  over budget" if took > budget else ""
        terminalreporter.write_line(f"{took:7.1f} s  {name}{over}")
