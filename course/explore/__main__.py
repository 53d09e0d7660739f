"""`make bench`: how long a slider move takes in the kernel, for every explorer.

On a plain screen, and on one with two pixels for one. On a busy machine the clock counts what others
do as well; "CPU" is what this process worked.
"""

import importlib.metadata
import os
import time

import numpy as np

from course import explore, measure
from course.explore.explorer import positions

MEDIAN, P95 = 50, 80  # ms: the budget for compute + draw + encode
RATIOS = (1, 2)  # pixels of the screen per pixel of the picture


def moves(explorer, count=15):
    """Seconds of each move, by the clock and of CPU time: every control through its range."""
    seconds = []
    for control in explorer.controls.values():
        first = control.value
        for value in [*positions(control, count), first]:
            if value != control.value:
                start, worked = time.perf_counter(), time.process_time()
                control.value = value
                seconds.append((time.perf_counter() - start, time.process_time() - worked))
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
    print(
        "milliseconds     "
        + "".join(f"      {n} pixel{'s' * (n > 1)} for one      " for n in RATIOS)
    )
    print(f"{'explorer':17}" + len(RATIOS) * f"{'median':>9}{'95th pct':>10}{'CPU':>7}")
    for name in explore.EXPLORERS:
        explorer, line, note = getattr(explore, name)(), f"{name:17}", ""
        for explorer.picture.ratio in RATIOS:
            clock, cpu = 1e3 * np.array(moves(explorer)).T
            median, p95 = np.percentile(clock, [50, 95])
            if median > MEDIAN or p95 > P95:
                note = "   over budget"
            line += f"{median:9.1f}{p95:10.1f}{np.median(cpu):7.1f}"
        print(line + note)
        explorer.close()
    print(f"\nbudget: median {MEDIAN} ms, 95th percentile {P95} ms")


if __name__ == "__main__":
    main()
