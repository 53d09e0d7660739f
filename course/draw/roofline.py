"""The roofline: attainable FLOP/s against arithmetic intensity, and operations on it.

`roofline(ax, gpu, points)` is the whole picture. An explorer builds a `Roof` once and moves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from course import cost, units
from course import roofline as model
from course.cost import Cost
from course.draw.labels import along, place, text_size
from course.draw.static import static
from course.draw.theme import ACCENT, FLOWS, INK, LEVELS, PAPER, SOFT
from course.hardware import GPUS, Gpu

MEMORY = LEVELS["hbm"].colour  # the slope is the memory's
SMALL = 12


class Point(NamedTuple):
    """An operation on the roofline; without a measured rate it sits on the roof."""

    name: str
    intensity: float  # FLOP/byte
    rate: float | None = None  # FLOP/s, measured
    flow: str | None = None  # one of theme.FLOWS, for its colour and marker

    @classmethod
    def of(
        cls, name: str, count: Cost, *, seconds: float | None = None, flow: str | None = None
    ) -> Point:
        """From a counted cost and, where it was measured, the seconds that it took."""
        return cls(name, count.intensity, seconds and count.flops / seconds, flow)

    @classmethod
    def measured(cls, record: dict) -> Point:
        """From a measured point of `course.records`: {"name", "flops", "bytes", "seconds"}."""
        rate = record["flops"] / record["seconds"]
        return cls(record["name"], record["flops"] / record["bytes"], rate, "measured")


class Roof:
    """The roof of one GPU on log-log axes: slope, flat part, ridge, and their labels.

    The limits of the axes must be set before, and where the axes lie must be settled.
    """

    def __init__(self, ax, *, colour: str = INK, dash="-"):
        self.ax = ax
        (self.slope,) = ax.plot([], [], color=MEMORY, linestyle=dash, lw=3.5, zorder=2.5)
        (self.flat,) = ax.plot([], [], color=colour, linestyle=dash, lw=3.5, zorder=2.5)
        (self.ridge,) = ax.plot([], [], color=SOFT, ls=(0, (4, 3)), lw=1.3, zorder=2)
        self.waiting = ax.axvspan(1, 2, color=MEMORY, alpha=0.07, lw=0, zorder=0)
        text = dict(fontsize=SMALL, zorder=2.6)
        self.slope_name = ax.text(1, 1, "", color=MEMORY, rotation_mode="anchor", ha="center",
                                  va="bottom", rotation=slope_angle(ax), **text)  # fmt: skip
        self.flat_name = ax.text(1, 1, "", ha="center", va="top", **text)
        self.ridge_name = ax.text(1, 1, "", ha="left", va="bottom", color=INK, **text)

    def move(self, gpu: Gpu, dtype: str = "fp16", *, points: Iterable[float] = ()) -> list:
        """Show the roof of another GPU or data type; the artists that changed.

        `points` are intensities: names are written where the roof is free of them longest.
        """
        (left, right), bottom = self.ax.get_xlim(), self.ax.get_ylim()[0]
        ridge, peak = model.ridge(gpu, dtype), gpu.peak_for(dtype)
        start = max(left, bottom / gpu.bandwidth)
        self.slope.set_data([start, ridge], [start * gpu.bandwidth, peak])
        self.flat.set_data([ridge, right], [peak, peak])
        self.ridge.set_data([ridge, ridge], [bottom, peak])
        self.waiting.set(x=left, width=ridge - left)
        self.slope_name.set_text(units.decimal(gpu.bandwidth, "B/s"))
        # The text leans to the left of its place, and must not leave the axes there.
        room = np.array([15, 15 + text_size(self.slope_name.get_text(), SMALL)[0] / 2])
        room = room * np.cos(np.radians(slope_angle(self.ax)))
        first, inside = (shift(self.ax, start, bottom, right, 0)[0] for right in room)
        middle = max(_widest(first, ridge, points), inside)
        self.slope_name.set_position(self._above(middle, middle * gpu.bandwidth))
        self.flat_name.set_text(f"peak {units.decimal(peak, 'FLOP/s')}")
        reach = text_size(self.flat_name.get_text(), SMALL)[0] / 2
        least, most = (
            shift(self.ax, x, peak, by, 0)[0] for x, by in ((ridge, reach), (right, -reach))
        )
        middle = min(max(_widest(ridge, right, points), least), most)
        self.flat_name.set_position(shift(self.ax, middle, peak, 0, -7))
        self.ridge_name.set_text(f"ridge {number(ridge)} FLOP/byte")
        self.ridge_name.set_position(shift(self.ax, ridge, bottom, 5, 4))
        return self.artists

    def _above(self, x, y):
        """A little above the slope, at right angles to it."""
        angle = np.radians(slope_angle(self.ax))
        return shift(self.ax, x, y, -5 * np.sin(angle), 5 * np.cos(angle))

    @property
    def artists(self) -> list:
        """All that `move` changes."""
        return [self.waiting, self.ridge, self.slope, self.flat,
                self.slope_name, self.flat_name, self.ridge_name]  # fmt: skip

    def obstacles(self) -> np.ndarray:
        """Boxes, in points, that the labels of points should keep off."""
        boxes = [along(to_points(self.ax, line.get_xydata())) for line in (self.slope, self.flat)]
        boxes.append(along(to_points(self.ax, self.ridge.get_xydata()), thickness=1))
        for name, fall in ((self.flat_name, -1), (self.ridge_name, 0)):
            (x, y), (w, h) = (
                to_points(self.ax, [name.get_position()])[0],
                text_size(name.get_text(), SMALL),
            )
            x -= w / 2 if name.get_ha() == "center" else 0
            y += fall * h
            boxes.append([[x - 6, y, x + w + 6, y + h]])  # two names in a row need a gap
        middle = to_points(self.ax, [self.slope_name.get_position()])[0]
        angle = np.radians(slope_angle(self.ax))
        reach = text_size(self.slope_name.get_text(), SMALL)[0] / 2
        reach = reach * np.array([np.cos(angle), np.sin(angle)])
        up = SMALL / 2 * np.array([-np.sin(angle), np.cos(angle)])
        boxes.append(along([middle + up - reach, middle + up + reach], thickness=SMALL))
        return np.concatenate(boxes)


def _widest(start, end, points):
    """The middle of the widest piece between start and end that has no point in it."""
    stops = sorted([start, end, *(x for x in points if start < x < end)])
    low, high = max(pairwise(stops), key=lambda piece: piece[1] / piece[0])
    return np.sqrt(low * high)


def axes(ax, xlim: tuple[float, float], ylim: tuple[float, float], *, steps=(1,)) -> None:
    """Make `ax` a roofline's axes: both logarithmic, a tick at each of `steps` times 10, 100, …"""
    ax.set(xscale="log", yscale="log", xlim=xlim, ylim=ylim)
    ax.set_xlabel("arithmetic intensity (FLOP per byte moved)")
    ax.set_ylabel("attainable rate")
    for axis, limits in ((ax.xaxis, xlim), (ax.yaxis, ylim)):
        powers = 10.0 ** np.arange(np.floor(np.log10(limits[0])), np.ceil(np.log10(limits[1])) + 1)
        ticks = np.outer(powers, steps).ravel()
        inside = (limits[0] <= ticks) & (ticks <= limits[1])
        axis.set_major_locator(FixedLocator(ticks[inside]))
        axis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: units.decimal(y, "FLOP/s")))
    ax.grid(True)


