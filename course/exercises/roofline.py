"""Notebook 02: time, intensity, ridge, bound; the slips that published numbers contain."""

from dataclasses import replace

import numpy as np

from course import cost, records
from course import roofline as model
from course.exercises import Exercise, Question
from course.hardware import GPUS
from course.units import decimal, seconds

H100, H200, A100 = GPUS["H100 SXM"], GPUS["H200"], GPUS["A100 80GB"]


# --- exercises --------------------------------------------------------------------------------


def _ridge(tflops, gb_per_s):
    return (tflops * 1e12) / (gb_per_s * 1e9)


def _data_sheets(rng):
    for bandwidth in (20, 900, 8000):
        yield float(rng.uniform(10, 4000)), float(bandwidth * rng.uniform(0.8, 1.2))


ridge = Exercise(
    "Ridge from a data sheet",
    difficulty=1,
    minutes=3,
    task="Write ridge(tflops, gb_per_s): the ridge in FLOP per byte. The data sheet gives the peak "
    "in TFLOP/s and the bandwidth in GB/s.",
    answer=_ridge,
    cases=_data_sheets,
    rtol=1e-3,  # data sheets have three or four digits
    hints=(
        "Bring both to plain units first: FLOP/s and bytes/s.",
        "1 TFLOP/s is 1e12 FLOP/s, 1 GB/s is 1e9 bytes/s. Then divide.",
    ),
    wrong=[
        (lambda t, g: t / g, "TFLOP divided by GB: the prefixes still differ by 1000."),
        (lambda t, g: (g * 1e9) / (t * 1e12), "Upside down: FLOP per byte is peak over bandwidth."),
        (lambda t, g: t * 1e12 / (g * 10e9), "10e9 is ten times 1e9."),
        (lambda t, g: t * 1e12 / (g * 2**30), "Data sheets print GB, 10^9 bytes, not GiB."),
        (lambda t, g: 2 * t * 1e12 / (g * 1e9), "The peak already counts an FMA as two FLOP."),
        (lambda t, g: t * 1e12 * g * 1e9, "Divide: the ridge is where two times are equal."),
    ],
)


def _layer_norm(rows, width, itemsize):
    flops = 8 * rows * width
    elements = 2 * rows * width + 2 * width  # x in, y out; weight and bias
    return flops, elements * itemsize


def _layers(rng):
    for itemsize in (2, 4):
        yield int(rng.integers(1, 9)), int(rng.integers(100, 5000)), itemsize
        yield int(rng.integers(1000, 9000)), int(rng.integers(100, 9000)), itemsize


layer_norm = Exercise(
    "Count a layer norm",
    difficulty=2,
    minutes=6,
    task="Write layer_norm_cost(rows, width, itemsize): the FLOPs and the bytes of one fused layer norm, "
    "as a pair. Per element: 1 FLOP for the mean, 3 for the variance, 2 to subtract and scale, 2 "
    "for weight and bias. It reads x, the weight and the bias (one row each) and writes y.",
    answer=_layer_norm,
    cases=_layers,
    hints=(
        "FLOPs: 1 + 3 + 2 + 2 for each of the rows · width elements.",
        "Elements moved: x and y are rows · width each, weight and bias are width each.",
    ),
    wrong=[
        (
            lambda r, w, s: (8 * r * w, 2 * r * w * s),
            "Weight and bias are read as well: one row each.",
        ),
        (
            lambda r, w, s: (8 * r * w, (r * w + 2 * w) * s),
            "x is read and y is written: two full tensors.",
        ),
        (
            lambda r, w, s: (8 * r * w, 4 * r * w * s),
            "Weight and bias have width elements, not rows · width.",
        ),
        (
            lambda r, w, s: (8 * r * w, 2 * r * w + 2 * w),
            "Those are elements: multiply by the bytes of one.",
        ),
        (
            lambda r, w, s: (8 * r, (2 * r * w + 2 * w) * s),
            "FLOPs of one column: every element costs eight.",
        ),
        (
            lambda r, w, s: (6 * r * w, (2 * r * w + 2 * w) * s),
            "Two FLOP per element are missing: weight and bias.",
        ),
        (
            lambda r, w, s: (8 * r * w, (2 * r * w + w) * s),
            "Weight and bias are two rows, not one.",
        ),
        (
            lambda r, w, s: ((2 * r * w + 2 * w) * s, 8 * r * w),
            "The other way round: FLOPs first, then bytes.",
        ),
    ],
)


