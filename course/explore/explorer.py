"""`Explorer`: controls above one picture that follows them at once.

An explorer is one module in this package. It has four functions, and only the last knows of
widgets. A whole one, `course/explore/power.py`:

    import ipywidgets as widgets
    import numpy as np

    from course import draw as _theme  # sets fonts and colours once
    from course.explore.explorer import Explorer

    X = np.linspace(0, 1, 200)


    def compute(power):
        '''The numbers of one setting, from the values of the controls. Pure: no widget, no figure.'''
        return {"power": power, "y": X**power}


    def draw(fig, data):
        '''Builds the picture once; returns the function that moves it.'''
        fig.subplots_adjust(left=0.08, right=0.98, bottom=0.15, top=0.9)
        ax = fig.subplots()
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="x")
        (curve,) = ax.plot(X, data["y"])
        name = ax.set_title("")

        def move(data):
            curve.set_ydata(data["y"])
            name.set_text(f"x to the power {data['power']:.1f}")
            return [curve, name]  # every artist changed here, none forgotten

        return move


    def describe(data):
        '''What the picture shows, in words: the caption, also read aloud.'''
        return f"At power {data['power']:.1f}, half of x gives {0.5 ** data['power']:.2f}."


    def power(**initial):
        '''The explorer, at other first values if given: `power(power=3)`.'''
        controls = {"power": widgets.FloatSlider(2, min=0.1, max=9, step=0.1, description="power")}
        return Explorer(compute, draw, describe, controls, "A power of x", initial=initial)

Add its name to `EXPLORERS` in `course/explore/__init__.py`: then `explore.power()` as the last
expression of a cell shows it, and the tests and `make bench` cover it.

A move redraws only the artists that `move` returns; all else stays as pixels. So:

- Build every artist in `draw`, also those that are hidden at first; show them with `set_visible`.
- Fix the limits of the axes in `draw`. If they must change, return the `Axes` itself as well: right,
  but slow (some 30 ms).
- Measure in points, inches or data, not in pixels: a sharp screen has twice as many.
- What moves is painted after what does not. Return a legend or a label too if it must stay on top.
- Use `fig.subplots_adjust`: tight and constrained layouts cost 100 ms, minor ticks on log axes 35.
"""

import base64
import html
import io
import pathlib
import struct
import threading
import zlib

import anywidget
import ipywidgets as widgets
import numpy as np
import traitlets
from IPython import get_ipython
from IPython.display import display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

HERE = pathlib.Path(__file__).parent
STYLE = (HERE / "still.css").read_text(encoding="utf-8")
VIEW = "application/vnd.jupyter.widget-view+json"
DPI, SHARPEST = 100, 2  # pixels per inch on a plain screen; the most pixels drawn for each of those


class Picture(anywidget.AnyWidget):
    """The picture and its caption in the browser; also looks after the controls around it."""

    png = traitlets.Bytes().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    caption = traitlets.Unicode().tag(sync=True)
    error = traitlets.Unicode().tag(sync=True)
    width = traitlets.Int().tag(sync=True)
    ratio = traitlets.Float(1).tag(sync=True)  # the browser's: pixels of its screen per CSS pixel
    _esm = HERE / "explorer.js"
    _css = HERE / "explorer.css"


