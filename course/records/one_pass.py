"""Section "one_pass": the backward pass in one kernel of five products, beside the library's two.

For a measurement, not for use: whole tiles only, as many K/V heads as query heads, a GPU with a
copy engine; and the last bits of dQ change from run to run.
"""

import itertools

from course import cost, measure
from course.kernels import launch, tl, triton
from course.kernels.tile import LOG2E, dot, load_rows, load_tile, round_to, store_tile
from course.kernels.tiles import Tile
from course.records.attention_speed import TOKENS, WIDTH

LENGTHS = (4096, 16_384)
TILES = {  # dK and dV stay in registers: larger tiles spill hundreds of bytes
    64: (Tile(64, 64, 4, 2, maxnreg=168), Tile(64, 64, 4, 2), Tile(64, 128, 8, 2)),
    128: (Tile(64, 128, 8, 2), Tile(64, 64, 4, 2), Tile(32, 64, 4, 2)),
}


@triton.jit
def one_pass_kernel(
    q, k, v, do, dq_sum, dk_out, dv_out, m, inv_l, delta, scale, heads, n, causal: tl.constexpr,
    block_q: tl.constexpr, block_kv: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One tile of dk and dv, and what its keys add to every dq: `visit_queries` and a fifth product."""
    tiles = tl.cdiv(n, block_kv)
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h, first = head // heads, head % heads, tile * block_kv
    k_tile = load_tile(k, b, h, first, block_kv, block_d)
    v_tile = load_tile(v, b, h, first, block_kv, block_d)
    dk = tl.zeros([block_kv, block_d], tl.float32)
    dv = tl.zeros([block_kv, block_d], tl.float32)
    begin = 0
    if causal:
        begin = first // block_q * block_q
    for start in tl.range(begin, n, block_q):
        q_tile = load_tile(q, b, h, start, block_q, block_d)
        do_tile = load_tile(do, b, h, start, block_q, block_d)
        m_row = load_rows(m, head, start, n, block_q)
        inv_l_row = load_rows(inv_l, head, start, n, block_q)
        delta_row = load_rows(delta, head, start, n, block_q)
        s_t = dot(k_tile, q_tile.T)
        p_t = tl.exp2(s_t * (scale * LOG2E) - m_row[None, :]) * inv_l_row[None, :]
        if causal:
            row, key = start + tl.arange(0, block_q), first + tl.arange(0, block_kv)
            p_t = tl.where(row[None, :] >= key[:, None], p_t, 0.0)
        dv = dot(round_to(p_t, do_tile.dtype), do_tile, dv)
        dp_t = dot(v_tile, do_tile.T)
        ds_t = round_to(p_t * (dp_t - delta_row[None, :]), q_tile.dtype)
        dk = dot(ds_t, q_tile, dk)
        part = dot(tl.trans(ds_t), k_tile)  # the copy engine adds it to the others', in the L2
        dq_sum.atomic_add([b, h, start, 0], part.reshape(1, 1, block_q, block_d))
    store_tile(dk_out, b, h, first, dk * scale, block_kv, block_d)
    store_tile(dv_out, b, h, first, dv, block_kv, block_d)


def backward(q, k, v, o, o_rest, do, m, inv_l, *, causal, scale, tile):
    """(dq, dk, dv) in one pass; dQ is summed in FP32 and rounded at the end."""
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    b, h, n, d = q.shape
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    dq_sum = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    delta = launch.row_statistics(q)
    launch.launch_delta(o, o_rest, do, delta)
    one_pass_kernel[(n // tile.block_kv * b * h,)](
        *launch.operands(tile.block_q, q), *launch.operands(tile.block_kv, k, v),
        *launch.operands(tile.block_q, do),
        TensorDescriptor(dq_sum, list(q.shape), list(q.stride()), [1, 1, tile.block_q, d]),
        *launch.operands(tile.block_kv, dk, dv), *launch.row_operands(tile, q, m, inv_l, delta),
        scale, h, n, causal, **launch.meta(tile, d),
    )  # fmt: skip
    return torch.mul(dq_sum, scale, out=dq), dk, dv


def record() -> dict:
    """Both ways on this GPU, FP16: seconds, FLOP/s, and the best tile of one pass. Some 12 s."""
    points = [
        point
        for cell in itertools.product((64, 128), (False, True), LENGTHS)
        for point in _cell(*cell)
    ]
    method = (
        f"FP16, B·N = {TOKENS:,} tokens, H·d = {WIDTH:,}; all kernels of a backward pass, without "
        "autograd; CUDA events, median, L2 flushed by reads before each call; FLOPs: 10·B·H·N²·d, "
        "causal by visible pairs; one pass: dQ summed in FP32 by the copy engine, fastest of "
        f"{len(TILES[64])} tiles"
    )
    return {"points": points, "stamp": measure.stamp("cuda", method)}


def _cell(d, causal, n):
    import torch

    b, h = TOKENS // n, WIDTH // d
    torch.manual_seed(0)
    q, k, v, do = torch.randn(4, b, h, n, d, device="cuda", dtype=torch.float16)
    options = {"causal": causal, "scale": d**-0.5}
    o, o_rest, m, inv_l = launch.forward(q, k, v, **options, keep_rest=True)
    saved = q, k, v, o, o_rest, do
    runs = {("two kernels", None): lambda: launch.backward(*saved, None, m, inv_l, **options)}
    for tile in TILES[d]:
        runs["one pass", tile] = lambda t=tile: backward(*saved, m, inv_l, **options, tile=t)
    times = {way: measure.time(run, device="cuda", budget=0.05).median for way, run in runs.items()}
    count = {"flow": "flash", "heads": h, "batch": b, "causal": causal, "backward": True}
    flops = cost.attention(n, d, **count).flops
    for name in ("two kernels", "one pass"):
        seconds, tile = min((s, tile) for (way, tile), s in times.items() if way == name)
        yield {
            "way": name, "d": d, "causal": causal, "n": n, "tile": tile and list(tile),
            "seconds": seconds, "flops": flops / seconds,
        }  # fmt: skip