def _attainable(intensity, peak, bandwidth):
    return np.minimum(peak, intensity * bandwidth)


def _roofs(rng):
    for peak, bandwidth in ((989.4e12, 3.35e12), (65e12, 0.32e12), (1e11, 2e10)):
        at = peak / bandwidth
        yield np.sort(at * np.exp(rng.uniform(-5, 5, 12))), peak, bandwidth
        yield np.array([0.0, at / 2, at, 2 * at]), peak, bandwidth


attainable = Exercise(
    "The roof",
    difficulty=2,
    minutes=4,
    task="Write attainable(intensity, peak, bandwidth): the highest rate in FLOP/s at each "
    "intensity of an array, as an array.",
    answer=_attainable,
    cases=_roofs,
    hints=(
        "At low intensity the bytes decide: each byte brings `intensity` FLOPs.",
        "np.minimum takes the smaller of two, element by element.",
    ),
    wrong=[
        (
            lambda i, p, b: np.maximum(p, i * b),
            "The lower of the two limits decides, not the higher.",
        ),
        (lambda i, p, b: i * b, "Past the ridge the peak is the limit: this keeps on rising."),
        (lambda i, p, b: np.full_like(i, p), "Left of the ridge the bytes set a lower limit."),
        (
            lambda i, p, b: min(p, i * b),
            "min() and if want one number, and this is an array: np.minimum takes each in turn.",
        ),
        (
            lambda i, p, b: [min(p, x * b) for x in i],
            "The numbers are right, but in a list: np.minimum gives an array.",
        ),
        (
            lambda i, p, b: np.minimum(p, i / b),
            "Intensity times bandwidth: FLOP/byte · byte/s = FLOP/s.",
        ),
        (lambda i, p, b: np.minimum(p / b, i), "That is an intensity, in FLOP/byte, not a rate."),
    ],
)


def _time_and_bound(flops, moved, peak, bandwidth):
    memory, compute = moved / bandwidth, flops / peak
    return max(memory, compute), "memory" if memory > compute else "compute"


def _jobs(rng):
    for side in (0.01, 0.8, 1.2, 100):
        peak, bandwidth = float(rng.uniform(1e13, 1e15)), float(rng.uniform(3e11, 8e12))
        moved = int(rng.integers(10**6, 10**9))
        yield int(moved * side * peak / bandwidth), moved, peak, bandwidth


time_and_bound = Exercise(
    "Time and bound",
    difficulty=2,
    minutes=5,
    task="Write time_and_bound(flops, moved, peak, bandwidth): the least time in seconds and what "
    'it is spent on, "memory" or "compute", as a pair. `moved` are bytes.',
    answer=_time_and_bound,
    cases=_jobs,
    hints=(
        "Two times: bytes over bandwidth, FLOPs over peak.",
        "They run side by side, so the longer one is the time, and it gives the bound its name.",
    ),
    wrong=[
        (
            lambda f, m, p, b: (m / b + f / p, "memory" if m / b > f / p else "compute"),
            "A sum: but bytes move while arithmetic runs.",
        ),
        (
            lambda f, m, p, b: (min(m / b, f / p), "memory" if m / b > f / p else "compute"),
            "The shorter time: the job ends when the longer one has.",
        ),
        (
            lambda f, m, p, b: (max(m / b, f / p), "compute" if m / b > f / p else "memory"),
            "The name belongs to the longer of the two times.",
        ),
        (
            lambda f, m, p, b: (m / b, "memory"),
            "Not everything waits for memory: look at FLOPs / peak too.",
        ),
        (
            lambda f, m, p, b: (max(m * b, f * p), "memory" if m * b > f * p else "compute"),
            "Divide by the rates: bytes / (bytes/s) = s.",
        ),
        (
            lambda f, m, p, b: (max(m / p, f / b), "memory" if m / p > f / b else "compute"),
            "Bytes go with the bandwidth, FLOPs with the peak.",
        ),
    ],
)


