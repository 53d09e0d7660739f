"""Notebook 12: what binds, who collides, five cases from the records, and the quiz of the course."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from course import banks, cost, records, roofline
from course.diagnosis import diagnose
from course.draw.fusion import predicted
from course.exercises import Exercise, Question
from course.hardware import GPUS
from course.records.fusion import at
from course.units import binary, decimal, seconds

H100, H200 = GPUS["H100 SXM"], GPUS["H200"]
RECORD = records.load("h200")


@dataclass(repr=False)
class Drawn(Question):
    """A question with numbers of its own: `make(rng)` draws its task, answer, wrong, explanation."""

    make: Callable | None = None

    def again(self, seed: int | None = None) -> None:
        """Draw new numbers and show the task."""
        for name, value in self.make(np.random.default_rng(seed)).items():
            setattr(self, name, value)
        print(self)


def _drawn(name, make, **how):
    return Drawn(name, **make(np.random.default_rng(0)), make=make, **how)


# --- the flow -----------------------------------------------------------------------------------


def _binds(needed, took):
    if max(needed["memory"], needed["compute"]) > took:
        return "the count"
    longest = max(needed, key=needed.get)
    return longest if needed[longest] > took / 2 else "something else"


def _runs(rng):
    for needed in (
        (5e-6, 1e-6, 2e-6),
        (5e-6, 3e-4, 1e-4),
        (5e-6, 3e-4, 2.8e-4),
        (5e-6, 1e-4, 4e-4),
        (6e-5, 1e-4, 9e-5),
    ):
        needed = dict(zip(("launches", "memory", "compute"), needed, strict=True))
        for times in (0.9, 1.2, 1.8, rng.uniform(2.2, 9)):
            yield needed, float(times * max(needed.values()))
    # three launches that overlap: together longer than what was measured
    yield {"launches": 2e-5, "memory": 1e-6, "compute": 1e-7}, 9e-6


binds = Exercise(
    "What binds?",
    difficulty=2,
    minutes=5,
    answer=_binds,
    cases=_runs,
    task='Write binds(needed, took): needed is {"launches": …, "memory": …, "compute": …}, the least '
    'time of each in seconds, took the measured time. Return "the count" if memory or compute '
    "alone needs more than took; else the name of the longest if it is over half of took; else "
    '"something else".',
    hints=(
        "First the count: max(needed['memory'], needed['compute']) > took.",
        "max(needed, key=needed.get) is the name of the longest.",
    ),
    wrong=[
        (
            lambda n, t: max(n, key=n.get),
            "It always names the longest, however short. Over half of the measured time?",
        ),
        (
            lambda n, t: max(n, key=n.get) if max(n.values()) > t / 2 else "something else",
            "A time that the count does not allow is no diagnosis: ask that first.",
        ),
        (
            lambda n, t: "the count" if max(n.values()) > t else _binds(n, t),
            "Launches that overlap may count for more than was measured: only memory and compute "
            "speak against the count.",
        ),
        (
            lambda n, t: "something else" if sum(n.values()) < t / 2 else _binds(n, t * 0.0 + t / 2),
            "Half of the measured time, and not a quarter.",
        ),
        (
            lambda n, t: _binds(n, t) if max(n.values()) > 0.9 * t or max(n.values()) <= t / 2
            else "something else",
            "Over half is enough: what remains is shorter.",
        ),
        (lambda n, t: max(n.values()) / t, "The name is wanted, not the share."),
    ],
)  # fmt: skip


# --- failures -----------------------------------------------------------------------------------


def _turns(words):
    different = {}
    for word in words:
        different.setdefault(word % 32, set()).add(word)
    return max(map(len, different.values()))


def _accesses(rng):
    yield ([0] * 32,)
    yield (banks.strided(1),)
    yield (banks.strided(2),)
    yield (banks.column(3),)
    yield (banks.column(3, width=33),)
    yield (banks.swizzled(5),)
    yield ([64 * (lane % 4) for lane in range(32)],)
    yield ([int(word) for word in rng.integers(0, 200, 32)],)


def _most(words, key):
    found = [key(word) for word in words]
    return max(map(found.count, found))


turns = Exercise(
    "Turns of an access",
    difficulty=2,
    minutes=5,
    answer=_turns,
    cases=_accesses,
    task="Write turns(words): words are the 32 word numbers that the lanes of a warp ask for. Word w "
    "lies in bank w % 32. In a turn each bank serves one word, to all lanes that want it. How many "
    "turns?",
    hints=(
        "Collect, for each bank, the set of words asked of it.",
        "The bank with the most different words decides.",
    ),
    wrong=[
        (
            lambda words: _most(words, lambda w: w % 32),
            "Lanes that want the same word share a turn: count different words.",
        ),
        (lambda words: len({w % 32 for w in words}), "That is how many banks are asked."),
        (
            lambda words: _most(set(words), lambda w: w // 4 % 32),
            "These are words already, not bytes: bank = w % 32.",
        ),
        (
            lambda words: _most(set(words), lambda w: w % 16),
            "There are 32 banks.",
        ),
        (lambda words: -(-len(set(words)) // 32), "So it were if the words were spread evenly."),
        (
            lambda words: _most(set(words), lambda w: w % 32) - 1,
            "The first turn is a turn, too.",
        ),
    ],
)

column_turns = Question(
    "A column of a tile",
    minutes=1,
    task="A tile of 32 × 32 FP32 numbers lies in shared memory, row after row. The 32 lanes of a warp "
    "load one column of it. How many turns does it take?",
    answer=banks.turns(banks.column(0)),
    factor=1.01,
    wrong={
        1: "So it is for a row: 32 words side by side. A column is 32 words apart.",
        16: "Each lane's word is 32 words after the last: w % 32 is the same for all.",
    },
    explanation="Neighbours are 32 words apart, so all are in one bank: 32 turns where a row takes one.",
)


def _pinned(causal, pinned):
    (point,) = (
        p
        for p in RECORD["hopper_forward"]["points"]
        if (p["flow"], p["dtype"], p["n"], p["d"], p["causal"])
        == ("hopper", "fp16", 16384, 128, causal)
        and p["overlap"]
        and p["pinned"] == pinned
        and not (p["ping_pong"] or p["persistent"])
    )
    return point["flops"]


PIN = _pinned(False, True) / _pinned(False, False)

pin = Question(
    "An overlap won back",
    minutes=1,
    task="The pin puts the exponentials back under the product. N = 16,384, d = 128, no mask, on an "
    "H200: what becomes of the speed?",
    answer="c" if PIN < 0.95 else "a" if PIN > 1.05 else "b",
    choices={"a": "over 5 % faster", "b": "the same, within 5 %", "c": "over 5 % slower"},
    wrong={
        "a": "So one would think, from the listing. The clock disagrees.",
        "b": "So it is with a causal mask. Without one the clock says something worse.",
    },
    explanation=f"It runs at {PIN:.0%} of the speed without the pin. Probably the other "
    "warp group of the SM filled the gap before, and the pin forbids other, good moves.",
)


# --- five cases ---------------------------------------------------------------------------------

CAUSES = {
    "launches": "waiting to be started",
    "spills": "values that found no register",
    "l2": "the bytes never reached memory: the L2 had them",
    "unit": "a unit that the count leaves out",
    "correction": "old sums not corrected when the maximum moved",
}


def _case(name, story, answer, explanation, **useless):
    return Question(
        name,
        difficulty=3,
        task=story,
        choices=CAUSES,
        answer=answer,
        wrong=useless,
        explanation=explanation,
    )


def _facts(one, took, launches=1):
    found = diagnose(one, took, H200, launches=launches)
    return (
        f"{decimal(one.bytes)} and {decimal(one.flops, 'FLOP')} by the count took {seconds(took)} on an "
        f"H200. Bytes ÷ bandwidth: {seconds(found.needed['memory'])}; FLOPs ÷ peak: "
        f"{seconds(found.needed['compute'])}; launches: {launches}."
    )


_SMALL = at(RECORD["fusion"], "eager", 1024)
_LARGE_N = max(point["n"] for point in RECORD["fusion"]["points"])
_LARGE = at(RECORD["fusion"], "compiled", _LARGE_N)
_BY_HAND = at(RECORD["fusion"], "hand-written", _LARGE_N)


def _tile(num_warps):
    (point,) = (
        p
        for p in RECORD["tile_sweep"]["points"]
        if p["kernel"] == "forward"
        and (p["d"], p["causal"], p["block_q"], p["block_kv"]) == (128, False, 128, 128)
        and (p["num_warps"], p["num_stages"], p["maxnreg"]) == (num_warps, 2, None)
    )
    return point


_FOUR, _EIGHT = _tile(4), _tile(8)
_IN_L2 = next(
    case
    for case in RECORD["attention_bytes"]["dram"]
    if (case["flow"], case["heads"], case["n"], case["caches"]) == ("naive", 1, 2048, "kept")
)
_READ = sum(kernel["read"] for kernel in _IN_L2["kernels"])
_COUNTED = cost.attention(2048, 128, flow="naive").read

case_small = _case(
    "Case 1: a short vector",
    f"Bias, GELU, dropout and residual on 1,024 numbers, four kernels. "
    f"{_facts(predicted('eager', 1024), _SMALL['seconds'], 4)}",
    "launches",
    f"Neither bytes nor FLOPs come near. Replayed as a CUDA graph the four take "
    f"{seconds(_SMALL['graph'])}.",
    spills="Four kernels with a number or two per thread: registers are plenty.",
    l2="The bytes need nanoseconds, from wherever they come.",
    unit="For 1,024 numbers no unit is busy for long.",
    correction="There is no running maximum here.",
)
case_tile = _case(
    "Case 2: a larger tile",
    f"FlashAttention forward, tiles of 128 × 128, d = 128, four warps: "
    f"{decimal(_FOUR['flops'], 'FLOP/s')} on an H200. The same tile with eight warps: "
    f"{decimal(_EIGHT['flops'], 'FLOP/s')}. The results are right.",
    "spills",
    f"With four warps a thread holds twice as much: {_FOUR['registers']} registers and "
    f"{_FOUR['spilled_bytes']} bytes beside them. With eight: {_EIGHT['registers']} registers, "
    f"{_EIGHT['spilled_bytes']} bytes spilled.",
    launches="Both are launched once.",
    l2="Both ask for the same bytes, tile for tile.",
    unit="Both do the same exponentials. What differs is how much each thread holds.",
    correction="The results are right.",
)
case_counter = _case(
    "Case 3: a counter that reads too little",
    f"Naive attention, one head, N = 2,048, d = 128. By the count {decimal(_COUNTED)} are read. The "
    f"hardware counter says {decimal(_READ)}.",
    "l2",
    f"S and P are {decimal(2 * 2048**2)} each, and the L2 of an H200 holds "
    f"{binary(H200.l2_bytes)}: each kernel finds what the one before it left.",
    launches="A launch changes the time, not the bytes.",
    spills="Spills would add bytes.",
    unit="A unit changes the time, not the bytes.",
    correction="A wrong result would have moved as many bytes.",
)
case_compiled = _case(
    "Case 4: the compiler's kernel",
    f"The chain of case 1 on {_LARGE_N:,} numbers, compiled. "
    f"{_facts(predicted('compiled', _LARGE_N), _LARGE['seconds'], _LARGE['launches'])} One written by hand, with the same "
    f"bytes, takes {seconds(_BY_HAND['seconds'])}.",
    "unit",
    "It draws four random numbers for each that it needs (notebook 03), in integer multiplications. "
    "The count has neither.",
    launches="Two launches in milliseconds are nothing.",
    spills="An element-wise kernel holds little; and the one by hand does the same.",
    l2="The tensors are far larger than the L2, and bytes from it would make it faster.",
    correction="There is no running maximum here.",
)
case_wrong = _case(
    "Case 5: right for falling scores",
    "A kernel of your own, softmax by blocks. Its sum ℓ is right where the first block holds the "
    "largest score of the row. Elsewhere it is too large, the more often the maximum moved.",
    "correction",
    "Without α = exp(m − m') the old ℓ and o stay measured from the old maximum: nothing to correct "
    "where it never moves.",
    launches="A launch changes the time, not the result.",
    spills="A spilled value comes back as it was.",
    l2="A cache gives back what was written.",
    unit="Then every row would suffer alike.",
)


# --- the quiz: frequent questions ---------------------------------------------------------------


def _quiz(name, task, right, wrong, explanation):
    """A question of three choices; the right one stands where the name's length puts it."""
    texts = [*wrong]
    place = len(name) % 3
    texts.insert(place, right)
    keys = "abc"
    return Question(
        name,
        task=task,
        minutes=1,
        answer=keys[place],
        choices=dict(zip(keys, texts, strict=True)),
        wrong={keys[texts.index(text)]: said for text, said in wrong.items()},
        explanation=explanation,
    )


