"""Exercises of notebook 05: the recurrence, the merge, the tiled loop, and what they cost."""

import math

import numpy as np

from course import cost
from course.exercises import Exercise, Question
from course.exercises._watched import Watched, gather
from course.hardware import KiB

# --- questions on the way ---------------------------------------------------------------------

fp16_limit = Question(
    "The largest score for exp in FP16",
    task="The largest FP16 number is 65,504. Which is the largest score s whose $e^s$ still fits?",
    answer=math.log(65504),
    wrong={
        65504: "That is e^s itself; the score is its natural logarithm.",
        math.log10(65504): "This is the logarithm to base 10; e^s needs the natural one.",
        math.log2(65504): "This is the logarithm to base 2; e^s needs the natural one.",
        math.log(3.4028e38): "This is the limit of FP32.",
        12: "e^12 is 162,755: too large already.",
        10: "e^10 is 22,026: there is room for more.",
    },
    explanation="ln 65504 = 11.09. A score of 12, quite ordinary, is already too large.",
)
alpha_value = Question(
    "The correction, when the maximum moves from 3 to 4",
    difficulty=2,
    task="ℓ was summed with m = 3. The maximum moves to 4. By which number must ℓ be multiplied?",
    answer=math.exp(-1),
    wrong={
        math.e: "Upside down. Terms measured from a larger maximum are smaller, not larger.",
        1: "Then nothing changes, and old terms stay too large beside the new ones.",
        -1: "That is the exponent, 3 − 4. The factor is e to that power.",
        0.75: "Scores stand in an exponent: their difference matters, not their ratio.",
    },
    explanation="e^(s − 4) = e^(s − 3) · e^(3 − 4), for every s. So the factor is e^−1 = 0.3679.",
)
alpha_why = Question(
    "Why one number is enough",
    difficulty=2,
    task="A hundred old terms have to be corrected. Why is one factor α enough for all of them?",
    choices={
        "a": "because the old terms are all nearly equal",
        "b": "because the ratio of the new term to the old one is the same for every score",
        "c": "because only the largest term matters, and α corrects that one",
        "d": "because ℓ is divided out at the end anyway",
    },
    answer="b",
    wrong={
        "a": "They can differ by any amount: e^(s − m) goes from 0 to 1.",
        "c": "Each term is corrected, and exactly. None is left out.",
        "d": "Dividing removes a factor that all terms share. Old and new terms share none until the "
        "old ones are corrected.",
    },
    explanation="e^(s − m_new) / e^(s − m_old) = e^(m_old − m_new): s has cancelled.",
)
alpha_missing = Question(
    "Without the correction",
    difficulty=2,
    task="Somebody leaves α out. When is the result right all the same?",
    choices={
        "a": "never",
        "b": "when all scores are small",
        "c": "when the first block already holds the largest score of the row",
        "d": "when the row has only two blocks",
    },
    answer="c",
    wrong={
        "a": "There are such rows. What must the maximum do for every α to be 1?",
        "b": "The size of the scores does not matter: 1, 3 | 4, 2 already goes wrong.",
        "d": "1, 3 | 4, 2 has two blocks and goes wrong.",
    },
    explanation="Then the maximum never moves again, so every later α is e^0 = 1. Otherwise old and "
    "new terms are measured from different maxima, and neither ℓ nor o is a sum of anything.",
)
alpha_overflow = Question(
    "Can the correction overflow?",
    difficulty=2,
    task="α = e^(m_old − m_new) is an exponential too. Why can it not overflow?",
    choices={
        "a": "because scores are scaled by 1/√d",
        "b": "because the running maximum never falls, so the exponent is 0 or less",
        "c": "because it is computed in FP32",
        "d": "it can, but only for very long rows",
    },
    answer="b",
    wrong={
        "a": "Scaled scores can be large too. Look at the sign of the exponent.",
        "c": "FP32 overflows at e^89. Look at the sign of the exponent.",
        "d": "The length has no part in it. Look at the sign of the exponent.",
    },
    explanation="m_new = max(m_old, …) ≥ m_old, so the exponent is at most 0 and α is in (0, 1]. "
    "Before the first block m_old = −∞, and α = e^−∞ = 0: there is nothing to correct.",
)
worked_l = Question(
    "ℓ after the second block",
    difficulty=2,
    minutes=3,
    task="After block 1 (scores 1, 3): m = 3, ℓ = 1.1353. What is ℓ after block 2 (scores 4, 2)?",
    answer=1.5530,
    wrong={
        2.2707: "Added without the correction: the 1.1353 of block 1 is measured from 3, not from 4.",
        4.2214: "The correction is upside down: e^(3 − 4), not e^(4 − 3).",
        1.1353: "This is block 2 alone. The corrected ℓ of block 1 comes on top.",
        1.5032: "α multiplies the old ℓ; here it was added in its place.",
    },
    explanation="α = e^(3 − 4) = 0.3679, so 0.3679 · 1.1353 + (e^0 + e^−2) = 0.4177 + 1.1353 = 1.5530.",
)
worked_output = Question(
    "The output of the worked example",
    difficulty=2,
    minutes=3,
    task="After block 1: o = 2.1353. Block 2 has scores 4, 2 and values 3, 4, and ℓ ends at 1.5530. "
    "What is the output?",
    answer=2.7861,
    wrong={
        4.3269: "This is o. The output is o divided by ℓ.",
        2.5: "o and ℓ were both added up without α.",
        3.6553: "o was added up without α; only ℓ was corrected.",
        3.1193: "This is block 2 alone. Block 1 still counts, with its corrected weights.",
    },
    explanation="o = 0.3679 · 2.1353 + (1 · 3 + 0.1353 · 4) = 0.7856 + 3.5413 = 4.3269, and "
    "4.3269 / 1.5530 = 2.786.",
)
merged_lse = Question(
    "The lse of two parts",
    difficulty=2,
    minutes=3,
    task="One part of a row has lse = ln 3, the other lse = 0. What is the lse of the whole row?",
    answer=math.log(4),
    wrong={
        math.log(
            3
        ): "The two were added, which multiplies the sums. The sums themselves add: 3 + 1.",
        math.log(3) / 2: "An average of logarithms is no logarithm of a sum.",
        2: "This is the logarithm to base 2. lse is the natural one here.",
        4: "This is the sum. lse is its logarithm.",
    },
    explanation="The sums of exponentials are e^(ln 3) = 3 and e^0 = 1. Together 4, and ln 4 = 1.3863.",
)
fp16_stop = Question(
    "Where FP16 stops counting",
    difficulty=2,
    task="Start at 0 and add 1 again and again, in FP16 (11 significant bits). Where does it stop?",
    answer=2048,
    wrong={
        65504: "That is the largest FP16 number. The sum stands still long before.",
        1024: "11 bits reach to 2^11 − 1, and from 1024 to 2048 neighbours are still 1 apart.",
        4096: "From 2^11 on, neighbours are 2 apart: adding 1 gets nowhere.",
        256: "That is where BF16 stops, with its 8 significant bits.",
        2**24: "That is where FP32 stops, with its 24 significant bits.",
    },
    explanation="From 2^11 = 2048 on, neighbouring FP16 numbers are 2 apart. 2049 is a tie between "
    "2048 and 2050, and a tie goes to the even neighbour: back to 2048, for ever.",
)
bf16_stop = Question(
    "Where BF16 stops counting",
    difficulty=2,
    task="The same in BF16, which has 8 significant bits. Where does it stop?",
    answer=256,
    wrong={
        2048: "That is FP16, with 11 significant bits.",
        128: "8 bits reach to 2^8 − 1, and from 128 to 256 neighbours are still 1 apart.",
        512: "From 2^8 on, neighbours are 2 apart: adding 1 gets nowhere.",
        65536: "BF16's range is that of FP32. It is the digits that run out, not the range.",
        3.39e38: "That is the largest BF16 number. The sum stands still long before.",
    },
    explanation="From 2^8 = 256 on, neighbours are 2 apart, and 257 is rounded to 256.",
)
double_q = Question(
    "Twice as many rows in the Q tile",
    difficulty=2,
    task="N and d stay. B_r (rows of a Q tile) is doubled. What happens to the bytes of K and V read?",
    choices={
        "a": "they halve",
        "b": "they stay",
        "c": "they double",
        "d": "they fall to a quarter",
    },
    answer="a",
    wrong={
        "b": "K and V are read once for every Q tile, and there are now fewer of those.",
        "c": "Each K tile is loaded as before, but for fewer Q tiles.",
        "d": "Only the number of Q tiles changed, and it halved.",
    },
    explanation="K and V go past once for every Q tile, and there are half as many Q tiles.",
)
double_kv = Question(
    "Twice as many rows in the K and V tiles",
    difficulty=2,
    task="Now B_c (rows of a K tile and a V tile) is doubled. What happens to the bytes of K and V read?",
    choices={
        "a": "they halve",
        "b": "they stay",
        "c": "they double",
        "d": "they fall to a quarter",
    },
    answer="b",
    wrong={
        "a": "Half as many loads, each twice as large: what is the product?",
        "c": "Each load is twice as large, but there are half as many.",
        "d": "Nothing about it is squared: half as many loads, each twice as large.",
    },
    explanation="All of K and V goes past every Q tile, in whatever portions. B_c decides how much "
    "fits on the chip, not how much crosses.",
)
paper_block = Question(
    "M in elements",
    difficulty=2,
    minutes=3,
    task="The paper sets B_c = ⌈M / 4d⌉. The chip has 96 KiB for it, numbers are FP16, d = 64. B_c?",
    answer=cost.paper_tiles(96 * KiB, 64)[1],
    wrong={
        384: "M counts elements, not bytes: 96 KiB hold 49,152 FP16 numbers.",
        96: "M / 8d: once for the bytes, M = 49,152, then four tiles. That is M / 4d.",
        768: "M / 2d: four tiles share the memory, Q, K, V and O. And M counts elements.",
        64: "That is B_r = min(B_c, d).",
    },
    explanation="M = 96 · 1024 / 2 = 49,152 elements, and 49,152 / (4 · 64) = 192.",
)
q_tile = Question(
    "A tile that is too wide",
    difficulty=2,
    minutes=3,
    task="How many bytes does a BF16 Q tile of 128 rows take when d = 512?",
    unit="bytes",
    answer=128 * 512 * 2,
    wrong={
        128 * 128 * 2: "That is d = 128.",
        128: "That is in KiB, and bytes are asked for.",
        128 * 512: "That counts numbers. BF16 takes 2 bytes each.",
        128 * 512 * 4: "BF16 takes 2 bytes a number, not 4.",
        3 * 128 * 512 * 2: "That is Q, K and V together.",
    },
    explanation="128 · 512 · 2 = 131,072 bytes = 128 KiB. It alone is above the 64 KiB of a T4 and the "
    "99 KiB that a block may use on an RTX 4090, before K and V have come. The remedy is fewer rows.",
)
linear = Question(
    "Does FlashAttention make attention linear in N?",
    difficulty=2,
    task="N doubles. What doubles with it, and what does not?",
    choices={
        "a": "arithmetic and memory both double",
        "b": "the arithmetic doubles; the memory that must be kept grows fourfold",
        "c": "the arithmetic grows fourfold; the memory that must be kept doubles",
        "d": "both grow fourfold",
    },
    answer="c",
    wrong={
        "a": "Every query still meets every key: count the pairs.",
        "b": "The other way round: what is kept is Q, K, V, O and one number a row.",
        "d": "That is naive attention, which keeps S.",
    },
    explanation="Every query meets every key: N² pairs, 4d FLOP each. But of a row of S only one number, "
    "L, is kept beside Q, K, V and O. So the work is quadratic and the memory linear.",
)

