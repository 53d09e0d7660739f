"""The school of notebook 01 as arithmetic: how many pages cross the street, and for how long.

A homework of some pages takes some steps. Books live in the library across the street (HBM); a
classroom's shelf (shared memory) holds few pages. A *crossing* is one page carried over, one way: it
costs a minute at the library's counter (bandwidth). A *walk* carries at most a shelf-load of pages
and costs the way over the street (latency), however few they are. The flows:

  "naive"  step after step: every step fetches all pages and gives all of them back
  "fused"  all steps in the classroom; pages that do not fit on the shelf go back after each step
  "tiled"  fused, one shelf-load after the other: each page crosses once there and once back
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from course.cost import elementwise
from course.hardware import GPUS

FLOWS = ("naive", "fused", "tiled")
WALK_MINUTES = 5.0  # over the street, one way; an assumption of the story
PAGE_MINUTES = 1.0  # a page at the counter; an assumption too: it sets the scale of the clock


def _step_minutes() -> float:
    """One step on one page. To scale: an H100's FP32 units against its HBM, a FLOP an element."""
    h100, page = GPUS["H100 SXM"], elementwise(10**6)
    work, move = page.flops / h100.peak_for("fp32"), page.read / h100.bandwidth
    return PAGE_MINUTES * work / move


STEP_MINUTES = _step_minutes()


@dataclass(frozen=True)
class Day:
    """What one flow costs: walks one way, crossings (pages carried one way), minutes of work."""

    walks: int
    crossings: int
    working: float

    @property
    def walking(self) -> float:
        """Minutes on the street."""
        return WALK_MINUTES * self.walks

    @property
    def queueing(self) -> float:
        """Minutes at the library's counter."""
        return PAGE_MINUTES * self.crossings

    @property
    def minutes(self) -> float:
        """All of it, one after the other: the class does not work while it walks."""
        return self.walking + self.queueing + self.working


def day(steps: int, pages: int, shelf: int, flow: str) -> Day:
    """The day of one class: `steps` on `pages`, with a shelf for `shelf` pages."""
    if min(steps, pages, shelf) < 1:
        raise ValueError(
            f"steps, pages and shelf must be 1 or more, and are {steps}, {pages}, {shelf}."
        )
    if flow not in FLOWS:
        raise ValueError(f"flow is {flow!r}; it must be one of {', '.join(FLOWS)}.")
    stays = {"naive": 0, "fused": min(pages, shelf), "tiled": pages}[flow]  # crosses once each way
    again = pages - stays  # crosses both ways at every step
    walks = 2 * (ceil(stays / shelf) + steps * ceil(again / shelf))
    return Day(walks, 2 * (stays + steps * again), STEP_MINUTES * steps * pages)


@dataclass(frozen=True)
class Visit:
    """One stay in the classroom: so many pages were carried there, and got so many steps."""

    pages: int
    steps: int


def visits(steps: int, pages: int, shelf: int, flow: str) -> list[Visit]:
    """The stays of one day in order, for the "naive" and the "tiled" flow."""
    if flow not in ("naive", "tiled"):
        raise ValueError(f"flow is {flow!r}; only a naive and a tiled day are told visit by visit.")
    day(steps, pages, shelf, flow)  # refuses sizes below 1
    loads = [min(shelf, pages - first) for first in range(0, pages, shelf)]
    if flow == "tiled":
        return [Visit(load, steps) for load in loads]
    return [Visit(load, 1) for _ in range(steps) for load in loads]


LIBRARY, CLASSROOM = 0.0, 1.0


def path(visits: list[Visit]) -> list[tuple[float, float]]:
    """(minute, place) at every turn: the day begins and ends at the library's counter.

    Between two turns the class stands still or walks evenly. Only walks with pages are told, as
    only they move bytes: asking for a page costs no more than calling its number.
    """
    clock, turns = 0.0, [(0.0, LIBRARY)]
    for visit in visits:
        stays = (
            (PAGE_MINUTES * visit.pages, LIBRARY),  # in the queue
            (WALK_MINUTES, CLASSROOM),
            (STEP_MINUTES * visit.pages * visit.steps, CLASSROOM),  # at work
            (WALK_MINUTES, LIBRARY),
            (PAGE_MINUTES * visit.pages, LIBRARY),  # in the queue again, to give back
        )
        for minutes, place in stays:
            clock += minutes
            turns.append((clock, place))
    return turns
