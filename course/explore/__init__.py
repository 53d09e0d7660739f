"""Sliders: one module an explorer, loaded when its name is first used: `explore.roofline()`.

The last expression of a cell shows it. `Explorer` is the mechanism; its module says how to write one.
"""

import importlib
import sys
import types

EXPLORERS = (  # the modules of this package that build an explorer, each by a function of its name
    "school",
    "day",
    "pyramid",
    "hiding",
    "lanes",
    "roofline",
    "programs",
    "fusion",
    "sentence",
    "attention_bytes",
    "online",
    "stepper",
    "tiles",
    "forward_tiles",
    "backward",
    "serving",
    "ring",
    "diagnosis",
)


def __getattr__(name):
    if name == "Explorer":
        return importlib.import_module(f"{__name__}.explorer").Explorer
    if name in EXPLORERS:
        importlib.import_module(f"{__name__}.{name}")
        return globals()[name]
    raise AttributeError(
        f"course.explore has no explorer {name!r}; there are {', '.join(EXPLORERS)}"
    )


def __dir__():
    return ["EXPLORERS", "Explorer", *EXPLORERS]


class _Package(types.ModuleType):
    """Python names a submodule in its package; here that name is the function that builds it."""

    def __setattr__(self, name, value):
        if name in EXPLORERS and isinstance(value, types.ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
