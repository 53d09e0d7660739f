"""Exercises of notebook 06: the parts of its kernel, what an SM has room for, a broken kernel."""

import ast
import math

import numpy as np

from course import kernels
from course.exercises import Exercise, Question
from course.exercises._room import (
    GUARD,
    Given,
    edited,
    empty,
    one_writer,
    results,
    rewritten,
    tensor,
)  # fmt: skip
from course.exercises._source import tree, with_helpers
from course.kernels import notebook_forward, tl, triton

# --- questions on the way ---------------------------------------------------------------------

programs = Question(
    "How many programs?",
    task="N = 4,096 queries, 16 heads, and a program for each Q tile of 128 rows. How many programs?",
    answer=512,
    wrong={
        32: "That is one head. Every head has its own Q tiles.",
        16: "One per head would leave most SMs idle. Each Q tile has a program of its own.",
        65536: "One a query row. A program holds 128 rows at once.",
        1024: "The K tiles make no programs: they are the loop inside.",
    },
    explanation="4,096 / 128 = 32 Q tiles per head, and 16 heads: 512 programs for 132 SMs.",
)
padded_key = Question(
    "A key that does not exist",
    task="N_kv = 5, tiles of 16 keys. Rows 5 to 15 of the K tile are loaded as zeros. Which score do "
    "these eleven keys get, if nothing more is done?",
    choices={
        "a": "−∞, so they count for nothing",
        "b": "0, as if they were real keys",
        "c": "NaN",
        "d": "none: masked rows take no part in tl.dot",
    },
    answer="b",
    wrong={
        "a": "−∞ would be right, but nobody wrote it. What is q · 0?",
        "c": "q · 0 is a perfectly good number.",
        "d": "tl.dot multiplies whole tiles. A mask belongs to a load or a store, not to a product.",
    },
    explanation="q · 0 = 0, and e^0 = 1 is no small weight. Where all real scores are below 0, the padded "
    "keys even win. So their scores must be set to −∞.",
)
padded_d = Question(
    "Columns that do not exist",
    difficulty=2,
    task="d = 40 is padded to 64 columns, with zeros in q, k and v. What must be done about the 24 extra "
    "columns?",
    choices={
        "a": "their scores must be set to −∞",
        "b": "the scale must be 1/√64",
        "c": "nothing in the arithmetic: only o must not be stored there",
        "d": "they must be left out of tl.dot",
    },
    answer="c",
    wrong={
        "a": "Scores belong to keys, not to columns. What does a column of zeros add to a dot product?",
        "b": "The scale belongs to the true d. The padding changes no score.",
        "d": "It would be right and impossible: tl.dot takes whole tiles. What do the zeros add?",
    },
    explanation="Zeros add nothing to q · k. The extra columns of o come out as zeros, and the store masks "
    "them. The scale stays 1/√40.",
)
masked_tiles = Question(
    "How many tiles need the mask?",
    difficulty=2,
    minutes=3,
    task="Causal, N = N_kv = 1,024, tiles of 64 × 64: 256 score tiles. How many must be computed *with* a "
    "mask?",
    answer=16,
    wrong={
        120: "120 are skipped, and as many are computed without a mask. Which ones are left?",
        136: "That is all tiles that are computed. Most of them lie wholly below the diagonal.",
        256: "Only a tile that the diagonal crosses has both visible and hidden scores.",
        32: "With square tiles the diagonal crosses one tile in each row of tiles.",
        240: "Those need none: 120 are seen whole, and 120 are never touched.",
    },
    explanation="The diagonal crosses one tile in each of the 16 rows of tiles. 120 lie below it and need no "
    "mask, and 120 above it are never touched.",
)
base = Question(
    "Back to the natural logarithm",
    difficulty=2,
    minutes=3,
    task="A kernel that works with exp2 ends a row with m = 8, in base 2, and ℓ = 4. What is the natural "
    "lse?",
    answer=10 * math.log(2),
    wrong={
        10: "That is lse in base 2: m + log₂ ℓ. A factor is missing.",
        8 + math.log(4): "m is in base 2 and must be turned too, not only the logarithm of ℓ.",
        8 * math.log(2) + 2: "Both terms must be turned: log₂ 4 = 2 is in base 2 as well.",
        10 / math.log(2): "Upside down: log₂ x = ln x / ln 2.",
    },
    explanation="2^8 · 4 = 2^10 is the sum. Its natural logarithm is 10 · ln 2 = 6.93.",
)
fp16_scores = Question(
    "Scores in FP16?",
    difficulty=2,
    minutes=3,
    task="d = 64, and all numbers in q and k are 40, in FP16 (largest number: 65,504). What happens if QKᵀ "
    "is rounded to FP16 before it is scaled by 1/√64?",
    choices={
        "a": "nothing: the scaled score, 12,800, fits",
        "b": "the scores become ∞, and the output NaN",
        "c": "the last digits are lost",
        "d": "the output is 0",
    },
    answer="b",
    wrong={
        "a": "The scaled score fits. But what is rounded first is 64 · 40 · 40.",
        "c": "First look whether the number fits at all: 64 · 40 · 40.",
        "d": "∞ − ∞ comes before any exp. What is it?",
    },
    explanation="64 · 40 · 40 = 102,400 is above 65,504: ∞. Then ∞ − ∞ is NaN. tl.dot sums in FP32 and "
    "leaves the tile in FP32, so nothing is lost.",
)
shared = Question(
    "Shared memory, before the compiler says it",
    difficulty=2,
    minutes=3,
    task="Q tile 128 × 128, K and V tiles 64 × 128, FP16. With two stages, one K and V pair is on its way "
    "while the other is used. How many KiB of shared memory?",
    answer=96,
    unit="KiB",
    wrong={
        64: "That is one stage: Q, one K and one V.",
        128: "Q is loaded once and stays. Only K and V have two slots.",
        80: "Both K and V have two slots: 32 + 2 · (16 + 16).",
        192: "Twice as large: FP16 takes 2 bytes per number.",
        98_304: "That is in bytes. 1 KiB is 1,024 of them.",
        98.304: "That is in kB. 1 KiB is 1,024 bytes.",
    },
    explanation="Q 32 KiB, K and V 16 KiB each, in two slots: 32 + 2 · 32 = 96 KiB.",
)
blocks = Question(
    "How many blocks do the registers allow?",
    difficulty=2,
    minutes=3,
    task="A block has 4 warps and 255 registers per thread. An SM has 65,536 registers. How many blocks fit, "
    "as far as registers go?",
    answer=2,
    wrong={
        64: "That is 65,536 / (255 · 4). A warp has 32 threads: 4 warps are 128, each with 255 registers.",
        8: "That is warps: 65,536 / (255 · 32) = 8. A block has four.",
        257: "That is threads: 65,536 / 255. A block has 128 of them.",
        1: "255 · 128 = 32,640. That fits more than once into 65,536.",
    },
    explanation="4 · 32 = 128 threads, with 256 registers each (they are handed out in eights): 32,768. "
    "65,536 / 32,768 = 2.",
)
spill = Question(
    "What is a spill?",
    difficulty=1,
    task="The compiler reports spilled bytes. What is that?",
    choices={
        "a": "numbers that overflowed",
        "b": "values that found no register: they are written to memory and read back",
        "c": "shared memory that was asked for and not used",
        "d": "bytes of the output that fell outside the tensor",
    },
    answer="b",
    wrong={
        "a": "An overflow is a matter of numbers. This is a matter of room.",
        "c": "Room that is not used harms nobody. What if there is too little of it?",
        "d": "A mask takes care of those.",
    },
    explanation="A thread has at most 255 registers. What does not fit goes to local memory, which lives in "
    "HBM and is cached. Each use costs a trip, so a tile that spills is usually slow.",
)
narrow = Question(
    "Why is d = 64 slower?",
    difficulty=3,
    minutes=3,
    task="At d = 64 every fused kernel reaches fewer FLOP/s than at d = 128. Why?",
    choices={
        "a": "it moves more bytes for each FLOP, so it waits for HBM",
        "b": "each score costs the same softmax work, and half the matmul work",
        "c": "tensor cores cannot multiply matrices with 64 columns",
        "d": "the tiles do not fit into shared memory",
    },
    answer="b",
    wrong={
        "a": "Bytes and FLOPs both halve with d, so the intensity stays. What does not halve?",
        "c": "They can: a product of 64 columns is four steps of 16.",
        "d": "They take half the room at d = 64.",
    },
    explanation="A score takes 4d FLOP of matmul, and one exp2 and some FP32 instructions whatever d is. At "
    "d = 64 there is twice the softmax beside each FLOP of matmul.",
)
peak_memory = Question(
    "Twice the length, the same tokens",
    difficulty=2,
    task="B · N = 16,384 tokens stay. N doubles, so B halves. What happens to the memory of S in the naive "
    "flow, and to what the fused kernel keeps?",
    choices={
        "a": "both stay",
        "b": "S doubles; the fused kernel's stays",
        "c": "S grows fourfold; the fused kernel's doubles",
        "d": "both double",
    },
    answer="b",
    wrong={
        "a": "S has B · H · N² numbers. Write it as (B · N) · H · N.",
        "c": "N² grows fourfold, and B halves.",
        "d": "The fused kernel keeps O and one or two numbers per row: count the rows, B · H · N.",
    },
    explanation="S has B · H · N² = (B · N) · H · N numbers: with the tokens fixed it grows as N. O, m and ℓ "
    "have a number of rows that does not change.",
)