# --- the running sum --------------------------------------------------------------------------


def add_block(m, l, s):
    """(m, l) after one more block of scores s (b,): the maximum so far and Σ e^(s_j − m)."""
    m_new = max(m, s.max())
    return m_new, np.exp(m - m_new) * l + np.exp(s - m_new).sum()


def _running(rng):
    """(m, l, s): the maximum moves, or not, or far; the first block; scores huge and far below 0."""
    yield 3.0, 1 + np.exp(-2), np.array([4.0, 2.0])
    for m, shift in ((0.0, 2.0), (0.0, -4.0), (900.0, 3.0), (-3000.0, 1.0), (0.0, 2000.0)):
        s = m + shift + rng.random(int(rng.integers(2, 6)))
        yield m + rng.random(), 1 + rng.random(), rng.permutation(s)
    yield -np.inf, 0.0, rng.standard_normal(3)


def _add_block(m, l, s, alpha=lambda m, new: np.exp(m - new), reference=None, both=False):
    new = max(m, s.max())
    terms = np.exp(s - (new if reference is None else reference(m, s))).sum()
    a = alpha(m, new)
    return new, a * (l + terms) if both else a * l + terms


add_block = Exercise(
    "The running sum, mended",
    difficulty=2,
    minutes=5,
    task="Write add_block(m, l, s): m is the largest score so far, l the sum of e^(score − m) so far, "
    "and s the next block of scores, shape (b,). Return the new m and the new l. Before the first "
    "block m is −∞ and l is 0.",
    answer=add_block,
    cases=_running,
    hints=(
        "The old sum was measured from m, the new terms from m_new. What brings it from m to m_new?",
        "α = np.exp(m − m_new) multiplies the old l.",
    ),
    wrong=[
        (
            lambda *a: _add_block(*a, alpha=lambda m, new: 1.0),
            "The old sum is added as it is: feet and metres. It is measured from m, not from m_new.",
        ),
        (
            lambda *a: _add_block(*a, alpha=lambda m, new: np.exp(new - m)),
            "Upside down: terms measured from a larger maximum are smaller. α is exp(m − m_new).",
        ),
        (
            lambda *a: _add_block(*a, alpha=lambda m, new: m - new),
            "m − m_new is the exponent. The factor is e to that power.",
        ),
        (
            lambda *a: _add_block(*a, alpha=lambda m, new: 0.0),
            "This is the sum of the new block alone. The corrected old sum comes on top.",
        ),
        (
            lambda *a: _add_block(*a, both=True),
            "α multiplies the new terms too. They are measured from m_new already.",
        ),
        (
            lambda *a: _add_block(*a, both=True, reference=lambda m, s: m),
            "The new terms are measured from the old maximum first, and corrected afterwards. Before "
            "the first block, or after a long jump, they overflow: measure them from m_new.",
        ),
        (
            lambda *a: _add_block(*a, reference=lambda m, s: m),
            "The new terms are measured from the old maximum. Measure them from m_new.",
        ),
        (
            lambda *a: _add_block(*a, reference=lambda m, s: s.max()),
            "The new terms are measured from the maximum of their block. Measure them from m_new.",
        ),
        (
            lambda *a: _add_block(*a, reference=lambda m, s: 0.0),
            "The maximum is not taken off the new scores: exp(s − m_new).",
        ),
        (
            lambda m, l, s: (m, _add_block(m, l, s)[1]),
            "l is right, and the old m comes back with it. Return m_new.",
        ),
    ],
)