def roofline(
    ax, gpu: Gpu, points: Iterable[Point] = (), *, dtype: str = "fp16", title: str | None = None
) -> str:
    """The roof of a GPU with operations on it (counted) or below it (measured)."""
    points = list(points)
    _limits(ax, gpu, points, dtype)
    ax.set_title(title or f"{gpu.name}, {dtype}", loc="left")
    ax.figure.draw_without_rendering()  # settles where the axes lie
    roof = Roof(ax)
    roof.move(gpu, dtype, points=[point.intensity for point in points])
    sides = _sides(ax)
    spots = [_spot(ax, point, gpu, dtype) for point in points]
    _name_points(ax, [p.name for p in points], spots, [*roof.obstacles(), *sides])
    return _words(gpu, points, dtype)


def moves(
    ax, gpu: Gpu, paths: Iterable[tuple[str, Sequence[Point], int]], *, dtype: str = "fp16"
) -> str:
    """What an optimisation does to a point: an arc from each point of a path to the next.

    paths: (what is done, the points from first to last, 1 to bow above the roof or -1 below it).
    """
    paths = list(paths)
    points = list(dict.fromkeys(point for _, path, _ in paths for point in path))
    _limits(ax, gpu, points, dtype)
    ax.set_title(f"Moves on the roof of an {gpu.name}, {dtype}", loc="left")
    ax.figure.draw_without_rendering()
    roof = Roof(ax)
    roof.move(gpu, dtype, points=[point.intensity for point in points])
    spots = {point: _spot(ax, point, gpu, dtype) for point in points}
    taken, words = list(roof.obstacles()), _words(gpu, points, dtype)
    for what, path, bow in paths:
        for start, end in pairwise(path):
            bend = -0.35 * bow
            ax.annotate(
                "", spots[end], spots[start], zorder=3.5,
                arrowprops=dict(arrowstyle="-|>", mutation_scale=18, color=ACCENT, lw=2,
                                shrinkA=7, shrinkB=7, connectionstyle=f"arc3,rad={bend}"),
            )  # fmt: skip
            a, b = to_points(ax, [spots[start], spots[end]])
            across = np.array([(b - a)[1], -(b - a)[0]])
            apex = (a + b) / 2 + bend * across / 2
            control = (a + b) / 2 + bend * across
            t = np.linspace(0, 1, 12)[:, None]
            arc = (1 - t) ** 2 * a + 2 * t * (1 - t) * control + t**2 * b
            taken += list(along(arc))
        size = np.add(text_size(what, SMALL, "bold"), (8, 0))  # a gap on either side
        corner = place([apex], [size], _area(ax), taken)[0] + (4, 0)
        ax.annotate(what, corner + np.array([0, 0.25 * SMALL]), xycoords="figure points", color=ACCENT,
                    fontsize=SMALL, weight="bold").set_in_layout(False)  # fmt: skip
        taken.append([*corner, *(corner + size - (8, 0))])
        words += f" {what}: from {path[0].name} to {path[-1].name}."
    _name_points(ax, [point.name for point in points], list(spots.values()), taken)
    return words


