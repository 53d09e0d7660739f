"""Serving by arithmetic: models against published figures, steps against sums by hand."""

import math

import pytest

from course import cost, roofline
from course.hardware import GPUS, GiB
from course.serving import (
    CACHE_FORMATS,
    FORMATS,
    MODELS,
    Model,
    accepted,
    critical_batch,
    memory,
    prefill,
    step,
    together,
    tokens_per_second,
    weight_bytes,
)

H100 = GPUS["H100 SXM"]
DENSE = [m for m in MODELS.values() if m.experts == 1]
SPARSE = [m for m in MODELS.values() if m.experts > 1]
ROUND = Model("8·10⁹", parameters=8e9, layers=32, heads=32, kv_heads=8, head_dim=128, source="none")


@pytest.mark.parametrize(
    ("name", "bytes_a_token"),
    [  # C1, C4, C5
        ("Llama 3.1 70B", 327_680),
        ("Llama 3.1 8B", 131_072),
        ("Mistral 7B", 131_072),
        ("Mixtral 8x7B", 131_072),
        ("Qwen3 4B", 147_456),
        ("DeepSeek-V3", 70_272),
        ("gpt-oss-120b", 73_728),
    ],
)
def test_the_cache_of_one_token(name, bytes_a_token):
    assert MODELS[name].cache_bytes(1) == bytes_a_token


def test_caches_of_long_contexts():
    sizes = [MODELS["Llama 3.1 70B"].cache_bytes(t * 1024) / GiB for t in (4, 32, 128)]
    assert sizes == [1.25, 10, 40]  # C3
    assert MODELS["gpt-oss-120b"].cache_bytes(131_072) == 4_836_556_800  # C5
    assert MODELS["Gemma 2 9B"].cache_bytes(8192) == 2 * 8 * 256 * 2 * 21 * (8192 + 4096)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda m: m.name)
def test_the_table_is_consistent(model):
    assert model.heads % model.kv_heads == 0 and model.windowed <= model.layers and model.source
    assert bool(model.window) == bool(model.windowed)
    assert (model.active is None) == (model.experts == 1)
    size = {"B": 1e9, "b": 1e9}
    if model.name[-1] in size and "-A" not in model.name and "x" not in model.name:
        printed = float(model.name.replace("-", " ").split()[-1][:-1])
        assert model.parameters == pytest.approx(printed * 1e9, rel=0.25)


@pytest.mark.parametrize(
    ("parameters", "form", "bandwidth", "rate"),
    [(8e9, "bf16", 3.35e12, "209"), (7e9, "bf16", 2e12, "143")],
)
def test_printed_rates_of_a_single_sequence(parameters, form, bandwidth, rate):  # FACTS
    from dataclasses import replace

    gpu = replace(H100, bandwidth=bandwidth)
    model = replace(ROUND, parameters=parameters)
    assert f"{tokens_per_second(model, gpu, form=form):.0f}" == rate


def test_a_step_by_hand():
    """16 GB of weights, 64 sequences of 8,192 tokens at 1 GiB each."""
    found = step(ROUND, batch=64, context=8192)
    assert found.read == 16 * 10**9 + 64 * GiB and found.written == 0
    assert found.flops == 64 * (2 * 8 * 10**9 + 4 * 32 * 128 * 32 * 8192)
    assert step(ROUND).intensity == 1


def test_a_step_is_the_sum_of_its_parts():
    model = MODELS["Gemma 3 27B"]
    whole, none = step(model, batch=3, context=9000), step(model, batch=3)
    one = cost.decode_step(weight_bytes=0, kv_bytes=model.cache_bytes(9000), queries_per_kv_head=2)
    assert whole.read - none.read == 3 * one.read
    assert whole.flops - none.flops == pytest.approx(3 * one.flops)


@pytest.mark.parametrize("model", SPARSE, ids=lambda m: m.name)
def test_experts_are_read_as_tokens_draw_them(model):
    assert model.weights(1) == pytest.approx(model.active)
    grown = [model.weights(2**e) for e in range(14)]
    assert grown == sorted(grown) and grown[-1] == pytest.approx(model.parameters, rel=1e-3)


