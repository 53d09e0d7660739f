"""Every public function of the core against what a reader might give it by mistake (case E16).

A refusal is a ValueError of one line that names the argument, or shows what was given for it.
"""

import inspect
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from math import inf, nan

import numpy as np
import pytest

from course import attention, cost, hardware, hbm, roofline, softmax
from course.cost import Cost, Op
from course.hardware import DTYPES, GPUS, LINKS, Gpu
from course.hbm import Hbm
from course.softmax import State

H100 = GPUS["H100 SXM"]
X = np.arange(24.0).reshape(2, 3, 4)
ROWS = State(np.zeros(3), np.ones(3), np.ones((3, 4)))
O, LSE = attention.naive(X, X, X)

NUMBER = [nan, inf, "3", None, [1], np.array([1, 2]), 1j]
SIZE = [-1, 2.5, *NUMBER]
BLOCK = [0, *SIZE]
LENGTH = [x for x in SIZE if x is not None]  # None is the default: as many keys as queries
BYTES = [0, -2, *NUMBER]
FLAG = ["False", "", 2, -1, None, [True], np.array([True, False])]
GPU = ["H100 SXM", None, {"peak": 1}, type(H100)]
COST = [5, None, (1, 2, 3)]
DTYPE = ["fp4", "FP16", None, 16, ["fp16"]]
LAYOUT = ["zigzags", "Ring", None, 3, ["ring"]]  # or a way
RATE = [-1, 500, *NUMBER]  # 500: TFLOP/s, or GB/s
ARRAY = [["a"], [1j], None, [[1, 2], [3]], object(), X.astype(str)]
SCALE = [nan, inf, "0.5", "wide", 1j, [0.1, 0.2], np.complex64(1), np.array("0.5")]
MEMORY = [5, "Hbm", Hbm]
STATE = [None, 5, (1, 2, 3), State(0.0, 1.0, 0.0), State(np.zeros(2), np.ones(2), np.ones((3, 4))),
         State(np.zeros(3), np.ones(2), np.ones((3, 4)))]  # fmt: skip

