"""Whether an answer is right, and what is off where it is not: values, arrays, tensors, tuples."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction

import numpy as np

EPS = {"float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}  # any other number: FP64's


def leaves(x) -> list:
    """The numbers, arrays and tensors inside tuples, lists, dicts and dataclasses, in order."""
    if is_dataclass(x) and not isinstance(x, type):
        x = [getattr(x, field.name) for field in fields(x)]
    if isinstance(x, Mapping):
        x = list(x.values())
    return [leaf for y in x for leaf in leaves(y)] if isinstance(x, tuple | list) else [x]


def describe(x) -> str:
    """Dtype and shape of every array, the value of everything else: "float64 (2, 7), 3".

    What has many parts, as a matrix in lists, is only counted.
    """
    shown = [
        f"{kind(y)} {tuple(y.shape)}" if getattr(y, "shape", ()) else str(y)[:40] for y in leaves(x)
    ]
    many = len(shown) > 16
    return f"{len(shown)} values" if many else ", ".join(shown) or "nothing"


def kind(x) -> str:
    """The name of a dtype, without importing the library that it comes from."""
    return str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch.")


def half_the_digits(*values) -> float:
    """The relative error at which half of the digits of the least precise number are right."""
    return math.sqrt(max(EPS.get(kind(x), 2**-52) for x in leaves(values)))


def differs(value, expected, exact=None, rtol: float = 0.0, tell: bool = True) -> str | None:
    """What tells `value` from the right answer, in one sentence; None where nothing does.

    Shapes and dtypes come from `expected`, numbers from `exact` (in FP64; `expected` if None).
    Errors are relative to the largest number of the row, so zeros never pass for tiny numbers.
    With `tell=False` the sentence does not give the right answer away.
    """
    got, want = leaves(value), leaves(expected)
    if len(want) > 1 and getattr(value, "shape", ()) == (len(want),):
        got = list(value)  # an array for several numbers
    if len(got) != len(want):
        wanted = describe(expected) if tell else f"{len(want)} values"
        return f"It gives {describe(value)}; wanted: {wanted}."
    true = want if exact is None else leaves(exact)
    for i, parts in enumerate(zip(got, want, true, strict=True)):
        if text := _leaf(*parts, rtol, tell):
            alone = len(want) == 1 or isinstance(want[i], str) or getattr(want[i], "shape", ())
            place = "" if alone else f"Number {i + 1} of {len(want)}: "
            return place + (text if alone else text[0].lower() + text[1:])
    return None


def _leaf(got, want, true, rtol, tell):
    shape, wanted = tuple(getattr(got, "shape", ())), tuple(getattr(want, "shape", ()))
    if shape != wanted:
        return f"The shape is {shape}; it should be {wanted}."
    if wanted and kind(got) != kind(want):
        return f"The dtype is {kind(got)}; it should be {kind(want)}."
    a, b = _array(got), _array(true)
    if not (np.issubdtype(b.dtype, np.inexact) and np.issubdtype(a.dtype, np.number)):
        right = f"; it should be {str(true)[:60]}" if tell else ", which is not right"
        said = repr(got) if isinstance(got, str) else str(got)
        return None if np.array_equal(a, b) else f"It gives {said[:60]}{right}."
    lost = ~np.isfinite(a) & np.isfinite(b)
    if lost.any():
        return f"{lost.sum()} of {a.size} numbers are not finite: {a[lost][0]}{_at(lost)}."
    size = np.abs(np.where(np.isfinite(b), b, 0.0))
    row = size.max(-1, keepdims=True, initial=0.0) if size.ndim else size
    noise = 8 * 2**-52 * size.max(initial=0.0)  # a zero that is the end of a sum
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= rtol * row + noise
    off = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not off.any():
        return None
    right = f"; it should be {b[off][0]:.6g}" if tell else ""
    if not a.ndim:
        return f"It is {a:.6g}{right or ', which is not right'}."
    return f"{off.sum()} of {a.size} numbers are off: {a[off][0]:.6g}{_at(off)}{right}."


def _array(x):
    if hasattr(x, "detach"):  # a torch tensor; NumPy knows no bfloat16
        x = x.detach().cpu().double() if x.is_floating_point() else x.detach().cpu()
    return np.asarray(float(x) if isinstance(x, Fraction) else x)


def _at(mask):
    return f" at {np.argwhere(mask)[0].tolist()}" if mask.ndim else ""
