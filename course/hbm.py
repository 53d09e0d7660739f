"""A counted memory: run the NumPy algorithm on it and read off the bytes it moved.

The arrays stay ordinary arrays. What an algorithm takes from main memory it takes through `load`,
and what it gives back goes through `store`; in between it works on tiles, which stand for the
memory on the chip. Such a tile is a copy: what is done to it leaves main memory as it is.
`itemsize` is the size the elements would have on a GPU, whatever the arrays have here.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from course.cost import shown, whole


class Hbm:
    """Counts the bytes that cross the boundary, by the name of the tensor they belong to.

    itemsize: bytes an element. ValueError where it or `times` is no whole number, 1 or more, and
    for a tile that is no array.
    """

    def __init__(self, itemsize: int = 2):
        (self.itemsize,) = whole(1, itemsize=itemsize)
        self.read_by_name: Counter[str] = Counter()
        self.written_by_name: Counter[str] = Counter()

    def load(
        self, name: str, tile: np.ndarray, *, times: int = 1, itemsize: int | None = None
    ) -> np.ndarray:
        """A copy of the tile, on the chip; `times` where several programs load the same one."""
        self.read_by_name[name] += self._moved(tile, times, itemsize)
        return tile.copy()

    def store(
        self, name: str, tile: np.ndarray, value: np.ndarray, *, itemsize: int | None = None
    ) -> None:
        """Write a value over a tile of main memory."""
        moved = self._moved(tile, 1, itemsize)
        tile[...] = value
        self.written_by_name[name] += moved

    def _moved(self, tile, times, itemsize):
        if not isinstance(tile, np.ndarray | np.generic):
            raise ValueError(f"A tile is a part of a NumPy array, and this is {shown(tile)}.")
        itemsize = self.itemsize if itemsize is None else itemsize
        times, itemsize = whole(1, times=times, itemsize=itemsize)
        return tile.size * times * itemsize

    @property
    def read(self) -> int:
        """Bytes read from main memory."""
        return self.read_by_name.total()

    @property
    def written(self) -> int:
        """Bytes written to main memory."""
        return self.written_by_name.total()

    @property
    def bytes(self) -> int:
        """Bytes moved, both ways."""
        return self.read + self.written
