"""Exercises of notebook 11: the merge once more, the wire's bytes, who waits, who blocks."""

import numpy as np

from course import cost, roofline
from course.exercises import Exercise, Question
from course.hardware import GPUS, LINKS

# --- questions on the way ---------------------------------------------------------------------

ring_bytes = Question(
    "What one process sends",
    difficulty=2,
    minutes=4,
    task="4 processes, N = 32 rows, 2 K/V heads, d = 16, FP32, forward. How many bytes does each "
    "process send?",
    unit="bytes",
    answer=cost.ring(32, 16, processes=4, heads=4, kv_heads=2, itemsize=4).written,
    wrong={
        8192: "Four messages. After three, every process has met all keys.",
        3072: "K or V alone. Both travel.",
        2048: "That is one message. How many does a process send?",
        12288: "That is with 4 heads. Only the K/V heads travel.",
        1536: "Those are numbers. In FP32 each takes 4 bytes.",
    },
    explanation="A message is K and V of N / W = 8 rows: 2 · 2 · 8 · 16 · 4 = 2,048 bytes. Each process "
    "sends W − 1 = 3 of them.",
)
tokens_at_home = Question(
    "Tokens at home",
    difficulty=3,
    minutes=5,
    factor=1.03,
    task="H100 (989.4 TFLOP/s in FP16), NVLink 4 (450 GB/s one way), as many K/V heads as query heads. "
    "How many tokens must each GPU have at home for the wire to be hidden behind a full tile?",
    unit="tokens",
    answer=roofline.link_ridge(GPUS["H100 SXM"], LINKS["NVLink 4"]),
    wrong={
        1099: "900 GB/s is both directions together. One way is half of that.",
        4397: "Twice too many: K and V are two, but a number has two bytes and a pair 4d FLOPs.",
        295: "That is the ridge of HBM. The wire is seven times slower.",
        19788: "That is InfiniBand NDR, 50 GB/s.",
    },
    explanation="c tokens at home do 4·c²·d FLOPs a head for 4·c·d bytes: c FLOPs per byte. The link "
    "asks for 989.4e12 / 450e9 = 2,199.",
)
two_wait = Question(
    "Half of two",
    difficulty=2,
    minutes=4,
    factor=1.02,
    task="Two processes, causal, layout ring. In step 0 each computes half a tile, in step 1 process 1 "
    "a full one and process 0 none. All wait for the slowest of a step. Which share of the two "
    "processes' time, in per cent, is idle?",
    unit="%",
    answer=100 / 3,
    wrong={
        50: "That is step 1 alone. In step 0 nobody waits.",
        25: "Steps are not equally long: step 0 takes half a tile, step 1 a whole one.",
        66.67: "That is the share in which they work.",
        0: "Process 0 sees none of the keys that come in step 1: they are all later.",
    },
    explanation="The two steps take ½ + 1 = 1.5 tiles of time, 3 for both processes. The work is 2 tiles, "
    "so 1 of 3 is idle.",
)
trips_home = Question(
    "The way home",
    difficulty=2,
    minutes=3,
    task="4 processes, backward. K and V are handed on 3 times. How often are dK and dV handed on?",
    answer=4,
    wrong={
        3: "After three they are with the process before their owner. One more brings them home.",
        7: "That is K, V and the gradients together.",
        1: "Every process adds its part, so they visit all four.",
        8: "dK and dV travel in one message.",
    },
    explanation="They start with their keys, visit all others (3) and go home (1): W in all.",
)
eight_heads = Question(
    "Heads that do not suffice",
    difficulty=2,
    task="A model has 32 query heads and 8 K/V heads. 16 GPUs share a long sequence. Which way does not "
    "work as it stands?",
    choices={
        "a": "ring, as 16 does not divide 32",
        "b": "all-gather, as every GPU would need all heads",
        "c": "heads, as 8 K/V heads cannot be dealt out to 16 GPUs",
        "d": "all three work",
    },
    answer="c",
    wrong={
        "a": "The ring deals out rows. Heads do not matter to it.",
        "b": "That costs memory, and works: only K and V are gathered.",
        "d": "One of them gives each GPU whole heads. Are there enough?",
    },
    explanation="Half of the GPUs would get no K/V head. Libraries then copy heads, or deal out heads "
    "within a group of GPUs and run a ring between groups.",
)

# --- the merge, once more ---------------------------------------------------------------------


def join(o_a, lse_a, o_b, lse_b):
    """(o, lse) of all keys: o (rows, d), lse (rows,)."""
    lse = np.logaddexp(lse_a, lse_b)
    o = np.exp(lse_a - lse)[:, None] * o_a + np.exp(lse_b - lse)[:, None] * o_b
    return o, lse