hierarchy = _quiz(
    "The memory hierarchy",
    "Which order, from near and small to far and large?",
    "registers, shared memory, L2, HBM",
    {
        "shared memory, registers, HBM, L2": "Registers are nearest: the book open on the desk.",
        "registers, L2, shared memory, HBM": "The shelf is in the classroom, the cupboard in the "
        "corridor.",
    },
    "Desk, shelf, cupboard, library. Keep what is used again near the top.",
)
hbm_or_sram = _quiz(
    "HBM and SRAM",
    "What is the difference that FlashAttention lives on?",
    "SRAM is on the chip: small, with several times the bandwidth; HBM is large, beside it",
    {
        "HBM loses its data without power, SRAM does not": "Both do.",
        "SRAM is the newer kind of HBM": "One keeps a bit in six transistors, the other as charge.",
    },
    f"All shelves of an H100 together give {decimal(H100.levels[1].bandwidth, 'B/s')}, its HBM "
    f"{decimal(H100.bandwidth, 'B/s')}; they hold {binary(H100.levels[1].capacity_bytes)} and "
    f"{decimal(H100.hbm_bytes)}.",
)
fusion_why = _quiz(
    "Why fuse?",
    "What does fusing a chain of element-wise kernels save?",
    "bytes and launches",
    {
        "FLOPs": "The arithmetic stays, number for number.",
        "registers": "It takes more of them: all that is alive at once must fit.",
    },
    "What lay between two kernels never goes to memory and back. A large matmul, which works, gains "
    "little.",
)
flash_faster = _quiz(
    "Why is FlashAttention faster?",
    "It computes the same attention. Why in less time?",
    "S and P never go to HBM",
    {
        "it does fewer FLOPs": "Forward it does the same, and backward more.",
        "it leaves out small weights": "It is exact: it leaves out nothing.",
    },
    "Four passes over N × N numbers go away. Tiles and the online softmax make it possible.",
)
linear = _quiz(
    "Linear attention?",
    "Is FlashAttention linear in N?",
    "in memory yes, in arithmetic no",
    {
        "in both": "Every query still meets every key.",
        "in neither": "What it keeps is Q, K, V, O and one number per row.",
    },
    "Twice the length: twice the memory, four times the work.",
)
decode_bound = _quiz(
    "Decode",
    "One sequence, one token at a time: what does the GPU wait for?",
    "the weights and the cache, out of HBM",
    {
        "the tensor cores": "At one FLOP per byte they stand idle.",
        "the softmax": "A few thousand scores, beside billions of bytes.",
    },
    "About one FLOP per byte. A batch shares one read of the weights, so serving lives on batching.",
)
culprit = _quiz(
    "The culprit",
    "Naive attention has plenty of FLOPs, and waits. Which step is to blame?",
    "the softmax, which needs whole rows of S in memory",
    {
        "the product QKᵀ": "Alone, it could hand its tile on and keep it on the chip.",
        "the product PV": "It reads P because the softmax had to write it.",
    },
    "The FLOPs are in the two matmuls, the bytes around the softmax. Narrower heads make it worse.",
)
alpha = _quiz(
    "Can α overflow?",
    "α = exp(m_old − m_new). Why can it never overflow?",
    "m_new is never below m_old, so α is at most 1",
    {
        "it is computed in FP32": "FP32 overflows above exp(88).",
        "the scores are scaled by 1/√d": "Scores can be as large as they like.",
    },
    "The maximum only grows. Where it stays, α is 1 and nothing changes.",
)


