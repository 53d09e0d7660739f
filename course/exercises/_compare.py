"""Whether an answer is right, and what is off where it is not: values, arrays, tensors, tuples."""

import array
import math
from collections import deque
from collections.abc import Iterator, KeysView, Mapping, ValuesView
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np

EPS = {"float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}  # any other number: FP64's
LISTS = tuple | list | range | deque | array.array | KeysView | ValuesView | Iterator


def leaves(x, around=()) -> list:
    """The numbers, arrays and tensors inside lists, tuples, dicts, dataclasses and their like.

    In order. A list that contains itself is a leaf there.
    """
    if is_dataclass(x) and not isinstance(x, type):
        x = [getattr(x, field.name) for field in fields(x)]
    if isinstance(x, Mapping):
        x = list(x.values())
    if not isinstance(x, LISTS) or id(x) in around:
        return [x]
    return [leaf for y in x for leaf in leaves(y, (*around, id(x)))]


def describe(x) -> str:
    """Dtype and shape of every array, the value of everything else: "float64 (2, 7), 3".

    What has many parts, as a matrix in lists, is only counted.
    """
    shown = [f"{kind(y)} {_shape(y)}" if _shape(y) else said(y, str, 40) for y in leaves(x)]
    many = len(shown) > 16
    return f"{len(shown)} values" if many else ", ".join(shown) or "nothing"


def said(x, how=repr, length=60) -> str:
    """The beginning of repr(x), or of another text of x; its type where it has none."""
    try:
        return how(x)[:length]
    except Exception:  # a number of 5,000 digits, an object that is half made
        return f"{type(x).__name__} that cannot be printed"


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
    if len(want) > 1 and _shape(value) == (len(want),):
        got = list(value)  # an array for several numbers
    if len(got) != len(want):
        return _other_count(value, expected, exact, rtol, tell)
    true = want if exact is None else leaves(exact)
    for i, parts in enumerate(zip(got, want, true, strict=True)):
        if parts[0] is None and parts[1] is not None:
            return "It returns None: is a return missing?" if not i else f"Value {i + 1} is None."
        if text := _leaf(*parts, rtol, tell):
            alone = len(want) == 1 or isinstance(want[i], str) or _shape(want[i])
            place = "" if alone else f"Number {i + 1} of {len(want)}: "
            return place + (text if alone else text[0].lower() + text[1:])
    return None


def _other_count(value, expected, exact, rtol, tell):
    parts = list(value) if isinstance(value, LISTS) else []
    same = [len(leaves(part)) == len(leaves(expected)) for part in parts]
    right = [s and not differs(p, expected, exact, rtol) for p, s in zip(parts, same, strict=True)]
    if any(right):
        return f"Value {right.index(True) + 1} of {len(parts)} is right: return it alone."
    if parts and len(leaves(expected)) == 1 and _shape(expected):
        made = _array(parts)
        if not differs(made, expected, exact, rtol):
            return "The numbers are right, but in a list: np.array(…) makes an array of it."
    wanted = describe(expected) if tell else f"{len(leaves(expected))} values"
    return f"It gives {describe(value)}; wanted: {wanted}."


def _leaf(got, want, true, rtol, tell):
    shape, wanted = _shape(got), _shape(want)
    if shape != wanted:
        return _other_shape(shape, wanted)
    if wanted and kind(got) != kind(want):
        single = (kind(got), kind(want)) == ("float32", "float64")
        return f"The dtype is {kind(got)}; it should be {kind(want)}{MORE * single}."
    a, b = _array(got), _array(true)
    if not (np.issubdtype(b.dtype, np.inexact) and np.issubdtype(a.dtype, np.number)):
        if _same(a, b):
            return None
        right = f"; it should be {said(true, str)}" if tell else _not_told(a, b, "it must be exact")
        return f"It gives {said(got, repr if isinstance(got, str) else str)}{right}."
    lost = ~np.isfinite(a) & np.isfinite(b)
    if lost.any() and not a.ndim:
        return f"It is not finite: {a}."
    if lost.any():
        return f"{lost.sum()} of {a.size} numbers are not finite: {a[lost][0]}{_at(lost)}."
    if not wanted:
        rtol = max(rtol, 8 * EPS.get(kind(got), 0))  # a number in single precision will do
    size = np.abs(np.where(np.isfinite(b), b, 0.0))
    row = size.max(-1, keepdims=True, initial=0.0) if size.ndim else size
    noise = 8 * 2**-52 * size.max(initial=0.0)  # a zero that is the end of a sum
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= rtol * row + noise
    off = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not off.any():
        return None
    shown, right, more = _digits(a[off][0], b[off][0])
    if not tell:
        return f"It is {a[off][0]:.6g}{_not_told(a[off][0], b[off][0], 'it takes more digits')}."
    first = (
        f"{off.sum()} of {a.size} numbers are off: {shown}{_at(off)}"
        if a.ndim
        else f"It is {shown}"
    )
    return f"{first}; it should be {right}{more}."


MORE = ": this needs more than single precision"


def _digits(x, y):
    """Both numbers, with six digits or as many as tell them apart, and what to say of these."""
    for count in range(6, 18):
        texts = f"{x:.{count}g}", f"{y:.{count}g}"
        if texts[0] != texts[1]:
            break
    return *texts, MORE * (count > 6)


def _not_told(a, b, why):
    try:
        near = abs(a - b) <= 0.05 * abs(b)
    except Exception:  # a word instead of a number, a number of 400 digits
        near = False
    return f": near, but {why}" if near else ", which is not right"


def _other_shape(shape, wanted):
    if not wanted:
        return f"It gives an array of shape {shape}; it should be one number."
    if not shape:
        return f"It is no array; it should be one of shape {wanted}."
    less = [n for n in shape if n != 1] == [n for n in wanted if n != 1]
    hint = ": is keepdims=True missing?" if less and len(shape) < len(wanted) else ""
    hint = hint or ": turned over?" * (shape == wanted[::-1])
    return f"The shape is {shape}; it should be {wanted}{hint or '.'}"


def _shape(x):
    shape = getattr(x, "shape", ())
    return tuple(shape) if isinstance(shape, tuple) else ()


def _array(x):
    if hasattr(x, "detach"):  # a torch tensor; NumPy knows no bfloat16
        x = x.detach().cpu().double() if x.is_floating_point() else x.detach().cpu()
    try:
        return np.asarray(float(x) if isinstance(x, Fraction | Decimal) else x)
    except Exception:  # a list that contains itself, a thing with an __array__ of its own
        return np.array(None)


def _same(a, b):
    try:
        return bool(np.array_equal(a, b))
    except Exception:  # whatever == means there
        return False


def _at(mask):
    return f" at {np.argwhere(mask)[0].tolist()}" if mask.ndim else ""