# --- by hand ----------------------------------------------------------------------------------


def _by_hand(blocks, alpha=lambda m, new: math.exp(m - new), peak=max, divide=True):
    m, l, o, said = -math.inf, 0.0, 0.0, []
    for scores, values in blocks:
        new = peak(m, max(scores))
        a = alpha(m, new) if said else 0.0
        p = [math.exp(s - new) for s in scores]
        m, l = new, a * l + sum(p)
        o = a * o + sum(x * v for x, v in zip(p, values, strict=True))
        said += [m, l, o]
    return (*said, o / l if divide else o)


_BACKWARDS = (((4.0, 2.0), (3.0, 4.0)), ((1.0, 3.0), (1.0, 2.0)))

by_hand = Exercise(
    "By hand, the other way round",
    difficulty=2,
    minutes=8,
    task="The worked example with its blocks swapped: first scores 4, 2 with values 3, 4, then scores "
    "1, 3 with values 1, 2. Work out m, ℓ, o after the first block, m, ℓ, o after the second, and "
    "the output: seven numbers, to four digits.",
    answer=_by_hand(_BACKWARDS),
    rtol=1e-3,
    hints=(
        "Block 1 has m = 4 and two terms, e^(4 − 4) and e^(2 − 4).",
        "Does block 2 move the maximum? What is α then?",
        "The output must be that of the worked example: the order of the blocks does not matter.",
    ),
    wrong=[
        (
            _by_hand(_BACKWARDS[::-1]),
            "These are the numbers of the worked example. Here the block 4, 2 comes first.",
        ),
        (
            _by_hand(_BACKWARDS, peak=lambda m, new: new),
            "The running maximum fell from 4 to 3. It is the largest score of all seen so far.",
        ),
        (
            _by_hand(_BACKWARDS, alpha=lambda m, new: math.exp(-1)),
            "The old sums were corrected, though the maximum did not move: α = e^(4 − 4) = 1.",
        ),
        (
            _by_hand(_BACKWARDS, alpha=lambda m, new: 0.0),
            "Block 1 is forgotten: ℓ and o of block 2 come on top of it.",
        ),
        (_by_hand(_BACKWARDS, divide=False), "The output is o divided by ℓ, at the very end."),
        (
            _by_hand([(scores, (1.0, 1.0)) for scores, _ in _BACKWARDS]),
            "o forgets the values: each term is e^(s − m) times its value.",
        ),
    ],
)

