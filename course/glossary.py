"""The course's words: what each means, and the cell that explains it.

    python -m course.glossary    # writes notebooks/glossary.md

`tests/test_glossary.py` holds the series to it: a word is bold in the cell that explains it, and
the path of no notebook uses it before.
"""

from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

PAGE = Path(__file__).resolve().parents[1] / "notebooks" / "glossary.md"

SCHOOL, ROOFLINE, FUSION = "01_the_school", "02_roofline", "03_elementwise_fusion"
BYTES, SOFTMAX, FORWARD = "04_attention_bytes", "05_online_softmax", "06_flash_forward"
BACKWARD, TRAINING = "07_backward_counted", "08_training"
SERVING, GUIDE = "10_serving", "12_field_guide"


@dataclass(frozen=True)
class Term:
    """A word of the course. `forms` are other ways to write it, as regular expressions.

    `sense` is set for a word that everyday English uses too: then only what this expression finds
    counts as a use.
    """

    name: str
    meaning: str
    notebook: str
    cell: str
    forms: tuple[str, ...] = ()
    sense: str = ""


TERMS = (
    # 01
    Term("bandwidth", "How many bytes arrive per second.", SCHOOL, "the-memory-wall"),
    Term("latency", "How long the first byte takes.", SCHOOL, "the-memory-wall"),
    Term(
        "memory wall",
        "Arithmetic has grown faster than bandwidth, for decades.",
        SCHOOL,
        "from-the-a100-to-the-h100-arithmetic-pul",
    ),
    Term(
        "thread",
        "Runs a program on its own numbers: a student.",
        SCHOOL,
        "who-works-there-figures-are-those-of-an",
    ),
    Term(
        "thread block",
        "Up to 1,024 threads on one SM that share its shared memory: a class.",
        SCHOOL,
        "who-works-there-figures-are-those-of-an",
    ),
    Term(
        "shared memory",
        "SRAM in the SM that a program fills itself: the shelf in the classroom.",
        SCHOOL,
        "who-works-there-figures-are-those-of-an",
    ),
    Term(
        "HBM",
        "High-bandwidth memory, the main memory of a data-centre GPU: the library across the street.",
        SCHOOL,
        "who-works-there-figures-are-those-of-an",
    ),
    Term(
        "kernel",
        "A program started on the whole GPU.",
        SCHOOL,
        "who-works-there-figures-are-those-of-an",
    ),
    Term(
        "crossing",
        "A page carried between library and classroom, one way.",
        SCHOOL,
        "a-homework-of-four-steps",
    ),
    Term(
        "kernel fusion",
        "Several steps in one kernel, so that what lies between them stays on the chip.",
        SCHOOL,
        "two-diagrams-of-place-against-time-naive",
        forms=("fusion",),
    ),
    Term(
        "tensor",
        "A block of numbers in memory.",
        SCHOOL,
        "now-the-same-in-bytes-a-tensor-is-a-bloc",
        sense=r"tensors?(?! (cores?|memory))",
    ),
    Term(
        "FP16",
        "A floating-point number in 16 bits, 2 bytes.",
        SCHOOL,
        "now-the-same-in-bytes-a-tensor-is-a-bloc",
    ),
    Term(
        "FLOP",
        "One operation on floating-point numbers; a multiply-add is two.",
        SCHOOL,
        "now-the-same-in-bytes-a-tensor-is-a-bloc",
    ),
    Term(
        "tile",
        "A part of the data, rows × columns, that fits on the chip.",
        SCHOOL,
        "tiling-when-the-homework-is-too-big",
        forms=("tiled", "tiling"),
    ),
    Term(
        "DRAM",
        "Memory that keeps a bit as charge: small and cheap, slow, off the chip.",
        SCHOOL,
        "dram-dynamic-memory-keeps-a-bit-as-charg",
    ),
    Term(
        "SRAM",
        "Memory that keeps a bit in six transistors: fast, on the chip, and large.",
        SCHOOL,
        "dram-dynamic-memory-keeps-a-bit-as-charg",
    ),
    Term(
        "SM",
        "Streaming multiprocessor, where threads run: a classroom.",
        SCHOOL,
        "the-levels-of-an-h100",
    ),
    Term(
        "registers",
        "A thread's own numbers, read at once: the book open on the desk.",
        SCHOOL,
        "the-levels-of-an-h100",
        forms=("register",),
    ),
    Term(
        "L2 cache",
        "On-chip memory shared by all SMs, filled by the hardware: the cupboard in the corridor.",
        SCHOOL,
        "the-levels-of-an-h100",
        forms=("L2",),
    ),
    Term("cycle", "A beat of the chip's clock.", SCHOOL, "the-levels-of-an-h100"),
    Term(
        "warp",
        "32 threads that do one instruction at a time, together: a row of students.",
        SCHOOL,
        "how-many-students-is-that",
    ),
    Term(
        "latency hiding",
        "While one warp waits for memory, the SM works with another.",
        SCHOOL,
        "how-many-students-is-that",
    ),
    Term(
        "Little's law",
        "What is on the way = rate × time on the way.",
        SCHOOL,
        "so-many-because-most-of-them-wait-while",
    ),
    Term(
        "attention",
        "Compares each word of a text with every other, and mixes what they hold.",
        SCHOOL,
        "where-the-model-stops-each-page-could-be",
    ),
    # 02
    Term(
        "memory-bound",
        "Its bytes take longer than its arithmetic: the kernel waits.",
        ROOFLINE,
        "the-formula",
    ),
    Term(
        "compute-bound",
        "Its arithmetic takes longer than its bytes: the kernel works.",
        ROOFLINE,
        "the-formula",
    ),
    Term(
        "arithmetic intensity",
        "FLOPs per byte moved: the kernel's number.",
        ROOFLINE,
        "one-number-for-a-kernel-intensity",
        forms=("intensity", "intensities"),
    ),
    Term(
        "ridge",
        "Peak ÷ bandwidth, in FLOP per byte: the machine's number.",
        ROOFLINE,
        "one-number-for-a-kernel-intensity",
    ),
    Term(
        "tensor core",
        "The unit that multiplies small matrices.",
        ROOFLINE,
        "300-operations-per-byte-what-does-it-mea",
    ),
    Term(
        "roofline",
        "The rate that a machine can reach at each intensity: a slope, then a flat roof.",
        ROOFLINE,
        "the-picture-a-roof",
        sense=r"rooflines?(?! \()",
    ),
    Term(
        "element-wise",
        "Does the same small thing to every number.",
        ROOFLINE,
        "count-some-kernels",
        forms=("elementwise",),
    ),
    Term("ReLU", "What is negative becomes 0.", ROOFLINE, "count-some-kernels"),
    Term(
        "dropout",
        "Sets a random part of the numbers to 0 and scales the rest.",
        ROOFLINE,
        "count-some-kernels",
    ),
    Term(
        "softmax",
        "Turns a row of numbers into weights that sum to 1.",
        ROOFLINE,
        "count-some-kernels",
    ),
    Term(
        "layer norm",
        "Gives a row mean 0 and variance 1, then a weight and a bias.",
        ROOFLINE,
        "count-some-kernels",
    ),
    Term(
        "matmul",
        "A product of matrices.",
        ROOFLINE,
        "matmul-where-the-work-grows-faster-than",
    ),
    Term(
        "token",
        "What a language model reads or writes at once: a word, a piece of one, a letter.",
        ROOFLINE,
        "decode-a-matmul-with-one-row",
    ),
    Term(
        "decode",
        "Writing one token after another: each time, all weights times one vector.",
        ROOFLINE,
        "decode-a-matmul-with-one-row",
    ),
    Term(
        "launch",
        "The start of a kernel.",
        ROOFLINE,
        "on-the-left-the-line-is-flat-64-numbers",
        sense=r"launch(es)?",
    ),
    Term(
        "overhead",
        "Time in which neither bytes nor arithmetic count, only what starts them.",
        ROOFLINE,
        "on-the-left-the-line-is-flat-64-numbers",
    ),
    Term(
        "CUDA graph",
        "Launches that are recorded once and replayed by a single one.",
        ROOFLINE,
        "from-128-to-512-the-flops-grow-64-fold-a",
    ),
    Term(
        "batch",
        "Several sequences that share one read of the weights.",
        ROOFLINE,
        "batch-read-the-weights-once-use-them-for",
    ),
    Term(
        "quantise",
        "Store each number in fewer bits.",
        ROOFLINE,
        "batch-read-the-weights-once-use-them-for",
        forms=("quantised", "quantisation"),
    ),
    Term(
        "critical batch",
        "The batch at which decode stops waiting for the weights.",
        ROOFLINE,
        "up-to-a-batch-of-295-more-sequences-cost",
    ),
    # 03
    Term(
        "Triton",
        "A language for GPU kernels, written in Python.",
        FUSION,
        "a-kernel-is-a-function-that-the-gpu-runs",
    ),
    Term(
        "interpreter",
        "Triton's way to run kernels on the CPU: slow, and right.",
        FUSION,
        "a-kernel-is-a-function-that-the-gpu-runs",
    ),
    Term(
        "backward pass",
        "From the result back to the input: how much each number changes the result.",
        FUSION,
        "the-simple-count",
    ),
    Term(
        "gradient",
        "How much the result changes when this number grows a little.",
        FUSION,
        "the-simple-count",
    ),
    Term(
        "program",
        "What does one block in a Triton kernel: a class of the school.",
        FUSION,
        "line-what-it-says",
        sense="programs? ids?",
    ),
    Term(
        "lane",
        "One of the numbers that a program handles side by side.",
        FUSION,
        "line-what-it-says",
        sense="(masked|padded) lanes?",
    ),
    Term(
        "pointer",
        "The address where a tensor starts.",
        FUSION,
        "line-what-it-says",
    ),
    Term("grid", "How many programs a launch starts.", FUSION, "line-what-it-says"),
    Term(
        "mask",
        "Says which lanes take part in a load or a store.",
        FUSION,
        "3-mask-program-2-has-the-offsets-8-9-10",
        sense="masked (lanes?|loads?)",
    ),
    Term(
        "hardware counter",
        "Counts, in the GPU, the bytes that really go to and from DRAM.",
        FUSION,
        "the-bytes",
    ),
    Term(
        "epilogue",
        "A matmul's last step, in which the result is still in registers.",
        FUSION,
        "two-kinds-of-fusion",
    ),
    # 04
    Term(
        "query",
        "A row of Q: what a token looks for.",
        BYTES,
        "what-attention-computes",
        forms=("queries",),
    ),
    Term(
        "key",
        "A row of K: what a token can be found by. Its *value*, a row of V, is what it hands over then.",
        BYTES,
        "what-attention-computes",
        sense="keys? (and|or) values?|(each|every|per) key|blocks? of keys|the keys",
    ),
    Term(
        "causal mask",
        "Hides later tokens: their scores are −∞ and their weights 0.",
        BYTES,
        "compare-sentence",
        forms=("causal",),
    ),
    Term(
        "head",
        "One of several attentions side by side in a layer, each with its own Q, K and V.",
        BYTES,
        "a-layer-does-this-several-times",
    ),
    Term(
        "naive",
        "Attention in three kernels: S and P go through HBM.",
        BYTES,
        "from-kernel-to-kernel",
        sense="naive attention",
    ),
    Term(
        "ideal",
        "Bytes when each operand crosses once.",
        BYTES,
        "compare-passes",
    ),
    Term(
        "asked",
        "Bytes that a kernel requests from the memory system, caches included.",
        BYTES,
        "number-is-right-about",
        sense="(bytes|byte|flow) asks?|asked (bytes|traffic)|ideal, asked|bytes? asked",
    ),
    Term(
        "measured",
        "Bytes that really crossed to DRAM while the kernel ran.",
        BYTES,
        "number-is-right-about",
        sense="asked( and|,) measured",
    ),
    # 05
    Term(
        "block",
        "A few keys, and their scores, taken at once.",
        SOFTMAX,
        "first-try-keep-a-running-maximum-and-a-r",
        sense="blocks? of keys",
    ),
    Term(
        "state",
        "m, ℓ and o: all that the keys seen so far leave behind.",
        SOFTMAX,
        "the-worked-example-as-boxes-after-block",
    ),
    Term(
        "invariant",
        "A claim that holds after every block.",
        SOFTMAX,
        "why-it-is-exact-the-invariant",
    ),
    Term(
        "log-sum-exp",
        "L = m + log ℓ, or lse: the one number per row that the backward pass needs.",
        SOFTMAX,
        "two-numbers-instead-of-three-the-lse",
        forms=("lse",),
    ),
    Term(
        "Q tile",
        "B_r rows of Q; a *K tile* and a *V tile* are B_c rows of K and V.",
        SOFTMAX,
        "a-q-tile-is-b-r-rows-of-q-a-k-tile-and-a",
        forms=("K tiles?", "V tiles?"),
    ),
    # 06
    Term(
        "notebook kernel",
        "The kernel that the reader writes.",
        FORWARD,
        "each-line-says-whether-o-and-lse-are-equ",
    ),
    Term(
        "stages",
        "How many tiles are on their way or in use at once.",
        FORWARD,
        "what-the-compiler-made-of-it",
    ),
    Term(
        "library kernel",
        "The course's kernel, `course.kernels.attention`: yours, made ready for use.",
        FORWARD,
        "the-library-s-kernel",
    ),
    # 07
    Term(
        "loss",
        "One number that says how wrong a model is.",
        BACKWARD,
        "training-goes-through-every-layer-twice",
    ),
    Term("chain rule", "Sum over all ways in which a nudge travels.", BACKWARD, "through-o-p-v"),
    Term(
        "Jacobian",
        "All slopes of a row's outputs by its inputs, an N × N matrix.",
        BACKWARD,
        "all-these-slopes-together-are-the-jacobi",
    ),
    Term(
        "atomics",
        "Additions in memory that nothing can interrupt.",
        BACKWARD,
        "seven-products",
    ),
    # 08
    Term(
        "autograd",
        "PyTorch's own derivation of gradients.",
        TRAINING,
        "autograd-function",
    ),
    Term(
        "SDPA",
        "PyTorch's own attention, which calls the best library that it has.",
        TRAINING,
        "one-owner-one-order",
    ),
    # 10
    Term(
        "prefill",
        "The first pass of a model over a whole prompt: it works, where decode waits.",
        SERVING,
        "prefill",
    ),
    Term(
        "KV cache",
        "The keys and values of all tokens so far, kept so that nobody computes them again.",
        SERVING,
        "batching",
    ),
    Term(
        "paging",
        "A cache in small pages, found by a table, so that no room is reserved in vain.",
        SERVING,
        "pages",
        sense="paging|paged",
    ),
    # 12
    Term(
        "bank conflict",
        "Two different words wanted from one of the 32 banks of shared memory: two turns.",
        GUIDE,
        "bank-conflicts",
    ),
)


def page():
    """The text of notebooks/glossary.md."""
    rows = [
        f"| **{term.name}** | {term.meaning} "
        f"| [{term.notebook[:2]}]({term.notebook}.ipynb#cell-id={term.cell}) |"
        for term in sorted(TERMS, key=lambda term: term.name.casefold())
    ]
    top = """\
        # Glossary

        Each word, and the notebook that explains it: the link leads to the cell.
        ([The map](00_start_here.ipynb) has the symbols.)

        | word | what it means | explained in |
        | --- | --- | --- |
        """
    return dedent(top) + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
