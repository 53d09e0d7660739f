"""Exercises of notebook 03: small Triton kernels, the traffic of a chain, a fused layer norm."""

import ast

import numpy as np

from course import kernels
from course.exercises import Exercise, Question
from course.exercises._room import (
    GUARD,
    Given,
    decorated,
    edited,
    empty,
    one_writer,
    results,
    rewritten,
    tensor,
    writers,
)
from course.exercises._source import tree, with_helpers
from course.hardware import MB
from course.kernels import tl, triton

# --- questions on the way ---------------------------------------------------------------------

exact_trips = Question(
    "The exact count",
    difficulty=2,
    minutes=3,
    task="Now exactly: the residual is a second tensor, read from HBM. Bias, GELU, dropout (mask from a "
    "seed), residual. How many times fewer bytes does one kernel move?",
    answer=3,
    wrong={
        4: "That is the simple count. The residual kernel reads two tensors: 6n bytes, not 4n.",
        4.5: "18n bytes to 4n? The fused kernel must read the residual too.",
        19 / 7: "That is with a stored mask, one byte an element. Here it comes from a seed.",
        8 / 3: "Separate, the residual reads two tensors and writes one: 6n bytes, not 4n.",
        19 / 6: "With a stored mask as four kernels, from a seed as one. Here both have the seed.",
        1 / 3: "Upside down: how many times fewer, so a number above 1.",
    },
    explanation="4n + 4n + 4n + 6n = 18n bytes. Fused: read x, read the residual, write: 6n.",
)
same_flops = Question(
    "What moves on the roofline",
    task="The chain is fused. What happens to FLOPs, bytes and intensity?",
    choices={
        "a": "fewer FLOPs, fewer bytes, the same intensity",
        "b": "the same FLOPs, fewer bytes, higher intensity",
        "c": "more FLOPs, the same bytes, higher intensity",
        "d": "the same FLOPs, fewer bytes, lower intensity",
    },
    answer="b",
    wrong={
        "a": "Which operation was left out? None: the FLOPs stay.",
        "c": "Nothing is computed twice here, and the intermediates no longer cross to HBM.",
        "d": "Intensity is FLOPs divided by bytes. The lower number got smaller.",
    },
    explanation="The same numerator, a smaller denominator: the point moves right, along the slope.",
)
programs = Question(
    "How many programs?",
    task="A vector of 1,000,000 elements, blocks of 1,024. How many programs cover it?",
    answer=977,
    wrong={
        976: "976 · 1,024 = 999,424: the last 576 elements are left out. Round up.",
        1024: "That is the size of a block, not the number of blocks.",
        1_000_000 / 1024: "There is no part of a program. Round up, and mask what is too much.",
        1_000_000: "One program handles a whole block of elements.",
    },
    explanation="1,000,000 / 1,024 = 976.6, rounded up. triton.cdiv(n, BLOCK) does that.",
)
why_waste = Question(
    "Why does splitting waste bandwidth?",
    task="Bias, GELU and dropout run as three kernels. Where does the waste come from?",
    choices={
        "a": "each kernel computes its result twice",
        "b": "what one kernel writes to memory, the next reads back at once",
        "c": "three kernels use three times as many registers",
        "d": "small kernels read memory in a worse order",
    },
    answer="b",
    wrong={
        "a": "Each result is computed once. Follow the tensor between two kernels instead.",
        "c": "Registers are free again when a kernel ends. Where does its result live then?",
        "d": "All three read neighbouring elements in order. Count how often they read.",
    },
    explanation="Every kernel boundary is a round trip: the intermediate goes to HBM and comes back. "
    "The kernels do a few FLOPs a byte, so these trips are the time.",
)
three_trips = Question(
    "Three kernels",
    task="n FP16 numbers go through bias, GELU and dropout (mask from a seed) as three kernels, then as "
    "one. How many times fewer bytes?",
    answer=3,
    wrong={
        4: "That would be four operations. Here there are three.",
        6: "Six trips become two, not one.",
        1.5: "Three reads and three writes become one of each.",
        12: "12n bytes are what the three kernels move. Divide by what the one kernel moves.",
    },
    explanation="3 · (2n + 2n) = 12n bytes become 4n. Here the simple count and the exact one agree: "
    "each of the three reads one tensor and writes one.",
)
big_matmul = Question(
    "Would it help a large matmul as much?",
    difficulty=2,
    task="A matmul of 8192³ in FP16 on an H100, followed by something small. Does saving one round trip "
    "of its result make the matmul itself much faster?",
    choices={
        "a": "yes: its matrices are large, so many bytes are saved",
        "b": "no: it waits for arithmetic, and its bytes take little of the time",
        "c": "yes: the ridge moves to the left",
        "d": "no: a matmul does not use HBM",
    },
    answer="b",
    wrong={
        "a": "Large, yes, but each number is used thousands of times. What does it wait for?",
        "c": "The ridge belongs to the chip. No program moves it.",
        "d": "It reads A and B and writes C there. Compare that time with the arithmetic.",
    },
    explanation="Its intensity is 2,731 FLOP/byte, the ridge is at 295. The small operation after it is "
    "another matter: in the matmul's last step (its epilogue) it costs no trip of its own.",
)
qkv = Question(
    "One product instead of three",
    difficulty=2,
    minutes=3,
    task="Q, K and V are three products of the same x, 4,096 rows of 4,096 FP16 numbers. As one product "
    "x is read once. How many MB are saved?",
    answer=2 * 4096 * 4096 * 2 / MB,
    unit="MB",
    wrong={
        3 * 4096 * 4096 * 2 / MB: "Once x must still be read: two of three readings are saved.",
        4096 * 4096 * 2 / MB: "Three readings become one. How many are saved?",
        6 * 4096 * 4096 * 2 / MB: "Weights and results are not saved: each is different.",
    },
    explanation="x has 4096 · 4096 · 2 = 33.6 MB, and two of its three readings go away.",
)
add_relu_times = Question(
    "Three operations, three tensors",
    difficulty=2,
    minutes=3,
    task="relu(a + b) · c, all tensors of n FP16 numbers, as three kernels and as one. How many times "
    "fewer bytes does one kernel move?",
    answer=2,
    wrong={
        3: "That is the simple count, 12n to 4n. Here two kernels read two tensors each.",
        8 / 3: "Fused, all of a, b and c must still be read, and the result written: four trips.",
        1.5: "Three operations in, and one kernel out: count trips, not tensors.",
        4: "8 trips to 2? The fused kernel reads three tensors and writes one.",
    },
    explanation="3 + 2 + 3 = 8 trips (16n bytes) become 4 (8n bytes).",
)
rms_norm = Question(
    "RMS norm with its casts",
    difficulty=3,
    minutes=5,
    task="A BF16 tensor of 4,096 × 10,240. Four kernels: cast to FP32, normalise in FP32, scale in FP32, "
    "cast back to BF16. Each reads and writes the whole tensor once. How many MB move?",
    answer=(6 + 8 + 8 + 6) * 4096 * 10240 / MB,
    unit="MB",
    wrong={
        16 * 4096 * 10240 / MB: "All in BF16? Three kernels read or write FP32, 4 bytes a number.",
        32 * 4096 * 10240 / MB: "The first kernel reads BF16 and the last one writes it: 2 bytes.",
        4 * 4096 * 10240 / MB: "That is the fused kernel.",
        8 * 4096 * 10240 / MB: "That is one FP32 kernel of the four. Add up all four.",
        12
        * 4096
        * 10240
        / MB: "The tensor stays in memory between the kernels: each reads it anew.",
    },
    hints=("The cast reads 2 bytes a number and writes 4.", "The normalisation: 4 and 4."),
    explanation="6 + 8 + 8 + 6 = 28 bytes a number: 1174.4 MB.",
)
rms_norm_fused = Question(
    "RMS norm in one kernel",
    difficulty=2,
    task="The same in one kernel, which reads BF16, works in FP32 in registers and writes BF16. How many "
    "times fewer bytes?",
    answer=7,
    wrong={
        3.5: "In registers FP32 costs no memory traffic. What is read and written is BF16.",
        4: "Four kernels, but not of equal size: they moved 6, 8, 8 and 6 bytes a number.",
        14: "It writes as well as reads.",
        28: "28 bytes a number are what the four kernels move. Divide by what the one moves.",
    },
    explanation="28 bytes a number become 4: 1174.4 MB become 167.8 MB. Casts are operations too.",
)
small_tensor = Question(
    "A small tensor",
    difficulty=2,
    task="n = 1,000: a few kB. Four kernels become one. What decides how much time that saves on a GPU?",
    choices={
        "a": "the bytes: three times fewer",
        "b": "the launches: each kernel costs a fixed time to start",
        "c": "the FLOPs",
        "d": "nothing: small tensors are free",
    },
    answer="b",
    wrong={
        "a": "A few kB at 4.8 TB/s take a few nanoseconds. What takes longer?",
        "c": "13 FLOPs an element are 13,000: a GPU does them in less than a nanosecond.",
        "d": "The recorded time at n = 1,024 is not zero. What is it spent on?",
    },
    explanation="Moving the bytes takes a few nanoseconds, starting a kernel microseconds. So the number "
    "of kernels counts, and who launches them.",
)
inside_l2 = Question(
    "Where did the bytes go?",
    difficulty=2,
    task="n = 1,024,000: four kernels should move 19n bytes. The counter at the DRAM sees about 4n. Why?",
    choices={
        "a": "the counter is wrong",
        "b": "PyTorch fused the kernels by itself",
        "c": "the intermediates, 2 MB each, stay in the L2 cache",
        "d": "FP16 is compressed in DRAM",
    },
    answer="c",
    wrong={
        "a": "At n = 10⁹ the same counter reads 19.0n. Something changes with the size.",
        "b": "Four launches were recorded. Nothing was fused.",
        "d": "At n = 10⁹ the counter reads 19.0n in FP16 too.",
    },
    explanation="The H200's L2 holds 60 MiB. x and the residual must come from DRAM once, 4n bytes; all "
    "else is written to the L2 and read back from it.",
)

