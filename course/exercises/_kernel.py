"""Exercises about a kernel: some of its text changed, and bugs that are found one after the other."""

import ast
import itertools

from course.exercises._room import rewritten
from course.exercises._source import tree

LEFT = {
    3: "Three bugs are left. The first",
    2: "One down, two bugs are left. The first",
    1: "One bug is left. It",
}


def changed(kernel, *edits, **helpers):
    """A kernel like this one, with each (old, new) of its text replaced; it calls these helpers."""
    text = ast.unparse(tree(kernel))
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} stands {text.count(old)} times in {kernel}, not once")
        text = text.replace(old, new)
    return rewritten(kernel, ast.parse(text), **helpers)


def bugs(kernel, edits, clues):
    """[(kernel with some of up to three bugs, what to look at next), …], the more bugs the earlier.

    edits: {bug: (old, new)} in the order in which the cases show them.
    clues: {bug: (the input that shows it, what is seen there)}.
    """
    found = []
    for count in range(len(edits), 0, -1):
        for first, *others in itertools.combinations(edits, count):
            shows, seen = clues[first]
            after = "".join(f" After it: {clues[name][0]}." for name in others)
            attempt = changed(kernel, *(edits[name] for name in (first, *others)))
            found.append((attempt, f"{LEFT[count]} shows with {shows}: {seen}{after}"))
    return found
