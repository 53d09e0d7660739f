"""Every check is proven: its solution passes, its stub is open, its wrong answers are told why."""

import functools
import hashlib
import importlib
import inspect
import pickle
import pkgutil
import textwrap
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import course.exercises
from course import kernels
from course.exercises import Exercise, Question, backward, forward, fusion

MODULES = [
    importlib.import_module(f"course.exercises.{m.name}")
    for m in pkgutil.iter_modules(course.exercises.__path__)
    if not m.name.startswith("_")
]


def items(kind):
    return [
        pytest.param(item, id=f"{module.__name__.rsplit('.')[-1]}.{name}")
        for module in MODULES
        for name, item in vars(module).items()
        if isinstance(item, kind)
    ]


@pytest.fixture(scope="module", autouse=True)
def listed_answers_run_once():
    """On the same input: the diagnosis of each wrong answer asks for the solution and the others."""
    every = [param.values[0] for param in items(Exercise)]
    listed = {id(x) for item in every for x in (item.answer, *(wrong for wrong, _ in item.wrong))}
    run, kept = Exercise._run, {}

    def once(self, attempt, args):
        if id(attempt) not in listed:
            return run(self, attempt, args)
        key = id(self), id(attempt), hashlib.sha256(pickle.dumps(args)).digest()
        if key not in kept:
            kept[key] = run(self, attempt, args)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exercise, "_run", once)
        yield


def mean(x):
    return x.sum(-1, keepdims=True) / x.shape[-1]


def hostile(rng):
    for scale in (1e-6, 1.0, 1e6):
        yield (scale * (1 + rng.random((rng.integers(2, 5), 7))),)


def in_place(x):
    x -= x.mean(-1, keepdims=True) - 1
    return mean(x)


toy = Exercise(
    "Row mean",
    task="Write mean(x): the mean of each row, shape (..., 1).",
    answer=mean,
    cases=hostile,
    hints=("Sum along the last axis.", "Then divide by the length of that axis."),
    wrong=[
        (lambda x: x.mean(keepdims=True), "of everything"),
        (lambda x: x.sum(-1, keepdims=True), "divide by the length"),
        (lambda x: mean(x) / 0, "not finite"),
        (lambda x: x.mean(-1), "keepdims"),
        (lambda x: x @ x, "a matrix product"),
        (in_place, "into its input"),
    ],
)
ridge = Question(
    "Ridge",
    task="989 TFLOP/s and 3.35 TB/s: where do they meet?",
    answer=989e12 / 3.35e12,
    unit="FLOP/byte",
    wrong={590: "With sparsity."},
    explanation="989e12 / 3.35e12 = 295 FLOP/byte.",
)
bound = Question(
    "Bound of an add",
    task="What does an add wait for?",
    answer="a",
    choices={"a": "bandwidth", "b": "arithmetic", "c": "neither"},
    wrong={"b": "One FLOP for six bytes.", "c": "Long vectors leave no time for overhead."},
    explanation="Its intensity is far left of the ridge.",
)


# --- the proof, for every exercise there is ---------------------------------------------------


@pytest.mark.parametrize("item", [pytest.param(toy, id="toy"), *items(Exercise)])
class TestEveryExercise:
    @pytest.mark.parametrize("seed", range(5))
    def test_the_solution_passes(self, item, seed):
        assert item.verdict(item.answer, seed)[0] == "right", item.verdict(item.answer, seed)[1]

    def test_the_stub_is_open(self, item):
        def stub(*args):
            """Do something."""
            ...

        for attempt in (..., stub):
            assert item.verdict(attempt, 0)[0] == "open"

    @pytest.mark.parametrize("seed", (11, 12))
    def test_each_wrong_answer_gets_its_own_diagnosis(self, item, seed):
        assert len(item.wrong) >= 5, "prove the check on at least five plausible wrong answers"
        assert len({text for _, text in item.wrong}) == len(item.wrong)
        for attempt, diagnosis in item.wrong:
            status, said = item.verdict(attempt, seed)
            assert status == "wrong", f"accepted, though: {diagnosis}"
            assert " ".join(diagnosis.split()) in " ".join(said.split())

    def test_it_helps(self, item, capsys):
        assert len(item.hints) >= 2 and item.minutes > 0 and 1 <= item.difficulty <= 5
        item.solution()
        assert "..." not in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "item", [pytest.param(ridge, id="toy"), pytest.param(bound, id="toy"), *items(Question)]
)
class TestEveryQuestion:
    def test_the_answer_is_right_and_explained(self, item):
        status, said = item.verdict(item.answer)
        assert status == "right"
        assert " ".join(item.explanation.split()) in " ".join(said.split())

    def test_each_wrong_answer_gets_its_own_diagnosis(self, item):
        if item.choices:
            assert set(item.wrong) | {item.answer} == set(item.choices)
            assert item.answer not in item.wrong
        assert item.wrong and len(set(item.wrong.values())) == len(item.wrong)
        for answer, diagnosis in item.wrong.items():
            status, said = item.verdict(answer)
            assert status == "wrong"
            assert " ".join(diagnosis.split()) in " ".join(said.split())

    def test_it_is_open_until_answered(self, item):
        assert item.verdict(...)[0] == "open"


