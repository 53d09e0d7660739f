"""Figures of serving: keys split over programs, pages, and what was measured of decode and of 4 bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from course import cost
from course.draw.roofline import Point, moves
from course.draw.static import static
from course.draw.theme import FLOWS, GRID, INK, LEVELS, PAPER, SOFT
from course.hardware import GPUS, Gpu
from course.serving import FORMATS, MODELS, Model, prefill, step, together
from course.tables import Table
from course.units import decimal, seconds

FLOW = {  # flow of `course.records.decode` → colour, marker, filled
    "ours": (FLOWS["flash"].colour, "D", True),
    "ours, pages of 128": (FLOWS["flash"].colour, "s", False),
    "ours, pages of 16": (FLOWS["flash"].colour, "o", False),
    "cuDNN": (FLOWS["naive"].colour, "o", True),
    "FA-2": (FLOWS["tiled"].colour, "s", True),
}
NAMES = {flow: flow.replace("ours", "library kernel") for flow in FLOW}  # what the pages call it

# --- how the work is shared out ---------------------------------------------------------------


def split_keys(axes, heads: int = 8, sms: int = 132, splits: int = 16) -> str:
    """One program a K/V head, and the keys of each head split over programs: who works, how long."""
    for ax, parts, title in zip(
        axes, (1, splits), ("One program per K/V head", f"Keys in {splits} pieces"), strict=True
    ):
        busy = min(heads * parts, sms)
        ax.set(xlim=(-1, sms), ylim=(0, 1.05), yticks=(), title=title)
        ax.set_xticks([0, sms - 1], ["SM 0", f"SM {sms - 1}"])
        ax.spines["left"].set_visible(False)
        for sm in range(busy):
            ax.add_patch(
                Rectangle((sm - 0.42, 0), 0.84, 1 / parts, facecolor=FLOWS["flash"].colour)
            )
        if parts > 1:
            merge = Rectangle(
                (-0.42, 1 / parts + 0.02), busy, 0.03, facecolor=FLOWS["naive"].colour
            )
            ax.add_patch(merge)
            ax.annotate("the states are merged", (busy / 2, 1 / parts + 0.05), (busy / 2, 0.45),
                        ha="center", fontsize=12, arrowprops=dict(arrowstyle="-|>", color=INK))  # fmt: skip
        else:
            ax.text((busy + sms) / 2, 0.5, f"{sms - busy} SMs wait", ha="center", fontsize=13)
    axes[0].set_ylabel("time")
    return (
        f"Who works when one sequence of {heads} K/V heads gets a token on {sms} SMs. One program per "
        f"head: {heads} SMs work and {sms - heads} wait. With the keys of each head in {splits} pieces, "
        f"{heads * splits} SMs work for a {splits}th of the time, and then the states are merged."
    )


@static("split_keys", size=(10, 3.2), panels=(1, 2))
def _(axes):
    return split_keys(axes)


SEQUENCES = {"A": 10, "B": 6, "C": 3}  # tokens
PAGE, POOL = 4, "A B C A B _ A _"


def pages(ax) -> str:
    """Three sequences in a pool of pages, found by a table."""
    ax.set(xlim=(-0.2, 33.2), ylim=(-0.9, 5.1), xticks=(), yticks=())
    ax.axis("off")
    owners = POOL.split()
    table = {name: [i for i, owner in enumerate(owners) if owner == name] for name in SEQUENCES}
    colours = {"A": LEVELS["shared"], "B": LEVELS["l2"], "C": LEVELS["registers"]}
    for place, owner in enumerate(owners):
        turn = table[owner].index(place) if owner in table else 0
        tokens = min(PAGE, max(0, SEQUENCES.get(owner, 0) - turn * PAGE))
        for i in range(PAGE):
            x, full = place * (PAGE + 0.15) + i, i < tokens
            style = colours[owner] if full else None
            ax.add_patch(Rectangle((x, 0), 0.95, 1.1, edgecolor=SOFT if not full else INK, lw=1,
                                   facecolor=style.colour if full else PAPER,
                                   hatch=style.hatch if full else ""))  # fmt: skip
        ax.text(place * (PAGE + 0.15) + 2, -0.55, f"page {place}", ha="center", fontsize=12)
    for row, (name, tokens) in enumerate(SEQUENCES.items()):
        y = 4.1 - row * 1.05
        style = colours[name]
        ax.add_patch(Rectangle((0, y), 0.95, 0.75, facecolor=style.colour, hatch=style.hatch,
                               edgecolor=INK))  # fmt: skip
        listed = ", ".join(map(str, table[name]))
        text = f"sequence {name}, {tokens} tokens: pages {listed}"
        ax.text(1.4, y + 0.37, text, va="center", fontsize=13)
    ax.text(20, 4.4, "the table", va="center", fontsize=13, color=SOFT)
    ax.text(20, 1.6, "the pool: white places are empty", va="center", fontsize=13, color=SOFT)
    listed = "; ".join(f"{n}: {', '.join(map(str, table[n]))}" for n in SEQUENCES)
    return (
        f"Three sequences in pages of {PAGE} tokens. The table says which pages of the pool each has, in "
        f"order ({listed}). They lie anywhere; only a last page has empty places."
    )


@static("page_table", size=(10, 3))
def _(ax):
    return pages(ax)


# --- caches of real models ----------------------------------------------------------------------


def caches(models: Iterable[Model], contexts: Sequence[int] = (8192, 131_072)) -> Table:
    """What each model keeps a token, and for a whole context, in bf16; and with a cache per query head."""
    rows = []
    for model in models:
        every = cost.kv_cache_bytes(
            layers=model.layers, kv_heads=model.heads, head_dim=model.head_dim
        )
        kept = (decimal(model.cache_bytes(tokens)) for tokens in contexts)
        rows.append([model.name, decimal(every), decimal(model.cache_bytes(1)), *kept])
    lengths = (f"{tokens:,} tokens" for tokens in contexts)
    return Table(("model", "if every head kept its own", "a token", *lengths), rows)


def sources(models: Iterable[Model]) -> Table:
    """The figures of each model that count for serving, and where they come from."""
    rows = []
    for m in models:
        used = f"{m.active / 1e9:.3g}" if m.active else "all"
        heads = f"{m.latent[0]} + {m.latent[1]}" if m.latent else f"{m.kv_heads} × {m.head_dim}"
        near = f"{m.windowed} of {m.layers} layers: {m.window:,}" if m.window else ""
        rows.append(
            [m.name, f"{m.parameters / 1e9:.3g}", used, m.layers, m.heads, heads, near, m.source]
        )
    headers = ("model", "10⁹ weights", "used by a token", "layers", "query heads")
    return Table((*headers, "K/V heads × d, or latent", "window", "source"), rows)


# --- decode, measured -------------------------------------------------------------------------


def shapes(section: dict) -> dict[tuple[int, int, int], dict[str, dict]]:
    """{(queries, batch, keys): {flow: point}} of the record "decode"."""
    found = {}
    for point in section["points"]:
        key = point["queries"], point["batch"], point["keys"]
        found.setdefault(key, {})[point["flow"]] = point
    return found


def _shape(queries, batch, keys):
    many = f"{queries} queries" if queries > 1 else "1 query"
    return f"{many}, {batch} × {keys // 1024}k keys"


def shares(ax, section: dict, gpu: Gpu = GPUS["H200"]) -> str:
    """Bytes of cache per second for each shape and flow, as a share of the GPU's bandwidth."""
    rows = shapes(section)
    ax.set(xlim=(0, 1.02), ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), [_shape(*key) for key in rows])
    ax.xaxis.set_major_formatter(PercentFormatter(1, 0))
    ax.set_xlabel(f"share of {decimal(gpu.bandwidth, 'B/s')}")
    for y in range(len(rows)):
        ax.axhline(y, color=GRID, lw=0.8, zorder=0)
    ceiling = section["read"] / gpu.bandwidth
    ax.axvline(ceiling, color=SOFT, ls="--", lw=1.5, zorder=1, label="a kernel that only reads")
    for flow, (colour, marker, filled) in FLOW.items():
        x = [points[flow]["bandwidth"] / gpu.bandwidth for points in rows.values()]
        ax.plot(x, range(len(rows)), marker, color=colour, mfc=colour if filled else PAPER, ms=7.5,
                mew=1.8, label=NAMES[flow], zorder=3 if filled else 2)  # fmt: skip
    ax.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.42, 1.0), frameon=False)
    best = max(points["ours"]["bandwidth"] for points in rows.values()) / gpu.bandwidth
    few = [p for (queries, *_), p in rows.items() if queries > 1]
    behind = max(p[flow]["bandwidth"] for p in few for flow in ("cuDNN", "FA-2")) / gpu.bandwidth
    return (
        f"Share of the {gpu.name}'s bandwidth that decode reaches, for {len(rows)} shapes. The library "
        f"kernel reaches up to {best:.0%}, where a kernel that only reads reaches {ceiling:.0%}. With "
        f"several queries cuDNN and FA-2 reach at most {behind:.0%}."
    )


