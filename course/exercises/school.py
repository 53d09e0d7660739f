"""Exercises of notebook 01: crossings, levels, bytes on the way, and reading a staircase."""

from math import ceil

import numpy as np

from course.exercises import Exercise, Question
from course.hardware import GPUS, LADDER, KiB, MiB

# --- predictions, asked where the notebook teaches the point ------------------------------------

naive_crossings = Question(
    "Crossings, naive",
    task="A homework of four steps, each a kernel of its own. How many crossings does each page make?",
    answer=8,
    wrong={
        4: "Each step crosses twice: the page comes, the answer goes back.",
        2: "That would do if nothing had to go back in between. Here every step goes back to the library.",
        5: "The answer of one step goes to the library, and comes back for the next: two crossings.",
    },
    explanation="Four steps, each with one crossing to fetch the page and one to give it back: 4 × 2 = 8.",
)
fused_crossings = Question(
    "Crossings, fused",
    minutes=1,
    task="The same homework, all four steps in one kernel. How many crossings does each page make?",
    answer=2,
    wrong={
        1: "The answer must get back to the library too: somebody will ask for it there.",
        4: "Between the steps nothing leaves the classroom: the half-done pages stay on the shelf.",
        8: "That is the naive day. Now only the first fetch and the last return cross the street.",
    },
    explanation="One crossing with the page, one with the final answer: 2, a quarter of 8.",
)
_H100 = GPUS["H100 SXM"]
_LATENCY = _H100.levels[-1].latency / _H100.clock
in_flight = Question(
    "On the way",
    minutes=3,
    hints=("How many bytes does the counter hand over in 273 ns?",),
    task="The counter of an H100 hands over 3.35e12 bytes per second. What is asked for is on its way "
    "for 273 ns. How many kB must be on their way at any moment, so that the counter is never idle?",
    answer=_H100.bandwidth * _LATENCY / 1e3,
    unit="kB",
    wrong={
        3.35e12 / 273e-9 / 1e3: "Divided: but the longer the way, the more is on it. Multiply.",
        3.35: "In a microsecond it hands over 3.35 MB. How much in 0.273 of one?",
    },
    explanation="3.35e12 bytes per second × 273e-9 s = 915e3 bytes: what the counter hands over while one "
    "request is on its way. With less, it would run dry before the answer to the next request is due.",
)
disk_seconds = Question(
    "In the other town",
    minutes=1,
    task="HBM hands over 3,350 GB per second, a disk 7. Suppose that HBM took a second for some data. "
    "How many seconds would the disk take? A guess within a factor of two is right.",
    answer=_H100.bandwidth / LADDER[-1].bandwidth,
    factor=2,
    wrong={
        52: "That is host memory, over the cable. The disk is slower still.",
        23450: "Multiplied: how often does 7 go into 3,350?",
    },
    explanation="3,350 / 7 = 479 seconds, about eight minutes.",
)
dies_of_sram = Question(
    "A library of SRAM",
    task="An H100 has 80 billion transistors. To keep 80 GB in SRAM of six transistors a bit, how "
    "many chips of 80 billion would you need, for the bits alone?",
    answer=8 * 6,
    unit="chips",
    wrong={
        6: "A byte has eight bits.",
        8: "Each bit needs six transistors.",
        1: "Each byte has eight bits, and each bit needs six transistors.",
        14: "Eight bits, each of six transistors: multiply.",
    },
    explanation="80e9 bytes × 8 bits × 6 transistors = 3.84e12, which is 48 times 80e9.",
)
why_refresh = Question(
    "Why refresh?",
    task="Why does DRAM refresh its cells, and SRAM not?",
    answer="c",
    choices={
        "a": "DRAM is further away, so its signals fade on the wire",
        "b": "DRAM loses its bits when the power goes, and SRAM keeps them",
        "c": "a DRAM bit is charge that leaks; an SRAM bit is held by transistors that feed each other",
        "d": "refreshing raises the bandwidth of DRAM",
    },
    wrong={
        "a": "Distance costs time, not charge in the cell. The leak is inside the cell itself.",
        "b": "Both lose everything without power. The question is what happens while it is on.",
        "d": "It costs bandwidth: a row that is being refreshed can serve nobody.",
    },
    explanation="A capacitor leaks, so its charge is read and written back every few tens of "
    "milliseconds. Two inverters that drive each other need no such help.",
)
host_or_hbm = Question(
    "A model over the cable",
    task="A model has 16 GB of weights. From HBM they are read in 16e9 / 3.35e12 s = 4.8 ms. How "
    "long from host memory, over a PCI Express cable of 64 GB/s?",
    answer=1e3 * 16e9 / 64e9,
    unit="ms",
    wrong={
        4000: "Turned around: bytes divided by bytes a second, not the other way.",
        2000: "64 GB/s are gigabytes, not gigabits: no factor of 8.",
        4.8: "That is from HBM. The cable carries 64 GB/s, not 3,350.",
    },
    explanation="16e9 / 64e9 = 0.25 s = 250 ms, which is 52 times the 4.8 ms from HBM. A "
    "chat model reads all of them for every word: four words a second, at best.",
)
where_spills_go = Question(
    "Where do spills go?",
    task="A thread needs 300 values at once and has 255 registers. Where do the others live?",
    answer="d",
    choices={
        "a": "in the registers of a neighbour",
        "b": "in shared memory",
        "c": "nowhere: the kernel does not compile",
        "d": "in local memory, a part of HBM that the caches may hold",
    },
    wrong={
        "a": "Registers are private: no thread reads those of another's desk.",
        "b": "Only what the program puts there goes to shared memory; a compiler does not spill to it.",
        "c": "It compiles, and the report of the compiler says how many bytes it spills.",
    },
    explanation="The compiler spills them: it stores them to local memory and loads them when needed. "
    "Local is a name for who sees it, not for where it is.",
)
hbm_or_sram = Question(
    "HBM or SRAM?",
    task="Which sentence is right about an H100?",
    answer="b",
    choices={
        "a": "HBM is fast because it is SRAM stacked beside the chip",
        "b": "HBM is DRAM beside the chip: large and far; what is on the chip is SRAM: small and near",
        "c": "the L2 cache is DRAM, as all SMs share it",
        "d": "shared memory is a part of HBM that one thread block may use",
    },
    wrong={
        "a": "HBM is DRAM. Its bandwidth comes from thousands of wires side by side.",
        "c": "Who shares it says nothing of what it is made of: the L2 is on the chip, and SRAM.",
        "d": "Shared memory is inside each SM, and SRAM.",
    },
    explanation="Tens of gigabytes fit only in DRAM, one transistor a bit; tens of megabytes on the "
    "chip are SRAM, six a bit. HBM stores the data, SRAM is where they are worked on.",
)
what_fusion_saves = Question(
    "What does fusion save?",
    task="Four kernels, each of which does one thing to every number of a tensor, are fused into one. "
    "What becomes less?",
    answer="c",
    choices={
        "a": "the arithmetic",
        "b": "the arithmetic and the bytes",
        "c": "the bytes to and from HBM, and the kernels to launch",
        "d": "the bytes of the first read and the last write",
    },
    wrong={
        "a": "The same four steps are done on the same elements: no FLOP is saved.",
        "b": "The bytes, yes; but the same four steps are done, so the arithmetic stays.",
        "d": "Those are the two crossings that remain. What goes are the ones between the steps.",
    },
    explanation="Same homework, same answer, less walking: the crossings between the steps are gone.",
)
what_tiling_saves = Question(
    "When does tiling help?",
    task="A homework fits on the shelf as a whole. What does cutting it into tiles save?",
    answer="a",
    choices={
        "a": "nothing: fused and tiled carry the same pages",
        "b": "half of the crossings",
        "c": "the work at the desk",
    },
    wrong={
        "b": "Each page crosses once each way already; smaller loads only add walks.",
        "c": "Every page gets every step, in whatever order.",
    },
    explanation="Tiling is for what does not fit. Where everything fits, one tile is enough.",
)

