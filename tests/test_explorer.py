"""The mechanism behind every explorer: no kernel and no browser needed."""

import base64
import importlib
import io
import math
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import types

import ipywidgets as widgets
import nbclient
import nbformat
import numpy as np
import pytest
from PIL import Image

from course import explore
from course.explore import explorer as mechanism
from course.explore.explorer import Explorer, positions

X = np.linspace(0, 1, 50)


def compute(power, scale, kind):
    return {"power": power, "y": scale * X**power, "kind": kind}


def draw(fig, data):
    ax = fig.subplots()
    ax.set(xlim=(0, 1), ylim=(0, 2))
    (curve,) = ax.plot(X, data["y"])
    name = ax.set_title("")
    label = ax.text(0.1, 1.5, "")

    def move(data):
        curve.set_ydata(data["y"])
        name.set_text(f"power {data['power']}")
        label.set_text(data["kind"])
        return [curve, name, label]

    return move


def describe(data):
    return f"Power {data['power']}, <{data['kind']}>."


def changing(fig, data):
    ax = fig.subplots()
    ax.set(xlim=(0, 10), ylim=(0, 1))
    bars = ax.bar(range(10), 0.5)
    tick = ax.axvline(5)

    def move(data):
        for i, bar in enumerate(bars):
            bar.set_height(1 if i < data["power"] else 0.5)
        if data["power"] < 5:
            return [*bars]
        tick.set_xdata([data["power"]] * 2)
        return [*bars, tick]

    return move


def toy(draw=draw, compute=compute, play=None, ends=(), **initial):
    controls = {
        "power": widgets.IntSlider(2, min=1, max=9, description="power"),
        "scale": widgets.FloatLogSlider(1, min=-2, max=0, step=0.1, description="scale"),
        "kind": widgets.Dropdown(options=[("a word", "A"), ("b word", "B")], description="kind"),
    }
    return Explorer(
        compute, draw, describe, controls, 'A "power"', initial=initial, play=play, ends=ends,
        size=(4, 3),
    )  # fmt: skip


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_code_that_sets_a_control_gets_its_picture_at_once():
    e = toy()
    first = e.picture.png
    e.controls["power"].value = 5
    assert e.data["power"] == 5
    assert e.picture.caption == "Power 5, <A>."
    assert e.picture.png != first
    e.controls["power"].value = 2
    assert e.picture.png == first


def test_moved_picture_equals_a_fresh_one():
    e = toy()
    for power, scale, kind in [(9, 0.01, "B"), (1, 1.0, "A"), (3, 0.1, "B")]:
        e.controls["power"].value, e.controls["scale"].value = power, scale
        e.controls["kind"].value = kind
        assert e.png() == toy(**e.values).png()


def test_that_comparison_sees_a_forgotten_artist():
    def forgetful(fig, data):
        move = draw(fig, data)
        return lambda data: move(data)[1:]

    e = toy(forgetful)
    e.controls["power"].value = 9
    assert e.png() != toy(forgetful, power=9).png()


def test_against_matplotlibs_own_draw():
    e = toy()
    e.controls["power"].value = 7
    file = io.BytesIO()
    e.figure.savefig(file, dpi=100)
    differs = np.abs(pixels(e.png()) - pixels(file.getvalue())).max(axis=-1) > 32
    assert differs.mean() < 0.01


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (7, 5), (64, 300)])
def test_the_quick_png_holds_the_same_pixels(shape):
    rng = np.random.default_rng(0)
    for rgba in (rng.integers(0, 256, (*shape, 4), np.uint8), np.full((*shape, 4), 255, np.uint8)):
        image = Image.open(io.BytesIO(mechanism._quick_png(rgba)))
        image.load()
        assert image.mode == "RGBA" and (np.asarray(image) == rgba).all()


@pytest.mark.parametrize(
    ("ratio", "drawn"), [(0.5, 1), (1, 1), (1.25, 1.25), (1.5, 1.5), (2, 2), (3, 2), (math.inf, 2)]
)
def test_a_picture_has_the_pixels_of_the_screen_up_to_two_for_one(ratio, drawn):
    e = toy()
    e.picture.ratio = ratio
    assert pixels(e.picture.png).shape == (300 * drawn, 400 * drawn, 3)
    for power in (3, 9):  # and stays so
        e.controls["power"].value = power
        fresh = toy(power=power)
        fresh.picture.ratio = ratio
        assert e.picture.png == fresh.picture.png
    assert e.picture.width == 400


def test_artists_may_come_and_go():
    e = toy(changing)
    for power, ratio in [(8, 1), (3, 1), (3, 2), (8, 2), (8, 1)]:
        e.controls["power"].value, e.picture.ratio = power, ratio
        # matplotlib's own has the bars, and the line where it was left
        file = io.BytesIO()
        e.figure.savefig(file, dpi=100 * ratio)
        assert (np.abs(pixels(e.png()) - pixels(file.getvalue())).max(axis=-1) > 32).mean() < 0.01