# --- the ladder: three small kernels ----------------------------------------------------------


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[i] = x[i]."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside, other=0)
    tl.store(out_ptr + offsets, x, mask=inside)


@triton.jit
def add_relu_times_kernel(a_ptr, b_ptr, c_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out[i] = relu(a[i] + b[i]) · c[i]."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    a = tl.load(a_ptr + offsets, mask=inside, other=0)
    b = tl.load(b_ptr + offsets, mask=inside, other=0)
    c = tl.load(c_ptr + offsets, mask=inside, other=0)
    tl.store(out_ptr + offsets, tl.maximum(a + b, 0) * c, mask=inside)


@triton.jit
def row_max_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    """out[row] = the maximum of a row."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < cols
    x = tl.load(x_ptr + row * cols + columns, mask=inside, other=-float("inf"))
    tl.store(out_ptr + row, tl.max(x, axis=0))


class NoMask(Exception):
    """A load without a mask: it may read past the end, and no result need show it."""


def _is_kernel(kernel):
    if not hasattr(kernel, "__getitem__"):
        raise ValueError("this is no kernel yet: write @triton.jit above its def")


def _each_load_is_masked(kernel):
    calls = [n for f in with_helpers(kernel) for n in ast.walk(tree(f)) if _is_load(n)]
    if not all(_given(call, 1, "mask") for call in calls):
        raise NoMask("a tl.load has no mask=, and on a GPU it may read past the end")


def _vectors(count):
    """Cases of `count` vectors: the last block is full in some and has one lane in others."""

    def cases(rng):
        for n, block in ((10, 4), (100, 16), (2048, 512), (5, 8), (33, 32)):
            yield block, *(3 * rng.standard_normal((count, n))).astype(np.float32)

    return cases


def _launch_blocks(kernel, block, *arrays):
    """(what lies behind out, out, which program wrote what) of a kernel on vectors."""
    _is_kernel(kernel)
    (n,), programs, device = arrays[0].shape, -(-len(arrays[0]) // block), kernels.device
    room = 2048 * programs  # for a block of 1,024 that should not be there

    def run(kernel, *first):
        out = empty(n, room, device)
        inputs = (tensor(x, room, device) for x in arrays)
        kernel[(programs,)](*first, *inputs, out, n, BLOCK=block)
        return results(room, (out, (n,)))

    behind, out = run(kernel)
    if out is None or (out == GUARD).any():
        return behind, out, OWN
    _each_load_is_masked(kernel)
    who = np.arange(n) // block if decorated(kernel) else writers(kernel, run, programs, n)
    return behind, out, _blocks(who, block)


OWN = "each program writes its own block"


def _blocks(who, block):
    """OWN, or which program does something else."""
    if (who == -2).any():
        return f"several programs write element {np.argmax(who == -2)}"
    for program in range(-(-len(who) // block)):
        wanted = np.arange(program * block, min(program * block + block, len(who)))
        mine = np.flatnonzero(who == program)
        if not np.array_equal(mine, wanted):
            some = ", ".join(map(str, mine[:4])) + ", …" * (len(mine) > 4)
            return f"program {program} writes {some or 'nothing'}"
    return OWN


def _exact_blocks(formula):
    def exact(block, *arrays):
        out = formula(*(a.astype(np.float64) for a in arrays))
        return np.full(2048 * -(-len(out) // block), GUARD), out, OWN

    return exact


START = "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)"
MASKED = ", mask=inside, other=0"
BLOCKS_WRONG = (  # what goes wrong in the first two lines of any kernel on vectors
    (
        (START, "tl.program_id(0) + tl.arange(0, BLOCK)"),
        "Program 1 starts where program 0 ended: at BLOCK, not at 1.",
    ),
    (
        ("offsets < n", "offsets <= n"),
        "Offset n is the first one outside: the last valid one is n − 1.",
    ),
    (
        ("offsets < n", "tl.arange(0, BLOCK) < n"),
        "Compare the offset in the vector with n, not the place in the block.",
    ),
    (
        ("offsets < n", "offsets < BLOCK"),
        "The vector ends at n. Compare the offsets with n, not with BLOCK.",
    ),
    (
        (START, "tl.program_id(0) * BLOCK"),
        "offsets is one number, the start of the block: add the lanes, tl.arange(0, BLOCK).",
    ),
    (("offsets < n", "offsets >= n"), "Upside down: True means that the lane takes part."),
    (
        (START, "tl.program_id(0) * 1024 + tl.arange(0, 1024)"),
        "A block has BLOCK elements, which need not be 1,024: program 0 did the work of others.",
    ),
    (
        (START, "tl.program_id(0) * 1024 + tl.arange(0, BLOCK)"),
        "Programs lie BLOCK apart, which need not be 1,024: elements were left out.",
    ),
    (
        (START, "tl.program_id(0) + tl.num_programs(0) * tl.arange(0, BLOCK)"),
        "Neighbouring lanes should have neighbouring elements: a program has one piece.",
    ),
    (
        (START, "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) + 1"),
        "Counting starts at 0: the first element of program 0 is element 0.",
    ),
    (
        (START, "tl.arange(0, BLOCK)"),
        "All programs do the first block: the offsets need tl.program_id(0) * BLOCK.",
    ),
)


def _blocks_wrong(kernel, *more):
    """Wrong answers with their diagnoses, the common ones and those of this kernel."""
    return kernels.available * [
        (edited(kernel, change), diagnosis) for change, diagnosis in (*more, *BLOCKS_WRONG)
    ]


copy = Exercise(
    "Copy",
    minutes=5,
    task="Write copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr). x and out: n numbers each. "
    "out[i] = x[i]. Program p copies elements p · BLOCK to p · BLOCK + BLOCK − 1, as far as there are any. "
    "It is launched with n / BLOCK programs, rounded up. Each load and each store has a mask.",
    answer=copy_kernel,
    cases=_vectors(1),
    call=_launch_blocks,
    reference=_exact_blocks(lambda x: x),
    rtol=1e-6,
    hints=(
        "offsets: where the program starts, tl.program_id(0) * BLOCK, plus the lanes, tl.arange(0, BLOCK).",
        "inside: the offsets below n.",
        "tl.load(x_ptr + offsets, mask=inside, other=0), and tl.store(out_ptr + offsets, x, mask=inside).",
    ),
    wrong=_blocks_wrong(
        copy_kernel,
        (
            (", x, mask=inside", ", x"),
            "The store has no mask: it writes past the end, where somebody else's numbers are.",
        ),
        (
            (MASKED, ""),
            "The load has no mask: it reads past the end. No result shows it, and a GPU may stop there.",
        ),
        (
            ("offsets, x,", "offsets, offsets,"),
            "That stores the offsets. Store x, which was loaded.",
        ),
        (("(out_ptr", "(x_ptr"), "Nothing arrives in out: store to out_ptr + offsets."),
    ),
)

add_relu_times_in_one = Exercise(
    "relu(a + b) · c",
    difficulty=2,
    minutes=6,
    task="Write add_relu_times_kernel(a_ptr, b_ptr, c_ptr, out_ptr, n, BLOCK: tl.constexpr). a, b, c and out: "
    "n numbers each. out[i] = relu(a[i] + b[i]) · c[i], where relu(y) is y above 0 and else 0; "
    "tl.maximum(y, 0) is the larger of the two. Programs and masks as before.",
    answer=add_relu_times_kernel,
    cases=_vectors(3),
    call=_launch_blocks,
    reference=_exact_blocks(lambda a, b, c: np.maximum(a + b, 0) * c),
    rtol=1e-5,
    hints=(
        "offsets and inside as in the copy; then three loads, all with the same offsets and mask.",
        "What stands between the loads and the store touches no memory: tl.maximum(a + b, 0) * c.",
    ),
    wrong=_blocks_wrong(
        add_relu_times_kernel,
        (("c, mask=inside", "c"), "The store has no mask: it writes past the end of out."),
        (
            ("b_ptr + offsets" + MASKED, "b_ptr + offsets"),
            "A load has no mask: it reads past the end. No result shows it, and a GPU may stop there.",
        ),
        (("tl.maximum(a + b, 0)", "(a + b)"), "relu is missing: what is below 0 becomes 0."),
        (
            ("tl.maximum(a + b, 0) * c", "tl.maximum((a + b) * c, 0)"),
            "relu comes before the product: a negative c makes the result negative.",
        ),
        (
            ("tl.maximum(a + b, 0)", "(tl.maximum(a, 0) + tl.maximum(b, 0))"),
            "relu of the sum, not the sum of two relus.",
        ),
        (("tl.maximum(a + b", "tl.minimum(a + b"), "The larger of the two: tl.maximum."),
        (("tl.maximum(a + b", "tl.maximum(a"), "b is not added."),
        (("b, 0) * c", "b, 0)"), "The last step is missing: times c."),
        (("b, 0) * c", "b, 0) + c"), "c is added. It should be multiplied."),
        (("(out_ptr", "(a_ptr"), "Nothing arrives in out: store to out_ptr + offsets."),
    ),
)


def _rows_to_reduce(rng):
    """Rows of negative numbers, one of −∞ alone, and the maximum at the very end of a long row."""
    for rows, cols, block in ((3, 5, 8), (2, 64, 64), (4, 33, 64), (2, 1500, 2048)):
        x = rng.standard_normal((rows, cols)).astype(np.float32) - 8
        x[-1, -1] = -1
        yield x, block
    yield np.full((2, 3), -np.inf, np.float32), 4


def _launch_rows(kernel, x, block):
    """(what lies behind out, out) of a kernel that makes one number of each row."""
    _is_kernel(kernel)
    rows, cols = x.shape
    room, device = rows * max(block, 1024), kernels.device

    def run(kernel, *first):
        out = empty(rows, room, device)
        kernel[(rows,)](*first, tensor(x, room, device), out, cols, BLOCK=block)
        return results(room, (out, (rows, 1)))

    done = one_writer(kernel, run, rows, 1)
    filled = None if decorated(kernel) else _with_infinity(kernel)
    return run(filled) if filled else done


row_max = Exercise(
    "The maximum of a row",
    difficulty=2,
    minutes=7,
    task="Write row_max_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr). x: rows × cols numbers, row after "
    "row; out: rows numbers. Program r finds the maximum of row r, which has cols ≤ BLOCK numbers: "
    "tl.max(x, axis=0) is the largest number of a block. Rows may be all negative.",
    answer=row_max_kernel,
    cases=_rows_to_reduce,
    call=_launch_rows,
    reference=lambda x, block: (
        np.full(len(x) * max(block, 1024), GUARD),
        x.astype(np.float64).max(-1, keepdims=True),
    ),
    rtol=1e-6,
    hints=(
        "Row r starts at r · cols: load from x_ptr + row * cols + columns, where columns = tl.arange(0, BLOCK).",
        "The lanes past the row must never win: mask=columns < cols, and other=-float('inf').",
        "One number per program: tl.store(out_ptr + row, …), and that needs no mask.",
    ),
    wrong=kernels.available
    * [
        (edited(row_max_kernel, change), diagnosis)
        for change, diagnosis in (
            (
                ('other=-float("inf")', "other=0"),
                "The masked lanes are filled with 0, and 0 wins against a row of negative numbers.",
            ),
            (
                (', other=-float("inf")', ""),
                "What fills the masked lanes? Without other= a GPU may leave anything there, though the "
                "interpreter fills in zeros. Give a number that never wins.",
            ),
            (
                (', mask=inside, other=-float("inf")', ""),
                "Without a mask the load goes on into the next row, and past the end of the last.",
            ),
            (
                ('-float("inf")', "-1e30"),
                "A very small number still wins against −∞. Fill with -float('inf').",
            ),
            (("row * cols", "row * BLOCK"), "Rows lie cols numbers apart, not BLOCK."),
            (("x_ptr + row * cols", "x_ptr"), "All programs look at row 0: add row * cols."),
            (
                ("out_ptr + row,", "out_ptr + row * cols,"),
                "out has one number per row: store at out_ptr + row.",
            ),
            (("out_ptr + row,", "out_ptr,"), "All programs store to one place: out_ptr + row."),
            (
                ("tl.arange(0, BLOCK)", "tl.arange(0, 1024)"),
                "A row may be longer than 1,024: the block has BLOCK lanes.",
            ),
            (("tl.max(", "tl.sum("), "That is the sum of the row: tl.max."),
            (("tl.max(", "tl.min("), "That is the smallest: tl.max."),
            (("tl.max(x,", "tl.max(tl.abs(x),"), "The largest number, not the largest size."),
            (("tl.max(", "tl.argmax("), "That is where the maximum stands, not what it is."),
        )
    ],
)

# --- the traffic of a chain -------------------------------------------------------------------


def traffic(ops, n, itemsize):
    """Bytes of a chain of (extra, stored) operations: (separate kernels, one kernel)."""
    separate = sum(((2 + extra) * itemsize + stored) * n for extra, stored in ops)
    extras, kept = sum(extra for extra, _ in ops), sum(stored for _, stored in ops)
    return separate, ((2 + extras) * itemsize + kept) * n


def _chains(rng):
    for length in (1, 2, 4, 7):
        ops = [(int(rng.integers(0, 3)), int(rng.integers(0, 2))) for _ in range(length)]
        yield ops, int(rng.integers(10, 10**6)), int(rng.choice([1, 4]))
    yield [(0, 0), (2, 1), (1, 0)], 1000, 4  # every part of the count in one chain
    yield [(0, 0), (0, 0), (0, 1), (1, 0)], 1001, 2  # bias, GELU, stored dropout, residual


def _traffic(ops, n, itemsize, *, extra_fused=True, kept_fused=True, scale_kept=False, size=None):
    """`traffic` with one thing broken."""
    size = size or itemsize
    kept = [stored * (itemsize if scale_kept else 1) for _, stored in ops]
    separate = sum(((2 + e) * size + s) * n for (e, _), s in zip(ops, kept, strict=True))
    extras = sum(extra for extra, _ in ops) if extra_fused else 0
    return separate, ((2 + extras) * size + sum(kept) * kept_fused) * n


chain_traffic = Exercise(
    "The traffic of a chain",
    difficulty=3,
    minutes=12,
    task="Write traffic(ops, n, itemsize), which returns two whole numbers: the bytes that separate "
    "kernels move and those that one kernel moves. ops is a list of (extra, stored): how many full tensors an "
    "operation reads beside the running one, and how many bytes an element it stores for later.",
    answer=traffic,
    cases=_chains,
    hints=(
        "A separate kernel reads 1 + extra tensors and writes one, and then what it stores.",
        "`stored` is already in bytes an element; tensors have itemsize bytes an element.",
        "One kernel reads the running tensor once, all the extras, and writes once, and still stores.",
    ),
    wrong=[
        (
            lambda ops, n, itemsize: (2 * itemsize * n * len(ops), 2 * itemsize * n),
            "This is the simple count: extra tensors and what is stored are not in it.",
        ),
        (
            lambda *a: _traffic(*a, extra_fused=False),
            "One kernel must still read the extra tensors: a residual does not come for free.",
        ),
        (
            lambda *a: _traffic(*a, kept_fused=False),
            "What is stored for later is stored by the fused kernel too.",
        ),
        (
            lambda *a: _traffic(*a, scale_kept=True),
            "`stored` is in bytes an element already: do not multiply it by itemsize.",
        ),
        (
            lambda ops, n, i: (traffic(ops, n, i)[0], traffic(ops, n, i)[0] // len(ops)),
            "Fusing k kernels does not divide their bytes by k. Count what the one kernel moves.",
        ),
        (
            lambda *a: _traffic(*a, size=2),
            "itemsize is not always 2: FP32 has 4 bytes a number, FP8 one.",
        ),
        (
            lambda ops, n, i: (
                sum(((1 + e) * i + s) * n for e, s in ops),
                ((1 + sum(e for e, _ in ops)) * i + sum(s for _, s in ops)) * n,
            ),
            "A write is missing: each kernel reads its tensors and also writes one.",
        ),
        (
            lambda ops, n, i: (t := traffic(ops, n, i)[0], t - len(ops) * 2 * i * n),
            "Between k kernels there are k − 1 hand-overs, not k.",
        ),
        (
            lambda ops, n, i: (t := traffic(ops, n, i)[0], t - (len(ops) - 1) * i * n),
            "A hand-over that goes away saves two trips, a write and a read.",
        ),
        (
            lambda ops, n, i: traffic(ops, n, i)[::-1],
            "The two are swapped: separate kernels first.",
        ),
        (
            lambda ops, n, i: traffic(ops, 1, i),
            "This is for one element. There are n.",
        ),
        (
            lambda ops, n, i: tuple(t / i for t in traffic(ops, n, i)),
            "Asked for are bytes: a tensor has itemsize bytes an element.",
        ),
    ],
)

# --- softmax, unfused -------------------------------------------------------------------------


def softmax_elements(m, n):
    """Elements that five separate kernels of a softmax of m rows of n read and write."""
    return 5 * m * n + 2 * m, 3 * m * n + 2 * m


softmax_traffic = Exercise(
    "A softmax in five kernels",
    difficulty=2,
    minutes=8,
    task="m rows of n numbers go through five kernels: the maximum of each row, subtract it, exp, the sum of "
    "each row, divide by it. Write softmax_elements(m, n): the elements that are read and the elements that "
    "are written, all together, as two whole numbers.",
    answer=softmax_elements,
    cases=lambda rng: [tuple(int(x) for x in rng.integers(2, 5000, 2)) for _ in range(5)],
    hints=(
        "The maximum reads m·n numbers and writes m.",
        "Subtracting reads m·n numbers and the m maxima, and writes m·n.",
        "Five rows in a table: read, written. Then add up.",
    ),
    wrong=[
        (
            lambda m, n: (5 * m * n, 3 * m * n),
            "The m maxima and the m sums are written and read back too.",
        ),
        (
            lambda m, n: (5 * m * n + 2 * m, 5 * m * n),
            "Two of the kernels write one number a row: the maximum and the sum.",
        ),
        (lambda m, n: (m * n, m * n), "This is the fused kernel: one read, one write."),
        (
            lambda m, n: (3 * m * n + 2 * m, 5 * m * n + 2 * m),
            "The two are swapped: reading comes first.",
        ),
        (
            lambda m, n: (2 * (5 * m * n + 2 * m), 2 * (3 * m * n + 2 * m)),
            "Twice as many: these are bytes in FP16. Asked for are elements.",
        ),
        (
            lambda m, n: (3 * m * n, 3 * m * n),
            "The maximum and the sum are kernels too, and each reads the whole matrix.",
        ),
        (
            lambda m, n: (5 * m * n + 2 * n, 3 * m * n + 2 * n),
            "One maximum and one sum a row, and there are m rows.",
        ),
        (
            lambda m, n: (5 * m * n, 3 * m * n + 2 * m),
            "Who uses the m maxima and the m sums? Those two kernels read them.",
        ),
        (
            lambda m, n: (5 * m * n + 2 * m, 3 * m * n),
            "Two kernels write m numbers each, the maxima and the sums.",
        ),
        (
            lambda m, n: 8 * m * n + 4 * m,
            "That is the sum of both. Return two numbers: read, written.",
        ),
    ],
)

# --- residual and layer norm in Triton --------------------------------------------------------


@triton.jit
def norm_kernel(x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, cols, eps, BLOCK: tl.constexpr):
    """One row: out = layer_norm(x + residual) · weight + bias."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < cols
    x = tl.load(x_ptr + row * cols + columns, mask=inside, other=0)
    x += tl.load(residual_ptr + row * cols + columns, mask=inside, other=0)
    mean = tl.sum(x, axis=0) / cols
    centred = tl.where(inside, x - mean, 0)
    variance = tl.sum(centred * centred, axis=0) / cols
    weight = tl.load(weight_ptr + columns, mask=inside, other=0)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0)
    out = centred / tl.sqrt(variance + eps) * weight + bias
    tl.store(out_ptr + row * cols + columns, out, mask=inside)