# --- one row ----------------------------------------------------------------------------------


def one_row(blocks):
    """Σ softmax(scores)_j · values_j from blocks of scores (b,) and values (b, d), each seen once → (d,)."""
    m, l, o = -np.inf, 0.0, 0.0
    for s, v in blocks:
        m_new = max(m, s.max())
        if m_new == -np.inf:  # nothing but masked scores so far
            continue
        alpha = np.exp(m - m_new)
        p = np.exp(s - m_new)
        m, l, o = m_new, alpha * l + p.sum(), alpha * o + p @ v
    return o / l


def _stream(scores, values, block):
    """The blocks of a row, once, each in the place of the one before: like a tile on the chip."""
    s, v = np.empty(block), np.empty((block, values.shape[1]))
    for j in range(0, len(scores), block):
        size = min(block, len(scores) - j)
        s[:size], v[:size] = scores[j : j + size], values[j : j + size]
        yield s[:size], v[:size]


def _run_row(attempt, *row):
    return attempt(_stream(*row))


def _rows(rng):
    """(scores, values, block): friendly first, then every way in which a row can be hard."""
    d = int(rng.integers(2, 5))
    for scores in (
        rng.permutation([4.0, 3.0, 2.0, 1.0, 2.5, 0.5, 1.5]),  # ragged at block 3
        np.sort(rng.standard_normal(13)) * 4,  # the maximum moves in every block
        np.full(9, 3.0),  # all equal
        np.full(11, 3000.0) + rng.standard_normal(11),  # exp overflows
        np.full(10, -2000.0) + rng.standard_normal(10),  # far below 0
        np.full(10, -30000.0) + rng.standard_normal(10),  # far below any stand-in
        np.concatenate([1000.0 + rng.standard_normal(5), rng.standard_normal(6)]),  # a steep fall
        np.concatenate([np.full(7, -np.inf), rng.standard_normal(6)]),  # blocks of −∞ first
        -np.abs(rng.standard_normal(8)) - 1,  # a padded 0 would be the largest
        np.full(5, -1e300),  # below every stand-in but the last number there is
    ):
        yield scores, rng.standard_normal((len(scores), d)) + 1, 3


def _one_row(
    blocks,
    start=-np.inf,
    alpha=lambda m, new: np.exp(m - new),
    peak=max,
    rescale_o=True,
    guard=True,
    pad=False,
    ragged=True,
    divide_each=False,
    divide=True,
    keep=False,
):
    """`one_row` with one thing broken."""
    m, l, o, block = start, 0.0, 0.0, 0
    for s, v in blocks:
        block = max(block, len(s))
        short = block - len(s)
        if short and not ragged:
            break
        if pad:
            s, v = np.pad(s, (0, short)), np.pad(v, ((0, short), (0, 0)))
        new = peak(m, s.max())
        if guard and new == -np.inf:
            continue
        a, p = alpha(m, new), np.exp(s - new)
        l = a * l + p.sum()
        o = (a if rescale_o else float(m > -np.inf)) * o + (p @ v) / (l if divide_each else 1)
        m = m if keep else new
    return o / l if divide and not divide_each else o


def _no_maximum(blocks):
    terms = [(np.exp(s).sum(), np.exp(s) @ v) for s, v in blocks]
    l, o = (sum(parts) for parts in zip(*terms, strict=True))
    return o / l


def _whole_row(blocks):
    s, v = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    p = np.exp(s - s.max())
    return p @ v / p.sum()


def _two_sweeps(blocks):
    m, l, o = max(s.max() for s, _ in blocks), 0.0, 0.0
    for s, v in blocks:  # there are none left
        p = np.exp(s - m)
        l, o = l + p.sum(), o + p @ v
    return np.divide(o, l)


def _average_of_blocks(blocks):
    return np.mean([one_row.answer([b]) for b in blocks if b[0].max() > -np.inf], axis=0)


