"""What this machine can do for a reader, in plain words. It looks, measures nothing, changes nothing.

Neither Triton nor the course's kernels are imported: a wheel that is missing or broken is something
to report, not to fail on.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from course import measure
from course.tables import Table
from course.units import binary


@dataclass(frozen=True)
class Found:
    """What there is. None stands for what is missing or unknown."""

    processor: str
    ram_bytes: int | None
    torch: str | None  # its version
    gpu: str | None  # its name, where PyTorch can use one
    capability: tuple[int, int] | None  # CUDA's number for what a GPU can do: an H100 is (9, 0)
    triton: str | None  # its version


def look() -> Found:
    """Look at this machine. Takes as long as importing torch."""
    name = capability = None
    if measure.cuda_available():
        cuda = importlib.import_module("torch").cuda
        name, capability = cuda.get_device_name(), tuple(cuda.get_device_capability())
    return Found(measure.stamp()["device"], _ram(), _version("torch"), name, capability, _triton())


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _triton():
    return _version("triton") if importlib.util.find_spec("triton") else None


def _ram():
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def machine(found: Found | None = None) -> Table:
    """A table of what is here and what it means for a reader; of this machine if none is given."""
    found = found or look()
    return Table(
        ("part", "here", "what that means"),
        [("processor", *_processor(found)), ("GPU", *_gpu(found)), ("Triton", *_triton_means(found))],
    )  # fmt: skip


def _processor(found):
    ram = f", {binary(found.ram_bytes, digits=2)} of memory" if found.ram_bytes else ""
    means = "All text, all sliders, all NumPy code and all exercises run here, live."
    return f"{found.processor}{ram}", means


def _gpu(found):
    if found.torch is None:
        return "PyTorch is not installed", (
            "Cells that need it say so. `make env` installs it with the rest of the course."
        )
    if found.gpu is None:
        return "none that PyTorch can use", (
            "Nothing is lost: what a GPU did was recorded on an H200, and is shown instead."
        )
    means = "GPU cells run for real, and your numbers stand beside those recorded on an H200."
    if found.capability < (8, 0):
        means += " This GPU has no BF16 arithmetic: those cells use FP16."
    return found.gpu, means


def _triton_means(found):
    if found.triton is None:
        return "not installed (it has wheels for Linux only)", (
            "Cells with a Triton kernel say so in one line and show the recorded result."
        )
    if found.gpu is None:
        return f"version {found.triton}", (
            "Kernels run in its interpreter: slowly, on small inputs, with the right answers."
        )
    return f"version {found.triton}", "Kernels are compiled for your GPU and run at full speed."


# Notebook: what is live everywhere, what Triton adds, what only a GPU can measure.
PAGES = {
    "01 The school": ("sliders; the staircase of your processor", "", "the staircase of a GPU"),
    "02 Roofline": ("sliders; the roofline of your processor", "", "the roofline of a GPU"),
    "03 Elementwise fusion": ("sliders; byte counts", "kernels", "times and bytes of kernels"),
    "04 Counting attention's bytes": ("sliders; byte counts", "", "memory, times and bytes"),
    "05 Online softmax": ("everything", "", ""),
    "06 FlashAttention forward in Triton": (
        "sliders; the NumPy loop",
        "kernels",
        "speed and memory",
    ),
    "07 The backward pass, derived and counted": ("everything", "", ""),
    "08 Backward in Triton, and training": (
        "the NumPy loop",
        "kernels",
        "speed, and a long training run",
    ),
    "10 Serving, and the phone": ("sliders; a loop that writes", "kernels", "speed of decode"),
    "11 Beyond one GPU": ("everything, on CPU processes", "", ""),
    "12 Field guide": ("everything", "", "the cases and their evidence"),
}


def pages(found: Found | None = None) -> Table:
    """For each notebook, what is live on this machine and what is shown as recorded."""
    found = found or look()
    rows = []
    for page, (live, kernels, measured) in PAGES.items():
        recorded = measured
        if kernels and found.triton is None:
            recorded = "; ".join((f"results of {kernels}", measured))
        elif kernels:
            live += f"; {kernels}" + ("" if found.gpu else " (interpreter)")
        if found.gpu and measured:
            live += f"; {measured}"
            recorded = "the same of an H200, to compare"
        rows.append((page, live, recorded or "nothing"))
    return Table(("notebook", "live here", "recorded on an H200"), rows)