@triton.jit
def _broken_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, cols, eps, BLOCK: tl.constexpr,
    BROKEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if BROKEN == "row":
        row = 0
    columns = tl.arange(0, BLOCK)
    inside = columns < cols
    start = row * cols
    if BROKEN == "stride":
        start = row * BLOCK
    if BROKEN == "load":
        x = tl.load(x_ptr + row * cols + columns)
    elif BROKEN == "fill":
        x = tl.load(x_ptr + start + columns, mask=inside, other=float("nan"))
    else:
        x = tl.load(x_ptr + start + columns, mask=inside, other=0)
    residual = tl.load(residual_ptr + start + columns, mask=inside, other=0)
    if BROKEN != "residual" and BROKEN != "residual last":
        x += residual
    count = cols
    if BROKEN == "block":
        count = BLOCK
    mean = tl.sum(x, axis=0) / count
    if BROKEN == "rms":
        mean = 0.0
    centred = tl.where(inside, x - mean, 0)
    if BROKEN == "padding":
        centred = x - mean
    variance = tl.sum(centred * centred, axis=0) / count
    if BROKEN == "unbiased":
        variance = variance * cols / (cols - 1)
    if BROKEN == "one pass":
        variance = tl.sum(x * x, axis=0) / cols - mean * mean
    root = tl.sqrt(variance + eps)
    if BROKEN == "no eps":
        root = tl.sqrt(variance)
    if BROKEN == "eps":
        root = tl.sqrt(variance) + eps
    if BROKEN == "variance":
        root = variance + eps
    weight = tl.load(weight_ptr + columns, mask=inside, other=0)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0)
    if BROKEN == "weight":
        weight, bias = weight * 0 + 1, bias * 0
    if BROKEN == "bias":
        bias = bias * 0
    out = centred / root * weight + bias
    if BROKEN == "residual last":
        out += residual
    if BROKEN == "next row":
        inside = row * cols + columns < tl.num_programs(0) * cols
    if BROKEN == "store":
        tl.store(out_ptr + row * cols + columns, out)
    else:
        tl.store(out_ptr + start + columns, out, mask=inside)