def _critical_batch(peak, bandwidth, bytes_per_weight):
    return peak / bandwidth * bytes_per_weight / 2


def _chips(rng):
    for bytes_per_weight in (0.5, 1, 2, 4):
        yield float(rng.uniform(1e13, 1e15)), float(rng.uniform(3e11, 8e12)), bytes_per_weight


critical_batch = Exercise(
    "The critical batch",
    difficulty=3,
    minutes=8,
    task="A decode step reads every weight once, whatever the batch, and does one multiply-add per "
    "weight and sequence. Write critical_batch(peak, bandwidth, bytes_per_weight): the batch at "
    "which arithmetic takes as long as reading the weights (peak in FLOP/s), not rounded.",
    answer=_critical_batch,
    cases=_chips,
    hints=(
        "For one weight and batch b: how many FLOPs, how many bytes? Their ratio is the intensity.",
        "2b FLOPs on bytes_per_weight bytes. Set that equal to the ridge, solve for b.",
    ),
    wrong=[
        (lambda p, b, w: p / b, "The ridge itself: now turn FLOP per byte into sequences."),
        (lambda p, b, w: p / b / 2, "Right only for one byte per weight: use bytes_per_weight."),
        (lambda p, b, w: p / b * w, "A multiply-add is two FLOP."),
        (lambda p, b, w: p / b / w / 2, "Smaller weights need a smaller batch, not a larger one."),
        (lambda p, b, w: 2 * p / b * w, "Two FLOP per weight and sequence: divide by them."),
        (lambda p, b, w: b / p * w / 2, "The ridge is peak over bandwidth, not the other way."),
        (
            lambda p, b, w: np.ceil(p / b * w / 2),
            "Rounded to whole sequences: leave it as it is, so that the digits can be compared.",
        ),
    ],
)


# --- predictions and quizzes ------------------------------------------------------------------

_ADD = cost.elementwise(2**24, inputs=2)

add_time = Question(
    "An add of 16.8 million numbers",
    difficulty=1,
    task="An H100 adds two FP16 vectors of 2^24 numbers. Its peak is 989 TFLOP/s, its memory moves "
    "3.35 TB/s. How long does it take at the least, in microseconds?",
    answer=model.time(_ADD, H100) * 1e6,
    unit="µs",
    factor=1.3,
    wrong={
        model.compute_time(_ADD, H100) * 1e6: "That is the arithmetic alone. The numbers must come "
        "from memory, and go back.",
        model.time(cost.elementwise(2**24), H100)
        * 1e6: "Three vectors cross, not two: two come in, and the result goes out.",
    },
    explanation="Two vectors in, one out: 3 × 2 bytes × 2^24 = 101 MB, which take 30 µs at 3.35 "
    "TB/s. The arithmetic needs 0.017 µs of that.",
)

cheaper_arithmetic = Question(
    "Twice as fast at arithmetic",
    minutes=1,
    task="You rewrite the add so that its arithmetic takes half as long. How much faster is it?",
    choices={"a": "twice", "b": "a little", "c": "not at all"},
    answer="c",
    wrong={
        "a": "Only if the arithmetic were the longer of the two times. It is 0.06 % of it.",
        "b": "Bytes and arithmetic overlap: the time is the longer of the two, not their sum.",
    },
    explanation="The time is the longer of two, and the bytes take 1,772 times as long as the "
    "arithmetic. Only moving fewer bytes helps.",
)

sparse_peak = Question(
    "Two peaks on one data sheet",
    difficulty=2,
    task="The H100's data sheet prints 1,979 TFLOP/s for FP16, with a footnote: with sparsity. A "
    "training run does 9,600 tokens per second, 0.05 TFLOP each. What per cent of the peak for "
    "ordinary (dense) matrices is that?",
    answer=100 * 9600 * 0.05e12 / H100.peak["fp16"],
    unit="%",
    wrong={
        100 * 9600 * 0.05 / 1979: "That divides by the sparse peak, which a dense matmul can never "
        "reach. The dense one is half: 989.4.",
        9600 * 0.05e12 / H100.peak["fp16"]: "As a fraction, yes. In per cent?",
    },
    explanation="9,600 × 0.05 = 480 TFLOP/s, and 480 / 989.4 = 48.5 %. Against the sparse 1,979 it "
    "looks like 24.3 %: half as good as it is.",
)

