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


# {kernel: {(bytes an element, block_d): Tile}} for each size of shared memory, in bytes; what is
# not in the row of a size is looked up in the smaller ones.
# 232,448 (H100, H200): the fastest over both masks in records/h200.json, "tile_sweep", within what
# two runs differ by; d > 128 by compiled report.
# 101,376 (RTX 30xx and later) and 65,536 (T4): chosen by compiled reports for sm_86 and sm_75, the
# largest tiles that fit and spill little or nothing (but d = 256 on a T4). Not measured, with one
# exception: FP32 dkdv at d = 64 spills 500 bytes a thread and runs at 11 TFLOP/s on an H200
# (2026-11-29, Triton 3.6); with eight warps it spills nothing and runs at 7. On a T4 Triton
# multiplies without tensor cores, from operands held in registers: hence small tiles and more warps.
TABLE = {
    232_448: {
        "forward": {
            (2, 64): Tile(64, 128, 4, 2),
            (2, 128): Tile(64, 128, 4, 1, maxnreg=168),
            (2, 256): Tile(128, 64, 8, 2),
        },
        "dkdv": {
            (2, 64): Tile(64, 64, 4, 3, maxnreg=168),
            (2, 128): Tile(64, 64, 4, 2),
            (2, 256): Tile(64, 64, 8, 1),
        },
        "dq": {
            (2, 64): Tile(128, 64, 4, 4),
            (2, 128): Tile(128, 64, 8, 3),
            (2, 256): Tile(64, 32, 8, 2),
        },
    },
    101_376: {
        "forward": {
            (2, 64): Tile(64, 64, 4, 2),
            (2, 128): Tile(64, 32, 4, 2),
            (2, 256): Tile(32, 32, 4, 1),
            (4, 64): Tile(32, 32, 4, 2),
            (4, 128): Tile(16, 32, 4, 1),
            (4, 256): Tile(16, 16, 4, 1),
        },
        "dkdv": {
            (2, 64): Tile(64, 64, 4, 2),
            (2, 128): Tile(64, 32, 4, 2),
            (2, 256): Tile(32, 32, 4, 1),
            (4, 64): Tile(32, 32, 4, 2),
            (4, 128): Tile(16, 32, 4, 1),
            (4, 256): Tile(16, 16, 4, 1),
        },
        "dq": {
            (2, 64): Tile(64, 64, 4, 2),
            (2, 128): Tile(64, 32, 4, 2),
            (2, 256): Tile(32, 32, 4, 2),
            (4, 64): Tile(32, 32, 4, 2),
            (4, 128): Tile(16, 32, 4, 1),
            (4, 256): Tile(16, 16, 4, 1),
        },
    },
    65_536: {
        "forward": {
            (2, 64): Tile(32, 32, 4, 1),
            (2, 128): Tile(32, 16, 4, 1),
            (2, 256): Tile(16, 16, 4, 1),
            (4, 64): Tile(32, 32, 4, 1),
            (4, 128): Tile(16, 16, 4, 1),
            (4, 256): Tile(16, 16, 4, 1),
        },
        "dkdv": {
            (2, 64): Tile(32, 16, 8, 1),
            (2, 128): Tile(16, 16, 8, 1),
            (2, 256): Tile(16, 16, 8, 1),
            (4, 64): Tile(32, 32, 4, 1),
            (4, 128): Tile(16, 32, 4, 1),
        },
        "dq": {
            (2, 64): Tile(16, 32, 4, 1),
            (2, 128): Tile(16, 16, 8, 1),
            (2, 256): Tile(16, 16, 8, 1),
            (4, 64): Tile(32, 32, 4, 1),
            (4, 128): Tile(16, 16, 4, 1),
            (4, 256): Tile(16, 16, 4, 1),
        },
    },
}


def choose(kernel, *, d, itemsize, shared_memory):
    """The tile for `kernel` ("forward", "dkdv", "dq") on a GPU with that much shared memory."""
    key = itemsize, max(64, padded(d))
    for size in sorted(TABLE, reverse=True):
        if size <= shared_memory and key in TABLE[size][kernel]:
            return TABLE[size][kernel][key]
    raise ValueError(
        f"no tile fits this GPU: a block may use {shared_memory:,} bytes of shared memory, too "
        f"few for head dimension {d} with {itemsize} bytes an element. Use a smaller one, or half "
        "precision."
    )


def padded(d):
    """The width of a tile for head dimension d: a power of two, at least 16 (tl.dot's least)."""
    return max(16, 1 << (d - 1).bit_length())


def uses_tma(capability, itemsize):
    """Whether the copy engine fetches the tiles, on a GPU of this compute capability × 10.

    12.x has the engine too, and it would fetch FP32 as well, but the reports show spills with it
    in both cases, and none without.
    """
    return 90 <= capability < 120 and itemsize == 2


@functools.cache
def gpu(index):
    """(compute capability × 10, bytes of shared memory a block may use) of a CUDA device."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    return properties.major * 10 + properties.minor, properties.shared_memory_per_block_optin