# --- the quiz: numbers drawn anew ---------------------------------------------------------------


def _make_traffic(rng):
    n = int(2 ** rng.integers(12, 16))
    d = int(rng.choice([64, 128]))
    naive, ideal = 4 * n * n * 2, 4 * n * d * 2
    return dict(
        task=f"One head, N = {n:,}, d = {d}, BF16. How many times the bytes of the ideal flow (Q, K, V "
        "and O once) do the four passes over S and P take?",
        answer=naive / ideal,
        wrong={
            2 * n / d: "Four passes over N × N against four over N × d, in one data type.",
            naive / ideal / 2: "S is written and read, and so is P: four passes.",
        },
        explanation=f"4 N² · 2 = {binary(naive)}, 4 N d · 2 = {binary(ideal)}: N / d = {n / d:g}.",
    )


def _make_decode(rng):
    gpu = GPUS[str(rng.choice(["A100 80GB", "H100 SXM", "H200", "B200"]))]
    billions = int(rng.choice([7, 8, 13, 32, 70]))
    bits = int(rng.choice([4, 8, 16]))
    weights = billions * 1e9 * bits / 8
    return dict(
        task=f"{billions} billion weights of {bits} bits, {decimal(gpu.bandwidth, 'B/s')} "
        f"({gpu.name}), batch 1. How many tokens per second at most, if only the weights count?",
        answer=gpu.bandwidth / weights,
        wrong={
            gpu.bandwidth / (billions * 1e9): f"A weight has {bits} bits, not one byte."
            if bits != 8
            else "One byte per weight: this is right.",
            gpu.bandwidth / (billions * 1e9 * bits): "Bits, where bytes are asked for.",
        }
        if bits != 8
        else {gpu.bandwidth / (billions * 1e9 * 2): "8 bits are one byte, not two."},
        explanation=f"{decimal(gpu.bandwidth, 'B/s')} ÷ {decimal(weights)} = "
        f"{gpu.bandwidth / weights:.3g}.",
    )


