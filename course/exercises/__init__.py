"""Exercises that check themselves: a diagnosis for a wrong answer, hints in steps, a solution.

A notebook imports the module of its exercises, `from course.exercises import softmax as ex`, and
hands over what the reader wrote: `ex.rescale.check(rescale)`. `ex.rescale.hint()` prints the next
hint, `ex.rescale.solution()` the answer. A stub that still has `...` is "not attempted yet".

How to write one, in `course/exercises/<notebook>.py`:

    def mean(x):
        return x.sum(-1, keepdims=True) / x.shape[-1]

    def _cases(rng):  # tuples of arguments, fresh every time; make shapes and scales hostile
        for scale in (1e-6, 1.0, 1e6):
            yield (scale * rng.standard_normal((rng.integers(2, 5), 7)),)

    row_mean = Exercise(
        "Row mean", difficulty=1, minutes=3, answer=mean, cases=_cases,
        task="Write mean(x): the mean of each row, shape (..., 1).",
        hints=("Sum along the last axis.", "Then divide by the length of that axis."),
        wrong=[
            (lambda x: x.mean(keepdims=True), "This is the mean of everything, not of each row."),
            (lambda x: x.sum(-1, keepdims=True), "A sum: divide by the length of the row."),
            ...  # at least five, each plausible, each with the diagnosis that helps
        ],
    )

    ridge = Question(
        "Where is the ridge?", answer=295, unit="FLOP/byte", factor=1.02,
        task="989 TFLOP/s and 3.35 TB/s: at which intensity do they meet?",
        wrong={590: "With sparsity. Peaks here are dense."},
        explanation="989e12 / 3.35e12 = 295 FLOP/byte.",
    )
    bound = Question(
        "What bounds an add?", answer="a", choices={"a": "bandwidth", "b": "arithmetic"},
        task="An FP16 add of two long vectors on an H100: what does it wait for?",
        wrong={"b": "It does one FLOP for six bytes, and the H100 has 295 FLOP for each byte."},
        explanation="Intensity 0.17 is far left of the ridge at 295.",
    )

The wrong answers do double duty. An attempt that behaves like one of them is told that one's
diagnosis; and `tests/test_exercises.py` proves of every exercise that its solution passes, that
its stub is open and that each wrong answer gets the diagnosis meant for it. Any other wrong
attempt is told what differs first: an exception, None, a changed input, shape, dtype, a number
that is not finite, the largest error.

An answer may also be a value: leave `cases` out and give values as `answer` and in `wrong`.
`call(attempt, *args)` says how to run an attempt that is not simply called: launch a kernel on the
arguments, or count its bytes too, `lambda f, q: (f(q, hbm=(h := Hbm())), h.bytes)`.
"""

import ast
import copy
import inspect
import math
import secrets
import textwrap
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass
from typing import Any

import numpy as np

