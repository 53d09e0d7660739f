"""Notebook 04: attention in three lines, its bytes, the room it takes, what a counter says."""

import math

import numpy as np

from course import cost, records
from course import roofline as model
from course.exercises import Exercise, Question
from course.hardware import GPUS, MiB

H100 = GPUS["H100 SXM"]
NAIVE, FUSED = (cost.attention(4096, 128, flow=flow) for flow in ("naive", "flash"))

# --- attention in three lines -----------------------------------------------------------------


def attend(q, k, v):
    """S, P and O of one head, no mask."""
    s = q @ k.T / np.sqrt(q.shape[1])
    p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
    return s, p, p @ v


def _heads(rng):
    for n, d, scale in ((5, 3, 1.0), (4, 4, 2.0), (7, 16, 1.5)):  # also N = d, where slips fit
        yield tuple(scale * rng.standard_normal((3, n, d)))


def _steps(score=None, weigh=None, hand=None):
    """A wrong answer: another way to make S of q and k, P of S, or O of the three."""

    def attempt(q, k, v):
        s = score(q, k) if score else q @ k.T / np.sqrt(q.shape[1])
        p = weigh(s) if weigh else np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
        return s, p, hand(s, p, v) if hand else p @ v

    return attempt


three_lines = Exercise(
    "Attention in three lines",
    minutes=5,
    task="Write attend(q, k, v): S, P and O of one head, as NumPy arrays. q, k and v are N × d. "
    "x @ y is the matrix product, x.T the transpose; x.sum(axis=1, keepdims=True) adds up each row.",
    answer=attend,
    cases=_heads,
    hints=(
        "S: q @ k.T, divided by the square root of d, which is q.shape[1].",
        "P: np.exp(s), divided by the sums of its rows. keepdims=True keeps them a column.",
        "O: p @ v.",
    ),
    wrong=[
        (_steps(lambda q, k: q @ k.T), "S is not divided by √d."),
        (_steps(lambda q, k: q @ k.T / q.shape[1]), "S is divided by d: take the square root."),
        (
            _steps(lambda q, k: q @ k.T / np.sqrt(len(q))),
            "S is divided by √N. d is the width of a row, q.shape[1].",
        ),
        (
            _steps(lambda q, k: k @ q.T / np.sqrt(q.shape[1])),
            "S is on its side: row i belongs to query i, so q @ k.T.",
        ),
        (
            _steps(weigh=lambda s: np.exp(s) / np.exp(s).sum(axis=0, keepdims=True)),
            "The columns of P add up to 1. It is to be the rows: axis=1.",
        ),
        (
            _steps(weigh=lambda s: np.exp(s) / np.exp(s).sum(axis=1)),
            "Each column of P was divided by the sum of a row: keepdims=True keeps the sums a column.",
        ),
        (
            _steps(weigh=lambda s: np.exp(s) / np.exp(s).sum()),
            "All of P together adds up to 1. It is to be each row: axis=1, keepdims=True.",
        ),
        (_steps(weigh=np.exp), "The rows of P do not add up to 1: divide each by its sum."),
        (
            _steps(weigh=lambda s: s / s.sum(axis=1, keepdims=True)),
            "The scores go through np.exp before they are divided by their sum.",
        ),
        (_steps(hand=lambda s, p, v: s @ v), "O is made of the weights P, not of the scores S."),
        (_steps(hand=lambda s, p, v: p.T @ v), "Row i of P holds the weights of query i: p @ v."),
        (_steps(hand=lambda s, p, v: p), "O is missing: the third is p @ v."),
        (lambda q, k, v: attend(q, k, v)[2], "That is O alone: return S, P and O."),
    ],
)

# --- predictions on the way -------------------------------------------------------------------

