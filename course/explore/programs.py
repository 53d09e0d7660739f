"""A vector shared out to the programs of a kernel: program id → offsets → mask."""

import ipywidgets as widgets
from matplotlib.collections import PolyCollection

from course.draw.theme import ACCENT, FLOWS, INK, LEVELS, PAPER, SOFT
from course.explore.explorer import Explorer

BLOCKS = (2, 4, 8, 16)
MOST = 40  # elements
COLOUR = FLOWS["flash"].colour  # of the program that is looked at


def compute(n, block, program):
    """Offsets and mask of one program of `block` lanes on n elements; the last one if there are fewer."""
    programs = -(-n // block)
    program = min(program, programs - 1)
    offsets = [program * block + lane for lane in range(block)]
    return {
        "n": n,
        "block": block,
        "programs": programs,
        "program": program,
        "offsets": offsets,
        "inside": [offset < n for offset in offsets],
    }


LEFT, WIDE, WIDEST = 15, 84, 7  # where the cells begin, how far they reach, and the widest of them
GAP = 0.8  # between the blocks of two programs
MEMORY, LANES = (6.2, 7.7), (2.5, 4.0)  # bottom and top of the two rows of cells


def draw(fig, data):
    """Above all elements in memory, by programs; below the lanes of the program that is chosen."""
    ax = fig.add_axes((0.01, 0.02, 0.98, 0.96), xlim=(0, 100), ylim=(0, 9.2))
    ax.axis("off")
    for y, text in ((8.6, "program id"), (6.95, "in memory"), (3.25, "offsets"), (1.7, "mask")):
        ax.text(0, y, text, fontsize=14, weight="bold", va="center")
    cells = {
        "ours": ax.add_collection(PolyCollection([], fc=LEVELS["hbm"].colour, ec=PAPER, lw=1)),
        "others": ax.add_collection(PolyCollection([], fc=PAPER, ec=SOFT, hatch="xx", lw=1)),
        "on": ax.add_collection(PolyCollection([], fc=LEVELS["registers"].colour, ec=SOFT, lw=1)),
        "off": ax.add_collection(PolyCollection([], fc=PAPER, ec=SOFT, hatch="xx", lw=1)),
        "chosen": ax.add_collection(PolyCollection([], fc="none", ec=COLOUR, lw=3, zorder=3)),
    }
    rays = [ax.plot([], [], color=COLOUR, lw=1.2, ls=(0, (4, 3)))[0] for _ in range(2)]
    centred = {"ha": "center", "va": "center"}
    ids = [ax.text(0, 8.6, "", fontsize=14, **centred) for _ in range(MOST // BLOCKS[0])]
    box = {"fc": PAPER, "ec": "none", "pad": 1}
    offsets = [ax.text(0, 3.25, "", fontsize=13, bbox=box, **centred) for _ in range(BLOCKS[-1])]
    masks = [ax.text(0, 1.7, "", fontsize=13, **centred) for _ in range(BLOCKS[-1])]
    ax.text(99, 0.4, "hatched: not ours", fontsize=12, color=SOFT, ha="right", va="center")
    code = ax.text(LEFT, 0.4, "", fontsize=13, family="monospace", va="center")

    def move(data):
        n, block, chosen = data["n"], data["block"], data["program"]
        whole = data["programs"] * block
        small = min(WIDEST, (WIDE - GAP * (data["programs"] - 1)) / whole)
        large = min(WIDEST, WIDE / block)
        starts = [LEFT + i * (small * block + GAP) for i in range(data["programs"])]
        places = [starts[i // block] + small * (i % block) for i in range(whole)]
        cells["ours"].set_verts([_cell(x, small, MEMORY) for x in places[:n]])
        cells["others"].set_verts([_cell(x, small, MEMORY) for x in places[n:]])
        cells["chosen"].set_verts([_cell(starts[chosen], small * block, MEMORY)])
        for name, wanted in (("on", True), ("off", False)):
            lanes = [i for i, inside in enumerate(data["inside"]) if inside == wanted]
            cells[name].set_verts([_cell(LEFT + i * large, large, LANES) for i in lanes])
        for ray, end in zip(rays, (0, 1), strict=True):
            top = starts[chosen] + end * small * block
            ray.set_data([top, LEFT + end * large * block], [MEMORY[0], LANES[1]])
        for i, text in enumerate(ids):
            text.set_text(f"{i}" if i < data["programs"] else "")
            if i < data["programs"]:
                text.set_x(starts[i] + small * block / 2)
            text.set(
                weight="bold" if i == chosen else "normal", color=COLOUR if i == chosen else INK
            )
        for i, (offset, mask) in enumerate(zip(offsets, masks, strict=True)):
            shown, x = i < block, LEFT + large * (i + 0.5)
            inside = shown and data["inside"][i]
            offset.set(text=f"{data['offsets'][i]}" if shown else "", x=x, visible=shown)
            mask.set(text=("yes" if inside else "no") if shown else "", x=x)
            mask.set_color(INK if inside else ACCENT)
        code.set_text(
            f"offsets = {chosen} * {block} + tl.arange(0, {block})    inside = offsets < {n}"
        )
        return [*cells.values(), *rays, *ids, *offsets, *masks, code]

    return move


def _cell(left, width, rows):
    low, high = rows
    return [(left, low), (left + width, low), (left + width, high), (left, high)]


def describe(data):
    """How many programs there are, and what the chosen one has."""
    offsets, count = data["offsets"], data["programs"]
    masked = data["inside"].count(False)
    lanes = f"{masked} of its {data['block']} lanes masked" if masked else "no lane masked"
    return (
        f"{data['n']} element{'s' * (data['n'] > 1)} in blocks of {data['block']}: {count} program{'s' * (count > 1)}. "
        f"Program {data['program']} has the offsets {offsets[0]} to {offsets[-1]}, {lanes}."
    )


def programs(**initial):
    """The explorer, at other first values if given: `programs(n=10, block=4, program=2)`."""
    last = -(-MOST // BLOCKS[0]) - 1
    controls = {
        "n": widgets.IntSlider(10, min=1, max=MOST, description="elements n"),
        "block": widgets.SelectionSlider(options=BLOCKS, value=4, description="BLOCK"),
        "program": widgets.IntSlider(0, min=0, max=last, description="program id"),
    }
    title = "A vector shared out to programs"
    return Explorer(compute, draw, describe, controls, title, initial=initial, size=(10, 3.2))
