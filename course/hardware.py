"""Memory levels and GPUs; every figure carries its source.

Units: bytes, bytes/s, FLOP/s (one fused multiply-add is 2 FLOP), clock cycles for latency.
Peaks are *dense*: data sheets often print twice as much, which holds only for 2:4 sparse weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from math import isfinite
from numbers import Real

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KiB, MiB, GiB = 2**10, 2**20, 2**30

LEAST_RATE = 1e6
"""FLOP/s or bytes/s. Any machine that runs Python does more: less is a unit left out."""


class Fixed(dict):
    """A dict that nobody can edit. A key that it lacks is answered with those that it has.

    `dict(...)` of it is a copy that can be edited, `dataclasses.replace(gpu, peak=…)` another GPU.
    """

    def _refuse(self, *_, **__):
        raise TypeError("This table cannot be edited. Edit a copy of it: dict(...).")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __missing__(self, key):
        near = [name for name in self if str(key).lower() in name.lower()] if key else []
        near = near or get_close_matches(str(key), self) or list(self)
        raise KeyError(f"There is no {key!r}. Did you mean one of these? {', '.join(near)}")

    def __reduce__(self):  # pickle would fill an empty one
        return type(self), (dict(self),)


DTYPES = Fixed({"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1})
"""Bytes an element takes in memory, for every data type that has a peak."""


@dataclass(frozen=True)
class Level:
    """One level of a memory hierarchy. A figure that no source gives is None, never a guess."""

    name: str
    analogy: str  # its place in the school of notebook 01
    scope: str  # who can use one of it
    capacity_bytes: int | None  # all of it, on the whole chip
    bandwidth: float | None  # bytes/s, all of it together
    latency: float | None  # clock cycles, order of magnitude
    managed_by: str
    source: str


@dataclass(frozen=True)
class Gpu:
    """One GPU (or, from `this_machine`, the processor that is here).

    ValueError for a peak or bandwidth that is not in FLOP/s or bytes/s: a giga or tera left out.
    """

    name: str
    sms: int | None  # streaming multiprocessors
    peak: Fixed = field(hash=False)  # {data type: dense FLOP/s}
    bandwidth: float  # bytes/s of main memory
    smem_per_sm: int | None  # bytes of shared memory an SM
    smem_per_block: int | None  # bytes of it that one block may use
    l2_bytes: int | None
    hbm_bytes: int | None  # as the name on the box counts; a card holds somewhat more
    source: str
    levels: tuple[Level, ...] = field(repr=False, default=())
    clock: float | None = None  # Hz, of the tensor peaks

    def __post_init__(self):
        if not isinstance(self.peak, dict):
            raise ValueError(f"peak must be {{data type: FLOP/s}}, and is {self.peak!r}.")
        object.__setattr__(self, "peak", Fixed(self.peak))
        rates = {f"{dtype} peak in FLOP/s": rate for dtype, rate in self.peak.items()}
        for what, rate in (rates | {"bandwidth in bytes/s": self.bandwidth}).items():
            if not (isinstance(rate, Real) and isfinite(rate) and rate > LEAST_RATE):
                raise ValueError(
                    f"The {what} of {self.name} is {rate!r}: was a 1e9 or 1e12 left out?"
                )

    def peak_for(self, dtype: str) -> float:
        """Dense peak in FLOP/s; a ValueError names the types this GPU has."""
        if not isinstance(dtype, str) or dtype not in self.peak:
            has = ", ".join(self.peak)
            raise ValueError(f"{self.name} has no {dtype!r} peak. It has: {has}.")
        return self.peak[dtype]


# Latencies are orders of magnitude. On an A100 and an H100, Luo et al. (arXiv:2402.13499)
# measured about 30 cycles for shared memory, 260 for the L2 and 470 for HBM.
_LATENCY = "latency: order of magnitude, after arXiv:2402.13499"
_REGISTER_BYTES = 64 * KiB * 4  # 64K registers of 32 bits an SM, from Turing to Blackwell
THREAD_REGISTER_BYTES = 255 * 4
"""The most that one thread may hold: 255 registers of 32 bits (CUDA C++ programming guide)."""
THREADS_PER_SM = 2048
"""The most that an SM of an A100, an H100 or a B200 holds at once (CUDA C++ programming guide)."""


def _levels(sms, clock, smem_per_sm, l2_bytes, hbm_bytes, bandwidth, memory, source):
    """The four levels of a GPU. Shared-memory bandwidth is computed: 32 banks × 4 bytes a clock."""
    return (
        Level("registers", "the book open on your desk", "one thread", sms * _REGISTER_BYTES, None, 1,
              "compiler", f"64K × 32-bit registers an SM, CUDA C++ programming guide; {_LATENCY}"),
        Level("shared", "the shelf in your classroom", "one thread block", sms * smem_per_sm,
              sms * 128 * clock, 30, "programmer",
              f"{source}; bandwidth computed: 128 bytes a clock and SM × {clock / 1e9:.2f} GHz; {_LATENCY}"),
        Level("l2", "the cupboard in the corridor", "the whole GPU", l2_bytes, None, 250, "hardware",
              f"{source}; {_LATENCY}"),
        Level("hbm", "the library across the street", "the whole GPU", hbm_bytes, bandwidth, 500,
              "allocator", f"{memory}, {source}; {_LATENCY}"),
    )  # fmt: skip


def _gpu(name, sms, clock, peak, bandwidth, smem_per_sm, smem_per_block, l2_bytes, hbm_bytes, memory,
         source):  # fmt: skip
    """`clock` is the boost clock in Hz that the data sheet's tensor peaks were computed with.

    FP32 on Hopper and the B200 is quoted at a higher one: 66.9e12 = 132 SMs × 256 FLOP × 1.98 GHz.
    """
    peak = {dtype: tera * 1e12 for dtype, tera in peak.items()}
    levels = _levels(sms, clock, smem_per_sm, l2_bytes, hbm_bytes, bandwidth, memory, source)
    return Gpu(name, sms, peak, bandwidth, smem_per_sm, smem_per_block, l2_bytes, hbm_bytes, source,
               levels, clock)  # fmt: skip


_HOPPER = dict(fp32=66.9, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9, int8=1978.9)
_AMPERE = dict(fp32=19.5, tf32=156, fp16=312, bf16=312, int8=624)
_TUNING = "NVIDIA Hopper tuning guide (228 KB an SM, 227 KB a block)"

GPUS = Fixed({
    g.name: g
    for g in (
        _gpu("H100 SXM", 132, 1.83e9, _HOPPER, 3.35e12, 228 * KiB, 227 * KiB, 50 * MiB, 80 * GB,
             "HBM3", f"NVIDIA H100 data sheet, sparse figures halved; {_TUNING}; the device reports "
             "81,559 MiB of memory"),
        _gpu("H100 PCIe", 114, 1.62e9,
             dict(fp32=51.2, tf32=378, fp16=756.5, bf16=756.5, fp8=1513, int8=1513),
             2.0e12, 228 * KiB, 227 * KiB, 50 * MiB, 80 * GB,
             "HBM2e", f"NVIDIA H100 data sheet, sparse figures halved; {_TUNING}"),
        _gpu("H200", 132, 1.83e9, _HOPPER, 4.8e12, 228 * KiB, 227 * KiB, 60 * MiB, 141 * GB,
             "HBM3e", f"NVIDIA H200 data sheet, sparse figures halved; {_TUNING}; L2 as the device "
             "reports it, and 150,109,880,320 bytes of memory"),
        _gpu("A100 40GB", 108, 1.41e9, _AMPERE, 1.555e12, 164 * KiB, 163 * KiB, 40 * MiB, 40 * GB,
             "HBM2", "NVIDIA A100 data sheet (40 GB)"),
        _gpu("A100 80GB", 108, 1.41e9, _AMPERE, 2.039e12, 164 * KiB, 163 * KiB, 40 * MiB, 80 * GB,
             "HBM2e", "NVIDIA A100 data sheet (80 GB SXM; often rounded to 2.0 TB/s)"),
        _gpu("B200", 148, 1.85e9,
             dict(fp32=75, tf32=1125, fp16=2250, bf16=2250, fp8=4500, int8=4500),
             7.7e12, 228 * KiB, 227 * KiB, int(126.5 * MiB), 180 * GB,
             "HBM3e", "NVIDIA HGX B200 data sheet, one of eight GPUs, sparse figures halved: 62 TB/s for "
             "eight; the launch pages said 8 TB/s, the driver 7,680 bit × 3,996 MHz × 2 = 7.67 TB/s; L2 "
             "as the device reports it"),
        _gpu("T4", 40, 1.59e9, dict(fp32=8.1, fp16=65, int8=130), 0.32e12, 64 * KiB, 64 * KiB,
             4 * MiB, 16 * GB, "GDDR6", "NVIDIA T4 data sheet; Turing tuning guide"),
        _gpu("RTX 4090", 128, 2.52e9,
             dict(fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3, int8=660.6),
             1.008e12, 100 * KiB, 99 * KiB, 72 * MiB, 24 * GB,
             "GDDR6X", "NVIDIA Ada architecture paper, FP32 accumulation; Ada tuning guide"),
        Gpu("laptop GPU", None, {"fp16": 20e12, "bf16": 20e12}, 0.3e12, None, None, None, None,
            "a round example, no particular product"),
    )
})  # fmt: skip
"""The GPUs of the course, by name. For most pages an "H100" is the "H100 SXM"."""

LADDER: tuple[Level, ...] = (
    *GPUS["H100 SXM"].levels,
    Level("host", "the city archive, by train", "the computer", None, 64e9, None, "program",
          "PCI Express 5.0 ×16, one direction: 32 GT/s × 16 lanes / 8, before encoding"),
    Level("nvme", "the archive in another town", "the computer", None, 7e9, None, "file system",
          "a PCI Express 4.0 ×4 solid-state disk, about 7 GB/s by its makers' data sheets"),
)  # fmt: skip
"""The levels of an H100 SXM and what lies beyond the card."""


@dataclass(frozen=True)
class Link:
    """A way for bytes between GPUs. bandwidth: bytes/s of one GPU in one direction."""

    name: str
    bandwidth: float
    source: str


def _link(name, both_ways, source):
    return Link(name, both_ways / 2, f"{source}; makers print both directions together")


LINKS = Fixed({
    link.name: link
    for link in (
        _link("NVLink 5", 1.8e12, "NVIDIA HGX B200 data sheet: 1.8 TB/s a GPU"),
        _link("NVLink 4", 900e9, "NVIDIA H100 data sheet: 900 GB/s a GPU"),
        _link("NVLink 3", 600e9, "NVIDIA A100 data sheet: 600 GB/s a GPU"),
        Link("PCIe 5.0 ×16", 64e9, "32 GT/s × 16 lanes / 8, one direction, before encoding"),
        Link("PCIe 4.0 ×16", 32e9, "16 GT/s × 16 lanes / 8, one direction, before encoding"),
        Link("InfiniBand NDR", 50e9, "400 Gbit/s a port, one direction (InfiniBand roadmap, NDR ×4)"),
        Link("Ethernet 100", 12.5e9, "100 Gbit/s by its name (IEEE 802.3), before headers"),
        Link("Ethernet 10", 1.25e9, "10 Gbit/s by its name (IEEE 802.3), before headers"),
    )
})  # fmt: skip
"""Links between GPUs, by name: inside a computer, and between computers (one port a GPU)."""


@cache
def this_machine() -> Gpu:
    """The processor that is here, measured now: its GPU where there is one, otherwise its CPU.

    Takes a few seconds the first time. Method and date are in `.source`.
    """
    from course import measure  # measuring is not needed to read the tables above

    here = measure.machine()
    source = "measured here, {date}: {method}".format(**here["stamp"])
    levels = [
        Level(
            **level,
            analogy=_ANALOGY[here["kind"]].get(level["name"], "a cupboard"),
            scope="one core" if level["name"] in ("l1", "l2") and here["kind"] == "cpu" else "all",
            latency=None,
            managed_by="program" if level["name"] in ("ram", "hbm") else "hardware",
            source=source,
        )
        for level in here["levels"]
    ]
    sizes = ("sms", "smem_per_sm", "smem_per_block", "l2_bytes", "hbm_bytes")
    return Gpu(
        name=here["name"],
        peak=here["peak"],
        bandwidth=here["bandwidth"],
        levels=tuple(levels),
        source=source,
        **{key: here.get(key) for key in sizes},
    )


_ANALOGY = {
    "cpu": {"l1": "the desk", "l2": "the shelf", "l3": "the cupboard", "ram": "the library"},
    "cuda": {"l2": "the cupboard", "hbm": "the library"},
}