def _make_update(rng):
    scores = [int(x) for x in rng.permutation(5)[:4]]
    if max(scores[2:]) < max(scores[:2]):  # the maximum is to move
        scores = scores[2:] + scores[:2]
    values = [int(x) for x in rng.integers(1, 9, 4)]
    weights = np.exp(np.array(scores) - max(scores))
    right = float(weights @ values / weights.sum())
    first = np.exp(np.array(scores[:2]) - max(scores[:2]))
    lost = float(
        (first @ values[:2] + weights[2:] @ values[2:]) / (first.sum() + weights[2:].sum())
    )
    return dict(
        task=f"Scores {scores[0]}, {scores[1]} | {scores[2]}, {scores[3]}, values "
        f"{', '.join(map(str, values))}, two blocks. What is the output, to three digits?",
        answer=right,
        wrong={
            lost: "ℓ and o of the first block were not corrected by α.",
            float(weights @ values): "o, and not yet o / ℓ.",
        },
        explanation=f"α = exp({max(scores[:2])} − {max(scores)}) = "
        f"{np.exp(max(scores[:2]) - max(scores)):.4f}, ℓ = {weights.sum():.4f}, "
        f"o = {weights @ values:.4f}, o / ℓ = {right:.4f}.",
    )


def _make_chain(rng):
    k, itemsize = int(rng.integers(3, 9)), int(rng.choice([2, 4]))
    size = {2: "BF16", 4: "FP32"}[itemsize]
    return dict(
        task=f"{k} element-wise kernels in a row on n numbers in {size}, each with one tensor in and one "
        "out, become one kernel. How many bytes per number does that save?",
        answer=2 * itemsize * (k - 1),
        wrong={
            2 * itemsize * k: "One load and one store remain.",
            itemsize * (k - 1): "Each hand-over is a store and a load.",
        },
        explanation=f"{k} · {2 * itemsize}n before, {2 * itemsize}n after: {k - 1} hand-overs of "
        f"{2 * itemsize} bytes.",
    )