class Explorer:
    """Controls above one picture that follows them at once. The module's docstring shows a whole one.

    compute(**values) -> data     the numbers of one setting, from the values of the controls
    draw(figure, data) -> move    builds the picture; `move(data)` returns the artists it changed
    describe(data) -> str         a sentence or two that say what the picture shows
    controls                      {name: widget with a value, a range or options, a description}
    title                         what the picture is, in a few words: its text alternative
    initial                       {name: value}: first values other than the controls' own
    play                          the name of the `IntSlider` that gets a play button
    ends                          {name: last(values)}: where a slider ends, given all values
    size                          of the picture, in inches of 100 pixels

    Raises `ValueError` for an initial value that no control has or takes.
    """

    _lock = threading.RLock()  # JupyterLab moves sliders in a second thread; matplotlib wants one
    _shown_in = {}  # noqa: RUF012 - of the class: cell id -> the explorer that the cell showed last

    def __init__(
        self, compute, draw, describe, controls, title, *, initial=(), play=None, ends=(),
        size=(10, 4.5),
    ):  # fmt: skip
        """Build the picture at the first values."""
        self.compute, self.describe, self.controls, self.title = compute, describe, controls, title
        self.data, self._ends = None, dict(ends)
        self._drawn = self._moving = self._still = None
        self._end_sliders()
        initial = dict(initial)
        for name in 2 * sorted(initial, key=[*controls, *initial].index):  # one may end another
            set_control(controls, name, initial[name])
            self._end_sliders()
        self.figure = Figure(figsize=size, dpi=DPI)  # not pyplot's: no global state, none to close
        self._canvas = FigureCanvasAgg(self.figure)
        self.picture = Picture(title=title, width=round(DPI * size[0]))
        with self._lock:
            self._move = draw(self.figure, compute(**self.values))
            self.redraw()
        self.box = widgets.VBox([_grid(controls, play), self.picture])
        self.box.add_class("course-explorer")
        for control in controls.values():
            control.observe(self._changed, "value")
        self.picture.observe(self._sharpen, "ratio")

    @property
    def values(self):
        """The value of each control, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def _changed(self, _change):
        # At once, not deferred: a browser holds a slider's next value until this one is drawn, and
        # sends only the newest. So moves never queue up and the last value wins.
        try:
            self._end_sliders()
            self.redraw()
        except Exception as error:
            # A move from the browser runs in no cell, so the traceback goes unseen: say it here.
            self.picture.error = f"This setting failed. {type(error).__name__}: {error}"
            raise

    def _end_sliders(self):
        for name, last in self._ends.items():  # a value beyond the new end moves to it
            self.controls[name].max = last(self.values)

    def _sharpen(self, change):
        with self._lock:
            self.figure.dpi = DPI * min(max(1, change.new), SHARPEST)
            self._still = self._drawn = None  # nothing drawn so far has the right size
            self.redraw()

    def redraw(self):
        """Show the picture and the words for the values that the controls have now."""
        with self._lock:
            values = self.values
            if values == self._drawn:
                return
            self._drawn = None  # if this fails, going back to the old values must draw again
            self.data = self.compute(**values)
            self._paint(self._move(self.data))
            png, caption = self.png(), self.describe(self.data)
            with self.picture.hold_sync():  # picture and words travel in one message
                self.picture.png, self.picture.caption, self.picture.error = png, caption, ""
            self._drawn = values

    def _paint(self, changed):
        """Draw the changed artists over the pixels of all others."""
        moving = sorted(changed, key=lambda artist: artist.zorder)
        if moving != self._moving or self._still is None:  # first, or other artists than before
            for artist in self._moving or ():
                artist.set_animated(False)
            for artist in moving:
                artist.set_animated(True)  # left out of canvas.draw
            self._canvas.draw()
            self._still = self._canvas.copy_from_bbox(self.figure.bbox)
            self._moving = moving
        self._canvas.restore_region(self._still)
        for artist in moving:
            self.figure.draw_artist(artist)

    def png(self, *, colours=None):
        """The picture as PNG: quickly, or small with a palette of so many colours."""
        pixels = np.asarray(self._canvas.buffer_rgba())
        if not colours:
            return _quick_png(pixels)
        file = io.BytesIO()
        Image.fromarray(pixels).convert("RGB").quantize(colours).save(file, "PNG", compress_level=9)
        return file.getvalue()

    def still(self):
        """The picture and its caption as HTML that needs no kernel."""
        picture = base64.b64encode(self.png(colours=128)).decode()
        return (
            f"<style>{STYLE}</style>"
            '<figure class="course-explorer-still">'
            f'<img alt="{html.escape(self.title)}" width="{self.picture.width}"'
            f' src="data:image/png;base64,{picture}">'
            f"<figcaption>{html.escape(self.picture.caption)}"
            " <em>This picture stands still. To move it, run the first code cell, then this one.</em>"
            "</figcaption></figure>"
        )

    def close(self):
        """Stop following the controls and drop the widgets."""
        for widget in _family(self.box):
            widget.unobserve_all()
            widget.close()

    def _ipython_display_(self):
        # Two outputs, because one that holds both a widget and a picture shows neither where no
        # kernel runs: the stored first picture, for any viewer, then the live widget. still.css
        # shows exactly one of them.
        shell = get_ipython()
        parent = getattr(shell, "parent_header", None) or {}
        cell = parent.get("metadata", {}).get("cellId")
        if cell:  # run again: the explorer that this cell showed before is out of sight, so drop it
            before = self._shown_in.pop(cell, self)
            if before is not self:
                before.close()
            self._shown_in[cell] = self
        words = f"{self.title}. {self.picture.caption}"
        display({"text/html": self.still(), "text/plain": words}, raw=True)
        view = {"model_id": self.box.model_id, "version_major": 2, "version_minor": 0}
        display({VIEW: view, "text/plain": ""}, raw=True)


def set_control(controls, name, value):
    """Set one control; raise `ValueError` if there is none of that name or it does not take it."""
    if name not in controls:
        raise ValueError(f"no control is named {name!r}; there are {', '.join(controls)}")
    control = controls[name]
    try:
        control.value = value
        taken = control.value == value
    except traitlets.TraitError:
        taken = False
    if not taken:  # a slider moves a value into its range without a word
        ends = positions(control)
        raise ValueError(
            f"{name} = {value!r} is not on its control, which goes from {ends[0]!r} to {ends[-1]!r}"
        )


def positions(control, count=2):
    """`count` values spread evenly over a control, its ends included; fewer if it has fewer."""
    if hasattr(control, "options"):
        options = [value for _label, value in control._options_full]
    elif isinstance(control.value, bool):
        options = [False, True]
    elif isinstance(control, widgets.FloatLogSlider):
        return [float(v) for v in np.logspace(control.min, control.max, count, base=control.base)]
    else:
        steps = int((control.max - control.min) / control.step + 1e-9)
        options = [control.min + control.step * i for i in range(steps + 1)]
    picked = np.unique(np.linspace(0, len(options) - 1, count).round().astype(int))
    return [options[i] for i in picked]


def _quick_png(pixels):
    """Pixels (rows, columns, 4) of bytes as PNG, in 0.4 of the time that Pillow takes.

    Pillow tries five filters on each row. Here each row is stored as what it differs by from the
    one above: zeros wherever a figure is flat.
    """
    height, width = pixels.shape[:2]
    rows = np.empty((height, 1 + 4 * width), np.uint8)
    rows[:, 0] = 2  # the name of that filter
    flat = pixels.reshape(height, 4 * width)
    rows[0, 1:] = flat[0]
    np.subtract(flat[1:], flat[:-1], out=rows[1:, 1:])
    header = struct.pack(
        ">IIBBBBB", width, height, 8, 6, 0, 0, 0
    )  # 8 bits of red, green, blue, alpha
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows, level=1)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _grid(controls, play):
    """The controls in as many columns as fit, their names aligned."""
    longest = max(len(control.description) for control in controls.values())
    cells = []
    for name, control in controls.items():
        if not control.description:
            raise ValueError(f"the control {name!r} needs a description: its name, seen and spoken")
        control.style.description_width = f"{longest}ch"
        control.layout.width = "auto"
        if name == play:
            control.layout.flex = "1"
            control = widgets.HBox([control, _play_button(control)])
        cells.append(control)
    columns = f"repeat(auto-fit, minmax(max(18rem, {longest + 26}ch), 1fr))"
    return widgets.GridBox(
        cells, layout=widgets.Layout(grid_template_columns=columns, grid_gap="0 1.5rem")
    )


def _play_button(slider):
    """A button that steps the slider to its end; the two are linked in the browser."""
    play = widgets.Play(
        min=slider.min,
        max=slider.max,
        step=slider.step,
        value=slider.value,
        interval=700,
        show_repeat=False,
        layout=widgets.Layout(width="5rem"),
    )
    play.link = widgets.jslink((play, "value"), (slider, "value"))
    slider.observe(lambda change: setattr(play, "max", change.new), "max")
    return play


def _family(widget):
    """A widget, those below it, and their layouts, styles and links."""
    yield widget
    for name in ("layout", "style", "link"):
        if hasattr(widget, name):
            yield getattr(widget, name)
    for child in getattr(widget, "children", ()):
        yield from _family(child)