def times(
    ax, costs: dict[str, Cost], gpu: Gpu, *, dtype: str = "fp16", one_scale: bool = False
) -> str:
    """For each operation its two times side by side; the longer one fills the row.

    one_scale: the longest of all fills its row, so that operations can be compared.
    """
    words, rows = f"Times on the {gpu.name} in {dtype}.", []
    pairs = [(model.memory_time(c, gpu), model.compute_time(c, gpu, dtype)) for c in costs.values()]
    for y, (name, pair) in enumerate(zip(costs, pairs, strict=True)):
        longest = max(map(max, pairs)) if one_scale else max(pair)
        styles = ((MEMORY, "", "bytes ÷ bandwidth"), (SOFT, "//", "FLOPs ÷ peak"))
        for i, (time, (colour, hatch, label)) in enumerate(zip(pair, styles, strict=True)):
            share, at = time / longest, 3 * y + i
            ax.barh(at, share, 0.9, color=colour, hatch=hatch, edgecolor=PAPER,
                    label="" if y else label)  # fmt: skip
            ax.text(share + 0.01, at, units.seconds(time), fontsize=SMALL, va="center")
        rows.append(3 * y + 0.5)
        words += f" {name}: bytes {units.seconds(pair[0])}, FLOPs {units.seconds(pair[1])}."
    ax.set_yticks(rows, costs)
    ax.set(xlim=(0, 1.12), ylim=(3 * len(costs) - 1, -1), xticks=[])
    ax.tick_params(axis="y", length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set_title(f"Which takes longer? {gpu.name}, {dtype}", loc="left")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    return words


def floor(
    ax, sizes: Sequence[int], timed: Sequence[float], moved: Sequence[float], gpu: Gpu
) -> str:
    """Measured seconds against size, beside the time that the bytes alone would take.

    moved: bytes of each size. Where the measured line is flat, the kernel waits for neither bytes
    nor arithmetic: it waits to be started. The largest size should fit no cache: if it moves faster
    than the GPU's measured bandwidth, the bytes' time is drawn with its pace.
    """
    bytes_time = np.asarray(moved) / max(gpu.bandwidth, moved[-1] / timed[-1])
    ylim = (min(timed) / 10, 3 * max(timed))
    ax.set(xscale="log", yscale="log", xlabel="elements", ylim=ylim)
    ax.plot(sizes, bytes_time, color=MEMORY, ls="--", label="bytes ÷ bandwidth")
    ax.plot(sizes, timed, **FLOWS["measured"].line, label="measured")
    ax.axhline(min(timed), color=ACCENT, lw=1.5, ls=(0, (4, 3)))
    ax.text(sizes[-1], min(timed) * 0.85, f"never under {units.seconds(min(timed))}", color=ACCENT,
            ha="right", va="top", fontsize=SMALL)  # fmt: skip
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: units.seconds(y)))
    ax.grid(True)
    ax.legend(loc="upper left")
    ax.set_title(f"The third regime: overhead, {gpu.name}", loc="left")
    return (
        f"Measured time against size on {gpu.name}: {units.seconds(timed[0])} for {sizes[0]:,} elements "
        f"and {units.seconds(timed[-1])} for {sizes[-1]:,}; the bytes alone would take "
        f"{units.seconds(bytes_time[0])} and {units.seconds(bytes_time[-1])}."
    )