def against(section: dict, gpu: Gpu = GPUS["H200"]) -> Table:
    """One line a shape: share of bandwidth and of what a reader reaches, against the rest."""
    rows = []
    for key, points in shapes(section).items():
        ours = points["ours"]["bandwidth"]
        best = max(points[flow]["bandwidth"] for flow in ("cuDNN", "FA-2"))
        paged = (points[f"ours, pages of {page}"]["bandwidth"] / ours for page in (16, 128))
        rows.append(
            [_shape(*key), f"{ours / gpu.bandwidth:.2f}", f"{ours / section['read']:.2f}",
             f"{ours / best:.2f}×", *(f"{share:.2f}×" for share in paged)]
        )  # fmt: skip
    reached = f"of {decimal(gpu.bandwidth, 'B/s')}", "of a pure read"
    return Table(("shape", *reached, "to the best peer", "pages of 16", "pages of 128"), rows)


# --- fewer bits, measured ---------------------------------------------------------------------


def bits(section: dict | None, gpu: Gpu = GPUS["H200"], size: int = 8192) -> Table:
    """Bytes and time of one matrix-vector product for each format; measured where it was."""
    size = section["size"] if section else size
    timed = {point["form"]: point for point in section["points"]} if section else {}
    rows = []
    for form in ("bf16", "int8", "int4"):
        moved = size * size * FORMATS[form]
        row = [form, decimal(moved), seconds(moved / gpu.bandwidth)]
        if section:
            took = timed[form]["seconds"]
            times = timed["bf16"]["seconds"] / took
            row += [seconds(took), f"{moved / took / gpu.bandwidth:.0%}", f"{times:.2f}×"]
        rows.append(row)
    headers = ["weights", "bytes", "predicted"]
    headers += ["measured", "of the bandwidth", "faster than bf16"] if section else []
    return Table(headers, rows)


# --- what uses arithmetic that waits ------------------------------------------------------------


def guess_and_chunk(ax, gpu: Gpu = GPUS["H100 SXM"], name: str = "Llama 3.1 8B") -> str:
    """A decode step of 8 sequences on the roofline; with guessed tokens; with a chunk of a prompt."""
    model = MODELS[name]
    plain, guessed = (step(model, batch=8, context=4096, queries=n) for n in (1, 5))
    one, four = Point.of("batch 8", plain), Point.of("4 guesses each", guessed)
    mixed = Point.of("256 tokens of a prompt along", together(model, plain, prefill(model, 256)))
    return moves(ax, gpu, [("guess", [one, four], 1), ("chunk", [one, mixed], -1)])


@static("serving_moves", size=(10, 4.6))
def _(ax):
    return guess_and_chunk(ax)