passes = Question(
    "Passes over S and P",
    task="Three kernels: S = QKᵀ, P = softmax(S), O = PV. Each reads its inputs from HBM and writes "
    "its output to HBM. How many times does an N×N matrix cross between HBM and the chip?",
    answer=4,
    wrong={
        2: "S and P are two matrices, but each crosses more than once: written, then read.",
        3: "One pass a kernel is too few: the softmax reads one N×N matrix and writes another.",
        6: "Count the N×N matrices only: Q, K, V and O are N×d.",
        8: "That is every trip there is. Q, K, V and O are not N×N.",
        1: "Then S would stay on the chip. But the next kernel finds it in HBM only.",
    },
    explanation="S is written, S is read, P is written, P is read.",
)

best_speedup = Question(
    "33 times fewer bytes",
    difficulty=2,
    task="On an H100, naive attention needs 41.3 µs for its bytes, and any attention 8.7 µs for its "
    "arithmetic. A fused kernel moves 33 times fewer bytes. How many times faster can it be at best?",
    answer=model.time(NAIVE, H100) / model.time(FUSED, H100),
    factor=1.1,
    wrong={
        33: "Bytes alone would allow that. But the arithmetic is still there, all 8.7 µs of it.",
        32: "That is the ratio of the bytes, and without Q, K, V and O. How long is the arithmetic?",
        41.3
        / 9.95: "8.7 and 1.25 µs do not add up: bytes move while the arithmetic runs. The longer counts.",
        1: "Its bytes take 1.25 µs instead of 41.3: something must become faster.",
    },
    explanation="Its bytes take 1.25 µs, its arithmetic 8.7 µs: the longer one counts. 41.3 / 8.7 is "
    "4.8. From there on fewer bytes gain nothing: the kernel works.",
)

half_width = Question(
    "Narrower heads",
    difficulty=2,
    task="N = 4,096 stays; d goes from 128 to 64. What is the intensity of naive attention now?",
    answer=cost.attention(4096, 64, flow="naive").intensity,
    unit="FLOP/byte",
    factor=1.05,
    wrong={
        NAIVE.intensity: "That is d = 128. The arithmetic halves. What about the bytes of S and P?",
        2 * NAIVE.intensity: "The other way: less arithmetic on nearly the same bytes.",
        64: "That is d. In FP16, four passes of 2 bytes make it d/2.",
    },
    explanation="4N²d FLOP halve; S and P stay as they are. 31.5, half of 62: further from the ridge.",
)

counter_first = Question(
    "What will the counter say?",
    difficulty=2,
    task="A hardware counter in an H200 counts every byte between its DRAM and the chip. One head, "
    "N = 4,096: S has 33.6 MB, and the L2 cache 60 MiB. The count on paper is 138 MB. The counter?",
    choices={
        "a": "more than 138 MB: kernels re-read their inputs",
        "b": "138 MB, within a few per cent",
        "c": "clearly less than 138 MB",
    },
    answer="c",
    wrong={
        "a": "They do re-read, but mostly from a cache. Where is S when the softmax asks for it?",
        "b": "That holds when S is far larger than the L2. Is it here?",
    },
    explanation="Part of S is still in the L2 when the softmax asks for it, and part of P when PV "
    "does. What the L2 answers never crosses to DRAM.",
)

# --- quiz -------------------------------------------------------------------------------------

why_waiting = Question(
    "Plenty of FLOPs, and waiting",
    difficulty=2,
    task="Naive attention does 4N²d FLOP, a lot. Why does it wait for memory all the same?",
    choices={
        "a": "its matmuls are badly written",
        "b": "the bytes of S and P grow as N² too, and bring only about d/2 FLOP each",
        "c": "Q, K, V and O are too large",
        "d": "launching three kernels takes longer than running them",
    },
    answer="b",
    wrong={
        "a": "Perfect matmuls would still have to write S and read P.",
        "c": "They are 3 % of the bytes at N = 4,096.",
        "d": "At N = 4,096 they run for 41 µs; a launch takes a few.",
    },
    explanation="FLOPs and bytes both grow as N². Their ratio is about d/2 = 64 at d = 128, far left "
    "of the ridge at 295. The FLOPs sit in two matmuls; the bytes are what the three kernels hand on.",
)