_GPU_STYLES = ((SOFT, "-", "o"), (INK, "--", "s"), (MEMORY, "-.", "D"), ("#8c8c8c", ":", "^"))


def ridges(ax, gpus: Sequence[Gpu], *, dtype: str = "fp16", mark: float | None = None) -> str:
    """The roofs of up to four GPUs near their ridges; `mark` is an intensity to look at."""
    found = [model.ridge(gpu, dtype) for gpu in gpus]
    left, right = min(found) / 12, 5 * max(found)
    low, high = (f(gpu.peak_for(dtype) for gpu in gpus) for f in (min, max))
    axes(ax, (left, right), (low / 14, 3 * high), steps=(1, 2, 5))
    ax.set_title("Another chip, another ridge", loc="left")
    ax.figure.draw_without_rendering()
    bottom = ax.get_ylim()[0]
    spots, names, lines = [], [], []
    for gpu, ridge, (colour, dash, marker) in zip(gpus, found, _GPU_STYLES, strict=False):
        peak = gpu.peak_for(dtype)
        roof = [(left, left * gpu.bandwidth), (ridge, peak), (right, peak)]
        ax.plot(*zip(*roof, strict=True), color=colour, ls=dash, lw=3)
        ax.plot([ridge, ridge], [bottom, peak], color=colour, ls=dash, lw=1)
        ax.plot(ridge, peak, marker=marker, ms=11, color=colour, zorder=4)
        lines.append(along(to_points(ax, roof)))
        spots.append((ridge, peak))
        names.append(f"{gpu.name}: {number(ridge)}")
    if mark:
        ax.axvline(mark, color=ACCENT, lw=2.5)
        top = ax.get_ylim()[1]
        ax.text(*shift(ax, mark, top, 6, -4), f"an operation at {number(mark)} FLOP/byte",
                color=ACCENT, fontsize=SMALL, weight="bold", va="top")  # fmt: skip
        lines.append(along(to_points(ax, [(mark, bottom), (mark, top)])))
    _name_points(ax, names, spots, np.concatenate(lines), on_lines=True)
    words = f"Rooflines in {dtype}. The ridges, in FLOP per byte: {', '.join(names)}."
    for side in ("memory", "compute") if mark else ():
        there = [gpu.name for gpu in gpus if _side(mark, gpu, dtype) == side]
        if there:
            words += f" At {number(mark)} FLOP per byte {side}-bound: {', '.join(there)}."
    return words


def _side(intensity, gpu, dtype):
    return "memory" if intensity < model.ridge(gpu, dtype) else "compute"


def slope_angle(ax) -> float:
    """Degrees by which the slope of a roof rises on these axes."""
    box = ax.get_window_extent()
    decades = [np.log10(high / low) for low, high in (ax.get_xlim(), ax.get_ylim())]
    return float(np.degrees(np.arctan2(box.height / decades[1], box.width / decades[0])))


def _limits(ax, gpu, points, dtype):
    """Axes that hold the roof and every point, with room for labels."""
    x = [point.intensity for point in points]
    left, right = min([0.1, *x]) / 2, 16 * max([100, model.ridge(gpu, dtype), *x])
    rates = [left * gpu.bandwidth, *(point.rate for point in points if point.rate)]
    axes(ax, (left, right), (min(rates) / 1.5, 5 * max([gpu.peak_for(dtype), *rates])))


def _sides(ax):
    """Write along the top what each side of the ridge means; the boxes that the words fill."""
    left, _, right, top = _area(ax)
    boxes = []
    for name, colour, side in (("waiting for memory", MEMORY, "left"), ("working", INK, "right")):
        width, height = text_size(name, SMALL)
        x = left + 4 if side == "left" else right - 4
        ax.annotate(
            name, (x, top - 4), xycoords="figure points", fontsize=SMALL, style="italic",
            color=colour, ha=side, va="top",
        )  # fmt: skip
        x = x if side == "left" else x - width
        boxes.append([x, top - 4 - height, x + width, top])
    return boxes


