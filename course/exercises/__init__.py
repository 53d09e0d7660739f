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
        "Row mean", difficulty=1, minutes=3, answer=mean, cases=_cases,  # answer: the solution
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
that is not finite, the first number that is off.

In the notebook, `ex.row_mean` or `ex.bound` as the last line of a cell shows the task. Then come
the stub, where `...` stands for what the reader writes, and `ex.row_mean.check(mean)` or
`ex.bound.check(...)`. The output of stub and right answer never changes, so nbval compares it.
All texts are shown as they stand: write α and ℓ, not LaTeX or Markdown.

Make `cases` in FP64, with shapes and scales that break what is nearly right; a handful is enough.
FP16 or FP32 cases need a `reference` in FP64. An answer may also be a value: leave `cases` out and
give values as `answer` and in `wrong`. Several functions go in as a tuple, with `call(attempt,
*args)` to run them. `call` also launches a kernel on the arguments, or counts its bytes too:
`lambda f, q: (f(q, hbm=(h := Hbm())), h.bytes)`.
"""

import copy
import functools
import math
import secrets
import textwrap
import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from ._compare import describe, differs, half_the_digits, leaves
from ._source import failed_line, source, still_open, unwrap


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

    def __repr__(self):
        head = f"{self.name} (difficulty {self.difficulty} of 5, {self.minutes} min)"
        return _lines(head, self.task, *self._how())

    def check(self, attempt, seed: int | None = None) -> None:
        """Print whether `attempt` is right and, if it is not, a diagnosis. Raises nothing."""
        print(self.verdict(attempt, secrets.randbelow(2**32) if seed is None else seed)[1])

    def hint(self) -> None:
        """Print the next hint."""
        if self.hints_shown == len(self.hints):
            return print("No more hints: .solution() shows the answer.")
        self.hints_shown += 1
        hint = self.hints[self.hints_shown - 1]
        print(_lines(f"Hint {self.hints_shown} of {len(self.hints)}: {hint}"))

    def _say(self, status, *text):
        start = {"open": "not attempted yet.", "right": "right.", "wrong": "not yet."}[status]
        first, *more = [part for part in text if part] or [""]
        return status, _lines(f"{self.name}: {start} {first}", *more)


@dataclass(repr=False)
class Exercise(_Item):
    """Something to write. `wrong` is [(attempt, diagnosis), ...]; see the module's docstring.

    `cases(rng)` yields tuples of arguments; `call(attempt, *args)` runs an attempt on one;
    `reference(*args)` gives the exact numbers in FP64, needed where the cases are not in FP64.
    `rtol` is the error allowed, relative to the largest number of a row; where it is None, half
    of the digits of the least precise number involved must be right.
    """

    cases: Callable | None = None
    call: Callable | None = None
    reference: Callable | None = None
    rtol: float | None = None

    def verdict(self, attempt, seed: int) -> tuple[str, str]:
        """("open" | "right" | "wrong", what to tell the reader), for inputs drawn from `seed`."""
        if line := still_open(attempt):
            return self._say("open", f"Still open: {line}" if line != "..." else "")
        if callable(self.answer) and not callable(unwrap(attempt)):
            return self._say("wrong", "Hand over the function itself, not its result.")
        cases = list(self.cases(np.random.default_rng(seed))) if self.cases else [()]
        runs = [self._run(attempt, args) for args in cases]
        if any(leaf is ... for run in runs for leaf in leaves(run.value)):
            return self._say("open")
        facts = [self._fact(run, args) for run, args in zip(runs, cases, strict=True)]
        if not any(facts):
            return self._say("right")
        first = next(i for i, fact in enumerate(facts) if fact)
        rounds = [range(len(cases)), [first]]
        if "not finite" in facts[first]:  # NaN looks alike, wherever it comes from
            rounds = rounds[:1]
        say = [self._diagnosis(runs, cases, rounds), facts[first]]
        if self.cases:
            say += [f"Input: {describe(cases[first])}. Again: .check(..., seed={seed})"]
        return self._say("wrong", *say)

    def use(self, attempt, seed: int | None = None):
        """The attempt where it is right; else the solution, and a line that says so.

        For a part that later cells need: `step = ex.step.use(step)`.
        """
        seed = secrets.randbelow(2**32) if seed is None else seed
        if self.verdict(attempt, seed)[0] == "right":
            return attempt
        print(_lines(f"{self.name}: until yours is right, the cells below use the course's."))
        return self.answer

    def solution(self) -> None:
        """Print the source of the solution."""
        print(source(self.answer).rstrip() or repr(self.answer))

    def _how(self):
        return ()

    def _run(self, attempt, args):
        mine = copy.deepcopy(args)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # what NumPy would warn of is in the verdict
                if self.call:
                    value = self.call(attempt, *mine)
                else:
                    value = attempt(*mine) if callable(self.answer) else attempt
        except Exception as error:
            return _Run(error=error, line=failed_line(error, attempt))
        return _Run(value, changed=bool(differs(_data(mine), _data(args))))

    def _fact(self, run, args):
        """What is wrong with this run, in a sentence; None if nothing is."""
        if run.error:
            at = f", at `{run.line}`" if run.line else ""
            return f"It stops with {type(run.error).__name__}: {str(run.error)[:200]}{at}."
        right = self._run(self.answer, args)
        if right.error:
            raise right.error
        if run.value is None and right.value is not None:
            return "It returns None: is a return missing?"
        if run.changed and not right.changed:
            return "It changes its input: work on a copy, x = x + 1 instead of x += 1."
        exact = self.reference(*copy.deepcopy(args)) if self.reference else right.value
        rtol = self.rtol or half_the_digits(args, right.value)
        return differs(run.value, right.value, exact, rtol, tell=bool(self.cases))

    def _diagnosis(self, runs, cases, rounds):
        """That of the wrong answer which does the same in all cases of the first round, or a later."""

        @functools.cache  # both rounds begin alike, and a kernel in the interpreter takes its time
        def alike(number, i):
            return self._alike(runs[i], self._run(self.wrong[number][0], cases[i]), cases[i])

        for where in rounds:
            for number, (_, diagnosis) in enumerate(self.wrong):
                if all(alike(number, i) for i in where):
                    return diagnosis
        return ""

    def _alike(self, a, b, args):
        if a.error or b.error:
            return type(a.error) is type(b.error)
        rtol = self.rtol or half_the_digits(args, b.value)
        return a.changed == b.changed and not differs(a.value, b.value, rtol=rtol)


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

    def verdict(self, attempt, seed: int = 0) -> tuple[str, str]:
        """("open" | "right" | "wrong", what to tell the reader)."""
        if attempt is ...:
            return self._say("open")
        guess = str(attempt).strip().lower() if self.choices else _number(attempt)
        if guess not in (self.choices or [guess]) or guess is None:
            return self._say("wrong", *self._how()[-1:])
        if guess == self.answer or (not self.choices and _near(guess, self.answer, self.factor)):
            return self._say("right", self.explanation)
        if self.choices:
            return self._say("wrong", self.wrong[guess])
        slips = [*self.wrong.items()]
        if self.unit:
            slips += [(self.answer * by, text) for by, text in SLIPS.items()]
        fits = (text for value, text in slips if _near(guess, value, min(self.factor, 1.02)))
        larger = "larger" if guess < self.answer else "smaller"
        return self._say("wrong", next(fits, f"The right answer is {larger}."))

    def solution(self) -> None:
        """Print the answer with its explanation."""
        number = "" if self.choices else f"{self.answer:.4g} {self.unit}".strip()
        print(_lines(f"{number or self.answer}. {self.explanation}"))

    def _how(self):
        if not self.choices:
            return [f"Answer with one finite number{self.unit and ', in '}{self.unit}."]
        texts = [f"  {key}) {text}" for key, text in self.choices.items()]
        return [*texts, f"Answer with one of {', '.join(map(repr, self.choices))}."]


SLIPS = {  # what an amount off by this factor usually means
    2: "Twice too large: was a read, a write or a multiply-add counted twice?",
    1 / 2: "Half of it: a multiply-add is two FLOPs, FP16 has two bytes, a copy reads and writes.",
    8: "Eight times too large: bits where bytes are asked for?",
    1 / 8: "An eighth of it: bytes where bits are asked for?",
    **{
        ratio: f"Off by a factor of {2**p / 10**q:.3f}: {si} is 10^{q} bytes, {iec} is 2^{p}."
        for p, q, si, iec in ((20, 6, "MB", "MiB"), (30, 9, "GB", "GiB"), (40, 12, "TB", "TiB"))
        for ratio in (2**p / 10**q, 10**q / 2**p)
    },
    **{
        10.0**p: f"Off by 10^{abs(p)}: look at the unit again."
        for p in (-12, -9, -6, -3, 3, 6, 9, 12)
    },
}


@dataclass
class _Run:
    value: Any = None
    error: Exception | None = None
    line: str = ""  # of the attempt, where the error came from
    changed: bool = False  # it wrote into its arguments


def _lines(*parts):
    return "\n".join(textwrap.fill(part, 92, subsequent_indent="  ") for part in parts)


def _data(args):
    return [x for x in leaves(args) if hasattr(x, "dtype") or isinstance(x, int | float | str)]


def _number(attempt):
    try:
        return float(attempt) if math.isfinite(float(attempt)) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _near(guess, value, factor):
    return guess == value or (guess * value > 0 and 1 / factor <= guess / value <= factor)