# {function: (arguments that are right, {argument: what is refused in its place})}
CASES = {
    Cost: ({}, dict(flops=SIZE, read=SIZE, written=SIZE)),
    partial(Op, "mine"): ({}, dict(flops=SIZE, reads=SIZE, stored=SIZE)),
    cost.elementwise: (
        dict(n=8),
        dict(n=SIZE, inputs=SIZE, outputs=SIZE, flops_per_element=SIZE, itemsize=[0.5, *BLOCK]),
    ),
    cost.chain: (
        dict(ops=["bias"], n=8, fused=True),
        dict(ops=[[], "Bias", None, ["bias", 3], [None]], n=SIZE, fused=FLAG, itemsize=BLOCK),
    ),
    cost.matmul: (dict(m=1, n=2, k=3), dict(m=SIZE, n=SIZE, k=SIZE, itemsize=BLOCK)),
    cost.visible_pairs: (
        dict(n=2, n_kv=3, causal=True),
        dict(n=SIZE, n_kv=SIZE, causal=FLAG),
    ),
    cost.attention: (
        dict(n=8, d=4, flow="tiled"),
        dict(
            n=SIZE, d=BLOCK, flow=["fused", None, 3, ["naive"], "Naive"], n_kv=LENGTH,
            heads=[3.5, 0, "8"], kv_heads=[2, 0, "1"], batch=SIZE, causal=FLAG, backward=FLAG,
            itemsize=[0.5, *BLOCK], block_q=[0, *LENGTH], block_kv=[0, *LENGTH],
        ),
    ),
    cost.shards: (dict(n=8, processes=2), dict(n=SIZE, processes=BLOCK, layout=LAYOUT)),
    cost.ring_pairs: (
        dict(n=8, processes=2, causal=True),
        dict(n=SIZE, processes=BLOCK, layout=LAYOUT, causal=FLAG),
    ),
    cost.ring_idle: (
        dict(n=8, processes=2, causal=True),
        dict(n=SIZE, processes=BLOCK, layout=LAYOUT, causal=FLAG),
    ),
    cost.ring: (
        dict(n=8, d=4, processes=2, heads=4),
        dict(
            n=SIZE, d=BLOCK, processes=BLOCK, rank=[2, *SIZE], way=LAYOUT, layout=LAYOUT,
            heads=[3.5, 0, "8"], kv_heads=[3, 0, "1"], batch=SIZE, causal=FLAG, backward=FLAG,
            itemsize=[0.5, *BLOCK],
        ),
    ),
    cost.tile_bytes: (
        dict(block_q=1, block_kv=1, d=1),
        dict(block_q=SIZE, block_kv=SIZE, d=SIZE, itemsize=BLOCK),
    ),
    cost.paper_tiles: (
        dict(sram_bytes=1024, d=8), dict(sram_bytes=BLOCK, d=BLOCK, itemsize=BLOCK),
    ),
    cost.kv_cache_bytes: (
        dict(layers=1, kv_heads=1, head_dim=1),
        dict(layers=SIZE, kv_heads=SIZE, head_dim=SIZE, tokens=SIZE, batch=SIZE, itemsize=BYTES,
             window=LENGTH),
    ),
    cost.latent_cache_bytes: (
        dict(layers=1, latent_dim=1, rope_dim=1),
        dict(layers=SIZE, latent_dim=SIZE, rope_dim=SIZE, tokens=SIZE, batch=SIZE, itemsize=BYTES),
    ),
    cost.decode_step: (
        dict(weight_bytes=16),
        dict(weight_bytes=SIZE, kv_bytes=SIZE, batch=SIZE, itemsize=BYTES, kv_itemsize=BYTES,
             queries_per_kv_head=SIZE),
    ),
    Gpu: (
        {name: getattr(H100, name) for name in inspect.signature(Gpu).parameters},
        dict(peak=[5, None, {"fp16": 989.4}, {"fp16": None}, {"fp16": "989e12"}],
             bandwidth=[3350, 3.35, *RATE]),
    ),
    H100.peak_for: (dict(dtype="fp16"), dict(dtype=DTYPE)),
    roofline.ridge: (dict(gpu=H100), dict(gpu=GPU, dtype=DTYPE)),
    roofline.link_ridge: (
        dict(gpu=H100, link=LINKS["NVLink 4"]),
        dict(gpu=GPU, link=["NVLink 4", None, 9e11, H100], dtype=DTYPE),
    ),
    roofline.attainable: (
        dict(intensity=1, gpu=H100),
        dict(intensity=[-1, *NUMBER[:1], *NUMBER[2:]], gpu=GPU, dtype=DTYPE),  # inf: the peak
    ),
    roofline.memory_time: (dict(cost=Cost(1, 1), gpu=H100), dict(cost=COST, gpu=GPU)),
    roofline.compute_time: (
        dict(cost=Cost(1, 1), gpu=H100), dict(cost=COST, gpu=GPU, dtype=DTYPE),
    ),
    roofline.time: (dict(cost=Cost(1, 1), gpu=H100), dict(cost=COST, gpu=GPU, dtype=DTYPE)),
    roofline.bound: (dict(cost=Cost(1, 1), gpu=H100), dict(cost=COST, gpu=GPU, dtype=DTYPE)),
    roofline.utilisation: (
        dict(rate=1e12, gpu=H100), dict(rate=[1e16, *RATE], gpu=GPU, dtype=DTYPE),
    ),
    roofline.bandwidth_utilisation: (
        dict(rate=1e12, gpu=H100), dict(rate=[1e16, 3350, *RATE], gpu=GPU),
    ),
    Hbm: ({}, dict(itemsize=[0.5, *BLOCK])),
    partial(Hbm().load, "Q"): (
        dict(tile=X),
        dict(tile=[[1.0], 3, None, "Q"], times=[-3, *BLOCK], itemsize=[0, 0.5, -2, "2"]),
    ),
    partial(Hbm().store, "O"): (
        dict(tile=X.copy(), value=X),
        dict(tile=[[1.0], 3, None, "O"], value=[np.ones(5), "wide"],
             itemsize=[0, 0.5, -2, "2"]),
    ),
    State.empty: (dict(d=2), dict(d=SIZE, shape=[(-1,), (2.5, 1)], dtype=[int, "i8", bool, complex, "U3"])),
    softmax.update: (
        dict(state=ROWS, scores=X[0], values=X[0, 0][:, None] * np.ones(4)),
        dict(
            state=[*STATE, State.empty(4), State.empty(4, (4,)), State.empty(3, (3,))],
            scores=[*ARRAY, X, X[0, 0], X[0, :, :3]],
            values=[*ARRAY, X[0], np.ones((2, 4, 4)), np.ones((2, 3, 4, 4))],
        ),
    ),
    softmax.merge: (
        dict(a=ROWS, b=ROWS),
        {x: [*STATE, State.empty(4), State.empty(4, (1,)), State.empty(3, (3,))] for x in "ab"},
    ),
    softmax.finish: (dict(state=ROWS), dict(state=STATE)),
    softmax.safe_softmax: (dict(x=X), dict(x=ARRAY, axis=[3, -4])),
    softmax.logsumexp: (dict(x=X), dict(x=ARRAY, axis=[3, -4])),
    softmax.as_float: (dict(x=X), dict(x=ARRAY)),
}  # fmt: skip
FORWARD = dict(q=[*ARRAY, X[0], X[..., :2]], k=[*ARRAY, X[0], X[:, :1]], v=[*ARRAY, X[0], X[:1]],
               causal=FLAG, scale=SCALE)  # fmt: skip
