"""Numbers as the pages print them: bytes in powers of ten or of two, seconds, rates."""

from __future__ import annotations


def _scaled(x: float, base: int, prefixes: tuple[str, ...], unit: str, digits: int) -> str:
    step = 0
    while abs(x) >= base and step < len(prefixes) - 1:
        x, step = x / base, step + 1
    if (
        float(f"{x:.{digits}g}") >= base and step < len(prefixes) - 1
    ):  # 999.9 prints as 1 of the next
        x, step = x / base, step + 1
    text = f"{x:.{digits}g}" if abs(x) < 10**digits else f"{x:.0f}"
    return f"{text} {prefixes[step]}{unit}"


def decimal(x: float, unit: str = "B", digits: int = 3) -> str:
    """1.38e8 → '138 MB'; with unit="FLOP/s", 9.89e14 → '989 TFLOP/s'."""
    return _scaled(x, 1000, ("", "k", "M", "G", "T", "P", "E"), unit, digits)


def binary(x: float, unit: str = "B", digits: int = 3) -> str:
    """4194304 → '4 MiB'."""
    return _scaled(x, 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi"), unit, digits)


def seconds(x: float, digits: int = 3) -> str:
    """4.13e-5 → '41.3 µs'."""
    units = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
    size, unit = next((pair for pair in units if x >= pair[0]), units[-1])
    return f"{x / size:.{digits}g} {unit}"
