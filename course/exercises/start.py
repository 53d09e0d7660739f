"""Exercises of notebook 00: a toy to try the mechanism on, and two questions."""

from course.exercises import Exercise, Question
from course.hardware import GPUS
from course.roofline import ridge

RIDGE = ridge(GPUS["H100 SXM"])

operations_per_byte = Question(
    "Operations per byte",
    minutes=1,
    task="A data-centre GPU (an H100) reads from its main memory as fast as it can. How many "
    "arithmetic operations could it do for each byte that arrives? A guess within a factor of two "
    "is right.",
    answer=RIDGE,
    unit="operations",
    factor=2,
    wrong={
        1: "So it once was, decades ago. Arithmetic has grown much faster than memory since.",
        10: "More. Arithmetic has become cheap to an extent that surprises most engineers.",
        20: "So it is for its plain arithmetic. Its units for matrix products do fifteen times as much.",
        1e6: "Not that many, by far: then no kernel would ever be worth writing.",
    },
    explanation=f"Computed: 989.4e12 operations a second / 3.35e12 bytes a second = {RIDGE:.0f}. These "
    "are its fastest operations, those of matrix products. So whoever does less than that with each "
    "byte makes the arithmetic wait. This is the subject of the course.",
)

truth = Question(
    "Who held the clock?",
    minutes=1,
    task="A page says: '41 µs, computed from the bytes and the quoted bandwidth'. What do you know?",
    answer="b",
    choices={
        "a": "somebody timed it, and it took 41 µs",
        "b": "no real run is faster, as long as the bytes must move and the bandwidth is right",
        "c": "every run takes 41 µs",
    },
    wrong={
        "a": "Then the page would say 'measured', with the device, the date and the method.",
        "c": "A computed time is a bound. A real run adds what the formula leaves out.",
    },
    explanation="Computed numbers are bounds and predictions. Measured ones say what happened. The "
    "course puts them side by side and explains the gap.",
)


def megabytes_of(n):
    """MB of n numbers in FP16."""
    return 2 * n / 1e6


megabytes = Exercise(
    "How many megabytes?",
    difficulty=1,
    minutes=2,
    answer=megabytes_of,
    cases=lambda rng: [(int(n),) for n in (1, rng.integers(10, 10**6), 10**9)],
    task="Write megabytes(n): how many MB (10⁶ bytes) n numbers take in FP16, a format of 16 bits.",
    hints=(
        "16 bits are 2 bytes.",
        "n numbers take 2n bytes. A MB is 1,000,000 bytes, so divide by 1e6.",
    ),
    wrong=[
        (lambda n: n / 1e6, "One byte a number: FP16 has 16 bits, which are 2 bytes."),
        (lambda n: 4 * n / 1e6, "Four bytes a number is FP32. FP16 has 16 bits, which are 2 bytes."),
        (lambda n: 16 * n / 1e6, "These are megabits: eight bits are one byte."),
        (lambda n: 2 * n / 2**20, "These are MiB, of 2²⁰ bytes. A MB has 10⁶."),
        (lambda n: 2 * n, "These are bytes: a MB has 10⁶ of them."),
        (lambda n: 2 * n / 1e3, "These are kB: a MB has 10⁶ bytes."),
        (lambda n: 2 * n / 10e6, "10e6 is ten million. A million is 1e6."),
        (lambda n: 2 * n * 1e6, "A million bytes are one MB: divide by 1e6, do not multiply."),
        (lambda n: 2 * n // 1e6, "// drops everything after the point: small tensors would take nothing."),
    ],
)  # fmt: skip