def _broken(how):
    """`norm_kernel` with one thing broken."""
    return Given(_broken_kernel, BROKEN=how)


def _rows(rng):
    """Rows that fill a block and that do not; a large mean; numbers near eps."""
    for rows, cols, mean, spread in (
        (3, 100, 0.5, 1.0),
        (2, 64, 3.0, 2.0),
        (2, 129, 4000.0, 1.0),  # x² needs more digits than FP32 has
        (3, 33, 0.0, 1e-2),  # the variance is near eps
        (1, 5, -2.0, 1.0),
    ):
        draw = rng.standard_normal((2, rows, cols)) * spread
        weight, bias = rng.standard_normal((2, cols)) + 1.5
        x, residual = draw[0] + mean, draw[1]
        yield tuple(a.astype(np.float32) for a in (x, residual, weight, bias))


EPS = 1e-4


def _launch(kernel, *arrays):
    """(what lies behind out, out) of a kernel on NumPy arrays, as NumPy arrays.

    What a load leaves in masked lanes without other= is undefined. The interpreter fills in
    zeros, so a sum over them would be right here and wrong on a GPU: they hold ∞ in a second run.
    """
    _is_kernel(kernel)
    rows, cols = shape = arrays[0].shape
    block, device = triton.next_power_of_2(cols), kernels.device

    def run(kernel, *first):
        out = empty(shape, block, device)
        inputs = (tensor(x, block, device) for x in arrays)
        kernel[(rows,)](*first, *inputs, out, cols, EPS, BLOCK=block)
        return results(block, (out, shape))

    done = one_writer(kernel, run, rows, 1)
    filled = None if decorated(kernel) else _with_infinity(kernel)
    return run(filled) if filled else done


