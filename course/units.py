"""Numbers as the pages print them: bytes in powers of ten or of two, seconds, rates.

Each function prints `digits` significant digits, or all digits of the whole part where it has more.
ValueError for NaN and infinity, which are no amounts.
"""

from __future__ import annotations

from math import isfinite


def decimal(x: float, unit: str = "B", digits: int = 3) -> str:
    """1.38e8 → '138 MB'; with unit="FLOP/s", 9.89e14 → '989 TFLOP/s'."""
    return _scaled(x, 1000, ("", "k", "M", "G", "T", "P", "E"), unit, digits)


def binary(x: float, unit: str = "B", digits: int = 3) -> str:
    """4194304 → '4 MiB'."""
    return _scaled(x, 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), unit, digits)


def seconds(x: float, digits: int = 3) -> str:
    """4.13e-5 → '41.3 µs'."""
    return _scaled(x * 1e9, 1000, ("n", "µ", "m", ""), "s", digits)


def _scaled(x: float, base: int, prefixes: tuple[str, ...], unit: str, digits: int) -> str:
    if not isfinite(x):
        raise ValueError(f"{x!r} is no amount of {unit}.")
    step = 0
    while abs(float(_rounded(x, digits))) >= base and step < len(prefixes) - 1:
        x, step = x / base, step + 1  # as printed: 999.9 is 1 of the next
    return f"{_rounded(x, digits)} {prefixes[step]}{unit}"


def _rounded(x: float, digits: int) -> str:
    return f"{x:.{digits}g}" if abs(x) < 10**digits - 0.5 else f"{x:.0f}"