culprit = Question(
    "Which step is the culprit?",
    difficulty=2,
    task="Which of the three steps forces S and P through HBM?",
    choices={
        "a": "S = QKᵀ, since it makes the large matrix",
        "b": "the softmax, since it needs a whole row before it can give out one weight",
        "c": "O = PV, since it reads the large matrix",
        "d": "all three alike",
    },
    answer="b",
    wrong={
        "a": "It makes S tile by tile and could hand each tile on. Who cannot use a tile alone?",
        "c": "It could take P tile by tile. Who cannot deliver a tile early?",
        "d": "Without one of them, Q(KᵀV) would do, and there would be no N×N matrix at all.",
    },
    explanation="It also does 1 % of the arithmetic with half of the bytes. A softmax that could "
    "start before it has seen its whole row would free the other two. That is notebook 05.",
)

# --- practice problem 1 -----------------------------------------------------------------------

naive_8k = Question(
    "N = 8,192, naive",
    difficulty=2,
    minutes=3,
    task="One head, N = 8,192, d = 128, BF16. How many MiB do the four passes over S and P move?",
    answer=4 * 8192**2 * 2 // MiB,
    unit="MiB",
    wrong={
        128: "That is one pass. S is written and read, and so is P.",
        256: "Two passes: is each matrix both written and read?",
        cost.attention(8192, 128, flow="naive").bytes / MiB: "Q, K, V and O are in this: the "
        "four passes alone were asked for.",
        1024: "BF16 takes 2 bytes a number, not 4.",
        0.5: "That is GiB.",
        4 * 8192**2 * 2: "Those are bytes: a MiB has 2²⁰ of them.",
    },
    explanation="8,192² · 2 bytes = 128 MiB a pass, four times: 512 MiB. Q, K, V and O add 8 MiB, 1.6 %.",
)

fused_8k = Question(
    "N = 8,192, fused",
    minutes=3,
    task="The same head, ideally fused: Q, K and V are read once, O is written once. How many MiB?",
    answer=cost.attention(8192, 128, flow="flash").bytes // MiB,
    unit="MiB",
    wrong={
        6: "O is written as well: four operands.",
        2: "That is one operand. There are four.",
        16: "BF16 takes 2 bytes a number, not 4.",
        4 * 8192 * 128 * 2: "Those are bytes: a MiB has 2²⁰ of them.",
    },
    explanation="4 · 8,192 · 128 · 2 bytes = 8 MiB. So 64 times fewer than the four passes (65 times "
    "with Q, K, V and O counted in both).",
)

double_n = Question(
    "Twice as long",
    difficulty=2,
    task="N doubles, d stays. What happens to the bytes that naive and ideally fused attention move?",
    choices={
        "a": "both double",
        "b": "both grow fourfold",
        "c": "naive grows fourfold, fused doubles",
        "d": "naive doubles, fused stays",
    },
    answer="c",
    wrong={
        "a": "Q, K, V and O double. But S has a row and a column for every token.",
        "b": "There is no N×N matrix in what the fused kernel moves.",
        "d": "Everything that has a row for each token at least doubles.",
    },
    explanation="S and P grow as N², Q, K, V and O as N. The ratio, N/d + 1, doubles too: the longer "
    "the sequence, the more fusing saves.",
)

# --- slips in published numbers ---------------------------------------------------------------

softmax_counted = Question(
    "With the softmax's own arithmetic",
    difficulty=2,
    minutes=3,
    task="Baseten's guide to LLM inference (baseten.co) counts 3N² FLOP for the softmax on top of the "
    "two matmuls: (4N²d + 3N²) FLOP over (8N² + 8Nd) bytes. N = 4,096, d = 128. Which intensity, to "
    "three digits?",
    answer=(4 * 128 + 3) / (8 + 8 * 128 / 4096),
    unit="FLOP/byte",
    wrong={
        NAIVE.intensity: "That is without the 3N² of the softmax.",
        (4 * 128 + 3) / 8: "That is without the 8Nd bytes of Q, K, V and O.",
        128: "“About d” drops a factor of two: four passes of 2 bytes are 8 bytes for 4d FLOP.",
    },
    explanation="62.4 instead of 62.1: the softmax has half of the bytes and, counted so, 0.6 % of the "
    "FLOPs.",
)

