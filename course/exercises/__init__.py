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
        "Where is the ridge?", answer=989 / 3.35, unit="FLOP/byte",
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
attempt is told what differs first: an exception and what it means, None, a changed input, shape,
dtype, a number that is not finite, the first number that is off. `make mutants` changes each
solution in one place at a time and says which changes the check does not see.

In the notebook, `ex.row_mean` or `ex.bound` as the last line of a cell shows the task. Then come
the stub, where `...` stands for what the reader writes, and `ex.row_mean.check(mean)` or
`ex.bound.check(...)`. The output of stub and right answer never changes, so nbval compares it.
All texts are shown as they stand: write α and ℓ, not LaTeX or Markdown.

A number that is an int must be met exactly, any other to three digits; `factor` is for
predictions. A question without hints gives its first wrong answer as one: put the best first.

Make `cases` in FP64, with shapes and scales that break what is nearly right; a handful is enough.
Draw every number of them anew. FP16 or FP32 cases need a `reference` in FP64. An answer may also be
a value: leave `cases` out and give values as `answer` and in `wrong`. Several functions go in as a
tuple, with `call(attempt, *args)` to run them. `call` also launches a kernel on the arguments, or
counts its bytes too: `lambda f, q: (f(q, hbm=(h := Hbm())), h.bytes)`. An attempt may take ten
seconds and 20 times as long as the solution; a kernel runs in a child process, which it may crash.
"""

import copy
import functools
import math
import re
import secrets
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from ._compare import describe, differs, half_the_digits, leaves, said
from ._errors import alike, cause, in_words
from ._guard import Crashed, TimeIsUp, apart, at_home, limited
from ._progress import note, progress
from ._source import failed_line, inside, source, still_open, unfinished, unwrap

__all__ = ["Exercise", "Question", "progress"]

PATIENCE = 10  # seconds that an attempt may take, and 20 times as long as the solution takes


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

    def check(self, *attempt, seed: int | None = None) -> None:
        """Print whether the attempt is right and, if it is not, a diagnosis.

        It raises nothing, waits for nobody, and comes to an end, whatever the attempt does.
        """
        if len(attempt) == 1:
            status, text = self._verdict_whatever(attempt[0], seed)
        else:
            status, text = self._say("wrong", self._too_many(attempt))
        if status == "right":
            note(self, right=True)
        print(text)

    def hint(self) -> None:
        """Print the next hint."""
        hints = self._hints()
        if self.hints_shown == len(hints):
            return print("No more hints: .solution() shows the answer.")
        self.hints_shown += 1
        note(self, hints=self.hints_shown)
        print(_lines(f"Hint {self.hints_shown} of {len(hints)}: {hints[self.hints_shown - 1]}"))

    def solution(self) -> None:
        """Print the answer."""
        note(self, solution=True)
        print(self._solution())

    def _hints(self):
        return self.hints

    def _verdict_whatever(self, attempt, seed):
        """The verdict, and a verdict too where the attempt, or the check itself, comes to grief."""
        try:
            return self.verdict(attempt, secrets.randbelow(2**32) if seed is None else seed)
        except KeyboardInterrupt:
            return self._say("wrong", "The check was stopped before it had an answer.")
        except Exception as error:
            stumble = f"{type(error).__name__}: {str(error)[:200]}"
            return self._say("wrong", f"The check itself stumbled ({stumble}): please report it.")

    def _too_many(self, attempt):
        if not attempt:
            return "Nothing was handed over: your answer goes between the brackets."
        if all(isinstance(part, int | float) for part in attempt):
            return _NO_COMMA.format(
                "".join(f"{part:03}" if i else str(part) for i, part in enumerate(attempt))
            )
        return "One answer is asked for. If it has several parts, hand them over as one tuple: check((…, …))."

    def _say(self, status, *text):
        start = {"open": "not attempted yet.", "right": "right.", "wrong": "not yet."}[status]
        first, *more = [part for part in text if part] or [""]
        return status, _lines(f"{self.name}: {start} {first}", *more)


_NO_COMMA = "To Python a comma ends a number: leave it out, {}."


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
        cases = self._cases(seed)
        start = time.monotonic()
        right = [self._run(self.answer, args) for args in cases]
        took = time.monotonic() - start
        limit = PATIENCE + 20 * took
        runs = self._runs(attempt, cases, limit)
        if any(leaf is ... for run in runs for leaf in leaves(run.value)):
            return self._say("open")
        if line := next((line for run in runs if (line := unfinished(run.error, attempt))), ""):
            return self._say("open", f"Still open: {line}")
        facts = [
            in_words(run.error, run.line, limit, took) if run.error else self._fact(run, *given)
            for run, *given in zip(runs, right, cases, strict=False)
        ]
        if not any(facts):
            return self._say("right")
        first = next(i for i, fact in enumerate(facts) if fact)
        rounds = [range(len(runs)), [first]]
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
        if self._verdict_whatever(attempt, seed)[0] == "right":
            return attempt
        print(_lines(f"{self.name}: until yours is right, the cells below use the course's."))
        return self.answer

    def _verdict_whatever(self, attempt, seed):
        """The verdict; that on a kernel comes from a child process, which a stray store may crash."""
        told = super()._verdict_whatever
        if inside(self.answer) is None or unwrap(attempt) is ...:
            return told(attempt, seed)
        seed = secrets.randbelow(2**32) if seed is None else seed
        try:
            return apart(lambda: told(attempt, seed))
        except KeyboardInterrupt:
            return self._say("wrong", "The check was stopped before it had an answer.")
        except Crashed as crash:
            return self._say(
                "wrong",
                f"It crashed the interpreter ({crash}): a load or a store lies far outside its tensors. "
                "Print the offsets: is a mask missing, or a factor wrong?",
                f"Again: .check(..., seed={seed})",
            )

    def _solution(self):
        return source(self.answer).rstrip() or repr(self.answer)

    def _how(self):
        return ()

    def _cases(self, seed):
        return list(self.cases(np.random.default_rng(seed))) if self.cases else [()]

    def _runs(self, attempt, cases, limit):
        """The runs on all cases, up to the one in which the time is up."""
        runs = []

        def run():
            for args in cases:
                runs.append(self._run(attempt, args))

        try:
            with at_home():
                limited(run, limit)
        except TimeIsUp as error:
            runs.append(_Run(error=error, line=failed_line(error, attempt)))
        return runs

    def _run(self, attempt, args):
        mine = copy.deepcopy(args)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # what NumPy would warn of is in the verdict
                if self.call:
                    value = self.call(attempt, *mine)
                else:
                    value = attempt(*mine) if callable(self.answer) else attempt
                value = _kept(value)
        except (TimeIsUp, KeyboardInterrupt):
            raise
        except BaseException as raised:  # SystemExit is one
            error = cause(raised)
            return _Run(error=error, line=failed_line(error, attempt))
        return _Run(value, changed=bool(differs(_data(mine), _data(args))))

    def _fact(self, run, right, args):
        """What is wrong with this run, in a sentence; None if nothing is."""
        if right.error:
            raise right.error
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

        if any(isinstance(run.error, TimeIsUp) for run in runs):
            return ""
        for where in rounds:
            for number, (_, diagnosis) in enumerate(self.wrong):
                if all(alike(number, i) for i in where):
                    return diagnosis
        return ""

    def _alike(self, a, b, args):
        if a.error or b.error:
            return bool(a.error and b.error) and alike(a.error, b.error)
        rtol = self.rtol or half_the_digits(args, b.value)
        return a.changed == b.changed and not differs(a.value, b.value, rtol=rtol)


@dataclass(repr=False)
class Question(_Item):
    """A quiz or a prediction: one of `choices` {key: text}, or else a number.

    `wrong` is {wrong answer: diagnosis}; `explanation` is the worked answer. A whole number (an
    int) must be met exactly, any other to three significant digits. A prediction, or a number
    that the task itself rounds, is right within a `factor`.
    """

    explanation: str
    choices: Mapping[str, str] | None = None
    unit: str = ""
    factor: float | None = None

    def verdict(self, attempt, seed: int = 0) -> tuple[str, str]:
        """("open" | "right" | "wrong", what to tell the reader)."""
        if attempt is ...:
            return self._say("open")
        if isinstance(attempt, str) and re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", attempt.strip()):
            return self._say("wrong", _NO_COMMA.format(attempt.strip().replace(",", "")))
        guess = self._choice(attempt) if self.choices else _number(attempt)
        if guess is None:
            return self._say("wrong", *self._how()[-1:])
        if self._right(guess):
            return self._say("right", self.explanation)
        return self._say("wrong", self.wrong[guess] if self.choices else self._slip(guess))

    def _choice(self, attempt):
        """The key that is meant: "b", " B ", "b)" and the words of the choice all mean b."""
        text = said(attempt, str).strip().strip("'\"").lower()
        keys = {words.lower(): key for key, words in self.choices.items()}
        letter = re.match(r"\(?(\w+)([).:]|$)", text)
        return keys.get(text, letter and letter[1] in self.choices and letter[1]) or None

    def _right(self, guess):
        if self.choices:
            return guess == self.answer
        if self.factor:
            return _near(guess, self.answer, self.factor)
        return _near(guess, self.answer, 1 + 1e-9) if self._whole() else _three(guess, self.answer)

    def _whole(self):
        return isinstance(self.answer, int)

    def _slip(self, guess):
        """What probably went wrong with a number."""
        slips = [*self.wrong.items()]
        slips += [
            (self.answer * by, text) for units, by, text in SLIPS if re.search(units, self.unit)
        ]
        slips.sort(key=lambda slip: abs(slip[0] - guess))
        if found := next((text for value, text in slips if _three(guess, value)), ""):
            return found
        if not self.factor and _near(guess, self.answer, 1.05):
            whole = "this is a whole number, to be met exactly"
            return f"Near: {whole if self._whole() else 'three digits are asked for'}."
        if found := next((text for value, text in slips if _near(guess, value, 1.02)), ""):
            return found
        larger = "larger" if guess < self.answer else "smaller"
        return f"The right answer is {larger}."

    def _hints(self):
        """Its own hints; else the first of the wrong answers, with what is wrong with it."""
        if self.hints:
            return self.hints
        key, text = next(iter(self.wrong.items()))
        return (f"It is not {key if self.choices else f'{key:,.4g}'}. {text}",)

    def _solution(self):
        number = "" if self.choices else f"{self.answer:.4g} {self.unit}".strip()
        return _lines(f"{number or self.answer}. {self.explanation}")

    def _how(self):
        if not self.choices:
            whole = "whole number" if self._whole() else "number"
            digits = "" if self._whole() or self.factor else ", to three digits"
            return [f"Answer with one {whole}{self.unit and ', in '}{self.unit}{digits}."]
        texts = [f"  {key}) {text}" for key, text in self.choices.items()]
        return [*texts, f"Answer with one of {', '.join(map(repr, self.choices))}."]


_BYTES = r"\b[kKMGT]?i?B\b|byte"
SLIPS = [  # (in which units, by which factor an amount is off, what that usually means)
    (f"{_BYTES}|FLOP", 2, "Twice too large: was a read, a write or a multiply-add counted twice?"),
    (f"{_BYTES}|FLOP", 1 / 2,
     "Half of it: a multiply-add is two FLOPs, FP16 has two bytes, a copy reads and writes."),
    (_BYTES, 8, "Eight times too large: bits where bytes are asked for?"),
    (_BYTES, 1 / 8, "An eighth of it: bytes where bits are asked for?"),
    *(
        (_BYTES, ratio, f"Off by a factor of {2**p / 10**q:.3f}: {si} is 10^{q} bytes, {iec} is 2^{p}.")
        for p, q, si, iec in ((20, 6, "MB", "MiB"), (30, 9, "GB", "GiB"), (40, 12, "TB", "TiB"))
        for ratio in (2**p / 10**q, 10**q / 2**p)
    ),
    *(
        (".", 10.0**p, f"Off by 10^{abs(p)}: look at the unit again.")
        for p in (-12, -9, -6, -3, 3, 6, 9, 12)
    ),
]  # fmt: skip


@dataclass
class _Run:
    value: Any = None
    error: BaseException | None = None
    line: str = ""  # of the attempt, where the error came from
    changed: bool = False  # it wrote into its arguments


def _lines(*parts):
    return "\n".join(textwrap.fill(part, 92, subsequent_indent="  ") for part in parts)


def _data(args):
    return [x for x in leaves(args) if hasattr(x, "dtype") or isinstance(x, int | float | str)]


def _kept(value):
    """The value as it is now: drawn from its generator, and safe from what a later run does to it."""
    try:
        return copy.deepcopy(list(value) if isinstance(value, Iterator) else value)
    except TypeError:  # what cannot be copied, a module for one
        return value


def _number(attempt):
    try:
        return float(attempt) if math.isfinite(float(attempt)) else None
    except Exception:  # whatever float() means there
        return None


def _near(guess, value, factor):
    return guess == value or (guess * value > 0 and 1 / factor <= guess / value <= factor)


def _three(guess, value):
    """Whether two numbers agree in three digits, give or take one in the last."""
    return (
        abs(guess - value) <= 1.0000001 * 10.0 ** (math.floor(math.log10(abs(value))) - 2)
        if value
        else not guess
    )