def _plain_average(blocks):
    sums = [(len(s), v.sum(axis=0)) for s, v in blocks]
    return sum(v for _, v in sums) / sum(n for n, _ in sums)


one_row = Exercise(
    "The recurrence for one row",
    difficulty=3,
    minutes=15,
    task="Write one_row(blocks), where `for s, v in blocks` gives a block of scores s, shape (b,), and "
    "their values v, shape (b, d). Return the softmax-weighted sum of the values, shape (d,). The row "
    "goes past once, and each block is written over the one before. Scores may be huge, far below "
    "zero, or −∞ for whole blocks (never all); the last block may be shorter.",
    answer=one_row,
    cases=_rows,
    call=_run_row,
    hints=(
        "Keep three things: m starts at −∞, ℓ and o at 0.",
        "For each block: the new maximum, then α = exp(m − m_new), then p = exp(s − m_new).",
        "ℓ and o both become α · old + new. Divide once, after the last block.",
        "While m_new is still −∞ there is nothing to add: −∞ − (−∞) would be NaN.",
    ),
    wrong=[
        (
            _no_maximum,
            "The maximum is not taken off: exp of a large score overflows, and of a very negative one "
            "is 0, so ℓ is infinite or 0.",
        ),
        (
            _whole_row,
            "Blocks were kept for later, and each is written over the one before. Use a block up "
            "before you take the next.",
        ),
        (
            _two_sweeps,
            "A second loop over the blocks finds none: the row goes past once.",
        ),
        (
            lambda b: _one_row(b, alpha=lambda m, new: 1.0),
            "The old sums were not rescaled when the maximum moved: ℓ and o need the factor α.",
        ),
        (
            lambda b: _one_row(b, rescale_o=False),
            "ℓ is rescaled when the maximum moves, and o is not. Both are sums of e^(s − m).",
        ),
        (
            lambda b: _one_row(b, alpha=lambda m, new: np.exp(new - m)),
            "NaN from the first block on: there m is −∞, so exp(m_new − m) or exp(s − m) is infinite. "
            "α is exp(m − m_new), and p is exp(s − m_new).",
        ),
        (
            lambda b: _one_row(b, keep=True),
            "Each block forgets those before it: m must become m_new at the end of the loop.",
        ),
        (
            lambda b: _one_row(b, start=0.0),
            "m starts at 0. A row of very negative scores never gets above it, every term is 0 and "
            "so is ℓ. Start at −∞.",
        ),
        (
            lambda b: _one_row(b, start=-1e4),
            "m starts at a finite stand-in for −∞. Scores below it vanish without a word. Start at −∞.",
        ),
        (
            lambda b: _one_row(b, start=-1e30),
            "m starts at a huge negative number. There are scores below that too. Start at −∞.",
        ),
        (
            lambda b: _one_row(b, peak=lambda m, new: new),
            "m is the maximum of the current block only. Where scores fall, α is above 1 and can "
            "overflow: keep max(m, block's maximum).",
        ),
        (
            lambda b: _one_row(b, guard=False),
            "A block of −∞ at the start makes −∞ − (−∞) = NaN. Skip a block while m_new is −∞.",
        ),
        (
            lambda b: _one_row(b, pad=True),
            "Lanes past the end of the row are counted: a padded score of 0 adds e^(0 − m) to ℓ.",
        ),
        (
            lambda b: _one_row(b, ragged=False),
            "The last block is left out when it is shorter than the others.",
        ),
        (
            _average_of_blocks,
            "Each block was normalised by itself and the results averaged. Blocks count by their ℓ.",
        ),
        (
            lambda b: _one_row(b, divide_each=True),
            "o is divided by ℓ in every block, so earlier blocks keep an ℓ that was not final. "
            "Divide once, at the end.",
        ),
        (lambda b: _one_row(b, divide=False), "This is o. The output is o divided by ℓ."),
        (_plain_average, "Every value has the same weight: the scores are not used."),
    ],
)

# --- merge ------------------------------------------------------------------------------------


def merge(a, b):
    """The state (m, l, o) of two disjoint sets of keys, from the state of each; o has shape (d,)."""
    m = max(a[0], b[0])
    if m == -np.inf:  # both have seen nothing
        return a
    alpha, beta = np.exp(a[0] - m), np.exp(b[0] - m)
    return m, alpha * a[1] + beta * b[1], alpha * a[2] + beta * b[2]


def _pairs(rng):
    d = int(rng.integers(2, 5))

    def state(scores):
        m = scores.max(initial=-np.inf)
        p = np.exp(scores - m)
        return m, p.sum(), p @ (rng.standard_normal((len(scores), d)) + 1)

    few, more = rng.standard_normal(3), rng.standard_normal(6) + 2
    nothing = np.zeros(0)
    pairs = [(few, more), (more, few), (more + 900, few - 900), (few - 900, more + 900)]
    for a, b in (*pairs, (nothing, few), (more, nothing), (nothing, nothing)):
        yield state(a), state(b)


def _merge(a, b, alpha=None, beta=None, guard=True, m=max):
    top = m(a[0], b[0])
    if guard and top == -np.inf:
        return a
    x = np.exp(a[0] - top) if alpha is None else alpha(a[0], b[0], top)
    y = np.exp(b[0] - top) if beta is None else beta(a[0], b[0], top)
    return top, x * a[1] + y * b[1], x * a[2] + y * b[2]