a10_share = Question(
    "The same on an A10",
    difficulty=2,
    task="The same guide uses an A10: 125 TFLOP/s in FP16, 600 GB/s. Naive attention has intensity "
    "62.4. Which part of the peak can it reach, in per cent?",
    answer=100 * 62.4242 / (125e12 / 600e9),
    unit="%",
    wrong={
        100: "Its ridge is at 208: left of that, bytes set the limit.",
        62.4242: "That is the intensity. Divide it by the ridge.",
        125e12 / 600e9: "That is the ridge. Which part of it is 62.4?",
        100
        * (125e12 / 600e9)
        / 62.4242: "The other way round: left of the ridge it is under 100 %.",
        62.4242 / (125e12 / 600e9): "That is the fraction. Asked for: per cent.",
    },
    explanation="The ridge is 125e12 / 600e9 = 208 FLOP per byte. 62.4 / 208 = 30 %: memory-bound.",
)

forward_flops = Question(
    "FLOPs of a whole layer",
    difficulty=2,
    minutes=3,
    task="Batch 64, 16 heads, N = 1,024, d = 64, no mask. How many GFLOP does the forward pass of "
    "attention take?",
    answer=cost.attention(1024, 64, flow="flash", heads=16, batch=64).flops / 1e9,
    unit="GFLOP",
    wrong={
        137.4: "A multiply-add is two FLOP; or was only one of the two matmuls counted?",
        274.9 / 64: "That is one sequence of the batch.",
        274.9 / 16: "That is one head of each.",
        549.8: "Data sheets and this course count a multiply-add as two FLOP, not as four.",
    },
    explanation="Two matmuls, 2·N²·d each, for 64 · 16 heads: 4 · 1,024² · 64 · 1,024 = 274.9 GFLOP. "
    "A causal mask hides about half of the pairs, and so of the work.",
)

# --- exercises --------------------------------------------------------------------------------


def by_kernel(n, d, heads, batch, itemsize):
    """Bytes that the kernels S = QKᵀ, P = softmax(S) and O = PV move, as a tuple."""
    operand = batch * heads * n * d * itemsize
    square = batch * heads * n * n * itemsize
    return 2 * operand + square, 2 * square, square + 2 * operand


def _sizes(rng):
    for itemsize in (1, 2, 4):
        n, d = int(rng.integers(100, 9000)), int(rng.integers(8, 300))
        yield n, d, int(rng.integers(2, 40)), int(rng.integers(2, 9)), itemsize
    yield int(rng.integers(8, 30)), int(rng.integers(100, 300)), 3, 2, 2  # N below d


def _with(change):
    """A wrong answer: `change` of the operand's and the square's bytes, for all heads and batch."""

    def attempt(n, d, heads, batch, itemsize):
        each = batch * heads * itemsize
        return change(each * n * d, each * n * n)

    return attempt