def _with_infinity(kernel):
    """The kernel with other=∞ in each masked load that gives no other; None if each does.

    Loads in helpers count too.
    """
    functions = with_helpers(kernel)[::-1]  # what is called comes before what calls it
    trees = [tree(function) for function in functions]
    calls = [n for t in trees for n in ast.walk(t) if _unfilled(n)]
    if not calls:
        return None
    for call in calls:
        call.keywords.append(ast.keyword("other", ast.parse("float('inf')", mode="eval").body))
    new = {}
    for function, changed in zip(functions, trees, strict=True):
        new[function.__name__] = rewritten(function, changed, **new)
    return new[function.__name__]


def _unfilled(node):
    return _is_load(node) and _given(node, 1, "mask") and not _given(node, 2, "other")


def _is_load(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load"


def _given(call, place, name):
    """Whether a call has this argument, at its place or by its name."""
    return len(call.args) > place or name in {keyword.arg for keyword in call.keywords}


def _exact(*arrays):
    x, residual, weight, bias = (a.astype(np.float64) for a in arrays)
    y = x + residual
    centred = y - y.mean(-1, keepdims=True)
    out = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS) * weight + bias
    return np.full(1 << (x.shape[1] - 1).bit_length(), GUARD), out


layer_norm = Exercise(
    "Residual and layer norm in one kernel",
    difficulty=4,
    minutes=25,
    task="Write a Triton kernel norm_kernel(x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, cols, eps, "
    "BLOCK: tl.constexpr). One program has one row of cols ≤ BLOCK numbers, and rows lie one after the "
    "other. With y = x + residual: out = (y − mean) / √(variance + eps) · weight + bias, where mean and "
    "variance are those of the row, and weight and bias have cols numbers.",
    answer=norm_kernel,
    cases=_rows,
    call=_launch,
    reference=_exact,
    rtol=1e-3,
    hints=(
        "Begin as in softmax_kernel: row, columns, inside, then two loads with mask and other=0.",
        "mean = tl.sum(y, axis=0) / cols, for the padded lanes hold 0 and add nothing.",
        "But y − mean is −mean in the padded lanes: tl.where(inside, y − mean, 0), then the variance.",
        "weight and bias are loaded with the columns alone, without the row.",
    ),
    # Without Triton every kernel stops alike: then the reason is all there is to say.
    wrong=kernels.available
    * [
        (
            _broken("padding"),
            "The padded lanes hold 0 − mean, and they are in the variance. Set them to 0 again.",
        ),
        (
            _broken("block"),
            "Mean and variance are over cols numbers. Divide by cols, not by BLOCK.",
        ),
        (_broken("residual"), "The residual is not added."),
        (
            _broken("one pass"),
            "Mean of squares minus square of the mean: where the mean is large the digits cancel. Take "
            "the mean off first.",
        ),
        (_broken("eps"), "Is eps inside the root? √(variance + eps), not √variance + eps."),
        (_broken("variance"), "Divided by the variance: it must be its root."),
        (_broken("unbiased"), "Divide the variance by cols, not by cols − 1."),
        (_broken("weight"), "weight and bias are not applied."),
        (_broken("row"), "All programs work on row 0: the offsets need row · cols."),
        (
            _broken("load"),
            "A load reaches past the end of its row. It needs mask=columns < cols, other=0.",
        ),
        (_broken("store"), "The store writes past the end of its row: it needs a mask too."),
        (
            _broken("next row"),
            "The store writes into the next row, and on a GPU either may come last. Its mask ends with "
            "the row, columns < cols, not with the tensor.",
        ),
        (
            _broken("fill"),
            "What fills the masked lanes goes into the sums: give other=0. (Without other= a GPU may "
            "leave anything there, though the interpreter fills in zeros.)",
        ),
        (_broken("no eps"), "eps is missing: √(variance + eps)."),
        (_broken("rms"), "The mean is not taken off."),
        (_broken("bias"), "The bias is not added."),
        (_broken("residual last"), "The residual comes first: the norm is that of x + residual."),
        (_broken("stride"), "Rows lie cols numbers apart, not BLOCK."),
    ],
)
