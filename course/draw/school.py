"""The school of notebook 01: its plan, and the homework done in two ways."""

from __future__ import annotations

from matplotlib.patches import Circle, FancyBboxPatch, Polygon, Rectangle
from matplotlib.path import Path

from course import school
from course.draw.static import static
from course.draw.theme import ACCENT, FLOWS, INK, LEVELS, PAPER, SOFT
from course.hardware import GPUS
from course.units import binary, decimal

STREET, COUNTER = "#e4e4e4", "#cfb0dd"
# Markers for `plot`: somebody seen from the front, and a sheet of paper.
STUDENT = Path.make_compound_path(
    Path.circle((0, 0.62), 0.3),
    Path([(-0.42, -1), (-0.28, 0.26), (0.28, 0.26), (0.42, -1), (-0.42, -1)], closed=True),
)
PAGE = Path([(-0.36, -0.5), (-0.36, 0.5), (0.36, 0.5), (0.36, -0.5), (-0.36, -0.5)], closed=True)
FLOW_KEY = {"naive": "naive", "fused": "flash", "tiled": "tiled"}  # the school's flow → its style


def plan(ax, gpu=GPUS["H100 SXM"]) -> str:
    """The school as a plan: classrooms, one of them large, the corridor, the street, the library."""
    ax.set(xlim=(0, 10), ylim=(0.1, 5.65), xticks=(), yticks=())
    ax.axis("off")
    shelf, cupboard, library = (
        binary(gpu.smem_per_sm), binary(gpu.l2_bytes), decimal(gpu.hbm_bytes)
    )  # fmt: skip
    ax.add_patch(
        Rectangle((0.05, 0.25), 7.05, 5.3, facecolor="#fafafa", edgecolor=INK, linewidth=2)
    )
    ax.text(0.3, 5.22, "The school: one GPU", fontsize=14, fontweight="bold", va="center")
    _classrooms(ax, gpu.sms)
    _classroom(ax, shelf)
    _level(ax, "l2", 0.3, 0.5, 6.55, 0.62, f"the corridor's cupboard: L2 cache, {cupboard} for all")
    _street(ax)
    _library(ax, library)
    return (
        f"A plan of the school. It has {gpu.sms} classrooms, the SMs. In one, drawn large, students "
        f"sit in rows of 32, the warps; the class is a thread block, a student a thread with registers as "
        f"a desk. At the back of the room is a shelf, shared memory, {shelf}. All classrooms share "
        f"the corridor's cupboard, the L2 cache, {cupboard}. Across the street stands the town "
        f"library, HBM, {library}, with one counter."
    )


def _classrooms(ax, count, columns=11):
    rows = -(-count // columns)
    width, height = 2.05 / columns, 3.05 / rows
    for i in range(count):
        x, y = 0.3 + i % columns * width, 1.5 + i // columns * height
        chosen = i == count - columns  # the one drawn large: first of the top row
        ax.add_patch(Rectangle((x, y), 0.8 * width, 0.75 * height, linewidth=0,
                               facecolor=ACCENT if chosen else "#c9c9c9"))  # fmt: skip
    ax.text(0.3, 4.8, f"{count} classrooms: SMs", fontsize=12, va="center")
    top = 1.5 + (rows - 1) * height
    for start, end in (((0.3, top + 0.75 * height), (2.7, 4.98)), ((0.3, top), (2.7, 1.45))):
        ax.plot(*zip(start, end, strict=True), color=ACCENT, linewidth=1, linestyle=":", zorder=0)


def _classroom(ax, shelf):
    ax.add_patch(FancyBboxPatch((2.7, 1.45), 4.15, 3.53, boxstyle="round,pad=0,rounding_size=0.08",
                                facecolor=PAPER, edgecolor=ACCENT, linewidth=2))  # fmt: skip
    ax.text(2.9, 4.75, "One classroom: an SM", fontsize=12.5, fontweight="bold", va="center")
    ax.add_patch(FancyBboxPatch((2.88, 3.2), 3.8, 0.98, boxstyle="round,pad=0,rounding_size=0.08",
                                facecolor="#f4f4f4", edgecolor=SOFT, linewidth=1))  # fmt: skip
    ax.text(2.9, 4.38, "a class: a thread block", fontsize=11, va="center")
    ax.text(6.68, 4.38, "each row of 32: a warp", fontsize=11, va="center", ha="right")
    for row in range(4):
        for seat in range(32):
            x, y = 3.0 + seat * 3.56 / 31, 4.04 - row * 0.24
            me = (row, seat) == (3, 3)
            ax.add_patch(Circle((x, y), 0.055 if me else 0.042, color=ACCENT if me else SOFT))
    desk = LEVELS["registers"]
    ax.add_patch(
        Rectangle((2.9, 2.36), 0.9, 0.5, facecolor=desk.colour, edgecolor=INK, linewidth=1)
    )
    ax.plot(3.35, 2.61, marker=PAGE, markersize=13, markerfacecolor=PAPER, markeredgecolor=INK)
    ax.annotate("", (3.35, 2.88), (3.34, 3.27), arrowprops=dict(arrowstyle="-", color=ACCENT))
    ax.text(3.95, 2.72, "a student: a thread", fontsize=11, va="center", color=ACCENT)
    ax.text(3.95, 2.47, "the desk: registers", fontsize=11, va="center")
    _level(ax, "shared", 2.9, 1.6, 3.75, 0.55, f"the shelf: shared memory, {shelf}")


def _level(ax, name, x, y, width, height, text):
    style = LEVELS[name]
    ax.add_patch(Rectangle((x, y), width, height, facecolor=style.colour, hatch=style.hatch,
                           edgecolor=PAPER, linewidth=0))  # fmt: skip
    ax.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=INK, linewidth=1))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=12, color=style.ink,
            bbox=dict(facecolor=style.colour, edgecolor="none", pad=2))  # fmt: skip


