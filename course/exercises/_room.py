"""A kernel at work where it may do no harm: what it does outside its own part is seen.

There is room behind every tensor. A write into it is seen. What is read there is NaN, so it is seen
where it reaches a result, and nowhere else. Two programs that write to one place are seen too.
"""

import ast
import functools
import linecache

import numpy as np

from course.exercises._source import inside, source, tree, unwrap
from course.kernels import tl, triton

GUARD = 4096.0  # where nothing was written, in a result and in the room behind it


class TwoWriters(Exception):
    """Two programs write to one place: the interpreter has an order for them, a GPU has none."""


class MoreThanItsPart(Exception):
    """A program writes more rows than are its own: others do the same work again."""


class Given:
    """A kernel of which some arguments are given, to be launched like a kernel."""

    def __init__(self, fn, **given):
        self.fn, self.given = fn, given

    def __getitem__(self, grid):
        return functools.partial(self.fn[grid], **self.given)

    def __call__(self):
        raise TypeError("a kernel is launched with kernel[grid](...)")


def tensor(array, room, device, behind=np.nan):
    """A flat FP32 tensor of the array's numbers and, behind them, `room` times `behind`."""
    import torch

    whole = np.concatenate([array.ravel(), np.full(room, behind)], dtype=np.float32)
    return torch.from_numpy(whole).to(device)


def empty(shape, room, device):
    """A flat FP32 tensor for a result of this shape, with room behind it, all of it GUARD."""
    return tensor(np.full(shape, GUARD), room, device, GUARD)


def results(room, *outs):
    """(the rooms behind, the arrays) after a kernel; outs: (tensor, its shape).

    What was written into a room counts as 0. And then there are no arrays: rows written past
    their end overwrite others, and on a GPU which one comes last changes from run to run.
    """
    flat = [out.cpu().numpy() for out, _ in outs]
    rooms = [np.where(x[-room:] == GUARD, x[-room:], 0) for x in flat]
    arrays = [x[:-room].reshape(shape) for x, (_, shape) in zip(flat, outs, strict=True)]
    untouched = all((x == GUARD).all() for x in rooms)
    return (*rooms, *(x if untouched else None for x in arrays))


def one_writer(kernel, run, programs, rows):
    """`results` of run(kernel). Raises TwoWriters where these hang on the order of the programs.

    What a program writes when it runs alone must be what is there when all have run. And where it
    is more than so many `rows`, it raises MoreThanItsPart.
    run(kernel, *first) launches all programs, with `first` before the other arguments. A kernel
    that gets arguments from an autotuner or from heuristics cannot be run alone.
    """
    done = run(kernel)
    if done[-1] is None or not source(kernel) or decorated(kernel):
        return done
    alone = _alone(kernel)
    for program in range(programs):
        for own, last in zip(run(alone, program), done, strict=True):
            if (own != GUARD).any(-1).sum() > rows:
                part = f"its part, {rows} rows" if rows > 1 else "one row, its part"
                raise MoreThanItsPart(f"a program writes more than {part}; others do them again")
            if not np.allclose(np.where(own == GUARD, last, own), last, 1e-3, 1e-3, equal_nan=True):
                raise TwoWriters("two programs write different numbers to one place")
    return done


def writers(kernel, run, programs, size):
    """(size,): the program that writes each number when it runs alone; −1 if none does, −2 if several.

    run(kernel, *first) as for `one_writer`; the result that counts is its last.
    """
    alone, who = _alone(kernel), np.full(size, -1)
    for program in range(programs):
        own = run(alone, program)[-1] != GUARD
        who[own] = np.where(who[own] == -1, program, -2)
    return who


def decorated(kernel):
    """Whether an autotuner or heuristics lie around the kernel, and add to its arguments."""
    kernel = kernel.fn if isinstance(kernel, Given) else kernel
    return inside(inside(kernel)) is not None


@functools.cache
def _alone(kernel):
    """The kernel with a new first argument: the number of the one program that does anything."""
    if isinstance(kernel, Given):
        return Given(_alone(kernel.fn), **kernel.given)
    changed = tree(kernel)
    changed.body[0].args.args.insert(0, ast.arg("alone"))
    changed.body[0].body.insert(0, ast.parse("if tl.program_id(0) != alone: return").body[0])
    return rewritten(kernel, changed)


def edited(kernel, *changes):
    """The kernel with each (old, new) of `changes` put into its source: a wrong answer, say."""
    text = source(kernel)
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{unwrap(kernel).__name__} has no {old!r}")
        text = text.replace(old, new)
    return rewritten(kernel, ast.parse(text))


def rewritten(kernel, changed, **helpers):
    """A Triton kernel like this one, from the tree of its source after a change; it calls `helpers`."""
    function = unwrap(kernel)
    changed.body[0].decorator_list = []
    text = ast.unparse(changed)
    file = f"<{function.__name__}, rewritten: {hash(text)}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file  # Triton reads it
    names = {**function.__globals__, "tl": tl, **helpers}
    exec(compile(text, file, "exec"), names)
    return triton.jit(names[function.__name__])