def test_a_part_that_is_not_right_yet_is_taken_from_the_course(capsys):
    assert toy.use(mean) is mean and capsys.readouterr().out == ""
    for attempt in (..., in_place):
        assert toy.use(attempt) is toy.answer
        assert capsys.readouterr().out == (
            "Row mean: until yours is right, the cells below use the course's.\n"
        )


@pytest.mark.parametrize("item", [*items(Exercise), *items(Question)])
def test_every_one_is_asked_in_a_notebook(item, request):
    name = request.node.callspec.id.split(".")[-1]
    notebooks = (Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb")
    assert any(f".{name}.check(" in path.read_text(encoding="utf-8") for path in notebooks)


# --- the mechanism ----------------------------------------------------------------------------


def helper_stub(x):
    total = ...
    return total


def uses_a_stub(x):
    return helper_stub(x)


def returns_a_stub(x):
    m, l = np.max(x), ...
    return m, l


def stub_in_a_sum(x):
    return x + ...


def no_return(x):
    mean(x)


def uses_ellipsis_well(x: tuple[int, ...]):
    return (x[..., None].sum(-2) / x.shape[-1])[..., 0:1]


@pytest.mark.parametrize(
    "stub",
    [helper_stub, uses_a_stub, returns_a_stub, stub_in_a_sum, functools.partial(helper_stub)],
)
def test_every_way_to_leave_something_open(stub):
    status, said = toy.verdict(stub, 0)
    assert status == "open" and said.startswith("Row mean: not attempted yet.")


def test_a_stub_inside_a_jit_function_is_found():
    class JITFunction:  # as Triton's: callable, with the Python function in .fn
        fn = staticmethod(helper_stub)

        def __call__(self, x):
            return mean(x)

    assert toy.verdict(JITFunction(), 0)[0] == "open"


def test_a_stub_that_only_shares_its_name_with_a_method_is_not_meant():
    def has_a_method(x):
        return x.helper_stub() if hasattr(x, "helper_stub") else mean(x)

    assert toy.verdict(has_a_method, 0)[0] == "right"


def test_several_functions_are_one_answer(capsys):
    both = Exercise(
        "Both",
        task="",
        answer=(mean, no_return),
        cases=hostile,
        call=lambda functions, x: [f(x) for f in functions],
        wrong=[],
    )
    assert both.verdict((mean, no_return), 0)[0] == "right"
    assert both.verdict((mean, helper_stub), 0)[0] == "open"
    both.solution()
    assert capsys.readouterr().out.count("def ") == 2


def test_an_ellipsis_that_indexes_is_no_stub():
    assert toy.verdict(uses_ellipsis_well, 0)[0] == "right"


def test_one_value_left_open_at_run_time():
    pair = Exercise("Pair", task="", answer=(1, 2), wrong=[])
    assert pair.verdict((1, ...), 0)[0] == "open"


@pytest.mark.parametrize(
    ("attempt", "diagnosis"),
    [
        (no_return, "returns None: is a return missing?"),
        (lambda x: x.T @ x / np.nan, "shape is (7, 7)"),
        (lambda x: mean(x).astype(np.float32), "dtype is float32; it should be float64"),
        (lambda x: np.zeros_like(mean(x)), "numbers are off: 0"),  # D15 (i): scale 1e-6 is first
        (lambda x: mean(x) + 1e-3, "numbers are off"),
        (lambda x: np.where(mean(x) > 1e3, np.inf, mean(x)), "not finite: inf at [0, 0]"),
        (lambda x: (mean(x), 1), "Value 1 of 2 is right: return it alone."),
        (lambda x: (x, 1), "It gives float64"),
        (lambda x: 1 // 0, "stops with ZeroDivisionError"),
        (lambda x: "a word", "It is no array; it should be one of shape"),
        (3.0, "the function itself"),
    ],
)
def test_any_other_wrong_answer_is_told_what_differs(attempt, diagnosis):
    status, said = toy.verdict(attempt, 3)
    assert status == "wrong" and diagnosis in " ".join(said.split())


def test_an_exception_names_line_and_input():
    def broken(x):
        return x.reshape(3, 3, 3)

    said = " ".join(toy.verdict(broken, 3)[1].split())
    assert "ValueError" in said and "`return x.reshape(3, 3, 3)`" in said
    assert "Input: float64 (" in said and "seed=3" in said


def test_inputs_are_fresh_and_a_seed_brings_them_back(capsys):
    seen = []

    def spy(x):
        seen.append(x)
        return x.mean(-1)

    toy.check(spy)
    toy.check(spy)
    seed = int(capsys.readouterr().out.rsplit("seed=")[-1].split(")")[0])
    toy.check(spy, seed=seed)
    runs = [seen[i : i + 3] for i in (0, 3, 6)]
    assert not np.array_equal(runs[0][0], runs[1][0])
    assert all(map(np.array_equal, runs[1], runs[2]))


def test_what_is_printed_for_a_stub_and_for_the_answer_never_changes(capsys):
    for attempt in (..., helper_stub, mean) * 2:
        toy.check(attempt)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == lines[3:] and lines[2] == "Row mean: right."


def test_numpy_warns_nobody(recwarn):
    toy.verdict(lambda x: np.log(-x) / 0, 0)
    assert not recwarn


def test_tolerance_follows_the_precision():
    """D15 (ii): a correct FP16 answer passes against FP64, a wrong one does not."""

    def softmax(x):
        p = np.exp(x.astype(np.float32) - x.max(-1, keepdims=True))
        return (p / p.sum(-1, keepdims=True)).astype(x.dtype)

    half = Exercise(
        "FP16 softmax",
        task="",
        answer=softmax,
        reference=lambda x: softmax(x.astype(np.float64)),
        cases=lambda rng: [(rng.standard_normal((4, 1000)).astype(np.float16),)],
        wrong=[],
    )
    assert half.verdict(softmax, 0)[0] == "right"
    assert half.verdict(lambda x: softmax(x) * np.float16(1.1), 0)[0] == "wrong"
    assert half.verdict(lambda x: np.zeros_like(x), 0)[0] == "wrong"


def test_minus_infinity_may_be_the_right_answer():
    lse = Exercise("lse", task="", answer=np.array([-np.inf, 0.0]), wrong=[])
    assert lse.verdict(np.array([-np.inf, 0.0]), 0)[0] == "right"
    assert lse.verdict(np.array([-1e30, 0.0]), 0)[0] == "wrong"
    assert lse.verdict(np.array([-np.inf, np.nan]), 0)[0] == "wrong"


def test_a_value_is_not_given_away():
    count = Exercise("Bytes", task="", answer=138412032, wrong=[(134217728, "Q is read too.")])
    assert count.verdict(138412032, 0)[0] == "right"
    assert count.verdict(138412031, 0)[0] == "wrong", "integers are compared exactly"
    said = count.verdict(134217728, 0)[1]
    assert "Q is read too." in said and "138412032" not in said
    order = Exercise("Order", task="", answer=["near", "far", "middle"], wrong=[])
    for short in (["near"], "near", ["near", "far"]):
        status, said = order.verdict(short, 0)
        assert status == "wrong" and "3 values" in said and "middle" not in said


def test_call_says_how_to_run_an_attempt():
    steps = Exercise(
        "Steps",
        task="",
        answer=lambda x, log: log.append(1),
        cases=lambda rng: [(rng.random(3),)],
        call=lambda f, x: (f(x, log := []), len(log)),
        wrong=[(lambda x, log: log.extend([1, 1]), "Twice.")],
    )
    assert steps.verdict(lambda x, log: log.extend([0]), 0)[0] == "right"
    assert "Twice." in steps.verdict(lambda x, log: log.__iadd__([3, 4]) and None, 0)[1]


def test_tensors_work_and_bfloat16_too():
    torch = pytest.importorskip("torch")
    double = Exercise(
        "Double",
        task="",
        answer=lambda x: 2 * x,
        reference=lambda x: 2 * x.double(),
        cases=lambda rng: [(torch.randn(4, 3, dtype=torch.bfloat16),)],
        wrong=[],
    )
    assert double.verdict(lambda x: x + x, 0)[0] == "right"
    assert "bfloat16; it" not in double.verdict(lambda x: x, 0)[1]
    assert (
        "dtype is float32; it should be bfloat16" in double.verdict(lambda x: 2.0 * x.float(), 0)[1]
    )
    assert "changes its input" in " ".join(double.verdict(lambda x: x.mul_(2), 0)[1].split())


def test_a_fraction_is_a_number_and_a_string_is_none():
    third = Exercise("A third", task="", answer=lambda: 1 / 3, wrong=[], cases=lambda rng: [()])
    assert third.verdict(lambda: Fraction(1, 3), 0)[0] == "right"
    assert third.verdict(lambda: Fraction(1, 2), 0)[0] == "wrong"
    status, said = third.verdict(lambda: str(1 / 3), 0)
    assert status == "wrong"
    assert "It gives '0.333" in said  # with its quotes: they are what is wrong


def test_hints_come_one_by_one(capsys):
    item = Exercise("Hints", task="", answer=1, wrong=[], hints=("First.", "Second."))
    for _ in range(3):
        item.hint()
    assert capsys.readouterr().out.splitlines() == [
        "Hint 1 of 2: First.",
        "Hint 2 of 2: Second.",
        "No more hints: .solution() shows the answer.",
    ]


def test_solution_is_the_source(capsys):
    toy.solution()
    assert capsys.readouterr().out.startswith("def mean(x):\n")
    ridge.solution()
    assert capsys.readouterr().out.startswith("295.2 FLOP/byte. ")


def test_a_notebook_cell_is_read_too():
    shell = InteractiveShell.instance()
    shell.run_cell("from course.exercises import Exercise")
    shell.run_cell("def work(x):\n    y = ...  # your turn\n    return y")
    shell.run_cell("def done(x):\n    return x.sum(-1, keepdims=True) / x[0, ...].shape[-1]")
    assert toy.verdict(shell.user_ns["work"], 0) == (
        "open",
        "Row mean: not attempted yet. Still open: y = ...  # your turn",
    )
    assert toy.verdict(shell.user_ns["done"], 0)[0] == "right"


@pytest.mark.parametrize(
    ("guess", "diagnosis"),
    [
        (590, "With sparsity."),
        (147.6, "Half of it"),
        (2361.8, "bits where bytes"),
        (0.2952, "10^3"),
        (317, "GiB"),
        (50, "larger"),
        (1000, "smaller"),
        (-295.2, "larger"),
        ("many", "Answer with one number, in FLOP/byte, to three digits."),
        (float("inf"), "Answer with one number"),
        (None, "Answer with one number"),
    ],
)
def test_slips_in_a_number(guess, diagnosis):
    status, said = ridge.verdict(guess)
    assert status == "wrong" and diagnosis in " ".join(said.split())


def test_choices(capsys):
    assert bound.verdict(" A ")[0] == "right"
    assert "one of 'a', 'b', 'c'" in bound.verdict("d")[1]
    assert bound.verdict("c")[1].endswith("Long vectors leave no time for overhead.")
    print(bound)
    assert "  b) arithmetic" in capsys.readouterr().out


def test_a_prediction_is_right_within_a_factor():
    times = Question(
        "Faster", task="", answer=4, factor=2, wrong={1: "No."}, explanation="16n to 4n bytes."
    )
    assert times.verdict(2)[0] == times.verdict(8)[0] == "right"
    assert times.verdict(8.1)[0] == times.verdict(1.9)[0] == times.verdict(-4)[0] == "wrong"


def test_a_tile_reads_what_is_there():
    """What lies between the rows and behind them is somebody else's, or does not exist."""

    def addresses(memory, first, n, d, stride, block, block_d):
        row, column = first + np.arange(block)[:, None], np.arange(block_d)
        return row * stride + column, (row < n) & (column < d)

    def read_and_choose(memory, *sizes):
        address, inside = addresses(memory, *sizes)
        return np.where(inside, memory[address], 0.0)

    def read_and_multiply(memory, *sizes):
        address, inside = addresses(memory, *sizes)
        return memory[np.minimum(address, len(memory) - 1)] * inside

    for attempt in (read_and_choose, read_and_multiply):
        assert forward.tile.verdict(attempt, 0)[0] == "wrong"


def test_several_numbers_may_come_as_an_array():
    status, _ = backward.by_hand.verdict(np.array([2.786, -0.0574, -0.1863, 0.1377, 0.1057]), 0)
    assert status == "right"


def test_a_near_miss_among_several_numbers_is_named():
    status, said = backward.by_hand.verdict((2.786, -0.0574, -0.1863, 0.1377, 0.107), 0)
    assert status == "wrong" and "Number 5 of 5: it is 0.107" in said and "0.1057" not in said


# --- kernels: what the interpreter makes right, and a GPU does not ------------------------------


def verdict_of_changed(item, changes, tmp_path, helper=""):
    """What the exercise says to its own solution, some of whose text is changed."""
    text = inspect.getsource(item.answer.fn)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return verdict_of_text(item, f"{helper}\n{text}", tmp_path)


def verdict_of_text(item, text, tmp_path):
    """What the exercise says to a kernel given by its source."""
    path = tmp_path / "changed.py"  # Triton reads the file
    path.write_text(f"from course.kernels import tl, triton\n{text}", encoding="utf-8")
    names = {"__name__": "changed"}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)
    status, said = item.verdict(names[item.answer.fn.__name__], 7)
    return status, " ".join(said.split())


needs_triton = pytest.mark.skipif(not kernels.available, reason="Triton has no wheel here")
IEEE, HEADS = 'input_precision="ieee"', "tl.num_programs(0) // tiles"
O_STORE = {
    "/ l[:, None], mask=inside)": f"/ l[:, None], mask=(here < {HEADS} * n * d) & (column < d))"
}
LSE_STORE = {"mask=row < n)": f"mask=head * n + row < {HEADS} * n)"}
V_LOAD = "tl.load(v_ptr + there, mask=exist, other=0)"
FIRST = "first, head = tl.program_id(0) % tiles * block_q, tl.program_id(0) // tiles"
PLACE = """
@triton.jit
def place(tiles):
    return tl.program_id(0) % tiles, tl.program_id(0) // tiles
"""
MY_DOT = """
@triton.jit
def my_dot(a, b):
    return tl.dot(a, b)
"""
MY_TILE = """
@triton.jit
def my_load(at, inside):
    return tl.load(at, inside)


@triton.jit
def my_tile(at, inside):
    return my_load(at, inside)
"""
EVERY_TILE = """
@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, scale, n, n_kv, d,
    block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):
    head = tl.program_id(0) // tl.cdiv(n, block_q)
    for first in range(0, n, block_q):
"""
OUT_STORE = "tl.store(out_ptr + row * cols + columns, out, mask=inside)"


@needs_triton
@pytest.mark.parametrize("item", [forward.flash, forward.debug], ids=["flash", "debug"])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({IEEE: 'input_precision="tf32"'}, "rounds FP32 to TF32"),
        ({IEEE: "input_precision=None"}, "rounds FP32 to TF32"),
        ({IEEE: "allow_tf32=True"}, "rounds FP32 to TF32"),
        ({f"k.T, {IEEE}": 'k.T, None, "tf32"'}, "rounds FP32 to TF32"),
        ({V_LOAD: "tl.load(v_ptr + there)"}, "V tile reaches past the last key"),
        ({V_LOAD: "tl.load(v_ptr + there, exist)"}, "without other="),
    ],
)
def test_what_only_a_gpu_would_show_is_refused(item, changes, says, tmp_path):
    status, said = verdict_of_changed(item, changes, tmp_path)
    assert status == "wrong" and says in said