# --- a tile -----------------------------------------------------------------------------------


def load_tile(memory, first, n, d, stride, block, block_d):
    """A (block, block_d) tile of a matrix (n, d) whose rows lie `stride` numbers apart."""
    row, column = first + np.arange(block), np.arange(block_d)
    inside = (row[:, None] < n) & (column[None, :] < d)
    address = row[:, None] * stride + column[None, :]
    return np.where(inside, memory[np.where(inside, address, 0)], 0.0)


def _matrices(rng):
    """Strides that are d and that are more; tiles inside, at the edge, and past it."""
    for n, d, stride, first, block, block_d in (
        (32, 16, 16, 16, 16, 16),
        (20, 16, 16, 16, 16, 16),
        (32, 10, 10, 0, 16, 16),
        (21, 10, 37, 16, 8, 16),
        (9, 5, 8, 8, 4, 8),
    ):
        # What lies behind the matrix is not ours, nor what lies between its rows. The wide one ends
        # with its last number.
        end = (n - 1) * stride + d
        behind = 0 if stride > 32 else (block + 1) * stride + block_d
        memory = np.full(end + behind, np.nan)
        places = np.arange(n)[:, None] * stride + np.arange(d)
        memory[places] = rng.standard_normal((n, d)) + 3
        yield memory, first, n, d, stride, block, block_d


def _tile(rows="<", mask="both", step="stride", start=True, fill=0.0):
    """`load_tile` with one thing changed."""

    def attempt(memory, first, n, d, stride, block, block_d):
        row, column = np.arange(block) + (first if start else 0), np.arange(block_d)
        last = n if rows == "<" else n + 1
        inside = (row[:, None] < last) & (column[None, :] < d)
        if mask == "rows":
            inside = (row[:, None] < last) & (column[None, :] < block_d)
        if mask == "columns":
            inside = (row[:, None] < len(memory)) & (column[None, :] < d)
        address = row[:, None] * {"stride": stride, "d": d, "block_d": block_d}[step] + column
        inside &= address < len(memory)
        return np.where(inside, memory[np.where(inside, address, 0)], fill)

    return attempt