# --- exercises ------------------------------------------------------------------------------------


def all_crossings(steps, pages, flow):
    """Crossings of all pages together, where the homework fits on the shelf."""
    return 2 * steps * pages if flow == "naive" else 2 * pages


def _small_homeworks(rng):
    for flow in ("naive", "fused"):
        yield 1, int(rng.integers(2, 9)), flow
        yield int(rng.integers(2, 9)), 1, flow
        yield int(rng.integers(3, 9)), int(rng.integers(10, 40)), flow


crossings = Exercise(
    "Count the crossings",
    difficulty=1,
    minutes=4,
    answer=all_crossings,
    cases=_small_homeworks,
    task="Write crossings(steps, pages, flow): how many crossings all pages together make, for the "
    "flows 'naive' and 'fused'.",
    hints=(
        "Naive: each of the steps costs each of the pages two crossings.",
        "Fused: two crossings for each page, however many steps. Choose with: if flow == 'naive'",
    ),
    wrong=[
        (lambda steps, pages, flow: all_crossings(steps, pages, flow) // 2,
         "This counts one way. What is fetched must be given back: two crossings."),
        (lambda steps, pages, flow: all_crossings(steps, 1, flow),
         "This is for one page. All pages are asked for: they cross one by one."),
        (lambda steps, pages, flow: 2 * steps * pages,
         "This is the naive day, whatever the flow: look at the argument `flow`."),
        (lambda steps, pages, flow: 2 * pages,
         "This is the fused day, whatever the flow: look at the argument `flow`."),
        (lambda steps, pages, flow: all_crossings(steps, pages, "fused" if flow == "naive" else "naive"),
         "The two flows are swapped: it is the naive one whose crossings grow with the steps."),
        (lambda steps, pages, flow: 8 * pages if flow == "naive" else 2 * pages,
         "Right for four steps only: take the argument `steps`."),
        (lambda steps, pages, flow: (steps + 1) * pages if flow == "naive" else 2 * pages,
         "Between two steps a page crosses twice: it goes back, and is fetched again."),
    ],
)  # fmt: skip


