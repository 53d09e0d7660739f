"""The house: what installs it, what imports what, what it promises, and what it must not say."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rattler import MatchSpec

from tools import notebooks

ROOT = Path(__file__).resolve().parents[1]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


PYPROJECT = tomllib.loads(text("pyproject.toml"))
PROJECT = PYPROJECT["project"]
ENVIRONMENT = yaml.safe_load(text("environment.yml"))
EXTRAS = [spec for extra in PROJECT["optional-dependencies"].values() for spec in extra]
DIRECT = {r.name: r for r in map(Requirement, PROJECT["dependencies"] + EXTRAS)}
LINES = text("constraints.txt").splitlines()
PINS = {r.name: r for r in map(Requirement, (x for x in LINES if x and x[0] != "#"))}


def committed():
    """The files of the repository, or all there are where it is not a git checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, encoding="utf-8"
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def in_python(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    return done.stdout.strip()


# --- what is imported -------------------------------------------------------------------------


def test_import_course_is_quick_and_light():
    code = (
        "import time, sys; t = time.perf_counter(); import course; "
        "print(time.perf_counter() - t, *{'torch', 'triton', 'matplotlib'} & set(sys.modules))"
    )
    runs = [in_python(code).split() for _ in range(3)]
    assert all(len(run) == 1 for run in runs), f"import course pulls in {runs[0][1:]}"
    assert min(float(run[0]) for run in runs) <= 0.2


@pytest.mark.parametrize(
    "module",
    ["hardware", "cost", "roofline", "softmax", "attention", "hbm", "draw", "exercises", "explore"],
)
def test_the_core_needs_neither_torch_nor_triton(module):
    code = f"import course.{module}, sys; print(*{{'torch', 'triton'}} & set(sys.modules))"
    assert in_python(code) == ""


# From what knows nothing to what knows all the rest: a module imports from rows above its own.
LAYERS = """
units tables measure glossary banks
hardware
cost
roofline softmax hbm
attention school serving
check kernels letters train
records ring
draw diagnosis
explore cheatsheet
exercises
"""
RANK = {name: rank for rank, row in enumerate(LAYERS.split("\n")) for name in row.split()}


def imported(path):
    """The part of the course that it needs, for each import of a module, in a function or not."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = [*package[: -node.level], *filter(None, [node.module or ""])]
            start = ".".join(base) if node.level else node.module
            names = [f"{start}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("course.") and name.split(".")[1] in RANK:
                yield name.split(".")[1]


def test_imports_point_one_way():
    wrong = []
    for path in sorted((ROOT / "course").rglob("*.py")):
        part = path.relative_to(ROOT / "course").parts[0].removesuffix(".py")
        if part == "__init__":
            assert not list(imported(path)), "course itself imports nothing"
            continue
        assert part in RANK, f"course.{part} has no place in LAYERS"
        for other in imported(path):
            if other != part and RANK[other] >= RANK[part]:
                wrong.append(f"{path.relative_to(ROOT)} imports course.{other}")
    assert not wrong, wrong


def modules(tree):
    """The names under which a file has modules, imported at its top."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((a.asname or a.name).split(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course"):
            folder = ROOT / node.module.replace(".", "/")
            for a in node.names:
                if (folder / f"{a.name}.py").exists() or (folder / a.name).is_dir():
                    yield a.asname or a.name