@needs_triton
@pytest.mark.parametrize("item", [forward.flash, forward.debug], ids=["flash", "debug"])
@pytest.mark.parametrize(
    ("changes", "helper", "says"),
    [
        ({f"tl.dot(q, k.T, {IEEE})": "my_dot(q, k.T)"}, MY_DOT, "rounds FP32 to TF32"),
        ({V_LOAD: "my_tile(v_ptr + there, exist)"}, MY_TILE, "without other="),
    ],
    ids=["dot", "load"],
)
def test_helpers_are_read_too(item, changes, helper, says, tmp_path):
    status, said = verdict_of_changed(item, changes, tmp_path, helper)
    assert status == "wrong" and says in said


@needs_triton
def test_a_program_that_does_every_tile_is_refused(tmp_path):
    text = inspect.getsource(forward.flash.answer.fn)
    body = text[text.index("    row, key") :]
    text = EVERY_TILE + textwrap.indent(body, "    ")
    status, said = verdict_of_text(forward.flash, text, tmp_path)
    assert status == "wrong" and "more than its part, 16 rows" in said


@needs_triton
def test_nan_gets_no_diagnosis_by_chance(tmp_path):
    """−∞ · 0 is NaN, as are the results of quite other mistakes."""
    load = "tl.load(k_ptr + there, mask=exist, other=0)"
    changes = {load: load.replace("other=0", 'other=float("-inf")')}
    status, said = verdict_of_changed(forward.flash, changes, tmp_path)
    assert status == "wrong" and "not finite" in said and "upside down" not in said