def crossings_with_shelf(steps, pages, shelf, flow):
    """Crossings of all pages together, with a shelf for so many of them."""
    if flow == "naive":
        return 2 * steps * pages
    if flow == "tiled":
        return 2 * pages
    stay = min(pages, shelf)
    return 2 * stay + 2 * steps * (pages - stay)


def _homeworks(rng):
    for flow in ("naive", "fused", "tiled"):
        steps, shelf = int(rng.integers(2, 9)), int(rng.integers(3, 20))
        yield steps, shelf - 1, shelf, flow  # fits
        yield steps, shelf, shelf, flow  # just
        yield steps, 3 * shelf + int(rng.integers(1, shelf)), shelf, flow  # does not


def _but(**formulas):
    """The right function, but for the flows that are given: a formula of (steps, pages, shelf)."""

    def attempt(steps, pages, shelf, flow):
        if flow in formulas:
            return formulas[flow](steps, pages, shelf)
        return crossings_with_shelf(steps, pages, shelf, flow)

    return attempt


small_shelf = Exercise(
    "A shelf too small",
    difficulty=2,
    minutes=6,
    answer=crossings_with_shelf,
    cases=_homeworks,
    task="Write crossings(steps, pages, shelf, flow): how many crossings all pages together make when "
    "the shelf holds `shelf` pages, for the flows 'naive', 'fused' and 'tiled'.",
    hints=(
        "Naive: every step carries every page twice. Tiled: every page crosses twice, in all.",
        "Fused: min(pages, shelf) pages stay in the classroom and cross twice in all.",
        "Fused: each of the others crosses twice at every step.",
    ),
    wrong=[
        (lambda *args: crossings_with_shelf(*args) // 2,
         "This counts one way. What is fetched must be given back: both ways cross the street."),
        (_but(fused=lambda k, p, shelf: 2 * p),
         "This fused day always fits. What is too much for the shelf goes back after every step."),
        (_but(fused=lambda k, p, shelf: 2 * p if p <= shelf else 2 * k * p),
         "Too much for the shelf does not mean that nothing stays: a shelf full of pages does."),
        (_but(fused=lambda k, p, shelf: 2 * shelf + 2 * k * (p - shelf)),
         "With a shelf larger than the homework this carries more pages than there are: take min()."),
        (_but(naive=lambda k, p, shelf: 2 * k * ceil(p / shelf)),
         "These are walks, not crossings. On each walk a load of pages crosses."),
        (_but(tiled=lambda k, p, shelf: 2 * shelf * ceil(p / shelf)),
         "The last load may be smaller than the shelf: no more pages cross than there are."),
        (_but(tiled=lambda k, p, shelf: 2 * k * p),
         "In the tiled day all steps are done while a load is on the shelf: no factor of steps."),
        (_but(fused=lambda k, p, shelf: 2 * min(p, shelf) + 2 * (k - 1) * max(p - shelf, 0)),
         "A page that does not fit is carried at every step, the first and the last among them."),
        (lambda k, p, shelf, flow: 2 * k * p,
         "This is the naive day, whatever the flow: look at the argument `flow`."),
        (lambda k, p, shelf, flow: 2 * p,
         "This is the tiled day, whatever the flow: look at the argument `flow`."),
    ],
)  # fmt: skip