def test_no_name_stands_for_a_module_and_for_something_else():
    """A parameter `cost` beside the module `cost` makes a reader look twice."""
    taken = []
    for path in sorted((ROOT / "course").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = set(modules(tree))
        for node in ast.walk(tree):
            name = getattr(node, "arg", None) if isinstance(node, ast.arg) else None
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                name = node.name
            if name in names:
                taken.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert not taken, taken


def test_no_private_name_of_triton_is_imported():
    """D13: they move from version to version."""
    for path in sorted((ROOT / "course").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            private = [n for n in names if n.startswith("triton.") and ("._" in n or "interp" in n)]
            assert not private, f"{path.relative_to(ROOT)}: {private}"


# --- what is read and written -----------------------------------------------------------------


def opens_text(call):
    """Whether a call reads or writes a file as text, in the encoding of the machine if none is given."""
    name = ast.unparse(call.func).rsplit(".", 1)[-1]
    said = {keyword.arg for keyword in call.keywords}
    if name in ("read_text", "write_text"):  # where the encoding stands first, or second
        return "encoding" not in said and len(call.args) <= (name == "write_text")
    method = isinstance(call.func, ast.Attribute)
    if name != "open" or (method and ast.unparse(call.func.value) in ("Image", "os", "tokenize")):
        return False
    modes = [a.value for a in call.args[not method :] if isinstance(a, ast.Constant)]
    return "encoding" not in said and not any("b" in str(mode) for mode in modes)


def test_every_text_file_is_read_and_written_as_utf_8():  # E4
    found = []
    for path in [p for p in committed() if p.suffix == ".py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and opens_text(node):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, found


def test_a_locale_without_utf_8_changes_nothing(tmp_path):  # E4
    code = (
        "import locale, pathlib; from course import draw, explore, records; from course.draw import static\n"
        "from course.exercises import start; from course.kernels.report import report\n"
        "assert not locale.getencoding().lower().startswith('utf'), locale.getencoding()\n"
        "explore.pyramid().still(); records.load('h200'); static.load_all()\n"
        "static.save('online_rescale', pathlib.Path('.'))\n"
        "for cached in (False, True):\n"
        "    print(report('forward', d=64, block_q=32, block_kv=32, num_warps=4))\n"
        "    report.__globals__['_facts'].cache_clear()\n"
    )
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8"}
    env = os.environ | plain | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    *_, first, again = done.stdout.splitlines()
    assert first == again and "registers" in first


# --- what is installed ------------------------------------------------------------------------


def test_the_specs_of_environment_yml_are_conda_specs():
    specs = [spec for spec in ENVIRONMENT["dependencies"] if isinstance(spec, str)]
    names = [MatchSpec(spec).name.normalized for spec in specs]
    assert names == ["python", "pip"]
    assert ENVIRONMENT["channels"] == ["conda-forge"]


PYTHONS = [f"3.{minor}" for minor in (11, 12, 13, 14)]


def test_every_file_names_the_same_pythons():  # E3
    wanted = SpecifierSet(PROJECT["requires-python"])
    assert [f"3.{minor}" for minor in range(30) if f"3.{minor}.2" in wanted] == PYTHONS
    for page in ("README.md", "CONTRIBUTING.md", "Makefile"):
        assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in text(page)
        assert "or newer" not in text(page)
    assert "not (3, 11) <= sys.version_info < (3, 15)" in text("Makefile")


def test_repo2docker_reads_the_python_of_environment_yml():  # E1
    """It looks for this pattern, in the line after another, and for nothing else."""
    (python,) = re.findall(r"python\s*=+\s*([\d\.]*)", ENVIRONMENT["dependencies"][0])
    assert python in PYTHONS


def test_the_pip_lines_install_this_package_with_its_pins():
    (lines,) = [part["pip"] for part in ENVIRONMENT["dependencies"] if isinstance(part, dict)]
    assert lines == ["--constraint constraints.txt", "--editable .[test]"]


def make(command, folder, check=False):
    """Run make as a reader would, not as a part of the `make test` that runs this."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, encoding="utf-8", check=check
    )


@pytest.mark.skipif(not shutil.which("make"), reason="no make on this machine")
def test_make_env_installs_from_those_very_lines():
    show = ["make", "--eval", "show-lines:;@echo $(PIP_LINES)", "show-lines"]
    shown = make(show, ROOT, check=True).stdout
    (lines,) = [part["pip"] for part in ENVIRONMENT["dependencies"] if isinstance(part, dict)]
    assert shown.strip() == " ".join(lines)


@pytest.mark.skipif(not shutil.which("make"), reason="no make on this machine")
def test_lab_serves_the_whole_course():
    """Given only a notebook, JupyterLab serves its folder, and ../figures/ is then out of reach."""
    opens = "jupyter lab --notebook-dir=. notebooks/00_start_here.ipynb"
    assert opens in make(["make", "-n", "lab"], ROOT, check=True).stdout
    assert text("README.md").count("jupyter lab ") == text("README.md").count(opens) == 2


@pytest.mark.parametrize("name", DIRECT)
def test_every_direct_dependency_is_pinned_and_this_run_used_the_pin(name):
    """D13: one version, with ==."""
    pin = PINS[name]
    assert [s.operator for s in pin.specifier] == ["=="] and "*" not in str(pin.specifier)
    if pin.marker is None or pin.marker.evaluate():
        installed = importlib.metadata.version(name).split("+")[0]  # 2.13.0+cpu is 2.13.0
        assert pin.specifier.contains(installed), f"tested with {name} {installed}"


@pytest.mark.parametrize("python", [f"{python}.0" for python in PYTHONS])
def test_every_pin_admits_every_python_that_the_course_does(python):
    """Debian 12 has Python 3.11.2, and a pin that asked for 3.11.5 once stopped `make lab` there."""
    for name, pin in PINS.items():
        if pin.marker is None or pin.marker.evaluate():
            wants = importlib.metadata.metadata(name).get("Requires-Python")
            assert SpecifierSet(wants or "").contains(python), f"{pin} asks for Python {wants}"


def test_every_pin_is_one_version_without_a_build():
    assert len(PINS) == sum(bool(x) and x[0] != "#" for x in LINES)
    for pin in PINS.values():
        assert [s.operator for s in pin.specifier] == ["=="] and "+" not in str(pin.specifier)


@pytest.mark.parametrize("where", [DIRECT, PINS], ids=["pyproject", "constraints"])
def test_triton_is_asked_for_only_where_it_has_wheels(where):
    """D13: no macOS, no Windows."""
    marker = where["triton"].marker
    assert marker.evaluate({"sys_platform": "linux"})
    assert not any(marker.evaluate({"sys_platform": name}) for name in ("darwin", "win32"))


def test_all_data_files_are_packed():
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["course"]
    packed = {pattern.rsplit(".", 1)[1] for pattern in patterns}
    kinds = {path.suffix[1:] for path in committed() if path.is_relative_to(ROOT / "course")}
    assert kinds - {"py"} <= packed


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load(text("CITATION.cff"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


# --- what make says ---------------------------------------------------------------------------


def make_targets():
    return set(re.findall(r"^([a-z]+):(?!=)", text("Makefile"), re.MULTILINE))


def test_every_make_target_that_the_pages_name_exists():
    for page in ROOT.glob("*.md"):
        named = set(re.findall(r"`make ([a-z]+)", page.read_text(encoding="utf-8")))
        assert named <= make_targets(), f"{page.name} names {named - make_targets()}"


@pytest.mark.skipif(not shutil.which("make"), reason="no make on this machine")
@pytest.mark.parametrize(
    ("script", "line"),
    [
        (
            '[ "$1" = --version ] && echo Python 3.9.1 && exit; exit 1',
            "3.11 to 3.14, and .* is Python 3.9.1",
        ),
        (
            '[ "$1" = --version ] && echo Python 3.15.0 && exit; exit 1',
            "3.11 to 3.14, and .* is Python 3.15.0",
        ),
        ("exit 127", "3.11 to 3.14, and .* is missing"),
        ('case "$2" in *venv*) exit 1;; esac', "has no venv module"),
    ],
    ids=["old Python", "new Python", "no Python", "no venv"],
)
def test_what_is_missing_is_said_in_one_line(tmp_path, script, line):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("environment.yml", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "old-python"
    python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    python.chmod(0o755)
    run = ["make", "env", f"PYTHON={python}"]
    done = make(run, tmp_path)
    assert done.returncode and not (tmp_path / ".venv").exists()
    (said,) = done.stdout.splitlines()
    assert re.search(line, said)
    assert len(done.stderr.splitlines()) == 1  # make's own "Error 1"


# --- what must not be said --------------------------------------------------------------------


def test_no_committed_file_names_a_machine():
    here = {str(ROOT), str(Path.home()), tempfile.gettempdir(), sys.prefix} - {"/", "/usr"}
    pattern = re.compile("|".join([notebooks.MACHINE, *map(re.escape, here)]))
    about_it = {ROOT / "tools" / "notebooks.py", ROOT / "tests" / "test_notebooks.py"}
    found = []
    for path in committed():
        try:
            said = re.sub(r"base64,[A-Za-z0-9+/=]+", "", path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        if path not in about_it and (match := pattern.search(said)):
            found.append(f"{os.path.relpath(path, ROOT)}: {match[0]}")
    assert not found, found
