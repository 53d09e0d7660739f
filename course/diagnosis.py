"""My kernel is slow: which resource binds, what to try first, and what that gains at most.

The rule: what a kernel must do with each resource takes a least time. The one that takes more than
half of the measured time binds, since whatever else there is, is shorter.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import cache
from math import isfinite
from numbers import Real

from course import cost, measure, records, roofline
from course.cost import Cost, whole
from course.hardware import Gpu, this_machine
from course.units import seconds as told

HALF = 0.5  # of the measured time
TRY = {
    "launches": "Fewer launches: fuse, batch, or replay them as a CUDA graph.",
    "memory": "Fewer bytes: fuse what is written and read again, tile what is read twice, store "
    "numbers in fewer bits.",
    "compute": "Less or faster arithmetic: skip what is masked, use tensor cores, a data type with a "
    "higher peak.",
    "something else": "Look inside: registers and spills, blocks per SM, bank conflicts, other units "
    "(exp, integers), the order of the instructions.",
    "the count": "Check count and clock: bytes that the L2 served, a GPU not waited for, units.",
}


@cache
def lone_call() -> float:
    """Seconds of the shortest call recorded on the H200: all of it is launch."""
    return min(point["seconds"] for point in records.load("h200")["memory"]["roofline"])


@cache
def replayed_call() -> float:
    """Seconds of the shortest kernel recorded on the H200 inside a CUDA graph."""
    return min(p["graph"] for p in records.load("h200")["fusion"]["points"] if p["launches"] == 1)


def binds(needed: dict[str, float], seconds: float) -> str:
    """What binds, from the least time of each resource and the measured time, in seconds.

    "the count" where memory or compute would need more than was measured; "something else" where
    none needs more than half of it.
    """
    if max(needed["memory"], needed["compute"]) > seconds:
        return "the count"
    longest = max(needed, key=needed.get)
    return longest if needed[longest] > HALF * seconds else "something else"


@dataclass(frozen=True)
class Diagnosis:
    """What a measured time was spent on."""

    seconds: float
    needed: dict  # {"launches" | "memory" | "compute": the least time in seconds}

    @property
    def binds(self) -> str:
        """What binds: a key of `TRY`."""
        return binds(self.needed, self.seconds)

    @property
    def first(self) -> str:
        """What to try first."""
        return TRY[self.binds]

    @property
    def gain(self) -> float | None:
        """How many times faster at most, by mending only what binds; None for a wrong count.

        What the other resources need stays, and of all launches one, replayed by a CUDA graph.
        """
        if self.binds == "the count":
            return None
        stays = [t for resource, t in self.needed.items() if resource != self.binds]
        return max(self.seconds / max(*stays, replayed_call()), 1)

    def __repr__(self):
        parts = [
            f"{resource} {told(t)} ({t / self.seconds:.0%})" for resource, t in self.needed.items()
        ]
        gain = f" Gains at most {self.gain:.2g} times." if self.gain else ""
        return f"{told(self.seconds)} measured; at least: {', '.join(parts)}.\n" + textwrap.fill(
            f"It is {self.binds}. {self.first}{gain}", 92
        )


def diagnose(
    count: Cost, seconds: float, gpu: Gpu, *, dtype: str = "fp16", launches: int = 1
) -> Diagnosis:
    """The diagnosis of one run: what was to be done, how long it took, where, in how many kernels.

    ValueError in one line for a time that is none, and for what `roofline` refuses.
    """
    if not (isinstance(seconds, Real) and isfinite(seconds) and seconds > 0):
        raise ValueError(f"A measured time is a finite number of seconds above 0, not {seconds!r}.")
    (launches,) = whole(1, launches=launches)
    return Diagnosis(
        float(seconds),
        {
            "launches": launches * lone_call(),
            "memory": roofline.memory_time(count, gpu),
            "compute": roofline.compute_time(count, gpu, dtype),
        },
    )


def known(record: dict) -> list[tuple[str, Cost, float, int]]:
    """(name, count, seconds, launches) of six kernels of notebooks 02 to 06, from a GPU's record."""
    chain = ["bias", "gelu", "dropout", "residual"]
    most = max(point["n"] for point in record["fusion"]["points"])
    attend = {"d": 128, "heads": 16}
    picked = (
        ("chain, eager", cost.chain(chain, most, fused=False), "fusion", dict(flow="eager", n=most)),
        ("chain, by hand", cost.chain(chain, most, fused=True), "fusion",
         dict(flow="hand-written", n=most)),
        ("naive attention", cost.attention(8192, flow="naive", **attend), "attention_bytes",
         dict(flow="naive", n=8192)),
        ("notebook kernel", cost.attention(4096, flow="ideal", batch=4, **attend), "forward_ladder",
         dict(rung="notebook kernel", n=4096, d=128, causal=False)),
        ("cuDNN's attention", cost.attention(8192, flow="ideal", **attend), "attention_bytes",
         dict(flow="cudnn", n=8192)),
    )  # fmt: skip
    rows = []
    for name, one, section, wanted in picked:
        (point,) = (p for p in record[section]["points"] if wanted.items() <= p.items())
        naive = 3 if wanted.get("flow") == "naive" else 1
        rows.append((name, one, point["seconds"], point.get("launches", naive)))
    (matmul,) = (p for p in record["memory"]["roofline"] if p["name"] == "matmul 8192")
    return [*rows, ("matmul 8,192", cost.matmul(8192, 8192, 8192), matmul["seconds"], 1)]


def of(fn, count: Cost, *, dtype: str = "fp32", launches: int = 1) -> Diagnosis:
    """Time `fn()` here, on the GPU if there is one, and diagnose it by this machine's own rates.

    Without a GPU a launch is a function call: it counts nothing.
    """
    device = "cuda" if measure.cuda_available() else "cpu"
    took = measure.time(fn, device=device).median
    found = diagnose(count, took, this_machine(), dtype=dtype, launches=launches)
    return found if device == "cuda" else Diagnosis(took, found.needed | {"launches": 0.0})