def _two(rng):
    for low, high in ((0, 1), (-2000, -1990), (900, 1400), (-5, 900)):
        yield (
            rng.standard_normal((3, 2)), rng.uniform(low, high, 3),
            rng.standard_normal((3, 2)), rng.uniform(low, high, 3),
        )  # fmt: skip


def _weighted(o_a, lse_a, o_b, lse_b, weigh, lse):
    a, b = weigh(lse_a, lse_b), weigh(lse_b, lse_a)
    return a[:, None] * o_a + b[:, None] * o_b, lse(lse_a, lse_b)


def _sigmoid(x, y):
    return np.exp(x - np.logaddexp(x, y))


join = Exercise(
    "Two finished parts",
    difficulty=2,
    minutes=6,
    task="Write join(o_a, lse_a, o_b, lse_b): of each row the output o (rows, d), divided by ℓ already, "
    "and lse = log Σ e^score (rows,), over two disjoint sets of keys. Return o and lse over all keys.",
    answer=join,
    cases=_two,
    hints=(
        "The sums add: e^lse = e^lse_a + e^lse_b. np.logaddexp does it without overflow.",
        "Part a has the share e^(lse_a − lse) of the whole sum. That is the weight of o_a.",
    ),
    wrong=[
        (
            lambda *x: _weighted(*x, lambda a, b: 0 * a + 1 / 2, np.logaddexp),
            "Both outputs count half. Each counts as much as its share of the sum of exponentials.",
        ),
        (
            lambda *x: _weighted(*x, lambda a, b: 0 * a + 1, np.logaddexp),
            "The outputs are added. Each has been divided by its own ℓ, so each needs a weight.",
        ),
        (
            lambda *x: _weighted(*x, _sigmoid, lambda a, b: a + b),
            "The two lse are added, which multiplies the sums. The sums themselves add.",
        ),
        (
            lambda *x: _weighted(*x, _sigmoid, np.maximum),
            "The larger lse alone is returned. The smaller sum belongs to the whole too.",
        ),
        (
            lambda *x: _weighted(
                *x,
                lambda a, b: np.exp(a) / (np.exp(a) + np.exp(b)),
                lambda a, b: np.log(np.exp(a) + np.exp(b)),
            ),
            "e^lse is not finite for a large lse, and 0 for a low one. Subtract first, then take exp.",
        ),
        (
            lambda *x: _weighted(*x, lambda a, b: np.exp(b - np.logaddexp(a, b)), np.logaddexp),
            "The weights are exchanged: o_a got the share of part b.",
        ),
    ],
)


def join_all(parts):
    """(o, lse) of any number of parts, in any order; a row of a part may see no key: lse −∞."""
    lses = np.stack([lse for _, lse in parts])
    m = lses.max(0)
    weights = np.exp(lses - np.where(m == -np.inf, 0, m))
    l = weights.sum(0)
    o = sum(w[:, None] * o for w, (o, _) in zip(weights, parts, strict=True))
    safe = np.where(l == 0, 1, l)
    return o / safe[:, None], np.where(l == 0, -np.inf, m + np.log(safe))


_all = join_all


def _three(rng):
    """Three parts in an order of their own; rows without a key in one, two or all of them."""
    for low, high in ((-1, 1), (800, 1300), (-1500, -900)):
        parts = [(rng.standard_normal((5, 2)), rng.uniform(low, high, 5)) for _ in range(3)]
        for part, rows in enumerate(((1, 3, 4), (3, 4), (4,))):
            for row in rows:
                parts[part][0][row], parts[part][1][row] = 0, -np.inf
        yield ([parts[i] for i in rng.permutation(3)],)


def _fold(parts, lse=np.logaddexp, keep=False):
    o, total = parts[0]
    for o_new, lse_new in parts[1:]:
        both = lse(total, lse_new)
        o = np.exp(total - both)[:, None] * o + np.exp(lse_new - both)[:, None] * o_new
        total = total if keep else both
    return o, total


def _mean(parts):
    return sum(o for o, _ in parts) / len(parts), _all(parts)[1]


def _plain(parts):
    sums = [np.exp(lse) for _, lse in parts]
    o = sum(s[:, None] * o for s, (o, _) in zip(sums, parts, strict=True)) / sum(sums)[:, None]
    return o, np.log(sum(sums))