def _one(*_):
    return 1.0


merge = Exercise(
    "Merge two states",
    difficulty=3,
    minutes=10,
    task="Write merge_states(a, b). Each argument is a state (m, l, o) of some keys of the same row, with o of "
    "shape (d,), not yet divided by l. Return the state of all these keys together. A state that has "
    "seen nothing is (−∞, 0, zeros), and both may be that.",
    answer=merge,
    cases=_pairs,
    hints=(
        "The maximum of both is easy. Each side was measured from its own.",
        "Each side gets its own correction: exp(its m − the common m).",
        "If both maxima are −∞, exp(−∞ − (−∞)) is NaN. Nothing and nothing is nothing.",
    ),
    wrong=[
        (
            lambda a, b: _merge(a, b, alpha=_one, beta=_one),
            "ℓ and o were added as they are, though each side is measured from its own maximum.",
        ),
        (
            lambda a, b: _merge(a, b, beta=_one),
            "Only the first side is corrected. The maximum may be the first side's: correct both.",
        ),
        (
            lambda a, b: _merge(a, b, m=lambda x, y: x),
            "The first side's maximum is taken for both. If the second side's is larger, its factor "
            "is above 1 and overflows.",
        ),
        (
            lambda a, b: _merge(
                a, b, alpha=lambda x, y, m: np.exp(y - m), beta=lambda x, y, m: np.exp(x - m)
            ),
            "The two corrections are swapped: each side needs exp(its own m − the common m).",
        ),
        (
            lambda a, b: _merge(a, b, guard=False),
            "Two sides that have seen nothing give NaN: exp(−∞ − (−∞)). They should give nothing.",
        ),
        (
            lambda a, b: (*_merge(a, b)[:2], _merge(a, b)[2] / max(_merge(a, b)[1], 1e-300)),
            "o is already divided by ℓ. A state keeps the undivided o, or it cannot be merged again.",
        ),
        (
            lambda a, b: (
                np.logaddexp(a[0], b[0]),
                *_merge(a, b)[1:],
            ),
            "m should be the larger of the two maxima, not the logarithm of a sum.",
        ),
        (
            lambda a, b: (*_merge(a, b)[:2], a[2] + b[2]),
            "ℓ is corrected, and o is not. Both are sums of e^(s − m).",
        ),
        (
            lambda a, b: _merge(
                a, b, alpha=lambda x, y, m: np.exp(m - x), beta=lambda x, y, m: np.exp(m - y)
            ),
            "The corrections are upside down: exp(its m − the common m), which is at most 1.",
        ),
        (
            lambda a, b: (
                *_merge(a, b)[:2],
                _merge((a[0], 1, a[1] * a[2]), (b[0], 1, b[1] * b[2]))[2],
            ),
            "o was multiplied by ℓ, as if it were a finished output. It is a sum already.",
        ),
    ],
)

# --- merge of finished results ----------------------------------------------------------------


def merge_outputs(a, b):
    """(output, lse) of a whole row, from the (output, lse) of two parts; an empty part: (0, −∞)."""
    lse = np.logaddexp(a[1], b[1])
    return np.exp(a[1] - lse) * a[0] + np.exp(b[1] - lse) * b[0], lse


def _parts(rng):
    d = int(rng.integers(2, 5))
    nothing = np.zeros(d), -np.inf
    for x, y in ((0.4, 1.5), (2.5, -0.5), (1000.0, 998.0), (-1500.0, -1498.0), (1500.0, -1500.0)):
        noise = rng.standard_normal(2) / 10
        yield (
            (rng.standard_normal(d) + 1, np.float64(x + noise[0])),
            (rng.standard_normal(d) + 1, np.float64(y + noise[1])),
        )
    yield (rng.standard_normal(d), np.float64(0.7)), nothing


def _weighted(a, b, x, y, lse):
    return (x * a[0] + y * b[0]) / (x + y), lse


merge_outputs = Exercise(
    "Merge two finished results",
    difficulty=4,
    minutes=12,
    task="Two workers took one half of the keys each and divided too soon: each hands over its output, "
    "shape (d,), and its lse = m + ln ℓ. Write merge_outputs(a, b) with a = (output, lse), b likewise, "
    "which returns (output, lse) of the whole row. lse may be huge, far below zero, or −∞ on one side.",
    answer=merge_outputs,
    cases=_parts,
    hints=(
        "e^lse is the sum of exponentials of a part, so it is the weight that the part should have.",
        "Sums add: lse = ln(e^lse_a + e^lse_b). numpy.logaddexp does that without overflow.",
        "The weight of part a is exp(lse_a − lse), a number from 0 to 1.",
    ),
    wrong=[
        (
            lambda a, b: _weighted(
                a, b, np.exp(a[1]), np.exp(b[1]), np.log(np.exp(a[1]) + np.exp(b[1]))
            ),
            "exp(lse) overflows or vanishes. Take the difference to the common lse first.",
        ),
        (
            lambda a, b: (merge_outputs.answer(a, b)[0], a[1] + b[1]),
            "The two lse were added. The sums add, not their logarithms.",
        ),
        (
            lambda a, b: _weighted(a, b, 1.0, 1.0, np.logaddexp(a[1], b[1])),
            "Both parts have the same weight. A part with larger scores counts for more.",
        ),
        (
            lambda a, b: (a[0] + b[0], np.logaddexp(a[1], b[1])),
            "The outputs were added as they are. Each was already divided by its own ℓ.",
        ),
        (
            lambda a, b: merge_outputs.answer((a[0], b[1]), (b[0], a[1])),
            "The weights are swapped: the output of a part goes with its own lse.",
        ),
        (
            lambda a, b: (
                _weighted(
                    a, b, 2.0 ** (a[1] - max(a[1], b[1])), 2.0 ** (b[1] - max(a[1], b[1])), 0
                )[0],
                np.logaddexp2(a[1], b[1]),
            ),
            "lse is a natural logarithm here, and was read as one to base 2.",
        ),
        (
            lambda a, b: (merge_outputs.answer(a, b)[0], max(a[1], b[1])),
            "lse is the larger of the two: the smaller part is missing from the sum.",
        ),
        (
            lambda a, b: _weighted(a, b, a[1], b[1], np.logaddexp(a[1], b[1])),
            "The parts were weighted by lse. Their weights are sums of exponentials, e^lse.",
        ),
        (
            lambda a, b: (
                sum(np.exp(x[1] - max(a[1], b[1])) * x[0] for x in (a, b)),
                np.logaddexp(a[1], b[1]),
            ),
            "The weights do not sum to 1: measure both from the common lse, not from the larger one.",
        ),
    ],
)