def test_axes_may_change_their_limits_when_they_are_returned_too():
    def zooming(fig, data):
        ax = fig.subplots()
        (curve,) = ax.plot(X, data["y"])

        def move(data):
            curve.set_ydata(data["y"])
            ax.set_ylim(0, data["y"].max())
            return [ax, curve]

        return move

    e = toy(zooming)
    e.controls["scale"].value = 0.01
    assert e.png() == toy(zooming, scale=0.01).png()


def test_a_failing_setting_is_seen_and_going_back_draws_again():
    """D3 and D8: the error is in the output itself, and a cell that sets a control raises it."""

    def fragile(power, **rest):
        if power == 9:
            raise ValueError("9 is too much: choose less")
        return compute(power=power, **rest)

    e = toy(compute=fragile)
    first = e.picture.png
    with pytest.raises(ValueError, match="too much"):
        e.controls["power"].value = 9
    assert e.picture.error == "This setting failed. ValueError: 9 is too much: choose less"
    assert e.picture.png == first
    e.controls["power"].value = 2
    assert e.picture.error == ""
    assert e.picture.png == first


def test_a_value_from_the_browser_fails_in_sight():
    """D3 and D8, as JupyterLab sends it: a message that no cell runs."""

    def fragile(power, **rest):
        return compute(power=1 / (9 - power), **rest)

    e = toy(compute=fragile)
    with pytest.raises(ZeroDivisionError):
        e.controls["power"].set_state({"value": 9})
    assert "ZeroDivisionError" in e.picture.error


def test_a_picture_never_stands_with_another_settings_words():
    e = toy()
    first = e.picture.png, e.picture.caption
    e.describe = lambda data: data["no such thing"]
    with pytest.raises(KeyError):
        e.controls["power"].value = 5
    assert (e.picture.png, e.picture.caption) == first


def test_close_stops_following_and_drops_the_widgets():
    before = set(widgets.widget._instances)
    e = toy(play="power")
    assert set(widgets.widget._instances) > before
    e.close()
    e.controls["power"].value = 9
    assert e.data["power"] == 2
    assert set(widgets.widget._instances) == before