@needs_triton
@pytest.mark.parametrize(
    "above",
    [
        '@triton.autotune(configs=[triton.Config({}, num_warps=4)], key=["n"])',
        '@triton.heuristics({"tall": lambda given: given["n"] > 16})',
    ],
)
def test_an_autotuned_kernel_is_a_kernel(above, tmp_path):
    changes = {"@triton.jit": f"{above}\n@triton.jit"}
    if "tall" in above:
        changes["block_d: tl.constexpr,\n"] = "block_d: tl.constexpr, tall: tl.constexpr,\n"
    status, said = verdict_of_changed(forward.flash, changes, tmp_path)
    assert status == "right", said


@needs_triton
def test_a_local_name_like_that_of_a_stub_is_no_stub(tmp_path):
    changes = {
        "s = tl.where(start + key[None, :] < n_kv, s,": "visible = start + key[None, :] < n_kv\n"
        "        s = tl.where(visible, s,"
    }
    stub = "def visible():\n    return ...\n"
    assert verdict_of_changed(forward.flash, changes, tmp_path, stub)[0] == "right"


@pytest.mark.parametrize("seed", range(40))
def test_right_gradients_in_another_order_of_sums_pass(seed):
    def by_einsum(p, dp):
        return p * (dp - np.einsum("...i,...i->...", p, dp)[..., None])

    def centred(p, dp):
        dp = dp - dp.mean(-1, keepdims=True)
        return p * dp - p * (p * dp).sum(-1, keepdims=True)

    def backwards(q, k, v, do, lse, delta, block_q, block_kv, hbm):
        dq = np.empty_like(q)
        for i in range(0, len(q), block_q):
            rows = slice(i, i + block_q)
            q_i = hbm.load("Q", q[rows]) * q.shape[1] ** -0.5
            do_i, dq_i = hbm.load("dO", do[rows]), 0.0
            lse_i, delta_i = (
                hbm.load(name, x[rows], itemsize=4)[:, None]
                for name, x in (("lse", lse), ("D", delta))
            )
            for j in reversed(range(0, len(k), block_kv)):
                k_j, v_j = (hbm.load(n, x[j : j + block_kv]) for n, x in (("K", k), ("V", v)))
                p = np.exp(np.einsum("id,jd->ij", q_i, k_j) - lse_i)
                dq_i = dq_i + np.einsum("ij,jd->id", p * (do_i @ v_j.T - delta_i), k_j)
            hbm.store("dQ", dq[rows], dq_i * q.shape[1] ** -0.5)
        return dq

    for item, attempt in (
        (backward.softmax_backward, by_einsum),
        (backward.softmax_backward, centred),
        (backward.tiled_dq, backwards),
    ):
        status, said = item.verdict(attempt, seed)
        assert status == "right", said