def _make_ridge(rng):
    gpu = GPUS[str(rng.choice(["A100 80GB", "H100 SXM", "H100 PCIe", "H200", "B200", "T4"]))]
    peak, bandwidth = gpu.peak["fp16"], gpu.bandwidth
    return dict(
        task=f"A {gpu.name}: {decimal(peak, 'FLOP/s', 4)} dense, {decimal(bandwidth, 'B/s', 4)}. From "
        "which n on is a square FP16 matmul n × n × n, of intensity n / 3, compute-bound?",
        answer=3 * roofline.ridge(gpu),
        wrong={
            roofline.ridge(gpu): "That is the ridge. The intensity is n / 3.",
            roofline.ridge(gpu) / 3: "n / 3 = ridge: multiply.",
        },
        explanation=f"The ridge is {roofline.ridge(gpu):.1f} FLOP per byte; n = 3 · ridge = "
        f"{3 * roofline.ridge(gpu):.0f}.",
    )


def _make_cache(rng):
    layers, heads = int(rng.choice([24, 32, 48, 80])), int(rng.choice([4, 8, 16]))
    tokens = int(2 ** rng.integers(12, 18))
    held = cost.kv_cache_bytes(layers=layers, kv_heads=heads, head_dim=128, tokens=tokens)
    return dict(
        task=f"{layers} layers, {heads} key and value heads of 128, FP16, {tokens:,} tokens. How many GiB "
        "does the KV cache take?",
        answer=held / 2**30,
        unit="GiB",
        wrong={
            held / 2**31: "K and V: two of each.",
            held / 2**30 * 128: "Heads of 128 numbers: count them once.",
        },
        explanation=f"2 · {layers} · {heads} · 128 · 2 B = "
        f"{binary(held // tokens)} per token, times {tokens:,}: {binary(held)}.",
    )


traffic = _drawn("How many times the bytes?", _make_traffic, minutes=2)
tokens = _drawn("Tokens per second", _make_decode, minutes=2)
update = _drawn("An online softmax by hand", _make_update, minutes=5, factor=1.002)
saved = _drawn("Bytes saved", _make_chain, minutes=2)
square = _drawn("The matmul that works", _make_ridge, minutes=2)
cache = _drawn("The cache", _make_cache, minutes=2)
