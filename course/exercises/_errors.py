"""What an exception means, in plain words, for somebody who meets it for the first time."""

import re

from course.exercises._guard import TimeIsUp

PLAIN = (  # (type, what its text holds, what it means)
    ("ValueError", "broadcast", "The shapes do not line up. A sum of rows stays a column with "
     "keepdims=True, and x[:, None] makes a column of x."),
    ("ValueError", "matmul|shapes .* not aligned", "In a @ b each row of a meets a column of b: is a .T "
     "missing, or one too many?"),
    ("ValueError", "truth value of an array", "if, and, or, min() and max() take one number: np.where, "
     "np.minimum and np.maximum take arrays."),
    ("ValueError", "unpack", "On the left of = stand more names, or fewer, than there are values."),
    ("ValueError", "inhomogeneous", "The rows have different lengths."),
    ("TypeError", "converted to Python scalars", "The functions of math take one number: np.exp, np.sqrt "
     "and their like take arrays."),
    ("TypeError", "positional argument|keyword argument", "It is called with the arguments of the task, "
     "in their order."),
    ("TypeError", "NoneType", "Something in there is None: is a return missing?"),
    ("TypeError", "operand.*'(list|tuple)'|multiply sequence", "A list does not calculate: np.array(…) does."),
    ("TypeError", "not iterable", "One value stands where several are needed."),
    ("UnboundLocalError", "", "It is used before it has a value."),
    ("NameError", "", "Has the cell that defines it been run?"),
    ("AxisError", "", "The array has fewer axes than that: axis=-1 is the last one."),
    ("IndexError", "too many indices", "The array has fewer axes than that."),
    ("IndexError", "", "Places count from 0, so the last one is the length − 1."),
    ("RecursionError", "", "It calls itself without an end."),
    ("MemoryError|ArrayMemoryError", "", "It asks for a far too large array."),
    ("SystemExit", "", "exit() ends the program: a function gives back its result with return."),
    ("Waits", "", "Call the function yourself where you want to look inside: a check waits for nobody."),
)  # fmt: skip


def cause(error: BaseException) -> BaseException:
    """What Triton's interpreter, which wraps every error, was stopped by; else the error itself."""
    while type(error).__name__ == "InterpreterError" and error.__cause__:
        error = error.__cause__
    return error


def in_words(error: BaseException, line: str, limit: float, took: float) -> str:
    """What stopped an attempt at this line, in one sentence or two.

    limit: the seconds that it had, took: those of the course's own solution.
    """
    at = f", at `{line}`" if line else ""
    if isinstance(error, TimeIsUp):
        return f"It was stopped after {limit:.0f} s{at}: the course's own takes {took:.2g} s. Does a loop never end?"
    name, text = type(error).__name__, " ".join(str(error).split())[:200]
    first = f"It stops with {name}{': ' * bool(text)}{text}{at}."
    for kinds, pattern, words in PLAIN:
        if name in kinds.split("|") and re.search(pattern, text):
            return f"{first} {words}"
    return first


def alike(a: BaseException, b: BaseException) -> bool:
    """Whether two errors say the same: the same type is not enough, for a type has many causes."""
    a, b = cause(a), cause(b)
    return type(a) is type(b) and (str(a) == str(b) or getattr(a, "one_cause", False))