@needs_triton
def test_a_mask_after_the_maximum_is_no_mend(tmp_path):
    """Padded keys weigh nothing, but their score of 0 is the maximum: far below it ℓ = 0."""
    seen = "start + key[None, :] < n_kv"
    changes = {
        f'        s = tl.where({seen}, s, float("-inf"))\n': "",
        "p = tl.exp(s - m_new[:, None])": f"p = tl.where({seen}, tl.exp(s - m_new[:, None]), 0.0)",
    }
    for item in (forward.flash, forward.debug):
        status, _ = verdict_of_changed(item, changes, tmp_path)
        assert status == "wrong", item


@needs_triton
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (O_STORE, "written over the next head"),
        (LSE_STORE, "written over the next head"),
        (O_STORE | LSE_STORE, "written over the next head"),
        ({'float("-inf"), tl.float32': "-500.0, tl.float32"}, "at another finite number"),
        ({'float("-inf"), tl.float32': "-1e5, tl.float32"}, "at another finite number"),
        ({'float("-inf"), tl.float32': "-1e9, tl.float32"}, "at another finite number"),
        ({"range(0, n_kv, block_kv)": "range(0, n_kv - 1, block_kv)"}, "last tile"),
        ({'s, float("-inf"))': "s, -1e5)"}, ""),
    ],
)
def test_a_kernel_that_is_wrong_far_out_is_refused(changes, says, tmp_path):
    status, said = verdict_of_changed(forward.flash, changes, tmp_path)
    assert status == "wrong" and says in said


