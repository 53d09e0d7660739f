"""Ridge, attainable rate, time and bound of a cost on a machine.

The roofline model (Williams, Waterman and Patterson, 2009): an operation takes at least the longer
of bytes / bandwidth and FLOPs / peak. It leaves out overhead, such as the launch of a kernel.
"""

from __future__ import annotations

from math import isfinite
from numbers import Real

from course.cost import Cost, shown
from course.hardware import LEAST_RATE, Gpu, Link


def ridge(gpu: Gpu, dtype: str = "fp16") -> float:
    """The intensity, in FLOP/byte, at which memory and arithmetic take equally long."""
    return _gpu(gpu).peak_for(dtype) / gpu.bandwidth


def link_ridge(gpu: Gpu, link: Link, dtype: str = "fp16") -> float:
    """FLOPs that a GPU does in the time one byte takes on the link: what each byte has to pay for."""
    if not isinstance(link, Link):
        raise ValueError(
            f"A link is an entry of LINKS, such as LINKS['NVLink 4'], not {shown(link)}."
        )
    return _gpu(gpu).peak_for(dtype) / link.bandwidth


def attainable(intensity: float, gpu: Gpu, dtype: str = "fp16") -> float:
    """The highest rate, in FLOP/s, that this intensity allows: min(peak, intensity × bandwidth)."""
    if not (isinstance(intensity, Real) and intensity >= 0):
        raise ValueError(f"Arithmetic intensity must be 0 or more, and is {shown(intensity)}.")
    return min(_gpu(gpu).peak_for(dtype), intensity * gpu.bandwidth)


def memory_time(cost: Cost, gpu: Gpu) -> float:
    """Seconds to move the bytes at full bandwidth."""
    return _cost(cost).bytes / _gpu(gpu).bandwidth


def compute_time(cost: Cost, gpu: Gpu, dtype: str = "fp16") -> float:
    """Seconds to do the arithmetic at the dense peak."""
    return _cost(cost).flops / _gpu(gpu).peak_for(dtype)


def time(cost: Cost, gpu: Gpu, dtype: str = "fp16") -> float:
    """Seconds at the least: the longer of moving the bytes and doing the arithmetic."""
    return max(memory_time(cost, gpu), compute_time(cost, gpu, dtype))


def bound(cost: Cost, gpu: Gpu, dtype: str = "fp16") -> str:
    """What the time is spent on: "memory" or "compute" (at the ridge itself: "compute")."""
    return "memory" if memory_time(cost, gpu) > compute_time(cost, gpu, dtype) else "compute"


def utilisation(rate: float, gpu: Gpu, dtype: str = "fp16") -> float:
    """A measured rate in FLOP/s as a fraction of the dense peak (MFU, for a whole model)."""
    return _fraction(rate, _gpu(gpu).peak_for(dtype), "FLOP/s", f"{gpu.name}'s dense {dtype} peak")


def bandwidth_utilisation(rate: float, gpu: Gpu) -> float:
    """A measured rate in bytes/s as a fraction of the memory bandwidth."""
    return _fraction(rate, _gpu(gpu).bandwidth, "bytes/s", f"{gpu.name}'s memory bandwidth")


def _gpu(gpu: Gpu) -> Gpu:
    """The GPU itself; a ValueError for its name."""
    if not isinstance(gpu, Gpu):
        raise ValueError(
            f"A GPU is an entry of GPUS, such as GPUS['H100 SXM'], and not {shown(gpu)}."
        )
    return gpu


def _cost(cost: Cost) -> Cost:
    if not isinstance(cost, Cost):
        raise ValueError(f"A cost comes out of course.cost, as a Cost, and this is {shown(cost)}.")
    return cost


def _fraction(rate: float, peak: float, unit: str, name: str) -> float:
    if not (isinstance(rate, Real) and isfinite(rate) and rate >= 0):
        raise ValueError(f"A rate must be finite and 0 or more, and is {shown(rate)} {unit}.")
    if 0 < rate < LEAST_RATE:
        raise ValueError(
            f"{rate!r} {unit} is less than any machine does: was a 1e9 or 1e12 left out?"
        )
    if rate > peak:
        raise ValueError(
            f"{rate:.4g} {unit} is {rate / peak:.0%} of {name}, {peak:.4g} {unit}. "
            "Check the timing (was the GPU synchronised?), the count and the units."
        )
    return rate / peak