count = Exercise(
    "Bytes by kernel",
    difficulty=2,
    minutes=6,
    task="Write by_kernel(n, d, heads, batch, itemsize): the bytes that each of the three kernels of "
    "naive attention moves, a tuple of three whole numbers: S = QKᵀ, P = softmax(S), O = PV.",
    answer=by_kernel,
    cases=_sizes,
    hints=(
        "Q, K, V and O have n·d numbers a head, S and P have n·n.",
        "For each kernel: what does it read, what does it write?",
        "All heads of all sequences do it: times heads · batch, times itemsize.",
    ),
    wrong=[
        (_with(lambda q, s: (2 * q, 2 * s, s + 2 * q)), "The first kernel writes S as well."),
        (_with(lambda q, s: (2 * q + s, s, s + 2 * q)), "The softmax reads S and writes P."),
        (
            _with(lambda q, s: (2 * q + s, 2 * s, s + q)),
            "The last kernel reads P and V, and writes O.",
        ),
        (
            _with(lambda q, s: (q + s, 2 * s, s + 2 * q)),
            "The first kernel reads two operands, Q and K.",
        ),
        (
            _with(lambda q, s: (s, 2 * s, s)),
            "Q, K, V and O cross as well: for a small N they are much of it.",
        ),
        (
            _with(lambda q, s: ((2 * q, s), (s, s), (s + q, q))),
            "Read and written apart. Add the two: one number a kernel.",
        ),
        (
            lambda n, d, h, b, i: by_kernel(n, d, 1, 1, i),
            "That is one head of one sequence: times heads · batch.",
        ),
        (
            lambda n, d, h, b, i: by_kernel(n, d, h, b, 2),
            "FP16 has 2 bytes, but itemsize may be another.",
        ),
        (
            lambda n, d, h, b, i: by_kernel(n, d, h, 1, i),
            "Every sequence of the batch has its own Q, K, V, S, P and O.",
        ),
        (
            lambda n, d, h, b, i: by_kernel(n, d, 1, b, i),
            "Every head has its own S and P.",
        ),
        (
            lambda n, d, h, b, i: by_kernel(n, d, h, b, 1),
            "Those are numbers, not bytes: times itemsize.",
        ),
        (
            lambda n, d, h, b, i: by_kernel(n, h * d, 1, b, i),
            "The heads do not share one S: there are heads · n · n scores.",
        ),
        (
            lambda *size: sum(by_kernel(*size)),
            "This is the sum. Three numbers were asked for.",
        ),
    ],
)


def scores_held(n, layers, heads, kv_heads, batch, training):
    """Bytes of S and P that naive attention holds at once, FP16."""
    matrix = batch * heads * n * n * 2
    return matrix * (1 + layers) if training else matrix * 2


def _models(rng):
    for layers, heads, kv_heads in ((32, 32, 8), (80, 64, 8), (24, 16, 16)):
        for training in (False, True):
            n, batch = int(rng.integers(1000, 40000)), int(rng.integers(2, 9))
            yield n, layers, heads, kv_heads, batch, training


