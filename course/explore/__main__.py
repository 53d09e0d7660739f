"""`make bench`: how long a slider move takes in the kernel, for every explorer."""

import importlib.metadata
import os
import time

import numpy as np

from course import explore, measure
from course.explore.explorer import positions

MEDIAN, P95 = 50, 80  # ms: the budget for compute + draw + encode


def moves(explorer, count=15):
    """Seconds of each move, with every control taken through its range from the first values."""
    seconds = []
    for control in explorer.controls.values():
        first = control.value
        for value in [*positions(control, count), first]:
            if value != control.value:
                start = time.perf_counter()
                control.value = value
                seconds.append(time.perf_counter() - start)
    return seconds


def main():
    """Print the table and the machine it was measured on."""
    stamp = measure.stamp("cpu", "every control through its range; compute + draw + encode")
    versions = stamp["versions"] | {
        name: importlib.metadata.version(name) for name in ("matplotlib", "ipywidgets", "pillow")
    }
    print(f"{stamp['device']}, {stamp['date']}, {stamp['method']}")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print()
    if hasattr(os, "getloadavg"):  # not on Windows
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print(f"{'explorer':24}{'moves':>8}{'median ms':>12}{'95th pct ms':>14}")
    for name in explore.EXPLORERS:
        explorer = getattr(explore, name)()
        milliseconds = 1e3 * np.array(moves(explorer))
        explorer.close()
        median, p95 = np.percentile(milliseconds, [50, 95])
        note = "" if median <= MEDIAN and p95 <= P95 else "   over budget"
        print(f"{name:24}{len(milliseconds):8}{median:12.1f}{p95:14.1f}{note}")
    print(f"\nbudget: median {MEDIAN} ms, 95th percentile {P95} ms")


if __name__ == "__main__":
    main()