book_bandwidth = Question(
    "A number from a book",
    difficulty=1,
    task="An A100's memory moves 2 TB/s at the most; a kernel is measured at 700 GB/s. A book "
    "prints its bandwidth utilisation as 70 %. What is it, in per cent?",
    answer=100 * model.bandwidth_utilisation(700e9, replace(A100, bandwidth=2e12)),
    unit="%",
    wrong={70: "That is the book's: it divides by 1 TB/s.", 0.35: "As a fraction. In per cent?"},
    explanation="700 / 2,000 = 35 %.",
)

mac_or_flop = Question(
    "MAC or FLOP",
    difficulty=1,
    task="A paper says that an image needs 4 G multiply-adds. How many GFLOP is that, if a chip's "
    "peak in FLOP/s is what you divide by?",
    answer=8,
    unit="GFLOP",
    wrong={4: "A multiply-add (MAC, FMA) is two FLOP, and data sheets count it so."},
    explanation="One multiply and one add: 8 GFLOP. Do not halve the peak as well: it already "
    "counts both.",
)

matmul_turns = Question(
    "Where a matmul turns",
    difficulty=2,
    task="A square FP16 matmul n × n × n has intensity n / 3. From which n on is it compute-bound "
    "on an H100, whose ridge is 295.3?",
    answer=3 * model.ridge(H100),
    wrong={
        model.ridge(H100): "Intensity is n / 3, not n.",
        model.ridge(H100) / 3: "n / 3 = 295: multiply, do not divide.",
    },
    explanation="n / 3 = 295.3 at n = 886. So 128 and 512 wait for memory, 1,024 and 8,192 do not.",
)

gemv = Question(
    "One vector",
    minutes=1,
    task="A 4,096 × 4,096 FP16 matrix times one vector: each weight is read and used once. What is "
    "the intensity, in FLOP per byte?",
    answer=cost.matmul(4096, 1, 4096).intensity,
    unit="FLOP/byte",
    wrong={
        0.5: "Some course notes print that. It counts the bytes twice, or the multiply-add once.",
        2: "A multiply-add per number, and the number has two bytes.",
    },
    explanation="2 FLOP for every number of the matrix, which has 2 bytes: 1. (The two vectors "
    "change the fourth digit: 0.9995.)",
)

new_card = Question(
    "A new card for an add",
    difficulty=2,
    task="You move from an A100 (312 TFLOP/s, 2.039 TB/s) to an H100 (989.4 TFLOP/s, 3.35 TB/s). "
    "How many times faster does a memory-bound kernel get?",
    answer=H100.bandwidth / A100.bandwidth,
    unit="times",
    factor=1.05,  # the page says 1.6-fold
    wrong={
        A100.bandwidth / H100.bandwidth: "Upside down: the new card over the old one.",
        H100.peak["fp16"] / A100.peak["fp16"]: "That is the ratio of the peaks. This kernel never "
        "gets near either of them.",
    },
    explanation="3.35 / 2.039 = 1.64. The arithmetic is 3.17 times faster, but the kernel waits.",
)

batch_64 = Question(
    "64 sequences at once",
    difficulty=2,
    task="A decode step on an H100 reads 16 GB of FP16 weights, whatever the batch. At batch 1 it makes "
    "209 tokens per second. How many at batch 64, if only the weights count?",
    answer=64 * H100.bandwidth / 16e9,
    unit="tokens/s",
    wrong={
        H100.bandwidth / 16e9: "The weights are read once, and now serve 64 sequences.",
    },
    explanation="One read of the weights, 4.8 ms, now yields 64 tokens: 13,400 per second. Past 295 "
    "the arithmetic takes longer than the read, and the gain ends.",
)

tpu_batch = Question(
    "Another chip's critical batch",
    difficulty=2,
    task="A TPU v5e moves 8.2e11 bytes/s and does 3.94e14 INT8 operations per second. Weights and "
    "arithmetic are INT8. At which batch does decoding become compute-bound?",
    answer=3.94e14 / 8.2e11 / 2,
    unit="sequences",
    wrong={
        3.94e14 / 8.2e11: "The ridge. Each weight byte does two operations per sequence.",
    },
    explanation="The ridge is 480 operations per byte; a sequence does 2 on each: 240. With INT8 "
    "weights but BF16 arithmetic (1.97e14) it is 120.",
)