def home(size, levels):
    """The first level that holds `size` bytes, None if none does."""
    for name, capacity in levels:
        if size <= capacity:
            return name
    return None


H100 = [("registers", 1020), ("shared", 227 * KiB), ("l2", 50 * MiB), ("hbm", 80 * 10**9)]


def _sizes(rng):
    laptop = [
        ("L1", 32),
        ("L2", int(rng.integers(256, 2048))),
        ("RAM", int(rng.integers(4, 64)) * MiB),
    ]
    for levels in (H100, [(name, size * KiB) for name, size in laptop]):
        for i, (_, capacity) in enumerate(levels):
            yield capacity, levels  # exactly full
            yield capacity + 1, levels
            yield int(capacity * rng.uniform(0.2, 0.9)) if i else 2, levels


def _largest(size, levels):
    return max(levels, key=lambda level: level[1])[0]


def _nearest(size, levels):
    return min(levels, key=lambda level: abs(level[1] - size))[0]


def _strictly(size, levels):
    return next((name for name, capacity in levels if size < capacity), None)


def _last_that_fits(size, levels):
    return next((name for name, capacity in reversed(levels) if size <= capacity), None)


def _never_none(size, levels):
    return next((name for name, capacity in levels if size <= capacity), levels[-1][0])


def _by_heart(size, levels):
    return home(size, H100)


def _whole_entry(size, levels):
    return next(((name, capacity) for name, capacity in levels if size <= capacity), None)


def _too_small(size, levels):
    return next((name for name, capacity in reversed(levels) if size >= capacity), levels[0][0])


level_of = Exercise(
    "The nearest level that holds it",
    difficulty=1,
    minutes=5,
    answer=home,
    cases=_sizes,
    task="Write home(size, levels): the name of the first level that holds `size` bytes, None if "
    "none does. levels is a list of (name, capacity in bytes), from small to large.",
    hints=(
        "Walk through the levels from the first on, and return at the first that is large enough.",
        "A level that is exactly full still holds it. After the loop: return None.",
    ),
    wrong=[
        (
            _largest,
            "The largest level holds everything, and is the slowest: look from the top down.",
        ),
        (_nearest, "Near in size is not enough: a level too small by one byte does not hold it."),
        (_strictly, "A level that is exactly full still holds it: <=, not <."),
        (_last_that_fits, "This finds the last level that holds it; the first one is the fastest."),
        (_never_none, "What no level holds has no home: return None."),
        (_too_small, "Turned around: the capacity must be at least the size."),
        (
            _by_heart,
            "Right for an H100 only: take names and capacities from the argument `levels`.",
        ),
        (_whole_entry, "The name alone is asked for, without its capacity."),
    ],
)


def step_ends(sizes, rates, fall=1.5):
    """The working sets after which the bandwidth falls by more than a factor."""
    ends = []
    for i in range(len(sizes) - 1):
        if rates[i] > fall * rates[i + 1]:
            ends.append(sizes[i])
    return ends


def _staircases(rng):
    for levels, fall in ((2, 1.5), (3, 2.0), (4, 1.3)):
        heights = 10 ** rng.uniform(10, 12) / 2.5 ** np.arange(levels)
        counts = rng.integers(2, 5, levels)
        sizes = 2 ** np.arange(14, 14 + sum(counts))
        noise = rng.uniform(0.93, 1.07, sum(counts))
        yield sizes, np.repeat(heights, counts) * noise, fall
    yield 2 ** np.arange(14, 17), np.array([5e10, 5.1e10, 4.9e10]), 1.5  # one level: no step
    yield 2 ** np.arange(14, 18), np.array([9e10, 8.8e10, 4.1e10, 4e10]), 3.0  # too low for a step


def _rises(sizes, rates, fall=1.5):
    return [sizes[i] for i in range(len(sizes) - 1) if rates[i + 1] > fall * rates[i]]


def _one_late(sizes, rates, fall=1.5):
    return [sizes[i + 1] for i in range(len(sizes) - 1) if rates[i] > fall * rates[i + 1]]


def _positions(sizes, rates, fall=1.5):
    return [i for i in range(len(sizes) - 1) if rates[i] > fall * rates[i + 1]]