def _street(ax):
    ax.add_patch(Rectangle((7.1, 0.1), 1.05, 5.55, facecolor=STREET, linewidth=0, zorder=0))
    ax.plot([7.62, 7.62], [0.2, 5.6], color=PAPER, linewidth=3, dashes=(4, 3))
    ax.text(7.62, 5.2, "the street", ha="center", va="center", fontsize=11)
    for x, y, way in ((7.42, 3.5, 1), (7.82, 1.7, -1)):
        ax.plot(x, y, marker=STUDENT, markersize=26, color=INK)
        ax.plot(x + 0.2 * way, y, marker=PAGE, markersize=11, markerfacecolor=PAPER,
                markeredgecolor=INK)  # fmt: skip
        ax.annotate("", (7.62 + 0.42 * way, y - 0.5), (7.62 - 0.42 * way, y - 0.5),
                    arrowprops=dict(arrowstyle="-|>", color=INK, linewidth=1.6))  # fmt: skip


def _library(ax, capacity):
    style = LEVELS["hbm"]
    ax.add_patch(Rectangle((8.3, 0.5), 1.6, 3.5, facecolor=style.colour, linewidth=0))
    ax.add_patch(Polygon([(8.2, 3.98), (9.1, 4.85), (10.0, 3.98)], facecolor=style.colour))
    for x in (8.42, 9.68):
        ax.add_patch(Rectangle((x, 1.25), 0.1, 2.65, facecolor="#8a63a8", linewidth=0))
    ax.add_patch(Rectangle((8.3, 0.8), 1.6, 0.45, facecolor=COUNTER, linewidth=0))
    ax.text(9.1, 1.02, "the counter", ha="center", va="center", fontsize=11)
    ax.text(9.1, 2.5, f"the town\nlibrary:\nHBM,\n{capacity}", ha="center", va="center",
            fontsize=13, color=style.ink, linespacing=1.4)  # fmt: skip


def homework(axes, steps=4, pages=5) -> str:
    """Where the class is, minute by minute: down the page is later, left is the classroom."""
    days = {flow: school.day(steps, pages, pages, flow) for flow in ("naive", "fused")}
    last = max(day.minutes for day in days.values())
    for ax, (flow, day) in zip(axes, days.items(), strict=True):
        style = FLOWS[FLOW_KEY[flow]]
        told = school.visits(steps, pages, pages, "naive" if flow == "naive" else "tiled")
        minutes, places = zip(*school.path(told), strict=True)
        ax.axvspan(0.08, 0.92, color=STREET, zorder=0)
        ax.plot(places, minutes, color=style.colour, linestyle=style.dash)
        ax.set(xlim=(1.42, -0.42), ylim=(last * 1.03, -last * 0.02), xticks=(1, 0.5, 0))
        ax.set_yticks(range(0, int(last) + 1, 20))
        ax.set_xticklabels(("classroom", "street", "library"), fontsize=12)
        ax.tick_params(axis="x", top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        ax.set_title(f"{flow}: {day.crossings // pages} crossings of each page", pad=8)
        ax.text(-0.06, school.PAGE_MINUTES * pages / 2, "counter", va="center", fontsize=12)
        _steps(ax, told)
        ax.text(-0.06, day.minutes, f"{day.minutes:.1f} min", va="center", fontsize=12)
    axes[0].set_ylabel("minute of the day")
    naive, fused = days.values()
    return (
        f"A homework of {steps} steps on {pages} pages, minute by minute. Naive, each page goes "
        f"between library and classroom {naive.crossings // pages} times and the day has "
        f"{naive.minutes:.1f} minutes; fused it goes {fused.crossings // pages} times and the day "
        f"has {fused.minutes:.1f}, for the same steps."
    )


def _steps(ax, told):
    """Beside each stay in the classroom, which steps were done there."""
    done, clock = 0, 0.0
    for visit in told:
        clock += school.PAGE_MINUTES * visit.pages + school.WALK_MINUTES
        first, done = done + 1, done + visit.steps
        text = f"step {done}" if visit.steps == 1 else f"steps {first}–{done}"
        ax.text(1.05, clock, text, ha="right", va="center", fontsize=12)
        clock += school.WALK_MINUTES + school.PAGE_MINUTES * visit.pages


static("school", size=(10, 5.6))(plan)
static("homework", size=(10, 5), panels=(1, 2))(homework)