join_all = Exercise(
    "Three shards, in any order",
    difficulty=3,
    minutes=12,
    task="Write join_all(parts): parts is a list of (o, lse), o (rows, d) and lse (rows,), of disjoint "
    "sets of keys, in any order. A row that sees no key of a part has o = 0 and lse = −∞ there. Return "
    "o and lse over all keys: 0 and −∞ for a row that sees none at all.",
    answer=join_all,
    cases=_three,
    hints=(
        "Take the largest lse of a row as m. The weights are e^(lse − m), and their sum is ℓ.",
        "Where m is −∞, −∞ − (−∞) is NaN: put 0 in the place of m there, and 1 in that of ℓ.",
    ),
    wrong=[
        (
            _fold,
            "Right, until a row has seen nothing: −∞ − (−∞) is NaN. Such a row stays 0, with lse −∞.",
        ),
        (_plain, "e^lse is not finite, or 0, where lse is far from 0. Subtract the largest first."),
        (_mean, "All parts count alike. Each counts by its share of the sum of exponentials."),
        (
            lambda parts: _all(parts[:2]),
            "Only two parts are joined. There may be any number.",
        ),
        (
            lambda parts: (_all(parts)[0], np.stack([lse for _, lse in parts]).max(0)),
            "o is right. The lse is only the largest one: m + log ℓ is asked for.",
        ),
        (
            lambda parts: (_all(parts)[0] * len(parts), _all(parts)[1]),
            "The weights do not add up to 1: divide by their sum.",
        ),
    ],
)

# --- the wire ---------------------------------------------------------------------------------