footprint = Exercise(
    "The room that a model's scores take",
    difficulty=3,
    minutes=8,
    task="Write scores_held(n, layers, heads, kv_heads, batch, training): the bytes of N×N matrices, "
    "in FP16, that naive attention holds at once. Layers run one after the other and reuse the room "
    "for S and P. In training, P of every layer is kept for the backward pass; the room for S is "
    "reused. Some models share one K and V head between several query heads (kv_heads < heads).",
    answer=scores_held,
    cases=_models,
    hints=(
        "How many score matrices has one layer: one for each query head, or for each K head?",
        "Not training: one S and one P, of one layer.",
        "Training: one S, and a P for each layer.",
    ),
    wrong=[
        (
            lambda n, layers, h, kv, b, t: scores_held(n, layers, kv, kv, b, t),
            "Every query head has its own scores, even where several share a K head.",
        ),
        (
            lambda n, layers, h, kv, b, t: scores_held(n, layers, h, kv, 1, t),
            "Each sequence of the batch has its own S and P.",
        ),
        (
            lambda n, layers, h, kv, b, t: scores_held(n, layers, h, kv, b, False),
            "In training P of every layer must still be there for the backward pass.",
        ),
        (
            lambda n, layers, h, kv, b, t: scores_held(n, layers, h, kv, b, True),
            "Without training nothing is kept: the next layer reuses the room.",
        ),
        (
            lambda n, layers, h, kv, b, t: b * h * n * n * 2 * (2 * layers if t else 2),
            "S is not kept for the backward pass: its room is reused, P's is not.",
        ),
        (
            lambda n, layers, h, kv, b, t: b * h * n * n * 2 * (layers if t else 1),
            "S and P are there at the same time: one is made from the other.",
        ),
        (
            lambda n, layers, h, kv, b, t: b * h * n * n * 2 * 2 * layers,
            "The layers run one after the other: S and P of the one before are not needed any more "
            "(in training: its P is, its S is not).",
        ),
        (
            lambda n, layers, h, kv, b, t: b * h * n * n * 2 * (layers + 2 if t else 2),
            "The P of the layer at work is one of those that are kept: do not count it twice.",
        ),
        (
            lambda n, layers, h, kv, b, t: scores_held(n, layers, h // kv, kv, b, t),
            "heads / kv_heads is how many share one K head. Every query head has its own scores.",
        ),
        (
            lambda n, layers, h, kv, b, t: scores_held(n, layers, h, kv, b, t) // 2,
            "FP16 takes two bytes a number.",
        ),
    ],
)


def longest(memory_bytes, heads, batch, itemsize):
    """The largest N whose S and P, of all heads and sequences, fit into so many bytes."""
    return math.isqrt(memory_bytes // (2 * heads * batch * itemsize))


def _memories(rng):
    yield 80 * 10**9, 32, 1, 2
    yield 2 * 8 * 2 * 2 * 4096**2, 8, 2, 2  # exactly 4,096
    yield 2 * 8 * 2 * 2 * 4096**2 - 1, 8, 2, 2  # one byte short of it
    for itemsize in (1, 2, 4):
        yield int(rng.integers(10**9, 10**12)), int(rng.integers(2, 65)), 3, itemsize


longest_n = Exercise(
    "The longest sequence that fits",
    difficulty=2,
    minutes=6,
    task="Write longest(memory_bytes, heads, batch, itemsize): the largest whole N for which S and P "
    "of all heads and sequences fit into memory together (leave Q, K, V, O and the model out).",
    answer=longest,
    cases=_memories,
    hints=(
        "S and P take 2 · heads · batch · N² · itemsize bytes.",
        "Solve for N and round down. math.isqrt is a square root in whole numbers, rounded down.",
    ),
    wrong=[
        (
            lambda m, h, b, i: math.isqrt(m // (h * b * i)),
            "That is room for S alone: P is there at the same time.",
        ),
        (
            lambda m, h, b, i: m // (2 * h * b * i),
            "S has N² numbers a head: take a square root.",
        ),
        (
            lambda m, h, b, i: math.isqrt(m // (2 * h * b)),
            "Bytes over numbers: each takes itemsize bytes.",
        ),
        (lambda m, h, b, i: math.isqrt(m // (2 * b * i)), "Every head has its own S and P."),
        (
            lambda m, h, b, i: math.isqrt(m // (2 * h * i)),
            "Every sequence of the batch has its own S and P.",
        ),
        (
            lambda m, h, b, i: math.ceil(math.sqrt(m / (2 * h * b * i))),
            "Rounded up it no longer fits: round down.",
        ),
        (
            lambda m, h, b, i: math.sqrt(m / (2 * h * b * i)),
            "A sequence has a whole number of tokens: round down.",
        ),
        (
            lambda m, h, b, i: math.isqrt(m // (4 * h * b * i)),
            "Four passes move, but only two matrices are there, S and P.",
        ),
        (
            lambda m, h, b, i: math.isqrt((m - 1) // (2 * h * b * i)),
            "Filled to the last byte still fits.",
        ),
    ],
)


def width_needed(ridge, n):
    """The width d at which naive attention (FP16) reaches the ridge; inf where none does."""
    return 2 * ridge / (1 - 2 * ridge / n) if n > 2 * ridge else math.inf


def _ridges(rng):
    yield 295.3, 4096
    yield 156.0, 312  # exactly where no width is enough any more
    for _ in range(3):
        ridge = float(rng.uniform(20, 600))
        yield ridge, int(2 * ridge * rng.uniform(1.2, 50)) + 1
        yield ridge, int(2 * ridge * rng.uniform(0.1, 0.9))


width = Exercise(
    "How wide would a head have to be?",
    difficulty=4,
    minutes=10,
    task="Naive attention in FP16 does 4N²d FLOP over 8N² + 8Nd bytes. Write width_needed(ridge, n): "
    "the d at which its intensity equals the ridge, not rounded. Where no width is enough, return "
    "math.inf.",
    answer=width_needed,
    cases=_ridges,
    rtol=1e-9,
    hints=(
        "Divide by 8N²: the intensity is (d/2) / (1 + d/N).",
        "Set it equal to the ridge r and collect d: d (1/2 − r/N) = r.",
        "The bracket must be positive. Where N ≤ 2r it is not, and no width is enough.",
    ),
    wrong=[
        (
            lambda r, n: 2 * r,
            "d/2 = ridge leaves out Q, K, V and O, which grow with d as well.",
        ),
        (
            lambda r, n: 2 * r / (1 - 2 * r / n) if n != 2 * r else math.inf,
            "A negative width. For N ≤ 2 · ridge no width is enough: return math.inf.",
        ),
        (
            lambda r, n: 2 * r / (1 - 2 * r / n),
            "For N = 2 · ridge this divides by zero, for smaller N it is negative. No width is enough "
            "there: return math.inf.",
        ),
        (
            lambda r, n: round(2 * r / (1 - 2 * r / n)) if n > 2 * r else math.inf,
            "It is to be left unrounded.",
        ),
        (
            lambda r, n: 2 * r / (1 - 2 * r / n) if n > 2 * r else None,
            "Where no width is enough, return math.inf.",
        ),
        (
            lambda r, n: r / (1 - r / n) if n > r else math.inf,
            "4d FLOP over 8 bytes are d/2, not d.",
        ),
        (
            lambda r, n: 2 * r / (1 + 2 * r / n),
            "A sign: moving r·d/N to the other side makes it negative.",
        ),
        (
            lambda r, n: (r / 2) / (1 + r / n),
            "This is the intensity at d = ridge. Solve for d instead.",
        ),
        (
            lambda r, n: 4 * r / (1 - 4 * r / n) if n > 4 * r else math.inf,
            "That is one FLOP a multiply-add, or four bytes a number.",
        ),
    ],
)


def ideal_and_asked(n, d, block_q):
    """Bytes of fused attention in FP16: each operand once; K and V once for every Q block."""
    operand = n * d * 2
    blocks = -(-n // block_q)
    return 4 * operand, 2 * operand + 2 * blocks * operand


def _blocks(rng):
    for block_q in (16, 100, 128):
        yield int(rng.integers(3, 60)) * block_q, 64, block_q  # whole blocks
        yield int(rng.integers(3, 60)) * block_q + int(rng.integers(1, block_q)), 80, block_q
    yield 50, 64, 128  # one block, not even full


asked = Exercise(
    "Ideal and asked",
    difficulty=3,
    minutes=8,
    task="A fused kernel (one head, FP16) takes Q in blocks of block_q rows. For every block it reads "
    "all of K and V; the last block may have fewer rows. Write ideal_and_asked(n, d, block_q): the "
    "bytes if every operand crossed once, and the bytes that the kernel asks for.",
    answer=ideal_and_asked,
    cases=_blocks,
    hints=(
        "One operand is n · d · 2 bytes. Ideal: four of them.",
        "Q and O still cross once. K and V cross once for every block.",
        "A started block counts as a block: -(-n // block_q) divides and rounds up.",
    ),
    wrong=[
        (
            lambda n, d, b: (8 * n * d, 4 * n * d + 4 * n * d * (n // b)),
            "The last, shorter block reads K and V too: round up.",
        ),
        (
            lambda n, d, b: (8 * n * d, 8 * n * d * -(-n // b)),
            "Q and O cross once only: each block has its own rows.",
        ),
        (
            lambda n, d, b: (8 * n * d, 4 * n * d + 2 * n * d * -(-n // b)),
            "K and V are two operands, both read for every block.",
        ),
        (
            lambda n, d, b: (8 * n * d, 2 * n * d + 4 * n * d * -(-n // b)),
            "Q is read and O is written: both cross.",
        ),
        (
            lambda n, d, b: (8 * n * d, 4 * n * d + 4 * b * d * -(-n // b)),
            "For every block all n rows of K and V go past, not block_q of them.",
        ),
        (
            lambda n, d, b: (8 * n * d, 4 * n * d + 4 * n * d * (n / b)),
            "Part of a block is a whole visit to K and V: a whole number of blocks.",
        ),
        (
            lambda n, d, b: (8 * n * d, 4 * n * d * -(-n // b)),
            "Q and O cross too, once each.",
        ),
        (
            lambda n, d, b: (8 * n * d, 4 * n * d + 4 * n * d * (n // b + 1)),
            "Where the blocks divide n there is no further one: round up, don't add one.",
        ),
        (
            lambda n, d, b: (8 * n * d, 4 * n * d + 4 * n * d * b),
            "That is block_q times K and V. How many blocks are there?",
        ),
        (
            lambda n, d, b: (6 * n * d, 4 * n * d + 4 * n * d * -(-n // b)),
            "Ideal: four operands. O is written as well.",
        ),
        (
            lambda n, d, b: ideal_and_asked(n, d, b)[::-1],
            "The other order: first the ideal, then what is asked.",
        ),
        (
            lambda n, d, b: (4 * n * d, 2 * n * d + 2 * n * d * -(-n // b)),
            "FP16 takes two bytes a number.",
        ),
    ],
)

# --- read a counter ---------------------------------------------------------------------------

_ROWS = {  # letter: (flow, heads, n, caches, kernel)
    "A": ("naive", 1, 4096, "emptied", 1),
    "B": ("flash", 1, 4096, "kept", 0),
    "C": ("naive", 8, 8192, "kept", 1),
    "D": ("naive", 1, 4096, "kept", 1),
}
NAMES = {
    "A": "softmax, caches emptied",
    "B": "fused",
    "C": "softmax, larger than the L2",
    "D": "softmax, caches kept",
}


def counter_table():
    """The rows to be named, {letter: (bytes read, bytes written)}, from the record of the H200."""
    runs = {
        (run["flow"], run["heads"], run["n"], run["caches"]): run["kernels"]
        for run in records.load("h200")["attention_bytes"]["dram"]
    }
    rows = {letter: runs[tuple(key)][kernel] for letter, (*key, kernel) in _ROWS.items()}
    return {letter: (row["read"], row["written"]) for letter, row in rows.items()}


def _named(order):
    return [NAMES[letter] for letter in order]


counters = Exercise(
    "Which number is which?",
    difficulty=3,
    minutes=6,
    task="Four kernels, measured on an H200 (L2: 60 MiB). Name the rows A to D, in this order, as a "
    "list of: 'fused' (one head, N = 4,096), 'softmax, caches kept' (one head, N = 4,096), "
    "'softmax, caches emptied' (the same, with the caches emptied before the kernel), 'softmax, "
    "larger than the L2' (eight heads, N = 8,192).",
    answer=_named("ABCD"),
    hints=(
        "S at N = 4,096 has 33.6 MB. One row reads exactly that much. Why?",
        "With the caches kept, part of S is found in the L2, and late writes of the kernel before "
        "are still going out.",
        "The fused kernel reads Q, K and V, 3.1 MB, and its O is small enough to stay in the L2.",
    ),
    wrong=[
        (
            _named("DBCA"),
            "A and D are swapped. Which of the two had to fetch all of S from DRAM?",
        ),
        (
            _named("CBAD"),
            "A and C are swapped. S of eight heads at N = 8,192 has 1,074 MB.",
        ),
        (_named("ABDC"), "C and D are swapped. S of one head at N = 4,096 has 33.6 MB."),
        (_named("BACD"), "A and B are swapped. The fused kernel never reads S, 33.6 MB."),
        (_named("ADCB"), "B and D are swapped. A softmax reads and writes a whole N×N matrix."),
        (_named("ACBD"), "B and C are swapped. The fused kernel reads Q, K and V: 3.1 MB."),
    ],
)
