"""What a reader's function says: its source, the `...` still in it, the line that failed."""

import ast
import inspect
import textwrap
import traceback


def unwrap(attempt):
    """The Python function inside a Triton kernel, an autotuner, a partial or a decorator."""
    while inner := inside(attempt):
        attempt = inner
    return inspect.unwrap(attempt) if callable(attempt) else attempt


def inside(attempt):
    """What one layer of decoration holds; None where there is none."""
    inner = getattr(attempt, "fn", None) or getattr(attempt, "func", None)
    return inner if callable(inner) or hasattr(inner, "fn") else None


def source(attempt) -> str:
    """The source of a function, or of several in a tuple, dedented; "" where there is none."""
    if isinstance(attempt, tuple):
        return "\n\n".join(filter(None, map(source, attempt)))
    try:
        return textwrap.dedent(inspect.getsource(unwrap(attempt)))
    except (OSError, TypeError):
        return ""


def tree(function) -> ast.Module:
    """The parsed source of a function; empty where there is none."""
    try:
        return ast.parse(source(function))
    except SyntaxError:  # a lambda cut out of a longer expression
        return ast.Module([], [])


def with_helpers(attempt) -> list:
    """The function and those of the same notebook that it calls, and these call, each once."""
    found, todo = [], [unwrap(attempt)]
    while todo:
        function = todo.pop(0)
        if not callable(function) or any(function is other for other in found):
            continue
        found.append(function)
        names = [node.id for node in ast.walk(tree(function)) if isinstance(node, ast.Name)]
        known = dict(getattr(function, "__globals__", {}))
        for local in getattr(getattr(function, "__code__", None), "co_varnames", ()):
            known.pop(local, None)
        helpers = [unwrap(known[name]) for name in dict.fromkeys(names) if name in known]
        todo += [f for f in helpers if getattr(f, "__module__", 0) == function.__module__]
    return found


def still_open(attempt) -> str:
    """The line that is still `...`, in `attempt` or in a function of the same notebook it calls.

    An Ellipsis inside square brackets, as in `x[..., None]` or `tuple[int, ...]`, is no stub.
    """
    if attempt is ...:
        return "..."
    if isinstance(attempt, tuple | list):
        return next(filter(None, map(still_open, attempt)), "")
    return next(filter(None, map(_open_line, with_helpers(attempt))), "")


def _open_line(function):
    nodes = list(ast.walk(tree(function)))
    brackets = [node.slice for node in nodes if isinstance(node, ast.Subscript)]
    index = {id(node) for inside in brackets for node in ast.walk(inside)}
    for node in nodes:
        if isinstance(node, ast.Constant) and node.value is ... and id(node) not in index:
            return source(function).splitlines()[node.lineno - 1].strip()
    return ""


def failed_line(error: Exception, attempt) -> str:
    """The last line of the attempt's own file in the traceback of `error`; "" if there is none."""
    file = getattr(getattr(unwrap(attempt), "__code__", None), "co_filename", None)
    lines = [f.line for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return lines[-1] if lines else ""
