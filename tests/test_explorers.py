"""Every explorer that `course.explore.EXPLORERS` names, at every corner of its ranges."""

import contextlib
import dataclasses
import importlib
import io
import itertools
import json
import math
import numbers
import pathlib
import random
import re
import warnings

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox
from PIL import Image

from course import explore
from course.explore.explorer import positions

CORNERS = 32  # drawn at most, of all combinations of the controls' ends; a fixed choice of them
MECHANISM = {"__init__", "__main__", "explorer"}
NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
# Settings that show what a broken rule does, NaN and overflow included.
BROKEN_ON_PURPOSE = {"online": lambda values: values["rule"] != "right"}


def build(name, **initial):
    return getattr(explore, name)(**initial)


def corners(explorer):
    """All combinations of the ends of the controls, as values."""
    ends = [positions(control) for control in explorer.controls.values()]
    return [
        dict(zip(explorer.controls, values, strict=True)) for values in itertools.product(*ends)
    ]


def sound(name, values):
    """Whether a setting must have finite numbers."""
    return not BROKEN_ON_PURPOSE.get(name, lambda values: False)(values)


def some(items, count):
    return items if len(items) <= count else random.Random(0).sample(items, count)


def move_to(explorer, values):
    """Set every control, then redraw, once."""
    with contextlib.ExitStack() as stack:
        for name, control in explorer.controls.items():
            stack.enter_context(control.hold_trait_notifications())
            control.value = values[name]


def flaws(data, where="data"):
    """The places where there is NaN or +inf; −inf is a masked score or the maximum of nothing."""
    if isinstance(data, dict):
        data = data.items()
    elif dataclasses.is_dataclass(data):
        data = vars(data).items()
    elif isinstance(data, np.ndarray) and data.dtype.kind in "fc":
        return [where] if np.isnan(data).any() or np.isposinf(data).any() else []
    elif isinstance(data, list | tuple):
        data = enumerate(data)
    elif isinstance(data, numbers.Real):
        return [where] if np.isnan(data) or np.isposinf(data) else []
    else:
        return []
    return [flaw for key, value in data for flaw in flaws(value, f"{where}.{key}")]


def tick_labels(figure):
    """The tick labels that a reader sees."""
    for axis in (axis for ax in figure.axes if ax.axison for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for place, label in zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True):
            if low <= place <= high and label.get_visible() and label.get_text():
                yield label


def texts(figure):
    """The texts that a reader sees, tick labels aside."""
    found = [*figure.texts]
    for ax in figure.axes:
        legend = ax.get_legend()
        found += [*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label]
        found += legend.get_texts() if legend else []
    return [t for t in found if t.get_visible() and t.get_text().strip() and not hidden(t)]


def hidden(text):
    """An annotation of a point outside the axes is not drawn."""
    return isinstance(text, Annotation) and not text._check_xy(None)


def box(text):
    return Text.get_window_extent(text)  # of the words of an annotation, without its arrow


def outside(figure):
    """The texts that leave the picture."""
    frame = figure.bbox.padded(1)
    return [
        text.get_text()
        for text in texts(figure)
        if not (frame.contains(*box(text).min) and frame.contains(*box(text).max))
    ]


def overlaps(texts):
    """The pairs of texts that lie on each other."""
    pairs = []
    for a, b in itertools.combinations(texts, 2):
        both = Bbox.intersection(box(a), box(b))
        least = min(box(t).width * box(t).height for t in (a, b))
        if both and both.width * both.height > 0.1 * least:
            pairs.append((a.get_text(), b.get_text()))
    return pairs


def at_the_edge(png):
    """Whether there is ink on the outermost pixels of a picture: something is cropped."""
    picture = pixels(png)
    ring = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
    return (ring != picture[0, 0]).any()


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


@pytest.fixture(params=explore.EXPLORERS)
def name(request):
    return request.param


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_these_checks_can_fail():
    assert flaws({"a": [1.0, {"b": np.array([1, np.nan])}], "c": math.inf, "d": -math.inf}) == [
        "data.a.1.b",
        "data.c",
    ]
    figure = Figure(figsize=(4, 3))
    canvas = FigureCanvasAgg(figure)
    ax = figure.add_axes((0.2, 0.2, 0.7, 0.7), xlim=(0, 1), ylim=(0, 1))
    canvas.draw()
    assert not outside(figure)
    ax.text(0.5, 0.5, "one")
    ax.text(0.55, 0.5, "two")
    ax.text(0.9, 0.1, "too far ————————————")
    ax.annotate("unseen", (2, 2))
    canvas.draw()
    assert outside(figure) == ["too far ————————————"]
    assert overlaps(texts(figure)) == [("one", "two")]
    assert {t.get_text() for t in tick_labels(figure)} == {"0.0", "0.2", "0.4", "0.6", "0.8", "1.0"}
    file = io.BytesIO()
    figure.savefig(file)
    assert at_the_edge(file.getvalue())


