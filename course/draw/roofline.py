"""The roofline: attainable FLOP/s against arithmetic intensity, and operations on it.

`roofline(ax, gpu, points)` is the whole picture. An explorer builds a `Roof` once and moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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


Rates = Callable[[np.ndarray, float, float], np.ndarray]


def model_rates(intensity: np.ndarray, peak: float, bandwidth: float) -> np.ndarray:
    """FLOP/s of the roof at each intensity, as an array."""
    return np.minimum(peak, intensity * bandwidth)


class Roof:
    """The roof of one GPU on log-log axes: slope, flat part, ridge, and their labels.

    The limits of the axes must be set before, and where the axes lie must be settled.
    """

    def __init__(self, ax, *, colour: str = INK, dash="-"):
        self.ax = ax
        (self.slope,) = ax.plot([], [], color=MEMORY, linestyle=dash, lw=3.5, zorder=2.5)
        (self.flat,) = ax.plot([], [], color=colour, linestyle=dash, lw=3.5, zorder=2.5)
        cache = LEVELS["l2"].colour
        (self.cache,) = ax.plot([], [], color=cache, ls=(0, (3, 1.5)), lw=2.5, zorder=2.4)
        (self.ridge,) = ax.plot([], [], color=SOFT, ls=(0, (4, 3)), lw=1.3, zorder=2)
        self.waiting = ax.axvspan(1, 2, color=MEMORY, alpha=0.07, lw=0, zorder=0)
        text = dict(fontsize=SMALL, zorder=2.6)
        self.slope_name = ax.text(1, 1, "", color=MEMORY, rotation_mode="anchor", ha="center",
                                  va="bottom", rotation=slope_angle(ax), **text)  # fmt: skip
        self.cache_name = ax.text(1, 1, "", color=cache, rotation_mode="anchor", ha="center",
                                  va="bottom", rotation=slope_angle(ax), **text)  # fmt: skip
        self.flat_name = ax.text(1, 1, "", ha="center", va="top", **text)
        self.ridge_name = ax.text(1, 1, "", ha="left", va="bottom", color=INK, **text)

    def move(
        self,
        gpu: Gpu,
        dtype: str = "fp16",
        *,
        points: Iterable[float] = (),
        l2: float | None = None,
        rates: Rates = model_rates,
    ) -> list:
        """Show the roof of another GPU or data type; the artists that changed.

        `points` are intensities: names are written where the roof is free of them longest. `l2` is
        the bandwidth of the L2, in bytes/s, for a slope of its own. `rates` draw the roof.
        """
        (left, right), bottom = self.ax.get_xlim(), self.ax.get_ylim()[0]
        ridge, peak = model.ridge(gpu, dtype), gpu.peak_for(dtype)
        start = max(left, bottom / gpu.bandwidth)
        for line, ends in ((self.slope, (start, ridge)), (self.flat, (ridge, right))):
            x = np.geomspace(*ends, 50)
            line.set_data(x, rates(x, peak, gpu.bandwidth))
        self.ridge.set_data([ridge, ridge], [bottom, peak])
        self.waiting.set(x=left, width=ridge - left)
        self._name_slope(self.slope_name, gpu.bandwidth, "HBM " if l2 else "", points, ridge)
        self.slope_name.set_va("top" if l2 else "bottom")  # the L2's slope is close above
        self.cache.set_data([], [])
        self.cache_name.set_text("")
        if l2:
            start = max(left, bottom / l2)
            self.cache.set_data([start, peak / l2], [start * l2, peak])
            self._name_slope(self.cache_name, l2, "L2 ", points, peak / l2)
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

    def _name_slope(self, name, bandwidth, memory, points, ridge):
        """Write a bandwidth along its slope: above it, or below where another slope is above."""
        name.set_text(memory + units.decimal(bandwidth, "B/s"))
        left, bottom = self.ax.get_xlim()[0], self.ax.get_ylim()[0]
        start = max(left, bottom / bandwidth)
        angle = np.radians(slope_angle(self.ax))
        # The text leans to the left of its place, and must not leave the axes there.
        room = np.array([15, 15 + text_size(name.get_text(), SMALL)[0] / 2]) * np.cos(angle)
        first, inside = (shift(self.ax, start, bottom, right, 0)[0] for right in room)
        x = max(_widest(first, ridge, points), inside)
        up = -5 if memory == "HBM " else 5
        name.set_position(shift(self.ax, x, x * bandwidth, -up * np.sin(angle), up * np.cos(angle)))

    @property
    def artists(self) -> list:
        """All that `move` changes."""
        return [self.waiting, self.ridge, self.cache, self.slope, self.flat,
                self.cache_name, self.slope_name, self.flat_name, self.ridge_name]  # fmt: skip

    def obstacles(self) -> np.ndarray:
        """Boxes, in points, that the labels of points should keep off."""
        lines = [line.get_xydata()[[0, -1]] for line in (self.slope, self.flat, self.cache)
                 if len(line.get_xydata())]  # fmt: skip
        boxes = [along(to_points(self.ax, line)) for line in lines]
        boxes.append(along(to_points(self.ax, self.ridge.get_xydata()), thickness=1))
        for name, fall in ((self.flat_name, -1), (self.ridge_name, 0)):
            (x, y), (w, h) = (
                to_points(self.ax, [name.get_position()])[0],
                text_size(name.get_text(), SMALL),
            )
            x -= w / 2 if name.get_ha() == "center" else 0
            y += fall * h
            boxes.append([[x - 6, y, x + w + 6, y + h]])  # two names in a row need a gap
        angle = np.radians(slope_angle(self.ax))
        for name in filter(lambda name: name.get_text(), (self.slope_name, self.cache_name)):
            middle = to_points(self.ax, [name.get_position()])[0]
            reach = text_size(name.get_text(), SMALL)[0] / 2
            reach = reach * np.array([np.cos(angle), np.sin(angle)])
            up = SMALL / 2 * np.array([-np.sin(angle), np.cos(angle)])
            up = -up if name.get_va() == "top" else up
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
    ax,
    gpu: Gpu,
    points: Iterable[Point] = (),
    *,
    dtype: str = "fp16",
    title: str | None = None,
    l2: float | None = None,
    rates: Rates = model_rates,
) -> str:
    """The roof of a GPU with operations on it (counted) or below it (measured).

    l2: bytes/s of its L2, for a slope of its own. rates(intensity, peak, bandwidth), FLOP/s at each
    intensity of an array, draw the roof and the operations on it: a reader's own function will do.
    """
    points = list(points)
    _limits(ax, gpu, points, dtype)
    ax.set_title(title or f"{gpu.name}, {dtype}", loc="left")
    ax.figure.draw_without_rendering()  # settles where the axes lie
    roof = Roof(ax)
    roof.move(gpu, dtype, points=[point.intensity for point in points], l2=l2, rates=rates)
    sides = _sides(ax)
    spots = [_spot(ax, point, gpu, dtype, rates) for point in points]
    tops = rates(np.array([x for x, _ in spots]), gpu.peak_for(dtype), gpu.bandwidth)
    stems = [
        along(to_points(ax, [(x, y), (x, top)]), thickness=1)
        for (x, y), top in zip(spots, tops, strict=True)
        if y < top
    ]
    taken = np.concatenate([roof.obstacles(), sides, *stems])
    _name_points(ax, [p.name for p in points], spots, taken)
    words = _words(gpu, points, dtype)
    if l2:
        ridge = number(gpu.peak_for(dtype) / l2)
        words += (
            f" The L2 has a slope of its own, {units.decimal(l2, 'B/s')}, and a ridge at {ridge}."
        )
    return words


def measured_roof(gpu: Gpu, points: Iterable[Point], dtype: str) -> Gpu:
    """The GPU with the best bandwidth and peak of all that was measured on it, points included.

    A measured roof may be too low: something may be faster than the copy that gave its bandwidth.
    Points below 1 FLOP per byte count as bandwidth.
    """
    points = list(points)
    paces = [point.rate / point.intensity for point in points if point.intensity < 1]
    peak = max(gpu.peak_for(dtype), *(point.rate for point in points))
    return replace(gpu, bandwidth=max(gpu.bandwidth, *paces), peak=gpu.peak | {dtype: peak})


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


def floor(ax, sizes: Sequence[int], timed: Sequence[float]) -> str:
    """Measured seconds against the number of elements: where the line is flat, neither bytes nor
    arithmetic are waited for, but the call itself."""
    ax.set(xscale="log", yscale="log", xlabel="elements", ylabel="time of one add",
           ylim=(min(timed) / 4, 3 * max(timed)))  # fmt: skip
    ax.plot(sizes, timed, **FLOWS["measured"].line)
    ax.axhline(min(timed), color=ACCENT, lw=1.5, ls=(0, (4, 3)))
    ax.text(sizes[-1], min(timed) * 0.8, f"never under {units.seconds(min(timed))}", color=ACCENT,
            ha="right", va="top", fontsize=SMALL)  # fmt: skip
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: units.seconds(y)))
    ax.grid(True)
    ax.set_title("Measured here", loc="left")
    return (
        f"Measured time of an add against its size: {units.seconds(timed[0])} for {sizes[0]:,} "
        f"elements, {units.seconds(timed[1])} for {sizes[1]:,}, and {units.seconds(timed[-1])} for "
        f"{sizes[-1]:,}."
    )


_GPU_STYLES = (("-", "o"), ("--", "s"), ("-.", "D"), (":", "^"))


def ridges(
    ax, gpus: Sequence[Gpu], *, dtype: str = "fp16", mark: float | None = None, what: str = ""
) -> str:
    """The roofs of up to four GPUs near their ridges; `mark` is an intensity to look at, `what` has it."""
    found = [model.ridge(gpu, dtype) for gpu in gpus]
    left, right = min(found) / 2.5, 2.2 * max(found)
    low, high = (f(gpu.peak_for(dtype) for gpu in gpus) for f in (min, max))
    axes(ax, (left, right), (low / 4, 2 * high), steps=(1, 2, 5))
    ax.set_title("Another chip, another ridge", loc="left")
    names = []
    for gpu, ridge, (dash, marker) in zip(gpus, found, _GPU_STYLES, strict=False):
        peak = gpu.peak_for(dtype)
        ax.plot([left, ridge], [left * gpu.bandwidth, peak], color=MEMORY, ls=dash, lw=3)
        ax.plot([ridge, right], [peak, peak], color=INK, ls=dash, lw=3)
        ax.plot([ridge, ridge], [0, peak], color=SOFT, ls=dash, lw=1)
        ax.plot(ridge, peak, marker=marker, ms=11, color=INK, zorder=4)
        names.append(f"{gpu.name}: {number(ridge)}")
    # Each name stands below the axis, under its ridge: there no line runs through it.
    ax.set_xticks(found, [f"{number(x)}\n{gpu.name}" for x, gpu in zip(found, gpus, strict=True)])
    ax.grid(False, axis="x")
    words = f"Rooflines in {dtype}. The ridges, in FLOP per byte: {', '.join(names)}."
    if mark:
        ax.axvline(mark, color=ACCENT, lw=2.5)
        ax.annotate(f"{what}: {number(mark)} FLOP/byte", (mark, 1), (7, -4), color=ACCENT, va="top",
                    xycoords=("data", "axes fraction"), textcoords="offset points",
                    fontsize=SMALL, weight="bold")  # fmt: skip
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


def _spot(ax, point, gpu, dtype, rates=model_rates):
    """Draw one point; where it is."""
    (roof,) = rates(np.array([point.intensity]), gpu.peak_for(dtype), gpu.bandwidth)
    rate = point.rate or roof
    if point.flow:
        colour, marker = FLOWS[point.flow].colour, FLOWS[point.flow].marker
    else:
        colour, marker = INK, "o" if _side(point.intensity, gpu, dtype) == "memory" else "s"
    if point.rate and point.rate < roof:
        ax.plot([point.intensity] * 2, [rate, roof], color=colour, lw=1, alpha=0.5, zorder=2)
    ax.plot(point.intensity, rate, marker=marker, ms=10, color=colour, mec=PAPER, zorder=4)
    return point.intensity, rate


def _name_points(ax, names, spots, obstacles):
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
    ]


@static("three_ridges", size=(10, 4.5))
def _(ax):
    batch = 250
    count = cost.decode_step(weight_bytes=16 * 10**9, batch=batch)
    gpus = [GPUS[name] for name in ("A100 80GB", "H200", "H100 SXM")]
    return ridges(ax, gpus, mark=count.intensity, what=f"decode, batch {batch}")
