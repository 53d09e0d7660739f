"""The names and signatures that notebooks, checks and readers rely on."""

import inspect

import pytest

from course import attention, cost, hardware, hbm, roofline, softmax

SIGNATURES = {
    hardware.this_machine: "()",
    cost.Cost: "(flops=0, read=0, written=0)",
    cost.elementwise: "(n, *, inputs=1, outputs=1, flops_per_element=1, itemsize=2)",
    cost.chain: "(ops, n, *, fused, itemsize=2)",
    cost.matmul: "(m, n, k, *, itemsize=2)",
    cost.attention: "(n, d, *, flow, n_kv=None, heads=1, kv_heads=None, batch=1, causal=False, "
    "backward=False, itemsize=2, block_q=None, block_kv=None)",
    cost.kv_cache_bytes: "(*, layers, kv_heads, head_dim, tokens=1, batch=1, itemsize=2, "
    "window=None)",
    cost.decode_step: "(*, weight_bytes, kv_bytes=0, batch=1, itemsize=2, kv_itemsize=2, "
    "queries_per_kv_head=1)",
    roofline.ridge: "(gpu, dtype='fp16')",
    roofline.attainable: "(intensity, gpu, dtype='fp16')",
    roofline.time: "(cost, gpu, dtype='fp16')",
    roofline.bound: "(cost, gpu, dtype='fp16')",
    softmax.State: "(m, l, o)",
    softmax.State.empty: "(d, shape=(), dtype=<class 'numpy.float64'>)",
    softmax.update: "(state, scores, values)",
    softmax.merge: "(a, b)",
    softmax.finish: "(state)",
    softmax.safe_softmax: "(x, axis=-1)",
    attention.naive: "(q, k, v, *, causal=False, scale=None)",
    attention.flash: "(q, k, v, *, block_q=64, block_kv=64, causal=False, scale=None, hbm=None)",
    attention.naive_backward: "(q, k, v, o, lse, do, *, causal=False, scale=None)",
    attention.flash_backward: "(q, k, v, o, lse, do, *, block_q=64, block_kv=64, causal=False, "
    "scale=None, hbm=None)",
    hbm.Hbm: "(itemsize=2)",
}


@pytest.mark.parametrize("f", SIGNATURES, ids=lambda f: f"{f.__module__}.{f.__qualname__}")
def test_signature(f):
    signature = inspect.signature(f)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == SIGNATURES[f]
    assert inspect.getdoc(f)
