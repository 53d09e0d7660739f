"""Which tile each kernel works on: a small table, not a search on first use.

Rows are chosen by the shared memory one block may use, the head dimension and the element size.
"""

import functools
from typing import NamedTuple


class Tile(NamedTuple):
    """The tile of one kernel: query rows, keys, warps of 32 threads, tiles in flight.

    maxnreg caps the registers of a thread, where that lets one more block share the SM.
    """

    block_q: int
    block_kv: int
    num_warps: int
    num_stages: int
    maxnreg: int | None = None


# {kernel: {(element bytes, block_d): Tile}} for each size of shared memory, in bytes.
# 232,448: measured on an H200 (records/h200.json, tile_sweep).
# 101,376 and 65,536: chosen from compiled reports (no spills, two blocks an SM), not measured.
TABLE = {
    232_448: {
        "forward": {
            (2, 64): Tile(64, 128, 4, 2),
            (2, 128): Tile(128, 64, 4, 2),
            (2, 256): Tile(128, 64, 8, 2),
            (4, 64): Tile(32, 32, 4, 2),
            (4, 128): Tile(32, 32, 4, 2),
            (4, 256): Tile(32, 32, 4, 2),
        },
        "dkdv": {
            (2, 64): Tile(64, 64, 4, 2, maxnreg=168),
            (2, 128): Tile(64, 64, 4, 2),
            (2, 256): Tile(64, 64, 8, 1),
            (4, 64): Tile(32, 32, 4, 2),
            (4, 128): Tile(32, 32, 4, 2),
            (4, 256): Tile(16, 32, 4, 1),
        },
        "dq": {
            (2, 64): Tile(64, 64, 4, 2),
            (2, 128): Tile(128, 64, 8, 3),
            (2, 256): Tile(64, 32, 8, 2),
            (4, 64): Tile(32, 32, 4, 2),
            (4, 128): Tile(32, 32, 4, 2),
            (4, 256): Tile(32, 16, 4, 1),
        },
    },
}


def choose(kernel, *, d, itemsize, shared_memory):
    """The tile for `kernel` ("forward", "dkdv", "dq") on a GPU with that much shared memory."""
    fits = [size for size in TABLE if size <= shared_memory]
    if not fits:
        raise ValueError(
            f"no tile fits this GPU: a block may use {shared_memory:,} bytes of shared memory, "
            f"and the smallest table needs {min(TABLE):,}."
        )
    return TABLE[max(fits)][kernel][itemsize, max(64, padded(d))]


def padded(d):
    """The width of a tile for head dimension d: a power of two, at least 16 (tl.dot's least)."""
    return max(16, 1 << (d - 1).bit_length())


def uses_tma(capability):
    """Whether the copy engine fetches the tiles on a GPU of this compute capability × 10.

    12.x has the engine too, but there the kernels spill with it and do not without.
    """
    return 90 <= capability < 120


@functools.cache
def gpu(index):
    """(compute capability × 10, bytes of shared memory a block may use) of a CUDA device."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    return properties.major * 10 + properties.minor, properties.shared_memory_per_block_optin