tile = Exercise(
    "Load a tile",
    difficulty=2,
    minutes=8,
    task="Write load_a_tile(memory, first, n, d, stride, block, block_d) in NumPy. memory is one long row of "
    "numbers; in it lies a matrix of n rows and d columns, and its rows start `stride` numbers apart. Return "
    "the tile (block, block_d) that starts at row `first`, with 0 where row or column does not exist.",
    answer=load_tile,
    cases=_matrices,
    hints=(
        "row = first + np.arange(block) and column = np.arange(block_d), then [:, None] and [None, :].",
        "The address of an element is row · stride + column.",
        "Both must exist: row < n and column < d. An address that does not exist must not be read.",
    ),
    wrong=[
        (
            _tile(step="d"),
            "Rows start `stride` numbers apart, not d: the matrix may be a part of a wider one.",
        ),
        (
            _tile(step="block_d"),
            "The tile is block_d wide on the chip. In memory rows lie `stride` apart.",
        ),
        (
            _tile(mask="rows"),
            "Columns past d belong to the next row, or to somebody else: mask them too.",
        ),
        (_tile(mask="columns"), "Rows past n are not ours: mask them too."),
        (_tile(rows="<="), "Row n does not exist: the last one is n − 1."),
        (_tile(start=False), "The tile starts at row `first`, not at row 0."),
        (
            _tile(fill=-np.inf),
            "The fill is 0 here: it goes into a product, and −∞ · 0 is NaN. Scores get their −∞ later.",
        ),
        (
            lambda memory, first, n, d, stride, *block: memory[: n * d].reshape(n, d)[first:],
            "It cannot be cut out by slices: the rows need not lie side by side, and the tile may "
            "be larger than what is there. Compute an address for each element.",
        ),
        (
            lambda memory, first, n, d, stride, block, block_d: (
                load_tile(memory, first, n, d, stride, block_d, block).T
            ),
            "Rows and columns are swapped: the tile is (block, block_d).",
        ),
    ],
)

# --- an SM ------------------------------------------------------------------------------------