# --- the tiled loop ---------------------------------------------------------------------------


def tiled(q, k, v, block_q, block_kv, hbm):
    """Attention (scale 1/√d) tile by tile, through a counted memory: q (N, d), k, v (N_kv, d) → o."""
    o = np.empty_like(q)
    for i in range(0, len(q), block_q):
        q_i = hbm.load("Q", q[i : i + block_q])
        m, l, acc = np.full(len(q_i), -np.inf), np.zeros(len(q_i)), np.zeros_like(q_i)
        for j in range(0, len(k), block_kv):
            k_j = hbm.load("K", k[j : j + block_kv])
            v_j = hbm.load("V", v[j : j + block_kv])
            s = q_i @ k_j.T / np.sqrt(q.shape[1])
            m_new = np.maximum(m, s.max(axis=1))
            alpha, p = np.exp(m - m_new), np.exp(s - m_new[:, None])
            l = alpha * l + p.sum(axis=1)
            acc = alpha[:, None] * acc + p @ v_j
            m = m_new
        hbm.store("O", o[i : i + block_q], acc / l[:, None])
    return o


def _run_tiled(attempt, q, k, v, block_q, block_kv):
    hbm = Watched()
    o = attempt(*map(hbm.lend, (q, k, v)), block_q, block_kv, hbm)
    counts = f"{hbm.read} bytes read", f"{hbm.written} bytes written"
    return o, *counts, f"{hbm.largest} numbers in the largest tile"


def _attentions(rng):
    """(q, k, v, block_q, block_kv): lengths that are no multiple of the blocks, hostile scales."""
    d = int(rng.integers(3, 7))
    for n, n_kv, block_q, block_kv, size, shift in (
        (10, 13, 4, 5, 1.0, 0.0),
        (9, 17, 3, 4, 5.0, 0.0),
        (5, 7, 8, 16, 1.0, 0.0),
        (1, 11, 4, 3, 1.0, 0.0),
        (6, 10, 4, 3, 1.0, -2.0),  # negative scores: a padded key would win
        (7, 12, 4, 5, 60.0, 0.0),  # exp overflows
        (6, 11, 4, 3, 1.0, -1e5),  # far below any start of m but −∞
    ):
        q = (
            size * np.abs(rng.standard_normal((n, d)))
            if shift
            else size * rng.standard_normal((n, d))
        )
        k = size * rng.standard_normal((n_kv, d))
        if shift:
            k = shift * np.abs(k) - 0.5
        yield q, k, rng.standard_normal((n_kv, d)) + 1, block_q, block_kv


def _tiled(q, k, v, block_q, block_kv, hbm, *, n_kv=None, scale=None, pad=False, alpha=True,
           maximum=True, one_peak=False, shared=False, again=False, whole=False, per_row=False,
           divide=True, store=True, store_each=False, start=-np.inf):  # fmt: skip
    """`tiled` with one thing broken."""
    n_kv = len(k) if n_kv is None else n_kv(len(q), len(k), block_kv)
    scale = q.shape[1] ** -0.5 if scale is None else scale(q.shape[1])
    o = np.empty_like(q)
    block_q = 1 if per_row else block_q
    m, l, acc = (np.full(block_q, -np.inf), np.zeros(block_q), np.zeros((block_q, q.shape[1])))
    if whole:
        k, v = hbm.load("K", k), hbm.load("V", v)
    for i in range(0, len(q), block_q):
        q_i = hbm.load("Q", q[i : i + block_q])
        rows = len(q_i)
        if shared:
            m, l, acc = m[:rows], l[:rows], acc[:rows]
        else:
            m, l, acc = np.full(rows, start), np.zeros(rows), np.zeros_like(q_i)
        for j in range(0, n_kv, block_kv):
            k_j, v_j = k[j : j + block_kv], v[j : j + block_kv]
            if not whole:
                k_j, v_j = hbm.load("K", k_j), hbm.load("V", v_j)
            if again:
                q_i = hbm.load("Q", q[i : i + block_q])
            if pad:
                wide = ((0, block_kv - len(k_j)), (0, 0))
                k_j, v_j = np.pad(k_j, wide), np.pad(v_j, wide)
            s = q_i @ k_j.T * scale
            new = np.maximum(m, s.max(axis=1)) if maximum else np.zeros(rows)
            new = np.full(rows, new.max()) if one_peak else new
            p = np.exp(s - new[:, None])
            a = np.exp(m - new) if alpha and maximum else np.ones(rows)
            m, l, acc = new, a * l + p.sum(axis=1), a[:, None] * acc + p @ v_j
            if store_each:
                hbm.store("O", o[i : i + block_q], acc / l[:, None])
        o[i : i + block_q] = acc / (l[:, None] if divide else 1)
        if store and not store_each:
            hbm.store("O", o[i : i + block_q], o[i : i + block_q])
    return o