brackets = Question(
    "A bandwidth of four million",
    difficulty=3,
    minutes=3,
    task="A benchmark of a matmul, M = N = K = 1,024, 0.1 ms, prints 4.19 million GB/s, from the line "
    "`2*(M*K + K*N) + 4*M*N * 1e-9 / t`: FP16 in, FP32 out. What should it print, in GB/s?",
    answer=(2 * (2 * 1024**2) + 4 * 1024**2) * 1e-9 / 1e-4,
    unit="GB/s",
    wrong={
        4 * 1024**2 * 1e-9 / 1e-4: "That is the output alone, or the inputs alone: both cross.",
    },
    explanation="The factor 1e-9 / t must multiply the whole sum: 8.39 MB in 0.1 ms is 83.9 GB/s.",
)

capacity = Question(
    "GB and GiB",
    difficulty=1,
    task="A model and its cache take 80 GB, 80 · 10^9 bytes. How much is that in GiB?",
    answer=80e9 / 2**30,
    unit="GiB",
    wrong={
        80: "80 GB are 80e9 bytes, and a GiB is 2^30 of them.",
        80 * 2**30 / 1e9: "The other way round: a GiB is larger than a GB, so there are fewer.",
    },
    explanation=f"80e9 / 2^30 = 74.5 GiB. An “80 GB” card holds more than its name says: an H100 "
    f"reports 81,559 MiB, {81_559 / 1024:.1f} GiB.",
)


# --- five cases: which regime, which move -------------------------------------------------------

REGIMES = ("memory", "compute", "overhead")
MOVES = ("fuse", "batch", "quantise", "faster units", "replay")

_POINTS = {point["name"]: point for point in records.load("h200")["memory"]["roofline"]}
_CALL = min(point["seconds"] for point in _POINTS.values())  # a lone call, all of it overhead


class Case(Question):
    """A question whose answer names a regime and a move: "memory, fuse"."""

    def verdict(self, attempt, seed: int = 0) -> tuple[str, str]:
        """("open" | "right" | "wrong", what to tell the reader); a pair of words will do, too."""
        words = attempt if isinstance(attempt, tuple) else str(attempt).split(",")
        if attempt is ... or ... in words:
            return self._say("open")
        pair = ", ".join(str(word).strip().lower() for word in words)
        if pair not in self.choices:
            known = f"Regimes: {', '.join(REGIMES)}. Moves: {', '.join(MOVES)}."
            return self._say("wrong", *self._how(), known)
        return super().verdict(pair, seed)

    def _how(self):
        return ['Answer with a regime and a move, as in "overhead, fuse".']


def _case(name, record, story, answer, explanation, **useless):
    """A recorded operation of the H200; `useless` says of each other move why it does not help."""
    point = _POINTS[record]
    count, took = cost.Cost(point["flops"], point["bytes"]), point["seconds"]
    memory, compute = model.memory_time(count, H200), model.compute_time(count, H200)
    facts = dict(took=seconds(took), memory=seconds(memory), compute=seconds(compute),
                 call=seconds(_CALL))  # fmt: skip
    not_this = {
        "memory": "Not memory: the bytes need {memory} of the {took}.",
        "compute": "Not compute: the arithmetic needs {compute} of the {took}.",
        "overhead": "Not overhead: a lone call takes {call}, and this took {took}.",
    }
    regime, move = answer
    useless = {key.replace("_", " "): text for key, text in useless.items()}

    def diagnosis(guess, step):
        said = "The regime is right." if guess == regime else not_this[guess]
        return f"{said} {'The move is right.' if step == move else useless[step]}".format(**facts)

    pairs = {f"{guess}, {step}": (guess, step) for guess in REGIMES for step in MOVES}
    right = ", ".join(answer)
    return Case(
        name,
        difficulty=3,
        task=f"{story} {decimal(count.flops, 'FLOP')}, {decimal(count.bytes)}, measured "
        f"{seconds(took)} on an H200.",
        choices={pair: pair for pair in pairs},
        answer=right,
        wrong={pair: diagnosis(*both) for pair, both in pairs.items() if pair != right},
        hints=(
            f"Bytes ÷ {decimal(H200.bandwidth, 'B/s')}, FLOPs ÷ {decimal(H200.peak['fp16'], 'FLOP/s')}: "
            f"which comes near the measured time? If neither does, look at a lone call, {seconds(_CALL)}.",
            "Only a move that shortens this longest time helps. Read the story: is the move possible?",
        ),
        explanation=explanation.format(**facts),
    )


