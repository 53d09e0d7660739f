"""What a reader's function says: its source, the `...` still in it, the line that failed."""

import ast
import inspect
import textwrap
import traceback


def unwrap(attempt):
    """The Python function inside a Triton kernel, an autotuner, a partial or a decorator."""
    while callable(attempt) and callable(inner := _inner(attempt)):
        attempt = inner
    return inspect.unwrap(attempt) if callable(attempt) else attempt


def _inner(attempt):
    return getattr(attempt, "fn", None) or getattr(attempt, "func", None)


def source(attempt) -> str:
    """The source of a function, or of several in a tuple, dedented; "" where there is none."""
    if isinstance(attempt, tuple):
        return "\n\n".join(filter(None, map(source, attempt)))
    try:
        return textwrap.dedent(inspect.getsource(unwrap(attempt)))
    except (OSError, TypeError):
        return ""


def still_open(attempt, seen: tuple = ()) -> str:
    """The line that is still `...`, in `attempt` or in a function of the same notebook it calls.

    An Ellipsis inside square brackets, as in `x[..., None]` or `tuple[int, ...]`, is no stub.
    """
    if attempt is ...:
        return "..."
    if isinstance(attempt, tuple | list):
        return next(filter(None, (still_open(part, seen) for part in attempt)), "")
    function, text = unwrap(attempt), source(attempt)
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:  # a lambda cut out of a longer expression
        return ""
    brackets = [node.slice for node in nodes if isinstance(node, ast.Subscript)]
    index = {id(node) for inside in brackets for node in ast.walk(inside)}
    for node in nodes:
        if isinstance(node, ast.Constant) and node.value is ... and id(node) not in index:
            return text.splitlines()[node.lineno - 1].strip()
    names = dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name))
    helpers = [getattr(function, "__globals__", {}).get(name) for name in names]
    seen = (*seen, function)
    for helper in map(unwrap, helpers):
        mine = callable(helper) and getattr(helper, "__module__", 0) == function.__module__
        if mine and not any(helper is other for other in seen):
            if line := still_open(helper, seen):
                return line
    return ""


def failed_line(error: Exception, attempt) -> str:
    """The last line of the attempt's own file in the traceback of `error`; "" if there is none."""
    file = getattr(getattr(unwrap(attempt), "__code__", None), "co_filename", None)
    lines = [f.line for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return lines[-1] if lines else ""