def _gathered(q, k, v, block_q, block_kv, hbm):
    """All tiles of K and V are kept, for an ordinary softmax."""
    o = np.empty_like(q)
    for i in range(0, len(q), block_q):
        q_i = hbm.load("Q", q[i : i + block_q])
        hbm.store("O", o[i : i + block_q], _not_loaded(q_i, *gather(hbm, k, v, block_kv)))
    return o


def _not_loaded(q, k, v, *_):
    s = q @ k.T / np.sqrt(q.shape[1])
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p @ v / p.sum(axis=1, keepdims=True)


tiled = Exercise(
    "The tiled loop",
    difficulty=4,
    minutes=25,
    task="Write tiled(q, k, v, block_q, block_kv, hbm) with q (N, d) and k, v (N_kv, d): attention with "
    "scale 1/√d, tile by tile. Take tiles with hbm.load(name, tile), give back with hbm.store(name, "
    "o[rows], value), and return o. N and N_kv differ and are no multiples of the blocks. One Q tile "
    "stays while all K and V tiles go past. Bytes and the largest tile are checked too, and what was "
    "not loaded is NaN.",
    answer=tiled,
    cases=_attentions,
    call=_run_tiled,
    hints=(
        "Two loops: `for i in range(0, len(q), block_q)`, inside it `for j in range(0, len(k), block_kv)`.",
        "Load the Q tile in the outer loop and K and V in the inner one. Slices stop at the end by "
        "themselves, so the last tile is shorter.",
        "m and l have one number a row of the Q tile: m[:, None] lines them up with the scores.",
        "Start m, l and the accumulator anew for every Q tile, and store o / l after the inner loop.",
    ),
    wrong=[
        (
            lambda *a: _tiled(*a, n_kv=lambda n, n_kv, b: n_kv // b * b),
            "The last K and V tile is left out when it is shorter than the others.",
        ),
        (
            lambda *a: _tiled(*a, n_kv=lambda n, n_kv, b: min(n, n_kv)),
            "The inner loop runs over the length of q. Keys have a length of their own.",
        ),
        (
            lambda *a: _tiled(*a, pad=True),
            "Padded keys are counted: a row of zeros in K has score 0, which is not −∞.",
        ),
        (
            lambda *a: _tiled(*a, scale=lambda d: 1.0),
            "The scale is missing: scores are q · k / √d.",
        ),
        (
            lambda *a: _tiled(*a, scale=lambda d: 1 / d),
            "The scale is 1/√d, not 1/d.",
        ),
        (
            lambda *a: _tiled(*a, alpha=False),
            "The old sums were not rescaled when the maximum moved.",
        ),
        (
            lambda *a: _tiled(*a, maximum=False),
            "The maximum is not taken off: exp of a large score overflows.",
        ),
        (
            lambda *a: _tiled(*a, start=0.0),
            "m starts at a finite number, and all scores may lie far below it. Start at −∞.",
        ),
        (
            _gathered,
            "All tiles of K and V are kept until the last has come: for long rows they do not fit. A tile "
            "is gone once two more of its kind were loaded.",
        ),
        (
            lambda *a: _tiled(*a, shared=True),
            "m, ℓ and o of one Q tile are carried into the next. Start them anew for each.",
        ),
        (
            lambda *a: _tiled(*a, again=True),
            "Q is loaded again for every K tile. Load it once, before the inner loop.",
        ),
        (
            lambda *a: _tiled(*a, whole=True),
            "All of K and V is loaded at once, so nothing is tiled: for long rows it does not fit.",
        ),
        (
            lambda *a: _tiled(*a, per_row=True),
            "K and V go past once a row, not once a Q tile of block_q rows: far more bytes are read.",
        ),
        (
            lambda q, k, v, *a: _tiled(q, np.zeros_like(k), v, *a),
            "The result does not depend on k: every key has the same weight.",
        ),
        (
            _not_loaded,
            "Nothing came through hbm.load, so there was nothing to compute with.",
        ),
        (
            lambda *a: _tiled(*a, store=False),
            "o was filled without hbm.store, so no byte was counted as written.",
        ),
        (
            lambda *a: _tiled(*a, store_each=True),
            "O is stored once for every K tile. Store it once, after the inner loop.",
        ),
        (lambda *a: _tiled(*a, divide=False), "The output is o divided by ℓ, after the last tile."),
        (
            lambda *a: _tiled(*a, one_peak=True),
            "One maximum serves the whole Q tile. A row far below it loses all its terms: each row "
            "needs its own.",
        ),
        (
            lambda q, k, v, block_q, block_kv, hbm: _tiled(q, k, v, block_kv, block_q, hbm),
            "The two block sizes are swapped: block_q is for rows of q.",
        ),
    ],
)