def test_every_module_is_registered_and_no_other():
    files = pathlib.Path(explore.__file__).parent.glob("*.py")
    modules = {f.stem for f in files if not f.stem.startswith("_")} - MECHANISM
    assert set(explore.EXPLORERS) == modules


def test_the_four_functions(name):
    module = importlib.import_module(f"course.explore.{name}")
    for function in ("compute", "draw", "describe", name):
        assert getattr(module, function).__doc__, f"{name}.{function} has no docstring"


def test_data_are_finite_at_every_corner(name):
    explorer = build(name)
    for values in some(corners(explorer), 256):
        if sound(name, values):
            assert not flaws(explorer.compute(**values)), values


NEEDS = {  # what a control is about, where that is not what is shown first
    ("serving", "bandwidth"): {"gpu": "my own device"},
    ("serving", "memory"): {"gpu": "my own device"},
}


def test_every_control_moves_through_its_range(name):
    explorer = build(name)
    for key, control in explorer.controls.items():
        for other, value in NEEDS.get((name, key), {}).items():
            explorer.controls[other].value = value
        first, pictures = control.value, set()
        for value in positions(control, 5):
            control.value = value
            assert_words(name, explorer)
            pictures.add(explorer.picture.png + explorer.picture.caption.encode())
        assert len(pictures) > 1, f"{name}: {control.description} changes nothing"
        control.value = first


def test_every_corner_draws_inside_the_picture(name):
    explorer = build(name)
    for values in some(corners(explorer), CORNERS):
        move_to(explorer, values)
        assert_words(name, explorer)
        assert not at_the_edge(explorer.png()), values
        assert not outside(explorer.figure), values


def assert_words(name, explorer):
    words = explorer.picture.caption
    assert words[0].isupper() or words[0].isdigit(), words
    assert words.endswith("."), words
    assert 20 < len(words) < 600, words
    if sound(name, explorer.values):
        assert not re.search(r"\b(nan|inf)\b", words, re.IGNORECASE), words


def test_a_moved_picture_equals_a_fresh_one(name):
    explorer = build(name)
    for values in some(corners(explorer), 4):
        move_to(explorer, values)
        fresh = build(name, **explorer.values)  # where the end of a slider moved, not `values`
        if explorer.png() != fresh.png():
            rows, columns = np.nonzero((pixels(explorer.png()) != pixels(fresh.png())).any(-1))
            area = f"x {columns.min()}–{columns.max()}, y {rows.min()}–{rows.max()}"
            pytest.fail(f"forgotten by move(), in pixels {area}: {values}")


def test_the_picture_is_matplotlibs_own(name):
    """What moves is painted last, so an artist meant to lie on top of it must be returned too."""
    explorer = build(name)
    move_to(explorer, corners(explorer)[-1])
    file = io.BytesIO()
    explorer.figure.savefig(file, dpi=100)
    differs = np.abs(pixels(explorer.png()) - pixels(file.getvalue())).max(axis=-1) > 64
    assert differs.mean() < 0.005


def test_a_sharper_picture_is_the_same_picture(name):
    """Drawn for a sharp screen, moved there, and looked at from twice as far."""
    explorer, plain = build(name), build(name)
    explorer.picture.ratio = 2
    for values in some(corners(explorer), 2):
        move_to(explorer, values)
        move_to(plain, values)
        near, far = Image.open(io.BytesIO(explorer.png())), Image.open(io.BytesIO(plain.png()))
        assert near.size == (2 * far.width, 2 * far.height)
        blurred = (np.asarray(near.reduce(16)).astype(int), np.asarray(far.reduce(8)).astype(int))
        assert np.abs(blurred[0] - blurred[1]).max() < 100, values
        assert np.abs(blurred[0] - blurred[1]).mean() < 2, values


def test_texts_are_legible_and_apart_at_first(name):
    explorer = build(name)
    seen = [*texts(explorer.figure), *tick_labels(explorer.figure)]
    for text in seen:
        assert text.get_fontsize() >= 9, text.get_text()
    assert not overlaps(seen)


def test_the_first_picture_is_small_enough_to_store(name):
    assert len(build(name).still()) < 150_000


# --- in the notebooks -------------------------------------------------------------------------


def explorer_cells():
    """The first code cell of each notebook, and each of its cells that shows an explorer."""
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        first, *others = (cell for cell in cells if cell["cell_type"] == "code")
        for cell in others:
            if "explore." in "".join(cell["source"]):
                yield pytest.param(first, cell, id=f"{path.stem}: {cell['id']}")


@pytest.mark.parametrize(("first", "cell"), [*explorer_cells()])
def test_after_a_restart_two_cells_move_the_picture_as_its_words_say(first, cell):
    namespace = {}
    exec("".join(first["source"]), namespace)
    explorer = eval("".join(cell["source"]), namespace)
    assert isinstance(explorer, explore.Explorer)
    explorer.close()
    stored = "".join(cell["outputs"][0]["data"]["text/html"])
    assert "To move it, run the first code cell, then this one." in stored