EPS = {"float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}  # any other float: FP64's


@dataclass(repr=False)
class _Item:
    """What an exercise and a question share: a name, a task, hints, and how they speak."""

    name: str
    _: KW_ONLY
    task: str
    answer: Any
    wrong: Any
    difficulty: int = 1  # 1 to 5
    minutes: int = 2
    hints: tuple[str, ...] = ()
    hints_shown: int = 0

    def __repr__(self):  # noqa: D105
        return _lines(
            f"{self.name} (difficulty {self.difficulty} of 5, {self.minutes} min)", self.task
        )

    def check(self, attempt, seed: int | None = None) -> None:
        """Print whether `attempt` is right and, if it is not, a diagnosis. Raises nothing."""
        print(self.verdict(attempt, secrets.randbelow(2**32) if seed is None else seed)[1])

    def hint(self) -> None:
        """Print the next hint."""
        if self.hints_shown == len(self.hints):
            print("No more hints: .solution() shows the answer.")
        else:
            self.hints_shown += 1
            hint = self.hints[self.hints_shown - 1]
            print(_lines(f"Hint {self.hints_shown} of {len(self.hints)}: {hint}"))

    def _say(self, status, text="", *more):
        start = {"open": "not attempted yet.", "right": "right.", "wrong": "not yet."}[status]
        return status, _lines(f"{self.name}: {start} {text}", *more)


@dataclass(repr=False)
class Exercise(_Item):
    """Something to write. `wrong` is [(attempt, diagnosis), ...]; see the module's docstring.

    `cases(rng)` yields tuples of arguments; `call(attempt, *args)` runs an attempt on one;
    `reference(*args)` gives the exact numbers in FP64, needed where `cases` are not in FP64; `rtol` is the error allowed, relative to the largest number of a row. Where
    `rtol` is None, half of the digits of the least precise number involved must be right.
    """

    cases: Callable | None = None
    call: Callable | None = None
    reference: Callable | None = None
    rtol: float | None = None

    def verdict(self, attempt, seed: int) -> tuple[str, str]:
        """("open" | "right" | "wrong", what to tell the reader) for inputs drawn from `seed`."""
        if line := _stub(attempt):
            return self._say("open", "" if line == "..." else f"Still open: {line}")
        if callable(self.answer) and not callable(attempt):
            return self._say("wrong", "Hand over the function itself, not its result.")
        cases = list(self.cases(np.random.default_rng(seed))) if self.cases else [()]
        got = [self._outcome(attempt, args) for args in cases]
        if any(r.value is ... for r in got):
            return self._say("open")
        facts = [self._compare(r, args) for r, args in zip(got, cases, strict=True)]
        if not any(facts):
            return self._say("right")
        first = next(i for i, fact in enumerate(facts) if fact)
        diagnosis = self._diagnose(got, cases, first)
        again = f"The same inputs again: .check(..., seed={seed})" if self.cases else ""
        seen = f"Input: {_describe(cases[first])}." if cases[first] else ""
        return self._say("wrong", diagnosis, facts[first], seen, again)

    def solution(self) -> None:
        """Print the source of the solution."""
        print(_source(self.answer) or repr(self.answer))

    def _outcome(self, attempt, args):
        mine = copy.deepcopy(args)
        call = self.call or (lambda f, *a: f(*a) if callable(self.answer) else f)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # what they warn of, the verdict says
                value = call(attempt, *mine)
        except Exception as error:
            return _Outcome(None, error, False, _place(error, attempt))
        changed = any(_differs(a, b, b, 0.0) for a, b in zip(mine, args, strict=True))
        return _Outcome(value, None, changed, "")

    def _compare(self, outcome, args):
        """What is wrong with this outcome, in a sentence; None if nothing is."""
        expected = self._outcome(self.answer, args).value
        if outcome.error:
            kind = type(outcome.error).__name__
            return f"It stops with {kind}: {str(outcome.error)[:200]}{outcome.place}."
        if outcome.value is None and expected is not None:
            return "It returns None: is a return missing?"
        if outcome.changed:
            return "It changes its input: work on a copy, or write x = x + 1 for x += 1."
        exact = self.reference(*copy.deepcopy(args)) if self.reference else expected
        return _differs(outcome.value, expected, exact, self._tolerance(args, expected))

    def _tolerance(self, args, expected):
        kinds = [_kind(x) for x in _leaves((args, expected))]
        return self.rtol or math.sqrt(max(EPS.get(kind, 2**-52) for kind in kinds))

    def _diagnose(self, got, cases, first):
        """The diagnosis of the wrong answer that does what this attempt does, everywhere or once."""
        for where in (range(len(cases)), [first]):
            for attempt, diagnosis in self.wrong:
                if all(
                    self._alike(got[i], self._outcome(attempt, cases[i]), cases[i]) for i in where
                ):
                    return diagnosis
        return ""

    def _alike(self, a, b, args):
        if a.error or b.error:
            return type(a.error) is type(b.error)
        tolerance = self._tolerance(args, b.value)
        return a.changed == b.changed and not _differs(a.value, b.value, b.value, tolerance)


@dataclass(repr=False)
class Question(_Item):
    """A quiz or a prediction: one of `choices` {key: text}, or else a number.

    `wrong` is {wrong answer: diagnosis}; `explanation` is the worked answer. A number is right
    within a `factor`: 1.02 for a calculation, 2 or more for a prediction.
    """

    explanation: str
    choices: Mapping[str, str] | None = None
    unit: str = ""
    factor: float = 1.02

    def __repr__(self):  # noqa: D105
        choices = [f"  {key}) {text}" for key, text in (self.choices or {}).items()]
        how = f"Answer with one of: {', '.join(self.choices)}." if self.choices else ""
        return _lines(super().__repr__(), *choices, how or f"Answer with a number, in {self.unit}.")

    def verdict(self, attempt, seed: int = 0) -> tuple[str, str]:
        """("open" | "right" | "wrong", what to tell the reader)."""
        if attempt is ...:
            return self._say("open")
        if self.choices:
            key = str(attempt).strip().lower()
            if key not in self.choices:
                return self._say("wrong", f"Choose one of: {', '.join(self.choices)}.")
            if key == self.answer:
                return self._say("right", self.explanation)
            return self._say("wrong", self.wrong[key])
        try:
            guess = float(attempt)
        except (TypeError, ValueError):
            guess = math.nan
        if not math.isfinite(guess):
            return self._say("wrong", f"Give one finite number, in {self.unit}.")
        if _near(guess, self.answer, self.factor):
            return self._say("right", self.explanation)
        slips = {**self.wrong, **{self.answer * ratio: text for ratio, text in SLIPS.items()}}
        for value, diagnosis in slips.items():
            if _near(guess, value, min(self.factor, 1.02)):
                return self._say("wrong", diagnosis)
        return self._say("wrong", f"It is {'larger' if guess < self.answer else 'smaller'}.")

    def solution(self) -> None:
        """Print the answer with its explanation."""
        answer = f"{self.answer:.4g} {self.unit}" if not self.choices else self.answer
        print(_lines(f"{answer}. {self.explanation}"))


SLIPS = {
    2: "Twice too large: was a read, a write or a multiply-add counted twice?",
    1 / 2: "Half of it: a multiply-add is two FLOPs, FP16 has two bytes, data is read and written.",
    8: "Eight times too large: bits where bytes are asked for?",
    1 / 8: "An eighth of it: bytes where bits are asked for?",
    2**20 / 10**6: "Off by 1.049: MB is 10^6 bytes, MiB is 2^20.",
    10**6 / 2**20: "Off by 1.049: MB is 10^6 bytes, MiB is 2^20.",
    2**30 / 10**9: "Off by 1.074: GB is 10^9 bytes, GiB is 2^30.",
    10**9 / 2**30: "Off by 1.074: GB is 10^9 bytes, GiB is 2^30.",
    2**40 / 10**12: "Off by 1.1: TB is 10^12 bytes, TiB is 2^40.",
    10**12 / 2**40: "Off by 1.1: TB is 10^12 bytes, TiB is 2^40.",
    **{
        10.0**p: f"Off by 10^{abs(p)}: check the prefix of the unit." for p in (-9, -6, -3, 3, 6, 9)
    },
}


def _near(guess, value, factor):
    return guess == value or (guess * value > 0 and 1 / factor <= guess / value <= factor)


@dataclass
class _Outcome:
    value: Any
    error: Exception | None
    changed: bool  # the attempt wrote into its arguments
    place: str  # where in the attempt the error came from


def _lines(*parts):
    return "\n".join(textwrap.fill(part, 96) for part in parts if part)


def _plain(attempt):
    """The Python function inside a Triton kernel, an autotuner, a decorator or a partial."""
    while inner := getattr(attempt, "fn", None) or getattr(attempt, "func", None):
        attempt = inner
    return inspect.unwrap(attempt) if callable(attempt) else attempt


def _source(attempt):
    try:
        return textwrap.dedent(inspect.getsource(_plain(attempt)))
    except (OSError, TypeError):
        return ""


def _stub(attempt, seen=()):
    """The line that is still `...` in the attempt or a function of the same notebook it calls."""
    if attempt is ...:
        return "..."
    function, source = _plain(attempt), _source(attempt)
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a lambda inside a longer expression
        return ""
    index = {
        id(n) for s in ast.walk(tree) if isinstance(s, ast.Subscript) for n in ast.walk(s.slice)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value is ... and id(node) not in index:
            return source.splitlines()[node.lineno - 1].strip()
    code, scope = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    for helper in (scope.get(name) for name in (code.co_names if code else ())):
        mine = getattr(_plain(helper), "__module__", None) == function.__module__
        if callable(helper) and mine and helper not in seen:
            if line := _stub(helper, (*seen, attempt)):
                return line
    return ""


def _place(error, attempt):
    code = getattr(_plain(attempt), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if code and f.filename == code.co_filename]
    return f", at `{mine[-1].line}`" if mine and mine[-1].line else ""


def _leaves(x):
    if is_dataclass(x) and not isinstance(x, type):
        x = [getattr(x, field.name) for field in fields(x)]
    if isinstance(x, Mapping):
        x = list(x.values())
    return [leaf for y in x for leaf in _leaves(y)] if isinstance(x, tuple | list) else [x]


def _kind(x):
    return str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch.")


def _array(x):
    if hasattr(x, "detach"):  # a torch tensor, without importing torch
        x = x.detach().cpu().double() if x.is_floating_point() else x.detach().cpu()
    return np.asarray(x)


def _describe(values):
    shapes = [(_kind(x), tuple(getattr(x, "shape", ())), x) for x in _leaves(values)]
    return ", ".join(f"{kind} {shape}" if shape else str(x)[:40] for kind, shape, x in shapes)


def _differs(value, expected, exact, rtol):
    """What tells `value` from `expected`, in a sentence; None where nothing does."""
    got, want, true = _leaves(value), _leaves(expected), _leaves(exact)
    if len(got) != len(want):
        return f"It gives {len(got)} values ({_describe(got)}); {len(want)} are wanted."
    for g, w, t in zip(got, want, true, strict=True):
        shape, wanted = getattr(g, "shape", ()), getattr(w, "shape", ())
        if tuple(shape) != tuple(wanted):
            return f"The shape is {tuple(shape)}; it should be {tuple(wanted)}."
        if len(wanted) and _kind(g) != _kind(w):
            return f"The dtype is {_kind(g)}; it should be {_kind(w)}."
        a, b = _array(g), _array(t)
        if not np.issubdtype(b.dtype, np.inexact) or not np.issubdtype(a.dtype, np.number):
            if not np.array_equal(a, b):
                return f"It gives {str(g)[:60]}; {str(t)[:60]} is right."
            continue
        lost = ~np.isfinite(a) & np.isfinite(b)
        if lost.any():
            return f"{lost.sum()} of {a.size} numbers are not finite ({a[lost][0]})."
        size = np.abs(np.where(np.isfinite(b), b, 0.0))
        allowed = rtol * (size.max(-1, keepdims=True, initial=0) if size.ndim else size)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            off = ~(same | (np.abs(a - b) <= allowed + 8 * 2**-52 * size.max(initial=0)))
        if off.any():
            at = tuple(int(i) for i in np.argwhere(off)[0])
            where = f" at {list(at)}" if at else ""
            return f"{off.sum()} of {a.size} wrong: {a[at]:.6g}{where}, should be {b[at]:.6g}."
    return None