def test_slow_moves_from_two_threads_end_at_the_last_value():
    """D7: JupyterLab moves sliders in a subshell thread while a cell runs in the main one."""
    inside = []

    def slow(power, **rest):
        inside.append(power)
        time.sleep(0.03)
        assert inside.pop() == power, "two threads at once"
        return compute(power=power, **rest)

    e = toy(compute=slow)

    def set_powers(powers):
        for power in powers:
            e.controls["power"].value = power

    threads = [threading.Thread(target=set_powers, args=[p]) for p in ([3, 5, 7], [4, 6, 8])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert e.data["power"] == e.controls["power"].value
    assert e.png() == toy(**e.values).png()


def test_no_figure_is_left_behind_and_pyplot_is_not_loaded():
    """D6: fifty moves, one figure."""
    code = (
        "import sys, gc, test_explorer as t\n"
        "from matplotlib.figure import Figure\n"
        "e = t.toy()\n"
        "for i in range(50): e.controls['power'].value = 1 + i % 9\n"
        "gc.collect()\n"
        "assert sum(isinstance(o, Figure) for o in gc.get_objects()) == 1\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    tests = {"PYTHONPATH": str(pathlib.Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | tests)


def test_initial_values():
    assert toy(power=5, kind="B").values == {"power": 5, "scale": 1.0, "kind": "B"}


@pytest.mark.parametrize(
    ("initial", "says"),
    [
        ({"powr": 3}, "no control is named 'powr'; there are power, scale, kind"),
        ({"power": 10}, "power = 10 is not on its control, which goes from 1 to 9"),
        ({"kind": "C"}, "kind = 'C' is not on its control"),
        ({"power": "x"}, "power = 'x' is not on its control"),
    ],
)
def test_an_initial_value_that_no_control_takes(initial, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        toy(**initial)


def test_a_control_without_a_name_is_refused():
    with pytest.raises(ValueError, match="needs a description"):
        Explorer(
            lambda x: {"power": x, "y": X, "kind": ""},
            draw,
            describe,
            {"x": widgets.IntSlider(1, 0, 3)},
            "t",
        )


def test_positions_span_each_kind_of_control():
    assert positions(widgets.IntSlider(1, min=1, max=9)) == [1, 9]
    assert positions(widgets.IntSlider(64, min=64, max=500, step=64)) == [64, 448]
    assert positions(widgets.FloatSlider(0, min=0, max=1, step=0.1), 3) == [0, 0.5, 1]
    assert positions(widgets.FloatLogSlider(1, min=0, max=2), 3) == [1, 10, 100]
    assert positions(widgets.Dropdown(options=["a", "b", "c"]), 9) == ["a", "b", "c"]
    assert positions(widgets.SelectionSlider(options=[("1 Ki", 1024), ("2 Ki", 2048)])) == [
        1024,
        2048,
    ]
    assert positions(widgets.Checkbox(True)) == [False, True]


def test_play_steps_its_slider_through_a_link_in_the_browser():
    e = toy(play="power")
    (play,) = [w for w in mechanism._family(e.box) if isinstance(w, widgets.Play)]
    assert (play.min, play.max, play.value) == (1, 9, 2)
    assert play.link.source == (play, "value")
    assert play.link.target == (e.controls["power"], "value")


def test_a_slider_may_end_where_the_others_say():
    def to_scale(values):
        return 9 if values["scale"] == 1 else 3

    e = toy(play="power", ends={"power": to_scale}, power=8)
    (play,) = [w for w in mechanism._family(e.box) if isinstance(w, widgets.Play)]
    drawn = []
    e._move = lambda data, move=e._move: [drawn.append(data["power"]), *move(data)][1:]
    e.controls["scale"].value = 0.1
    assert (e.controls["power"].max, play.max, e.values["power"]) == (3, 3, 3)
    assert drawn == [3] and e.picture.caption == "Power 3, <A>."  # at once, and once
    e.controls["scale"].value = 1
    assert (e.controls["power"].max, play.max, e.values["power"]) == (9, 9, 3)
    assert toy(ends={"power": to_scale}, power=3, scale=0.1).values["power"] == 3
    with pytest.raises(ValueError, match="power = 8 is not on its control, which goes from 1 to 3"):
        toy(ends={"power": to_scale}, power=8, scale=0.1)


@pytest.fixture
def shown(monkeypatch):
    """Display explorers as a cell would; returns the outputs."""
    outputs = []
    shell = types.SimpleNamespace(parent_header={"metadata": {"cellId": "c1"}})
    monkeypatch.setattr(mechanism, "get_ipython", lambda: shell)
    monkeypatch.setattr(mechanism, "display", lambda data, raw: outputs.append(data))
    monkeypatch.setattr(Explorer, "_shown_in", {})
    return outputs


def test_two_outputs_the_stored_picture_with_its_words_then_the_widget(shown):
    e = toy()
    e._ipython_display_()
    still, live = shown
    assert set(still) == {"text/html", "text/plain"}
    assert still["text/plain"] == 'A "power". Power 2, <A>.'
    assert 'alt="A &quot;power&quot;"' in still["text/html"]
    assert "Power 2, &lt;A&gt;." in still["text/html"]
    assert "run the first code cell, then this one" in still["text/html"]
    stored = base64.b64decode(re.search(r"base64,([^\"]+)", still["text/html"])[1])
    assert np.abs(pixels(stored) - pixels(e.png())).mean() < 1
    assert live[mechanism.VIEW]["model_id"] == e.box.model_id


def test_running_a_cell_again_drops_the_explorer_it_showed_before(shown):
    """D6: no second callback."""
    first, second = toy(), toy()
    first._ipython_display_()
    first._ipython_display_()  # the same one again stays alive
    first.controls["power"].value = 3
    assert first.data["power"] == 3
    second._ipython_display_()
    first.controls["power"].value = 4
    assert first.data["power"] == 3
    second.controls["power"].value = 5
    assert second.data["power"] == 5


def test_strict_nbval_passes_on_a_stored_explorer(tmp_path):
    """D2: no ignore tag; both outputs are compared, save the pixels."""
    here = str(pathlib.Path(__file__).parent)
    source = f"import sys\nsys.path[:0] = [{here!r}]\nfrom test_explorer import toy"
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source), nbformat.v4.new_code_cell("toy(play='power')")],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbclient.NotebookClient(notebook, store_widget_state=False).execute()
    assert [o.output_type for o in notebook.cells[1].outputs] == ["display_data"] * 2
    assert "widgets" not in notebook.metadata

    def nbval():
        nbformat.write(notebook, tmp_path / "n.ipynb")
        command = "-m pytest -q -p no:cacheprovider --nbval --nbval-current-env --rootdir ."
        sanitize = ["--nbval-sanitize-with", "tests/nbval_sanitize.cfg"]
        return subprocess.run(
            [sys.executable, *command.split(), *sanitize, tmp_path / "n.ipynb"],
            capture_output=True,
            encoding="utf-8",
        )

    assert (run := nbval()).returncode == 0, run.stdout
    html = notebook.cells[1].outputs[0].data["text/html"]
    notebook.cells[1].outputs[0].data["text/html"] = html.replace("Power 2", "Power 3")
    assert nbval().returncode == 1


def test_an_explorers_name_is_its_builder_however_its_module_is_loaded(monkeypatch):
    module = types.ModuleType("course.explore.toy")
    module.toy, module.compute = toy, compute
    monkeypatch.setattr(explore, "EXPLORERS", ("toy",))
    monkeypatch.setitem(sys.modules, "course.explore.toy", module)
    try:
        explore.toy = module  # what Python's import does last
        assert explore.toy is toy
        assert importlib.import_module("course.explore.toy").compute is compute
    finally:
        del explore.toy
    with pytest.raises(AttributeError, match="no explorer 'tyo'; there are toy"):
        _ = explore.tyo


def test_naming_the_package_loads_no_explorer():
    code = (
        "import sys, course.explore\n"
        "assert not {'numpy', 'matplotlib', 'ipywidgets'} & set(sys.modules)\n"
        "course.explore.Explorer\n"
        "assert not {'torch', 'triton', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