@needs_triton
@pytest.mark.parametrize(
    ("changes", "helper"),
    [
        ({f"k.T, {IEEE}": 'k.T, None, "ieee"'}, ""),
        ({IEEE: 'input_precision="tf32x3"'}, ""),
        ({IEEE: "allow_tf32=False"}, ""),
        ({IEEE: "input_precision=EXACT"}, 'EXACT = tl.constexpr("ieee")'),
        # heads next to each other, the last first, a place from a helper
        (
            {FIRST: f"heads = {HEADS}\n    first, head = tl.program_id(0) // heads * block_q, "
                    "tl.program_id(0) % heads"},
            "",
        ),
        ({"tl.program_id(0)": "(tl.num_programs(0) - 1 - tl.program_id(0))"}, ""),
        ({FIRST: "tile, head = place(tiles)\n    first = tile * block_q"}, PLACE),
        # the last tile moved back, so that it is full: some rows are written twice, alike
        ({"row, key, column = first": "row, key, column = tl.minimum(first, n - block_q)"}, ""),
        # everything in base 2
        (
            {"* scale": "* (scale * 1.4426950408889634)", "tl.exp(": "tl.exp2(",
             "m + tl.log(l)": "(m + tl.log2(l)) * 0.6931471805599453"},
            "",
        ),
    ],
    ids=["position", "tf32x3", "no tf32", "constant", "heads", "reversed", "helper", "full", "2"],
)  # fmt: skip
def test_another_right_kernel_passes(changes, helper, tmp_path):
    status, said = verdict_of_changed(forward.flash, changes, tmp_path, helper)
    assert status == "right", said