_HARDLY_FEWER_BYTES = (
    "Beside the weights, what passes from this kernel to the next is hardly any bytes."
)

_APART, _FUSED = (cost.chain(["residual", "relu"], 1, fused=fused).bytes for fused in (False, True))

case_add = _case(
    "Case 1: a sum for the next kernel",
    "add",
    "A kernel adds two vectors; the next one reads the sum, replaces what is negative by 0 and "
    "writes the result. The add alone:",
    ("memory", "fuse"),
    "The bytes need {memory} of the {took}. Fused, the sum is neither written nor read again: of "
    f"{_APART} bytes per number {_FUSED} are left.",
    batch="There are no weights here that a second sequence could share.",
    quantise="There are no weights here to store in fewer bits.",
    faster_units="The arithmetic needs {compute}: done sooner, it would wait longer.",
    replay="One call of {call} in {took}: a replay could save no more than that.",
)

case_queue = _case(
    "Case 2: a queue of users",
    "decode (matrix × vector)",
    "64 users wait for a language model, which serves one at a time. A matrix of its weights times "
    "one vector:",
    ("memory", "batch"),
    "The bytes need {memory} of the {took}, nearly all of them weights. One read can serve all 64: "
    f"recorded with 64 vectors, {seconds(_POINTS['decode, batch 64']['seconds'])}.",
    fuse=_HARDLY_FEWER_BYTES,
    quantise="It helps, up to fourfold. One read for all who wait helps up to 64-fold.",
    faster_units="The arithmetic needs {compute}: done sooner, it would wait longer.",
    replay="One call of {call} in {took}: a replay could save no more than that.",
)

case_loop = _case(
    "Case 3: a loop of small products",
    "matmul 128",
    "A loop multiplies matrices of 128 × 128, a thousand times; each product needs the one before. "
    "One step of it:",
    ("overhead", "replay"),
    "Bytes {memory}, arithmetic {compute}: neither is near {took}. That is what asking takes, and in "
    "a CUDA graph it takes far less.",
    fuse="It saves bytes, and they need {memory} of the {took}.",
    batch="Each product needs the one before, so no two can share a call.",
    quantise="It saves bytes, and they need {memory} of the {took}. Nor are there weights.",
    faster_units="The arithmetic needs {compute} of the {took}.",
)

case_full = _case(
    "Case 4: a full house",
    "decode, batch 512",
    "512 users get a token at once, and more are waiting. The matrix of case 2 times 512 vectors:",
    ("compute", "faster units"),
    "The arithmetic needs {compute} of the {took}, the bytes {memory}. Past the ridge decode works, "
    "too: twice the peak halves the longer of the two.",
    fuse=_HARDLY_FEWER_BYTES,
    batch="The units are busy already: more vectors take longer in proportion.",
    quantise="Fewer bytes, but they need {memory} and are not what it waits for.",
    replay="One call of {call} in {took}: a replay could save no more than that.",
)

case_team = _case(
    "Case 5: a team of eight",
    "decode, batch 8",
    "A card serves a team of 8, all at once; nobody else will come. The matrix of case 2 times 8 "
    "vectors:",
    ("memory", "quantise"),
    "The bytes need {memory} of the {took}, nearly all of them weights: in 4 bits they are a quarter. "
    "There is nobody left to batch with.",
    fuse=_HARDLY_FEWER_BYTES,
    batch="All 8 are served together already, and nobody else will come.",
    faster_units="The arithmetic needs {compute}: done sooner, it would wait longer.",
    replay="One call of {call} in {took}: a replay could save no more than that.",
)