def sent(n, d, kv_heads, processes, rank, itemsize):
    """Bytes that process `rank` sends in a forward pass around the ring."""
    chunk = -(-n // processes)
    rows = [max(min(n - i * chunk, chunk), 0) for i in range(processes)]
    never = rows[(rank + 1) % processes]  # these keys arrive last at their neighbour's
    return 2 * kv_heads * d * itemsize * (n - never)


def _wires(rng):
    for processes in (1, 2, 3, 4, 4):
        n = int(rng.integers(3, 40)) * processes + (processes > 2)
        yield (
            n, int(rng.integers(2, 9)), int(rng.integers(3, 6)), processes,
            int(rng.integers(processes)), int(rng.choice((2, 4))),
        )  # fmt: skip
    yield 13, 8, 3, 4, 2, 2  # chunks of 4, 4, 4 and 1 rows: the neighbour's is the short one
    yield 13, 8, 3, 4, 3, 2  # the short one is the sender's own


def _rows(n, processes):
    chunk = -(-n // processes)
    return [max(min(n - i * chunk, chunk), 0) for i in range(processes)]


sent = Exercise(
    "The wire's bytes",
    difficulty=3,
    minutes=10,
    task="Write sent(n, d, kv_heads, processes, rank, itemsize): the bytes that process `rank` sends in "
    "one forward pass. Shards have ⌈n / processes⌉ rows; the last has what is left. In step s a process "
    "hands on the keys and values of process rank − s; after the last step nothing is handed on.",
    answer=sent,
    cases=_wires,
    hints=(
        "In steps 0 to W − 2 it hands on the shards of rank, rank − 1, … Which one is never handed on?",
        "All but that of process rank + 1, its next: there they started, and need not go again.",
    ),
    wrong=[
        (
            lambda n, d, h, w, rank, size: 2 * h * d * size * n * (w > 1),
            "All shards are sent. The last one that arrives is not handed on.",
        ),
        (
            lambda n, d, h, w, rank, size: h * d * size * (n - _rows(n, w)[(rank + 1) % w]),
            "This is K or V alone. Both travel.",
        ),
        (
            lambda n, d, h, w, rank, size: 2 * h * d * size * (w - 1) * _rows(n, w)[rank],
            "Its own shard, W − 1 times: that is the all-gather. Around the ring shards of others go on.",
        ),
        (
            lambda n, d, h, w, rank, size: 2 * h * d * size * (n - _rows(n, w)[rank]),
            "That is what it receives: all but its own shard.",
        ),
        (
            lambda n, d, h, w, rank, size: 2 * h * d * (n - _rows(n, w)[(rank + 1) % w]),
            "Those are numbers. Each takes itemsize bytes.",
        ),
        (
            lambda n, d, h, w, rank, size: 2 * d * size * (n - _rows(n, w)[(rank + 1) % w]),
            "That is one K/V head. All of them travel.",
        ),
    ],
)

# --- chunks so that no rank waits -------------------------------------------------------------


def chunks(processes):
    """For each process the two chunks that it holds, of 2W."""
    return [[i, 2 * processes - 1 - i] for i in range(processes)]


def _work(plan):
    """[step][process], in chunk pairs: an earlier chunk of keys counts 1, the own one ½, a later 0."""
    w = len(plan)
    return [
        [sum((b < a) + (b == a) / 2 for a in plan[i] for b in plan[i - step]) for i in range(w)]
        for step in range(w)
    ]


def _judge(attempt, processes):
    """How many chunks are dealt out exactly once, the longest hand, and the waiting of all steps."""
    plan = [[int(chunk) for chunk in hand] for hand in attempt(processes)]
    dealt = [chunk for hand in plan for chunk in hand]
    once = sum(dealt.count(chunk) == 1 for chunk in range(2 * processes))
    waiting = sum(max(step) * len(step) - sum(step) for step in _work(plan))
    return np.array([once, len(dealt), max(map(len, plan)), waiting])


chunks = Exercise(
    "Chunks so that nobody waits",
    difficulty=3,
    minutes=10,
    task="Write chunks(processes): the sequence is cut into 2W chunks, numbered from 0. Return W lists of "
    "two numbers, which chunks each process holds, so that in a causal ring no process ever waits for "
    "another.",
    answer=chunks,
    cases=lambda rng: [(w,) for w in (1, 2, 3, 4, 7)],
    call=_judge,
    hints=(
        "A late chunk of queries sees many chunks of keys, an early one few. Give everybody one of each.",
        "Chunk i sees i + ½ chunks of keys. Which partner makes the sum the same for all i?",
    ),
    wrong=[
        (
            lambda w: [[2 * i, 2 * i + 1] for i in range(w)],
            "That is the plain ring: the last process has the two latest chunks, and all wait for it.",
        ),
        (
            lambda w: [[i, i + w] for i in range(w)],
            "Better, and still not even: process 0 has the earlier one of both halves.",
        ),
        (
            lambda w: [[i, 2 * w - i] for i in range(w)],
            "The partner is one too late: chunks are numbered to 2W − 1.",
        ),
        (
            lambda w: [[i, w - 1 - i] for i in range(w)],
            "Only the first W chunks are dealt out. There are 2W.",
        ),
        (lambda w: [[i] for i in range(w)], "One chunk each: there are 2W, two for everybody."),
        (
            lambda w: [[i, 2 * w - 1] for i in range(w)],
            "The last chunk is dealt out to everybody. Each has one home.",
        ),
    ],
)

# --- who blocks -------------------------------------------------------------------------------


def turns(rank, processes):
    """What a process does, in this order: ("send", to) and ("receive", from), each until it is done."""
    to, source = (rank + 1) % processes, (rank - 1) % processes
    if processes == 1:
        return []
    first, second = ("send", to), ("receive", source)
    return [first, second] if rank % 2 == 0 else [second, first]


def _meet(attempt, processes):
    """Let the processes run: a send ends when its receiver receives. (left undone, good, other messages)."""
    todo = [
        [(str(what), int(peer)) for what, peer in attempt(i, processes)] for i in range(processes)
    ]
    good = other = 0
    moved = True
    while moved:
        moved = False
        for i, steps in enumerate(todo):
            if not steps or steps[0][0] != "send":
                continue
            to = steps[0][1]
            if to != i and 0 <= to < processes and todo[to][:1] == [("receive", i)]:
                steps.pop(0), todo[to].pop(0)
                moved = True
                good, other = (
                    good + (to == (i + 1) % processes),
                    other + (to != (i + 1) % processes),
                )
    return np.array([sum(map(len, todo)), good, other])


def _order(rank, processes, first="send", parity=False, to=1):
    if processes == 1:
        return []
    steps = [("send", (rank + to) % processes), ("receive", (rank - to) % processes)]
    return steps if (first == "send") != (parity and rank % 2 == 1) else steps[::-1]


turns = Exercise(
    "The ring that stands still",
    difficulty=3,
    minutes=10,
    task="In the broken ring every process first sends to the next one and then receives from the previous "
    "one, with a send that returns only when the receiver takes the message. Mend it: write turns(rank, "
    "processes), the list of ('send', to) and ('receive', source) of a process, in its order. A ring "
    "of one does nothing.",
    answer=turns,
    cases=lambda rng: [(w,) for w in (2, 3, 4, 5, 1)],
    call=_meet,
    hints=(
        "Everybody holds out a parcel and nobody has a hand free. Who must take first?",
        "Even processes send first, odd ones receive first.",
    ),
    wrong=[
        (
            lambda r, w: _order(r, w),
            "Deadlock: all send, so nobody receives, and no send ends. Some must receive first.",
        ),
        (
            lambda r, w: _order(r, w, to=-1, parity=True),
            "It runs, backwards: a process sends to the next one, rank + 1.",
        ),
        (
            lambda r, w: _order(r, w, parity=True)[:1],
            "Half of the work: everybody has to send and to receive.",
        ),
        (
            lambda r, w: _order(r, w, parity=True) if w > 1 else [("send", 0), ("receive", 0)],
            "A ring of one sends to itself, and waits for itself to receive.",
        ),
        (lambda r, w: [], "Nothing is sent at all."),
        (
            lambda r, w: [("send", r + 1), ("receive", r - 1)][:: 1 - 2 * (r % 2)] if w > 1 else [],
            "The ring is not closed: after the last process comes 0, by % processes.",
        ),
    ],
)
