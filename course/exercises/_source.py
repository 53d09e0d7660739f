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

    A stub is a bare `...`: a statement, or what is assigned or returned, by itself or as one of
    several. Anywhere else, as in `x[..., None]` or `np.einsum(p, [..., 0])`, it means something.
    """
    if attempt is ...:
        return "..."
    if isinstance(attempt, tuple | list):
        return next(filter(None, map(still_open, attempt)), "")
    return next((_line(f, node) for f in with_helpers(attempt) for node in _stubs(tree(f))), "")


def unfinished(error, attempt) -> str:
    """The line with a `...` at which an attempt stopped; "" where it stopped at something else."""
    if "llipsis" not in str(error):
        return ""
    return next((_line(f, n) for f in with_helpers(attempt) for n in _ellipses(tree(f))), "...")


def _stubs(module):
    for node in ast.walk(module):
        if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return):
            several = isinstance(node, ast.Return) or isinstance(
                getattr(node, "targets", [None])[0], ast.Tuple
            )
            parts = (
                node.value.elts if several and isinstance(node.value, ast.Tuple) else [node.value]
            )
            yield from (part for part in parts if _is_ellipsis(part))


def _ellipses(module):
    return [node for node in ast.walk(module) if _is_ellipsis(node)]


def _is_ellipsis(node):
    return isinstance(node, ast.Constant) and node.value is ...


def _line(function, node):
    return source(function).splitlines()[node.lineno - 1].strip()


def failed_line(error: Exception, attempt) -> str:
    """The last line of the attempt's own file in the traceback of `error`; "" if there is none."""
    file = getattr(getattr(unwrap(attempt), "__code__", None), "co_filename", None)
    lines = [f.line for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return lines[-1] if lines else ""