BACKWARD = FORWARD | dict(o=[*ARRAY, O[0]], lse=[*ARRAY, O], do=[*ARRAY, LSE])
BLOCKS = dict(block_q=BLOCK, block_kv=BLOCK, hbm=MEMORY)
INPUTS = dict(q=X, k=X, v=X)
CASES |= {
    attention.naive: (INPUTS, FORWARD),
    attention.flash: (INPUTS, FORWARD | BLOCKS),
    attention.naive_backward: (INPUTS | dict(o=O, lse=LSE, do=X), BACKWARD),
    attention.flash_backward: (INPUTS | dict(o=O, lse=LSE, do=X), BACKWARD | BLOCKS),
}
OURS = (
    "Real numbers are needed",
    "A state has m (...)",
    "A chain needs at least one operation",
    "No operation is called",
)
HELPERS = {  # what the functions above check their arguments with, or call once these are checked
    cost.whole, cost.true_or_false, cost.shown, softmax.weigh,
    hardware.Fixed, hardware.Level, hardware.Link, hardware.this_machine,  # take no figures from a reader
    Hbm, State,
}  # fmt: skip


def called(function):
    return getattr(function, "func", function)


@pytest.mark.parametrize("module", [cost, hardware, roofline, hbm, softmax, attention])
def test_every_public_function_and_argument_is_in_the_table(module):
    for name, f in vars(module).items():
        public = callable(f) and getattr(f, "__module__", "") == module.__name__
        if public and not name.startswith("_") and f not in HELPERS:
            assert f in map(called, CASES), f"{module.__name__}.{name} is not in the table"
    for f, (right, wrong) in CASES.items():
        if f is not Gpu:
            assert set(inspect.signature(f).parameters) == {*right, *wrong} == set(wrong)


@pytest.mark.parametrize("f", CASES, ids=lambda f: called(f).__qualname__)
def test_what_is_right_is_taken(f):
    f(**CASES[f][0])


@pytest.mark.parametrize(
    ("f", "argument"),
    [(f, argument) for f, (_, wrong) in CASES.items() for argument in wrong],
    ids=lambda x: x if isinstance(x, str) else called(x).__qualname__,
)
def test_what_is_wrong_is_refused_in_one_line(f, argument):
    right, wrong = CASES[f]
    for bad in wrong[argument]:
        with pytest.raises(ValueError) as refused:
            f(**right | {argument: bad})
        said = str(refused.value)
        assert "\n" not in said and len(said) < 250, said
        told = (argument, cost.shown(bad), type(bad).__name__, str(getattr(bad, "shape", None)))
        assert said.startswith(OURS) or any(word in said for word in told), said


def test_a_tensor_that_numpy_cannot_read_is_refused_with_the_remedy():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3, 4)
    assert attention.naive(x, x, x)[0].shape == X.shape
    for bad, remedy in ((x.bfloat16(), "x.float()"), (x.requires_grad_(), "detach()")):
        for call in (lambda x: attention.flash(x, X, X), softmax.safe_softmax):
            with pytest.raises(ValueError) as refused:
                call(bad)
            assert remedy in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("table", "key", "near"),
    [
        (GPUS, "H100", "H100 SXM, H100 PCIe"),
        (GPUS, "h200", "H200"),
        (GPUS, "RTX4090", "RTX 4090"),
        (GPUS, "TPU", ", ".join(GPUS)),
        (GPUS, "", ", ".join(GPUS)),
        (GPUS, None, ", ".join(GPUS)),
        (GPUS["T4"].peak, "bf16", "fp16"),
    ],
)
def test_a_missing_key_is_answered_with_what_is_near(table, key, near):
    with pytest.raises(KeyError) as refused:
        table[key]
    (said,) = refused.value.args
    assert said == f"There is no {key!r}. Did you mean one of these? {near}"
    assert key not in table and table.get(key) is None


@pytest.mark.parametrize(
    "table", [GPUS, H100.peak, DTYPES, LINKS], ids=["GPUS", "peak", "DTYPES", "LINKS"]
)
def test_the_tables_cannot_be_edited(table):
    key, before = next(iter(table)), dict(table)
    for edit in (
        lambda: table.__setitem__(key, 1),
        lambda: table.__delitem__(key),
        lambda: table.update({key: 1}),
        lambda: table.setdefault("mine", 1),
        lambda: table.pop(key),
        table.popitem,
        table.clear,
        lambda: table.__ior__({key: 1}),
    ):
        with pytest.raises(TypeError, match="cannot be edited"):
            edit()
    assert table == before
    mine = dict(table) | {key: 1}
    assert mine[key] == 1 and table == before


def test_the_peaks_of_a_gpu_are_its_own():
    peak = dict(H100.peak)
    mine = replace(H100, peak=peak)
    peak["fp16"] = 1.0
    assert mine == H100 and asdict(mine)["peak"] == H100.peak == deepcopy(H100).peak