def test_drawing_experts_against_a_simulation():
    import numpy as np

    rng, model = np.random.default_rng(0), MODELS["Mixtral 8x7B"]
    used = [
        len({e for _ in range(5) for e in rng.choice(8, 2, replace=False)}) for _ in range(4000)
    ]
    expert = (model.parameters - model.active) / 6
    assert model.weights(5) == pytest.approx(model.active + (np.mean(used) - 2) * expert, rel=0.01)


@pytest.mark.parametrize("model", DENSE, ids=lambda m: m.name)
def test_the_critical_batch_is_the_ridge(model):
    """Two FLOPs and two bytes a weight: the batch is the intensity."""
    assert critical_batch(model, H100) == math.ceil(roofline.ridge(H100, "bf16"))
    assert critical_batch(model, H100, form="int4") == pytest.approx(
        roofline.ridge(H100, "bf16") * FORMATS["int4"] / 2, abs=1
    )
    assert critical_batch(model, H100, limit=64) is None


def test_prefill_by_hand_and_by_pairs():
    found = prefill(ROUND, 100)
    assert found.flops == 100 * 16 * 10**9 + 4 * 32 * 128 * 32 * cost.visible_pairs(100, 100, True)
    assert found.read == 16 * 10**9 and found.written == 100 * 131_072
    windowed = MODELS["Gemma 2 9B"]
    seen = sum(21 * i + 21 * min(i, 4096) for i in range(1, 5001))
    assert prefill(windowed, 5000).flops == 2 * 5000 * 9_240_000_000 + 4 * 16 * 256 * seen


def test_chunks_read_the_weights_again_and_change_no_product():
    whole, chunked = prefill(ROUND, 1000), prefill(ROUND, 1000, chunk=300)
    assert chunked.flops == whole.flops and chunked.written == whole.written
    assert chunked.read == 4 * 16 * 10**9 + 131_072 * (300 + 600 + 900)
    assert prefill(ROUND, 1000, chunk=5000) == whole


def test_memory_and_formats():
    parts = memory(ROUND, H100, batch=64, context=8192)
    assert parts == {"weights": 16e9, "cache": 64 * GiB, "free": 80e9 - 16e9 - 64 * GiB}
    assert weight_bytes(ROUND, "int4") == 4_125_000_000  # a scale of 16 bits for 128 weights
    assert FORMATS["mxfp4"] * 32 == 17 and FORMATS["nvfp4"] * 16 == 9
    assert set(CACHE_FORMATS) <= set(FORMATS)


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.8, 1.0])
def test_accepted_tokens_against_the_formula_and_a_simulation(probability):
    import numpy as np

    found = accepted(4, probability)
    if probability < 1:
        assert found == pytest.approx((1 - probability**5) / (1 - probability))
    right = np.random.default_rng(1).random((20_000, 4)) < probability
    assert found == pytest.approx(1 + np.cumprod(right, 1).sum(1).mean(), rel=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step(ROUND, batch=0), "batch"),
        (lambda: step(ROUND, form="int3"), "int3"),
        (lambda: step(ROUND, context=-1), "tokens"),
        (lambda: prefill(ROUND, 0), "tokens"),
        (lambda: accepted(2, 1.5), "probability"),
        (lambda: accepted(-1, 0.5), "guessed"),
        (lambda: MODELS["Llama"], "Did you mean"),
    ],
)
def test_refused_in_one_line(call, message):
    with pytest.raises((ValueError, KeyError), match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_a_chunk_taken_along_reads_no_weights_of_its_own():
    alone, chunk = step(ROUND, batch=8, context=4096), prefill(ROUND, 256)
    both = together(ROUND, alone, chunk)
    assert both.flops == alone.flops + chunk.flops and both.written == chunk.written
    assert both.read == 16 * 10**9 + 8 * GiB // 2
    assert together(ROUND, alone) == alone
    with pytest.raises(ValueError, match="dense"):
        together(SPARSE[0], alone, chunk)