def _fixed_fall(sizes, rates, fall=1.5):
    return step_ends(sizes, rates)


def _any_fall(sizes, rates, fall=1.5):
    return [sizes[i] for i in range(len(sizes) - 1) if rates[i] > rates[i + 1]]


def _from_the_first(sizes, rates, fall=1.5):
    return [sizes[i] for i in range(len(sizes) - 1) if rates[0] > fall * rates[i + 1]]


def _steepest(sizes, rates, fall=1.5):
    return [sizes[max(range(len(sizes) - 1), key=lambda i: rates[i] / rates[i + 1])]]


def _and_the_last(sizes, rates, fall=1.5):
    return [*step_ends(sizes, rates, fall), sizes[-1]]


def _as_array(attempt, *args):
    """A list, a tuple, an array and a generator are equally right."""
    found = attempt(*args)
    return found if found is None or found is ... else np.array(list(found), dtype=float)


staircase = Exercise(
    "Read a staircase",
    difficulty=3,
    minutes=10,
    answer=step_ends,
    cases=_staircases,
    call=_as_array,
    task="Write step_ends(sizes, rates, fall=1.5): the list of working sets after which the "
    "bandwidth drops by more than the factor `fall` from one point to the next. Each is your "
    "estimate of how much a level holds.",
    hints=(
        "Compare rates[i] with rates[i + 1], for every i but the last.",
        "It is a step if rates[i] > fall * rates[i + 1]; the level's size is then about sizes[i].",
    ),
    wrong=[
        (_rises, "These are the places where it gets faster. A larger working set gets slower."),
        (_one_late, "One too late: sizes[i + 1] did not fit any more, sizes[i] still did."),
        (_any_fall, "Every measurement wobbles. Only a fall by more than the factor is a step."),
        (
            _from_the_first,
            "Compare with the point before, not with the first: there are many steps.",
        ),
        (_positions, "These are positions i. The working sets there are asked for: sizes[i]."),
        (_fixed_fall, "1.5 is only what `fall` is by default: compare with the argument."),
        (_steepest, "The steepest fall alone is one level. There may be more, or none."),
        (
            _and_the_last,
            "The last point ends the measurement, not a level: nothing falls after it.",
        ),
    ],
)


def tiles_that_fit(rows, columns, itemsize, shelf_bytes):
    """Whole tiles of rows × columns numbers that fit on a shelf."""
    return shelf_bytes // (rows * columns * itemsize)


def _shelves(rng):
    for shelf in (64 * KiB, 99 * KiB, 227 * KiB):
        rows, columns = (int(x) for x in rng.choice([16, 48, 64, 80, 128], 2))
        yield rows, columns, int(rng.choice([1, 2, 4])), shelf
    yield 48, 64, 2, 64 * KiB  # ten and two thirds
    yield 128, 128, 4, 64 * KiB  # exactly one
    yield 128, 128, 8, 64 * KiB  # none


tiles = Exercise(
    "How many tiles fit?",
    difficulty=1,
    minutes=4,
    answer=tiles_that_fit,
    cases=_shelves,
    task="Write tiles_that_fit(rows, columns, itemsize, shelf_bytes): how many whole tiles of "
    "rows × columns numbers of itemsize bytes fit on a shelf.",
    hints=(
        "A tile takes rows · columns · itemsize bytes.",
        "Whole tiles only: // divides and drops the rest.",
    ),
    wrong=[
        (lambda r, c, size, shelf: shelf // (r * c), "These are bytes over numbers: a number has itemsize bytes."),
        (lambda r, c, size, shelf: shelf / (r * c * size), "Part of a tile is of no use: whole tiles only, so //."),
        (lambda r, c, size, shelf: -(-shelf // (r * c * size)), "Rounded up, the last tile would stick out: round down."),
        (lambda r, c, size, shelf: round(shelf / (r * c * size)), "Rounded to the nearest: a tile that fits by half does not fit."),
        (lambda r, c, size, shelf: shelf // (r * c * 2), "Not every number has two bytes: take the argument itemsize."),
        (lambda r, c, size, shelf: shelf * 1024 // (r * c * size), "The shelf is given in bytes: no KiB to convert."),
        (lambda r, c, size, shelf: max(1, shelf // (r * c * size)), "A tile larger than the shelf fits zero times, not once."),
        (lambda r, c, size, shelf: shelf // ((r + c) * size), "A tile is a rectangle: rows times columns, not their sum."),
    ],
)  # fmt: skip