@needs_triton
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {OUT_STORE: "at = row * cols + columns\n    tl.store(out_ptr + at, out, "
                        "mask=at < tl.num_programs(0) * cols)"},
            "writes into the next row",
        ),
        ({"x_ptr + row * cols + columns, mask=inside, other=0": "x_ptr + row * cols + columns"},
         "A load reaches past the end of its row"),
        ({"bias_ptr + columns, mask=inside, other=0": "bias_ptr + columns"}, None),
        ({"row = tl.program_id(0)": "row = tl.num_programs(0) - 1 - tl.program_id(0)"}, None),
    ],
    ids=["store", "load", "unseen", "reversed"],
)  # fmt: skip
def test_rows_of_a_layer_norm_that_reach_into_the_next(changes, says, tmp_path):
    status, said = verdict_of_changed(fusion.layer_norm, changes, tmp_path)
    assert (status, says is None) in (("right", True), ("wrong", False)) and (says or "") in said


@needs_triton
def test_a_load_in_a_helper_of_a_layer_norm(tmp_path):
    """Without other= it holds anything: harmless where no sum sees it, NaN in the mean."""
    for name, wanted in (("bias", "right"), ("x", "wrong")):
        at = {"bias": "bias_ptr + columns", "x": "x_ptr + row * cols + columns"}[name]
        changes = {f"tl.load({at}, mask=inside, other=0)": f"my_tile({at}, inside)"}
        assert verdict_of_changed(fusion.layer_norm, changes, tmp_path, MY_TILE)[0] == wanted