def _spot(ax, point, gpu, dtype):
    """Draw one point; where it is."""
    roof = model.attainable(point.intensity, gpu, dtype)
    rate = point.rate or roof
    if point.flow:
        colour, marker = FLOWS[point.flow].colour, FLOWS[point.flow].marker
    else:
        colour, marker = INK, "o" if _side(point.intensity, gpu, dtype) == "memory" else "s"
    if point.rate and point.rate < roof:
        ax.plot([point.intensity] * 2, [rate, roof], color=colour, lw=1, alpha=0.5, zorder=2)
    ax.plot(point.intensity, rate, marker=marker, ms=10, color=colour, mec=PAPER, zorder=4)
    return point.intensity, rate


def _name_points(ax, names, spots, obstacles, *, on_lines=False):
    """Write each name beside its point, with a thin line where it had to move away."""
    if not spots:
        return
    anchors = to_points(ax, spots)
    sizes = [text_size(name, SMALL) for name in names]
    corners = place(anchors, sizes, _area(ax), obstacles)
    for name, spot, anchor, corner, size in zip(names, spots, anchors, corners, sizes, strict=True):
        nearest = np.clip(anchor, corner, corner + size)
        far = np.hypot(*(nearest - anchor)) > 12
        line = dict(arrowstyle="-", color=SOFT, lw=0.8, shrinkA=0, shrinkB=6, relpos=(0.5, 0.5))
        ax.annotate(
            name, spot, corner - anchor + (0, 0.25 * SMALL), textcoords="offset points",
            fontsize=SMALL, zorder=5, arrowprops=line if far else None,
            bbox=dict(fc=PAPER, ec="none", alpha=0.8, pad=0.5) if on_lines else None,
        ).set_in_layout(False)  # fmt: skip


def to_points(ax, data) -> np.ndarray:
    """Data coordinates in points (1/72 inch) from the corner of the figure."""
    return ax.transData.transform(np.asarray(data, float)) * 72 / ax.figure.dpi


def _area(ax):
    box = ax.get_window_extent()
    return np.array([box.x0 + 2, box.y0 + 2, box.x1, box.y1]) * 72 / ax.figure.dpi


def shift(ax, x, y, right, up) -> np.ndarray:
    """Data coordinates of the place so many points to the right of and above (x, y)."""
    spot = ax.transData.transform((x, y)) + np.array([right, up]) * ax.figure.dpi / 72
    return ax.transData.inverted().transform(spot)


def number(x: float) -> str:
    """An intensity as the pages print it: 0.167, 62.1, 2,048."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def _words(gpu, points, dtype):
    words = (
        f"Roofline of the {gpu.name} in {dtype}: the roof rises with {units.decimal(gpu.bandwidth, 'B/s')} "
        f"up to the ridge at {number(model.ridge(gpu, dtype))} FLOP per byte, then stays at "
        f"{units.decimal(gpu.peak_for(dtype), 'FLOP/s')}."
    )
    for point in points:
        words += f" {point.name}: {number(point.intensity)} FLOP per byte, "
        roof = model.attainable(point.intensity, gpu, dtype)
        if point.rate:
            words += f"measured {units.decimal(point.rate, 'FLOP/s')}, {100 * point.rate / roof:.3g}% of the roof."
        else:
            words += f"{_side(point.intensity, gpu, dtype)}-bound."
    return words


def examples() -> list[Point]:
    """The operations of notebook 02, in FP16, as counted."""
    return [
        Point.of("add", cost.elementwise(1, inputs=2)),
        Point.of("ReLU", cost.elementwise(1)),
        Point.of("decode, 1 sequence", cost.matmul(4096, 1, 4096)),
        Point.of("softmax", cost.elementwise(1, flops_per_element=5)),
        Point.of("layer norm", cost.elementwise(1, flops_per_element=8)),
        *(Point.of(f"matmul {n}", cost.matmul(n, n, n)) for n in (128, 1024, 8192)),
        Point.of("attention, naive", cost.attention(4096, 128, flow="naive"), flow="naive"),
        Point.of("attention, fused", cost.attention(4096, 128, flow="flash"), flow="flash"),
    ]


@static("roofline_h100", size=(10, 5))
def _(ax):
    return roofline(
        ax, GPUS["H100 SXM"], examples(), title="Operations on the roof of an H100, fp16"
    )


@static("three_ridges", size=(10, 5))
def _(ax):
    return ridges(ax, [GPUS[name] for name in ("A100 80GB", "H200", "H100 SXM")], mark=250)