def blocks_per_sm(registers, warps, shared_bytes):
    """Blocks that one SM of an H100 or H200 holds at once."""
    a_thread = -(-registers // 8) * 8
    by_registers = 65_536 // (a_thread * 32 * warps)
    by_shared = 233_472 // (shared_bytes + 1024)
    return min(by_registers, by_shared, 64 // warps, 32)


def _blocks(rng):
    for registers, warps, kib in (
        (255, 4, 96),
        (128, 4, 32),
        (102, 4, 4),  # 104 per thread: without the rounding one block more
        (40, 1, 2),
        (64, 8, 48),
        (255, 2, 4),
        (24, 4, 4),
        (255, 8, 160),
        (80, 4, 56.5),  # without the system's KiB one block more
        (41, 4, 4),  # to the nearest eight it would be 40
    ):
        yield registers, warps, int(kib * 1024)


sm = Exercise(
    "How many blocks fit on an SM?",
    difficulty=2,
    minutes=10,
    task="An SM of an H200 has 65,536 registers, 233,472 bytes of shared memory, and room for 64 warps and 32 "
    "blocks. A warp has 32 threads. Registers are handed out in eights: a thread that needs 41 gets 48. Each "
    "block takes 1,024 bytes of shared memory more than it asks for. Write blocks_per_sm(registers, warps, "
    "shared_bytes): how many blocks fit at once, for a block with so many registers per thread, so many warps "
    "and so many bytes of shared memory.",
    answer=blocks_per_sm,
    cases=_blocks,
    hints=(
        "Each of the four supplies gives a number of blocks. The smallest one counts.",
        "A block takes registers · 32 · warps registers, with registers rounded up to a multiple of 8.",
        "-(-x // 8) * 8 rounds up to a multiple of 8.",
    ),
    wrong=[
        (
            lambda r, w, s: min(65_536 // (-(-r // 8) * 8 * 32 * w), 64 // w, 32),
            "Shared memory is a supply too.",
        ),
        (lambda r, w, s: min(233_472 // (s + 1024), 64 // w, 32), "Registers are a supply too."),
        (
            lambda r, w, s: min(65_536 // (r * 32 * w), 233_472 // (s + 1024), 64 // w, 32),
            "Registers are handed out in eights: round up first.",
        ),
        (
            lambda r, w, s: min(
                65_536 // ((r + 4) // 8 * 256 * w), 233_472 // (s + 1024), 64 // w, 32
            ),
            "A thread that needs 41 gets 48: round up, not to the nearest.",
        ),
        (
            lambda r, w, s: min(
                65_536 // (-(-r // 8) * 8 * 32), 233_472 // (s + 1024), 64 // w, 32
            ),
            "That is for one warp: a block has several, and each of its threads has registers.",
        ),
        (
            lambda r, w, s: min(65_536 // (-(-r // 8) * 256 * w), 233_472 // s, 64 // w, 32),
            "Each block takes 1,024 bytes more than it asks for.",
        ),
        (
            lambda r, w, s: min(65_536 // (-(-r // 8) * 256 * w), 233_472 // (s + 1024), 32),
            "There is room for 64 warps: 64 / warps blocks.",
        ),
        (
            lambda r, w, s: min(65_536 // (-(-r // 8) * 256 * w), 233_472 // (s + 1024), 64 // w),
            "However small they are, 32 blocks are the most.",
        ),
        (
            lambda r, w, s: min(65_536 / (-(-r // 8) * 256 * w), 233_472 / (s + 1024), 64 / w, 32),
            "A part of a block does not run: // instead of /.",
        ),
        (
            lambda r, w, s: min(
                65_536 // ((r // 8 + 1) * 256 * w), 233_472 // (s + 1024), 64 // w, 32
            ),
            "A thread that needs 128 gets 128, not 136: what is a multiple of 8 stays.",
        ),
        (
            lambda r, w, s: max(
                65_536 // (-(-r // 8) * 256 * w), 233_472 // (s + 1024), 64 // w, 32
            ),
            "The scarcest supply decides: the smallest of the four numbers.",
        ),
    ],
)

# --- the kernel -------------------------------------------------------------------------------


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, scale, n, n_kv, d,
    block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One Q tile of one head: o and its natural lse. Rows of d numbers, heads one after the other."""
    tiles = tl.cdiv(n, block_q)
    first, head = tl.program_id(0) % tiles * block_q, tl.program_id(0) // tiles
    row, key, column = first + tl.arange(0, block_q), tl.arange(0, block_kv), tl.arange(0, block_d)
    inside = (row[:, None] < n) & (column[None, :] < d)
    here = head * n * d + row[:, None] * d + column[None, :]
    q = tl.load(q_ptr + here, mask=inside, other=0)
    m = tl.full([block_q], float("-inf"), tl.float32)
    l = tl.zeros([block_q], tl.float32)
    o = tl.zeros([block_q, block_d], tl.float32)
    for start in range(0, n_kv, block_kv):
        exist = (start + key[:, None] < n_kv) & (column[None, :] < d)
        there = head * n_kv * d + (start + key[:, None]) * d + column[None, :]
        k = tl.load(k_ptr + there, mask=exist, other=0)
        v = tl.load(v_ptr + there, mask=exist, other=0)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        s = tl.where(start + key[None, :] < n_kv, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        alpha = tl.exp(m - m_new)
        p = tl.exp(s - m_new[:, None])
        l = l * alpha + tl.sum(p, 1)
        o = o * alpha[:, None] + tl.dot(p, v, input_precision="ieee")
        m = m_new
    tl.store(o_ptr + here, o / l[:, None], mask=inside)
    tl.store(lse_ptr + head * n + row, m + tl.log(l), mask=row < n)


@triton.jit
def _wrong_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, scale, n, n_kv, d,
    block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
    keys: tl.constexpr = False, alpha_o: tl.constexpr = False, stride: tl.constexpr = False,
    alpha_l: tl.constexpr = False, own: tl.constexpr = False, zero: tl.constexpr = False,
    base: tl.constexpr = False, divide: tl.constexpr = False, store: tl.constexpr = False,
    no_m: tl.constexpr = False, scaled: tl.constexpr = False, two: tl.constexpr = False,
    inverse: tl.constexpr = False, once: tl.constexpr = False, tail: tl.constexpr = False,
    rows: tl.constexpr = False, bare: tl.constexpr = False, lse_rows: tl.constexpr = False,
    lse2: tl.constexpr = False, n_keys: tl.constexpr = False, no_log: tl.constexpr = False,
    v_rows: tl.constexpr = False, next_head: tl.constexpr = False,
):  # fmt: skip
    """`attention_kernel` without what is named."""
    tiles = tl.cdiv(n, block_q)
    first, head = tl.program_id(0) % tiles * block_q, tl.program_id(0) // tiles
    row, key, column = first + tl.arange(0, block_q), tl.arange(0, block_kv), tl.arange(0, block_d)
    inside = (row[:, None] < n) & (column[None, :] < d)
    here = head * n * d + row[:, None] * d + column[None, :]
    q = tl.load(q_ptr + here, mask=inside, other=0)
    m = tl.full([block_q], float("-inf"), tl.float32)
    if zero:
        m = tl.zeros([block_q], tl.float32)
    l = tl.zeros([block_q], tl.float32)
    o = tl.zeros([block_q, block_d], tl.float32)
    end = n_kv
    if once:
        end = block_kv
    if tail:
        end = n_kv // block_kv * block_kv
    if rows:
        end = n
    for start in range(0, end, block_kv):
        exist = (start + key[:, None] < n_kv) & (column[None, :] < d)
        there = head * n_kv * d + (start + key[:, None]) * d + column[None, :]
        if stride:
            there = head * n * d + (start + key[:, None]) * d + column[None, :]
        k = tl.load(k_ptr + there, mask=exist, other=0)
        if v_rows:
            exist = column[None, :] < d
        v = tl.load(v_ptr + there, mask=exist, other=0)
        s = tl.dot(q, k.T, input_precision="ieee")
        if not scaled:
            s = s * scale
        if not keys:
            s = tl.where(start + key[None, :] < n_kv, s, float("-inf"))
        if n_keys:
            s = tl.where(start + key[None, :] < n, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        if own:
            m_new = tl.max(s, 1)
        alpha = tl.exp(m - m_new)
        p = tl.exp(s - m_new[:, None])
        if inverse:
            alpha = tl.exp(m_new - m)
        if two:
            alpha = tl.exp2(m - m_new)
            p = tl.exp2(s - m_new[:, None])
        if alpha_l:
            l = l + tl.sum(p, 1)
        else:
            l = l * alpha + tl.sum(p, 1)
        if alpha_o:
            o = o + tl.dot(p, v, input_precision="ieee")
        else:
            o = o * alpha[:, None] + tl.dot(p, v, input_precision="ieee")
        m = m_new
    if not divide:
        o = o / l[:, None]
    lse = m + tl.log(l)
    if base:
        lse = m + tl.log2(l)
    if no_m:
        lse = tl.log(l)
    if no_log:
        lse = m + l
    if lse2:
        lse = lse * 1.4426950408889634
    tl.store(lse_ptr + head * n + row, lse, mask=(row < n) | lse_rows)
    if store:
        inside = (row[:, None] < n + 1) & (column[None, :] < d)
    if next_head:
        inside = (here < tl.num_programs(0) // tiles * n * d) & (column[None, :] < d)
    if bare:
        inside = row[:, None] + column[None, :] >= 0
    tl.store(o_ptr + here, o, mask=inside)


def _wrong(*names):
    """`attention_kernel` without what is named."""
    return Given(_wrong_kernel, **dict.fromkeys(names, True))


def _qkv(rng, heads, n, n_kv, d, size=1.0, rising=0.0, low=0.0):
    """q, k, v in FP32. `rising` makes later keys score higher (below 0: lower), `low` all of them."""
    q, k, v = (size * rng.standard_normal((heads, m, d)) for m in (n, n_kv, n_kv))
    q[..., 0], k[..., 0] = 1.0, low + rising * np.arange(n_kv)
    return tuple(a.astype(np.float32) for a in (q, k, v / size))


def _inputs(rng):
    """Friendly first; then what breaks a kernel that is nearly right."""
    yield _qkv(rng, 1, 16, 32, 16, rising=-0.5)
    yield _qkv(rng, 1, 16, 48, 16, rising=0.5)  # the maximum moves in every block
    yield _qkv(rng, 1, 21, 33, 10)  # ragged in every direction, and one key in the last tile
    q, k, v = _qkv(rng, 1, 17, 20, 16)
    yield -np.abs(q), np.abs(k), v  # all real scores below the 0 of a padded key
    yield _qkv(rng, 1, 16, 40, 16, size=9.0, rising=-9.0)  # far apart, steeply down
    q, k, v = _qkv(rng, 1, 16, 20, 16, low=-4e30)
    yield q * (np.arange(16) == 0), k, v  # far below 0, and all alike: FP32 has no digits to tell
    yield _qkv(rng, 2, 18, 40, 16)


ROOM = 16_384  # as far as a tile without a mask may reach: the interpreter writes where it is told


class NoFill(Exception):
    """A masked load without `other`: the interpreter takes 0, a GPU whatever is there."""

    one_cause = True  # whichever load it is


class NoPrecision(Exception):
    """A dot that may round FP32 to TF32: the interpreter never does, a GPU does."""

    one_cause = True


def _same_on_a_gpu(kernel):
    """Raise where the kernel, or a helper, leaves to chance what only the interpreter makes right."""
    for node in (node for function in with_helpers(kernel) for node in ast.walk(tree(function))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr == "load":
            _, mask, other = _said(node, "pointer", "mask", "other")
            if mask is not None and other is None:
                raise NoFill(ast.unparse(node))
        if node.func.attr == "dot":
            *_, precision, tf32 = _said(
                node, "input", "other", "acc", "input_precision", "allow_tf32"
            )
            said = tf32 if precision is None else precision
            if said not in ("ieee", "tf32x3", False, ...):
                raise NoPrecision(ast.unparse(node))


def _said(call, *names):
    """The constants that a call gives for these arguments; `...` is one that is no constant."""
    said = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
    nodes = [said.get(name, ast.Constant(None)) for name in names]
    return [node.value if isinstance(node, ast.Constant) else ... for node in nodes]


def _launch(kernel, q, k, v):
    """(what lies behind o and lse, o, lse) of a kernel on NumPy arrays, as NumPy arrays."""
    _same_on_a_gpu(kernel)
    if not hasattr(kernel, "__getitem__"):
        raise TypeError("this is no kernel: is @triton.jit missing above it?")

    device = "cpu" if kernels.interpreted else "cuda"
    heads, n, d = q.shape
    programs = triton.cdiv(n, 16) * heads

    def run(kernel, *first):
        o, lse = (empty(shape, ROOM, device) for shape in (q.shape, (heads, n)))
        kernel[(programs,)](
            *first, *(tensor(x, ROOM, device) for x in (q, k, v)), o, lse, d**-0.5, n, k.shape[1], d,
            block_q=16, block_kv=16, block_d=max(16, triton.next_power_of_2(d)),
        )  # fmt: skip
        return results(ROOM, (o, q.shape), (lse, (heads, n)))

    return one_writer(kernel, run, programs, 16) if heads > 1 else run(kernel)


def _no_fill():
    tl.load(0, mask=0)


def _no_precision():
    tl.dot(0, 0)


def _exact(q, k, v):
    from course import attention

    guard = np.full(ROOM, GUARD)
    return guard, guard, *attention.naive(*(a.astype(np.float64) for a in (q, k, v)))


_UNSEEN = [  # what is right in the interpreter, and by luck on a GPU
    (
        _wrong("v_rows"),
        "The V tile reaches past the last key. Its weight there is 0, but 0 · NaN is NaN: mask the "
        "load.",
    ),
    (
        _no_fill,
        "A load with a mask and without other=: the interpreter fills in zeros, but a GPU leaves "
        "anything there, and 0 · NaN is NaN.",
    ),
    (
        _no_precision,
        'tl.dot must say input_precision="ieee" (or "tf32x3"): else a GPU rounds FP32 to TF32, with 10 '
        "bits.",
    ),
]

flash = Exercise(
    "The forward kernel, from a blank page",
    difficulty=4,
    minutes=30,
    task="Write a Triton kernel attention_kernel(q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, scale, n, n_kv, d, "
    "block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr). q and o are (heads, n, d), k and v "
    "(heads, n_kv, d), lse (heads, n), all FP32 and without gaps. There is a program for each Q tile of each "
    "head, all along axis 0. scale is 1/√d. No causal mask. lse is the natural one. Say other= with each mask "
    "of a load, and input_precision= with each tl.dot: the interpreter would guess right, a GPU does not.",
    answer=attention_kernel,
    cases=_inputs,
    call=_launch,
    reference=_exact,
    rtol=3e-4,  # FP32 in any order stays below 1e-4; P rounded to FP16 does not
    hints=(
        "tiles = tl.cdiv(n, block_q): the tile is program_id % tiles, the head program_id // tiles.",
        "A head of q starts at head · n · d, a head of k and v at head · n_kv · d.",
        "Three tiles on the chip: m full of −∞, l and o of zeros. Then the loop of notebook 05.",
        "tl.dot(…, input_precision='ieee'), and tl.where(key < n_kv, s, −∞) before the maximum.",
    ),
    wrong=[
        (_wrong("keys"), "Keys past N_kv have score 0 and take part. Set their scores to −∞."),
        (_wrong("alpha_o"), "o is not corrected by α when the maximum moves."),
        (_wrong("alpha_l"), "ℓ is not corrected by α when the maximum moves."),
        (
            _wrong("own"),
            "m fell: it is the maximum of all blocks so far, not of this block alone.",
        ),
        (
            _wrong("zero"),
            "m lies above all scores. Does it start at 0, or at another finite number? Start at −∞: all "
            "scores may lie far below. Or do padded keys, with a score of 0, count in the maximum? Mask "
            "them before it.",
        ),
        (_wrong("base"), "m is in base e and log₂ ℓ in base 2: tl.log, or turn both."),
        (_wrong("no_m"), "lse without m: the maximum that was taken off must be added again."),
        (_wrong("no_log"), "lse = m + ℓ: what is added to m is log ℓ."),
        (_wrong("divide"), "o is not divided by ℓ at the end."),
        (_wrong("scaled"), "The scores are not scaled."),
        (
            _wrong("stride"),
            "A head of k and v has n_kv rows, not n: heads after the first read the wrong keys.",
        ),
        (_wrong("store"), "A row past the end of o was written: mask the store."),
        (
            _wrong("bare"),
            "The store of o needs a mask: rows past n, and columns past d, are not ours.",
        ),
        (
            _wrong("next_head"),
            "Rows past n are written over the next head, and on a GPU either may come last. The mask of "
            "a store ends with the head, row < n, not with the tensor.",
        ),
        (_wrong("lse_rows"), "The store of lse needs a mask too: row < n."),
        (
            _wrong("lse2"),
            "lse is in base 2. What leaves the kernel is the natural one: times ln 2.",
        ),
        (_wrong("two"), "exp2 is 2^x: the scores must be multiplied by log₂ e first."),
        (_wrong("inverse"), "α is upside down: exp(m_old − m_new), which is never above 1."),
        (
            _wrong("once"),
            "Only the first tile of keys is read: loop from 0 to n_kv in steps of block_kv.",
        ),
        (
            _wrong("tail"),
            "The last tile of keys is left out where it is not full: the loop ends at n_kv.",
        ),
        (
            _wrong("n_keys"),
            "Keys from n on are masked, but n is the number of queries. There are n_kv keys.",
        ),
        (
            _wrong("rows"),
            "The loop over the keys ends at n, the number of queries. There are n_kv keys.",
        ),
        *_UNSEEN,
    ],
)

# --- the parts of the notebook kernel ---------------------------------------------------------

SIDE, KEYS = 16, 32  # rows and columns of o; keys of a block


@triton.jit
def _steps(
    m_ptr, l_ptr, acc_ptr, s_ptr, v_ptr, c, blocks,
    side: tl.constexpr, keys: tl.constexpr,
):  # fmt: skip
    """The state after each block, from the empty one on, by `step`."""
    row, key, column = tl.arange(0, side), tl.arange(0, keys), tl.arange(0, side)
    m = tl.full([side], float("-inf"), tl.float32)
    l = tl.zeros([side], tl.float32)
    acc = tl.zeros([side, side], tl.float32)
    for j in range(0, blocks):
        s = tl.load(s_ptr + (j * side + row[:, None]) * keys + key[None, :])
        v = tl.load(v_ptr + (j * keys + key[:, None]) * side + column[None, :])
        m, l, acc = step(m, l, acc, s, v, c)
        tl.store(m_ptr + j * side + row, m)
        tl.store(l_ptr + j * side + row, l)
        tl.store(acc_ptr + (j * side + row[:, None]) * side + column[None, :], acc)


@triton.jit
def _hidden(out_ptr, s_ptr, last_ptr, start, side: tl.constexpr):
    """The score tile as `hide` leaves it."""
    row = tl.arange(0, side)
    at = row[:, None] * side + row[None, :]
    tl.store(out_ptr + at, hide(tl.load(s_ptr + at), start, tl.load(last_ptr + row), side))


@triton.jit
def _seen(
    last_ptr, bounds_ptr, first, n_q, n_kv,
    causal: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr,
):  # fmt: skip
    """What `visible_keys` says."""
    last_key, full, end = visible_keys(first, n_q, n_kv, causal, block_q, block_kv)
    tl.store(last_ptr + tl.arange(0, block_q), last_key)
    tl.store(bounds_ptr, full)
    tl.store(bounds_ptr + 1, end)


class MixedTypes(Exception):
    """tl.dot of two data types."""


def _within(kernel, *args, **part):
    """Launch one program of a kernel that calls the reader's part."""
    ((name, attempt),) = part.items()
    _same_on_a_gpu(attempt)
    if not hasattr(attempt, "__getitem__"):
        raise TypeError(f"{name} runs inside a kernel: is @triton.jit missing above it?")
    try:
        rewritten(kernel, tree(kernel), **part)[(1,)](*args)
    except Exception as error:
        cause = error  # a compiler's error has that of the helper, where it happened, as its cause
        while cause:
            if "same dtype" in str(cause):
                raise MixedTypes("tl.dot got tiles of two data types") from None
            cause = cause.__cause__ or cause.__context__
        raise


def _states(s, v, c):
    """(m, l, acc) in FP64 after each block, from the whole row up to there."""
    m, l, acc = [], [], []
    for j in range(1, len(s) + 1):
        scores = np.concatenate(s[:j].astype(np.float64), axis=1) * c
        values = np.concatenate(v[:j].astype(np.float64))
        m.append(scores.max(1))
        p = np.exp2(scores - np.where(np.isfinite(m[-1]), m[-1], 0.0)[:, None])
        l.append(p.sum(1))
        acc.append(p @ values)
    return np.stack(m), np.stack(l), np.stack(acc)


def _scores(rng):
    """Scores (blocks, 16, 32) and values (blocks, 32, 16), hostile in what comes when."""

    def draw(blocks, rising=0.0, low=0.0, kind=np.float32):
        s = (
            rng.standard_normal((blocks, SIDE, KEYS))
            + low
            + rising * np.arange(blocks)[:, None, None]
        )
        v = rng.standard_normal((blocks, KEYS, SIDE))
        return s.astype(np.float32), v.astype(kind), float(rng.uniform(0.2, 0.6))

    yield draw(1)
    yield draw(3, rising=9.0)  # the maximum moves in every block
    yield draw(3, rising=-9.0)  # it never moves again
    yield draw(2, low=-4e4)  # far below 0
    s, v, c = draw(3)
    s[0, :8] = s[1, :4] = s[2, :1] = -np.inf  # rows that see their first key late, or never
    yield s, v, c
    yield draw(2, rising=1.0, kind=np.float16)


def _run_steps(step, s, v, c):
    import torch

    shapes = ((len(s), SIDE), (len(s), SIDE), (len(s), SIDE, SIDE))
    outs = [torch.empty(shape, device=kernels.device) for shape in shapes]
    inputs = [torch.from_numpy(x).to(kernels.device) for x in (s, v)]
    _within(_steps, *outs, *inputs, c, len(s), SIDE, KEYS, step=step)
    return tuple(out.cpu().numpy() for out in outs)


def _but(*changes):
    """`step` of the solution with (old, new) in its source."""
    return edited(notebook_forward.step, *changes)


step = Exercise(
    "One block more",
    difficulty=2,
    minutes=10,
    task="Write step(m, l, acc, s, v, c), a part of a kernel: the state after one more block. m and l have a "
    "number per row of the tile, acc (block_q, block_d) is o before the division, s (block_q, block_kv) are "
    "raw scores q kᵀ, v (block_kv, block_d) the values. c = scale · log₂ e, so work in base 2: m is the "
    "maximum of s · c. acc and l are FP32; v may be FP16, and tl.dot wants both tiles in one type: "
    'p.to(v.dtype). Say input_precision="ieee".',
    answer=notebook_forward.step,
    cases=_scores,
    call=_run_steps,
    reference=_states,
    rtol=3e-3,  # P is rounded to FP16 where V is
    hints=(
        "m_new = tl.maximum(m, …): the old maximum, and that of this block, tl.max(s, 1) * c.",
        "p and alpha are tl.exp2 of a difference to `shift`; shift[:, None] makes a column of it.",
        "l and acc both shrink by alpha before the new part is added. acc needs alpha[:, None].",
        "The new part of acc is tl.dot(p.to(v.dtype), v, input_precision='ieee').",
    ),
    wrong=[
        (
            _but(("acc * alpha[:, None] + ", "acc + ")),
            "acc is not corrected by α when the maximum moves.",
        ),
        (_but(("l * alpha", "l")), "l is not corrected by α when the maximum moves."),
        (_but(("acc * alpha[:, None] + ", "")), "What acc held before this block is lost."),
        (
            _but(("tl.maximum(m, tl.max(s, 1) * c)", "tl.max(s, 1) * c")),
            "m fell: it is the maximum of all blocks so far, not of this block alone.",
        ),
        (
            _but(("tl.exp2(m - shift)", "tl.exp2(shift - m)")),
            "α is upside down: 2 to the power of old minus new, which is never above 1.",
        ),
        (
            _but(("tl.max(s, 1) * c", "tl.max(s, 1)")),
            "The maximum is that of the raw scores: times c, as in the exponent.",
        ),
        (
            _but(("exp2(s * c -", "exp2(s -")),
            "In p the raw scores stand beside a maximum that was multiplied by c: times c there too.",
        ),
        (
            _but(("exp2", "exp")),
            "exp is eˣ. c holds the log₂ e already, so it is exp2.",
        ),
        (
            _but(("m - shift", "m - m_new"), ("- shift[:, None]", "- m_new[:, None]")),
            "A row that has seen no key has m_new = −∞, and −∞ − (−∞) is NaN: subtract shift, for p and "
            "for α.",
        ),
        (
            _but(("alpha[:, None]", "alpha[None, :]")),
            "α belongs to the rows of acc: alpha[:, None]. As a row it multiplies the columns.",
        ),
        (
            _but(("tl.sum(p, 1)", "tl.max(p, 1)")),
            "l is a sum: tl.sum(p, 1), every key of the block.",
        ),
        (
            _but(("p.to(v.dtype)", "p")),
            "tl.dot takes two tiles of one type, and v is FP16 here: p.to(v.dtype).",
        ),
        (
            _no_precision,
            'tl.dot must say input_precision="ieee" (or "tf32x3"): else a GPU rounds FP32 to TF32, with '
            "10 bits.",
        ),
    ],
)


def _score_tiles(rng):
    """A score tile, the last key of each row, and the key at which the tile starts."""
    for start, last in (
        (0, np.full(SIDE, 4)),  # five keys in all
        (16, np.full(SIDE, 31)),  # the last key is the last of the tile
        (16, np.full(SIDE, 15)),  # the tile lies behind it
        (32, 30 + np.arange(SIDE)),  # a diagonal
        (0, np.arange(SIDE) - 3),  # rows that see no key
    ):
        low = rng.standard_normal((SIDE, SIDE)) - 5e4  # below any stand-in for −∞
        yield low.astype(np.float32), last.astype(np.int32), start


def _run_hide(hide, s, last, start):
    import torch

    out = torch.empty(s.shape, device=kernels.device)
    inputs = [torch.from_numpy(x).to(kernels.device) for x in (s, last)]
    _within(_hidden, out, *inputs, start, SIDE, hide=hide)
    return out.cpu().numpy()


hide = Exercise(
    "Keys that do not exist",
    difficulty=2,
    minutes=5,
    task="Write hide(s, start, last_key, block_kv), a part of a kernel. s (block_q, block_kv) are the scores "
    "of the keys start … start + block_kv − 1; last_key has a number per row, the last key that this row may "
    "see. Return s with −∞ where a key lies behind it.",
    answer=notebook_forward.hide,
    cases=_score_tiles,
    call=_run_hide,
    hints=(
        "The keys of the tile are start + tl.arange(0, block_kv).",
        "As a row, key[None, :], against last_key as a column, last_key[:, None].",
        "tl.where(condition, s, float('-inf')) keeps s where the condition holds.",
    ),
    wrong=[
        (edited(notebook_forward.hide, *changes), diagnosis)
        for changes, diagnosis in (
            (
                [("<=", "<")],
                "The last key is hidden too: a row sees the keys up to last_key, and last_key itself.",
            ),
            (
                [("start + ", "")],
                "The tile starts at key `start`: its columns are start, start + 1, …",
            ),
            ([("<=", ">")], "The wrong side is hidden: what lies behind last_key goes."),
            (
                [('float("-inf")', "0.0")],
                "A score of 0 is a weight like any other. A key that is hidden has a score of −∞.",
            ),
            (
                [('float("-inf")', "-1e4")],
                "A big negative number is a score like any other: where all real ones lie lower, it wins. "
                'It takes float("-inf").',
            ),
            (
                [("last_key[:, None]", "last_key[None, :]")],
                "last_key belongs to the rows: last_key[:, None].",
            ),
            (
                [("key[None, :]", "key[:, None]")],
                "The keys are the columns of s: key[None, :].",
            ),
        )
    ],
)


def visible(first, n, n_kv, block_q, block_kv):
    """(full, end) of the causal Q tile at row `first`: keys all rows see, in whole tiles; keys any sees."""
    diagonal = first + n_kv - n  # the last key that the first row sees
    full = min(max(diagonal + 1, 0), n_kv)
    end = min(max(diagonal + block_q, 0), n_kv)
    return full // block_kv * block_kv, end


def _q_tiles(rng):
    """First row, N, N_kv, causal, block_q, block_kv: square, ragged, more keys, more queries."""
    for n, n_kv, block_q, block_kv in (
        (64, 64, 16, 16),
        (48, 63, 16, 16),  # the first row's keys end with a tile
        (100, 100, 32, 16),
        (33, 90, 16, 32),
        (90, 33, 32, 16),
    ):
        for first in range(0, n, block_q):
            yield first, n, n_kv, True, block_q, block_kv
    yield 16, 40, 37, False, 16, 16


def _run_visible(visible_keys, first, n, n_kv, causal, block_q, block_kv):
    import torch

    outs = [torch.empty(size, dtype=torch.int32, device=kernels.device) for size in (block_q, 2)]
    sizes = first, n, n_kv, causal, block_q, block_kv
    _within(_seen, *outs, *sizes, visible_keys=visible_keys)
    last, (full, end) = (out.cpu().numpy() for out in outs)
    return last, int(full), int(end)


visible_keys = Exercise(
    "Which keys does a causal tile visit?",
    difficulty=3,
    minutes=10,
    task="Query i sees key j when j ≤ i + N_kv − N. Write visible_keys(first, n_q, n_kv, causal, block_q, "
    "block_kv), a part of a kernel, for the Q tile of rows first … first + block_q − 1. last_key: the last "
    "key each row sees, never above n_kv − 1. full: how many keys every row sees (it is rounded down to "
    "whole tiles in the return). end: how many keys at least one row sees. Neither count is below 0 or above "
    "n_kv.",
    answer=notebook_forward.visible_keys,
    cases=_q_tiles,
    call=_run_visible,
    hints=(
        "Row first + i sees the keys up to diagonal + i, for i in tl.arange(0, block_q).",
        "The first row of the tile sees the fewest: keys 0 … diagonal. How many are these?",
        "The last row sees block_q − 1 keys more. Clamp: tl.minimum(tl.maximum(…, 0), n_kv).",
    ),
    wrong=[
        (edited(notebook_forward.visible_keys, *changes), diagnosis)
        for changes, diagnosis in (
            (
                [("first + n_kv - n_q", "first")],
                "This aligns top-left. With N_kv ≠ N the diagonal is shifted by N_kv − N.",
            ),
            ([("diagonal + 1", "diagonal")], "Keys 0 … j are j + 1 keys: full is one short."),
            (
                [("diagonal + block_q", "diagonal + block_q - 1")],
                "Keys 0 … j are j + 1 keys: end is one short.",
            ),
            (
                [("full // block_kv * block_kv", "full")],
                "full must be a multiple of block_kv: a part of a tile needs the mask.",
            ),
            (
                [("full // block_kv * block_kv", "full // block_kv")],
                "full counts keys, not tiles: times block_kv.",
            ),
            (
                [("tl.maximum(diagonal + 1, 0)", "diagonal + 1")],
                "With more queries than keys the first rows see nothing: full is 0, not negative.",
            ),
            (
                [("tl.maximum(diagonal + block_q, 0)", "diagonal + block_q")],
                "With more queries than keys the first rows see nothing: end is 0, not negative.",
            ),
            (
                [
                    (
                        "tl.minimum(tl.maximum(diagonal + block_q, 0), n_kv)",
                        "tl.maximum(diagonal + block_q, 0)",
                    )
                ],
                "There are no keys past n_kv: clamp end.",
            ),
            (
                [
                    (
                        "tl.minimum(diagonal + tl.arange(0, block_q), n_kv - 1)",
                        "diagonal + tl.arange(0, block_q)",
                    )
                ],
                "Rows past the last query would see keys past n_kv − 1, which do not exist: clamp last_key.",
            ),
            (
                [("diagonal + tl.arange(0, block_q)", "diagonal")],
                "Each row sees one key more than the row above: diagonal + tl.arange(0, block_q).",
            ),
            (
                [("diagonal + 1", "diagonal + block_q")],
                "full is what *every* row sees. The first row of the tile sees the fewest keys.",
            ),
            (
                [("full // block_kv * block_kv, end", "end, full // block_kv * block_kv")],
                "The two are swapped: full comes first, and is never more than end.",
            ),
        )
    ],
)

# --- a broken kernel --------------------------------------------------------------------------


def _bug_inputs(rng):
    """Each of the three bugs shows in one case only; all of them pass a friendly test."""
    yield _qkv(rng, 1, 16, 48, 16, rising=0.5)  # α
    yield _qkv(rng, 1, 16, 21, 16, rising=-0.1)  # keys past the end
    yield _qkv(rng, 2, 16, 32, 16, rising=-0.5)  # the heads of k and v
    yield _qkv(rng, 1, 16, 21, 16, rising=-0.1, low=-1000.0)  # mended for p, not for the maximum


_CLUES = {
    "alpha_o": "one head, N_kv = 48: a multiple of the tile, yet rows whose largest score comes late are "
    "wrong. Their lse is right. Print α, and follow what it multiplies.",
    "keys": "one head, N_kv = 21: the last tile has 5 keys and 11 that do not exist. Print the last s.",
    "stride": "two heads, N = 16 and N_kv = 32: head 0 is right and head 1 is wrong. Print the addresses of k.",
}
_COUNT = {3: "Three bugs are left", 2: "One down, two bugs are left", 1: "One bug is left"}


_NAMES = {"keys": "a ragged length", "stride": "a second head"}


def _bugs():
    """(kernel with some of the bugs, what to look at next), the more bugs the earlier."""
    order = list(_CLUES)
    sets = [[name for i, name in enumerate(order) if bits >> i & 1] for bits in range(1, 8)]
    for names in sorted(sets, key=len, reverse=True):
        after = ", then ".join(_NAMES[name] for name in names[1:])
        which = "The first shows" if after else "It shows"
        said = f"{_COUNT[len(names)]}. {which} with {_CLUES[names[0]]}"
        yield _wrong(*names), f"{said} After it: {after}." if after else said


debug = Exercise(
    "Three bugs",
    difficulty=4,
    minutes=20,
    task="broken_kernel passes a friendly test and has three bugs. Find them with the interpreter, mend the "
    "kernel, and hand it over.",
    answer=attention_kernel,
    cases=_bug_inputs,
    call=_launch,
    reference=_exact,
    rtol=1e-3,
    hints=(
        "In the interpreter a kernel is Python: print(start, m, l) inside the loop, or breakpoint().",
        "Compare line by line with the table of notebook 05 and this one.",
        "One bug is in what α multiplies, one in what is missing before the maximum, one in an address.",
    ),
    wrong=[
        *_bugs(),
        (_wrong("alpha_l"), "Now ℓ is not corrected, and o is: both need α."),
        (_wrong("divide"), "o is not divided by ℓ any more."),
        *_UNSEEN,
    ],
)
