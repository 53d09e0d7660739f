"""Shared memory has 32 banks: a model of which accesses of a warp collide.

Word w (4 bytes) lies in bank w mod 32. In one turn each bank serves one word, to any number of
lanes. Source: CUDA C++ Programming Guide, "Shared Memory", compute capability 5.0 and later.
"""

from collections.abc import Iterable

BANKS = 32
LANES = 32


def turns(words: Iterable[int]) -> int:
    """Turns that one access of a warp takes: the most *different* words that fall in one bank."""
    different = [set() for _ in range(BANKS)]
    for word in words:
        different[word % BANKS].add(word)
    return max(map(len, different))


def strided(stride: int) -> list[int]:
    """The words of lanes 0 to 31 that lie `stride` words apart."""
    return [lane * stride for lane in range(LANES)]


def column(col: int, *, width: int = 32) -> list[int]:
    """A column of a tile with 32 rows of `width` words, one row per lane. 33: padded by one word."""
    return [row * width + col for row in range(LANES)]


def swizzled(col: int, *, width: int = 32) -> list[int]:
    """The same column where row r keeps its word c at place c XOR r: no word more, no collision.

    width is a power of two, 32 or more.
    """
    return [row * width + (col ^ row) for row in range(LANES)]
