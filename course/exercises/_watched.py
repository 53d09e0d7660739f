"""A counted memory that tells whether an attempt works tile by tile."""

import numpy as np

from course.hbm import Hbm


def gather(hbm, k, v, block_kv):
    """(K, V) whole, put together from their tiles: what an attempt that does not tile may do."""
    tiles = [
        (hbm.load("K", k[j : j + block_kv]), hbm.load("V", v[j : j + block_kv]))
        for j in range(0, len(k), block_kv)
    ]
    return [np.concatenate(parts) for parts in zip(*tiles, strict=True)]


class Watched(Hbm):
    """A counted memory whose numbers are NaN until `load` brings them; it notes the largest tile.

    A tile is NaN again once two more of the same name were loaded: whoever tiles has let go of it.
    """

    def __init__(self):
        super().__init__()
        self.largest, self._lent, self._held = 0, [], {}

    def lend(self, x):
        """What stands for `x` outside the chip: an array of its shape, with nothing to compute with."""
        x = np.ascontiguousarray(x)
        self._lent.append((np.full_like(x, np.nan), x))
        return self._lent[-1][0]

    def load(self, name, tile, **options):
        """What `Hbm.load` gives of the numbers that `tile` stands for."""
        self.largest = max(self.largest, tile.size)
        for outside, x in self._lent:
            if np.may_share_memory(tile, outside):
                start = tile.ctypes.data - outside.ctypes.data
                inside = np.ndarray(tile.shape, x.dtype, x, start, tile.strides)
                held = self._held.setdefault(name, [])
                held.append(super().load(name, inside, **options))
                if len(held) > 2:
                    held.pop(0).fill(np.nan)
                return held[-1]
        return super().load(name, tile, **options)
