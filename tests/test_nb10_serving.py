"""Notebook 10: its kernels are right, its words say what model and record say, its figures too."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from course import cost, kernels, records, roofline, serving, train
from course.draw import serving as pictures
from course.exercises import serving as ex
from course.hardware import GPUS, GiB
from course.kernels import naive

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "10_serving.ipynb"
ALL = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
CELLS = {cell["id"]: cell for cell in ALL}
PROSE = "\n".join("".join(c["source"]) for c in ALL if c["cell_type"] == "markdown")
DECODE = records.load("h200")["decode"]
SHAPES = pictures.shapes(DECODE)
H100, H200 = GPUS["H100 SXM"], GPUS["H200"]
LLAMA = serving.MODELS["Llama 3.1 8B"]


def said(id):
    """The text that a cell stored."""
    texts = (o.get("text") or o["data"].get("text/plain", "") for o in CELLS[id]["outputs"])
    return "".join("".join(text) for text in texts)


def names(*ids):
    """What the functions and classes of these cells and the imports make."""
    space = {"merge_kernel": ex.triton_merge.answer, "kernels": kernels}
    for id in ("imports", *ids):
        for node in ast.parse("".join(CELLS[id]["source"])).body:
            if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
                if "triton.jit" in map(ast.unparse, getattr(node, "decorator_list", ())):
                    continue  # a kernel is compiled from a file: see `kernel`
                exec(compile(ast.Module([node], []), PATH.name, "exec"), space)
    return space


def kernel(id, folder):
    """The Triton kernel of a cell, from a file of its own, as Triton wants its source."""
    import importlib.util

    path = folder / f"{id.replace('-', '_')}.py"
    head = (
        "from course.kernels import tl, triton\nfrom course.kernels.notebook import load_tile\n\n\n"
    )
    path.write_text(head + "".join(CELLS[id]["source"]) + "\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.split_kernel


needs_triton = pytest.mark.skipif(not kernels.interpreted, reason="Triton's interpreter")


# --- what its cells make ----------------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize("n", [1, 31, 32, 33, 300])  # A1
@pytest.mark.parametrize("splits", [1, 4, 11])  # more pieces than tiles: some see nothing
def test_decode_of_the_notebook_is_plain_attention(n, splits, tmp_path):
    space = names("decode")
    space["split_kernel"] = kernel("split-kernel", tmp_path)
    torch.manual_seed(n)
    q, k, v = 3 * torch.randn(2, 16, 64), 3 * torch.randn(2, n, 64), torch.randn(2, n, 64)
    exact = naive.attention(*(x[None].double() for x in (q, k, v)))[0]
    o = space["decode"](q, k, v, splits)
    assert o.isfinite().all() and (o - exact).abs().max() < 1e-5


def test_with_and_without_a_cache_the_text_is_the_same():
    space = names("generate")
    model = train.Transformer(
        naive.attention, characters=30, n=64, width=32, heads=2, layers=2
    ).eval()
    start = torch.arange(20)
    plain, cached = (space["generate"](model, start, 12, use) for use in (False, True))
    assert torch.equal(plain, cached) and len(plain) == 32
    assert torch.equal(plain[:20], start) and len(set(plain[20:].tolist())) > 3


# --- what its words say -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "words"),
    [  # FACTS
        ("token-rate-computed", "4.78 ms, so at most 209 tokens/s"),
        ("formats-computed", " 143 tokens/s"),
        ("formats-computed", " 571 tokens/s"),
        ("formats-computed", "  57 tokens/s"),
        ("formats-computed", "0.516 bytes per weight"),
        ("decode", "pieces: 7, off by less than 1e-5: True"),
        ("loop-run", "the same text: True"),
    ],
)
def test_stored_results(id, words):
    assert words in said(id)


def test_the_cache_of_the_text():
    assert LLAMA.cache_bytes(1) == 131_072 and LLAMA.cache_bytes(8192) == GiB
    assert 64 * LLAMA.cache_bytes(8192) == 64 * GiB
    for words in ("131,072 bytes per token", "1 GiB (1.07 GB) at 8,192 tokens", "64 GiB"):
        assert words in PROSE
    v3 = serving.MODELS["DeepSeek-V3"]
    assert sum(v3.latent) == 576 and "576 numbers" in PROSE
    least = min(("Llama 3.1 70B", "gpt-oss-120b", "DeepSeek-V3"),
                key=lambda name: serving.MODELS[name].cache_bytes(1))  # fmt: skip
    assert least == "DeepSeek-V3", "The largest"


def test_prompts_and_batches():
    times = [roofline.time(serving.prefill(LLAMA, n), H100, "bf16") for n in (1, 256, 4096)]
    assert times[1] < 1.01 * times[0] and times[2] > 10 * times[0]
    assert roofline.bound(serving.prefill(LLAMA, 256), H100, "bf16") == "memory"
    rate = {b: serving.tokens_per_second(LLAMA, H100, batch=b, context=8192) for b in (64, 256)}
    assert rate[256] < 1.25 * rate[64], "gains little"
    assert serving.memory(LLAMA, H100, batch=256, context=8192)["free"] < 0


def test_what_the_explorer_is_said_to_show():
    def fits(batch, **forms):
        return serving.memory(LLAMA, H100, batch=batch, context=8192, **forms)["free"] >= 0

    assert fits(32) and not fits(64)
    assert fits(64, cache="fp8") and not fits(128, cache="fp8")
    assert fits(128, cache="fp8", form="int4")
    steps = {b: serving.step(LLAMA, batch=b, context=8192) for b in (1, 1024)}
    assert {roofline.bound(step, H100, "bf16") for step in steps.values()} == {"memory"}
    bound = {b: roofline.bound(serving.step(LLAMA, batch=b), H100, "bf16") for b in (256, 512)}
    assert bound == {256: "memory", 512: "compute"}


def test_what_is_said_of_the_record():
    one = SHAPES[1, 1, 8192]["ours"]
    assert 13.5e-6 < one["seconds"] < 14.5e-6 and "14 µs" in PROSE
    assert f"{DECODE['read'] / H200.bandwidth:.0%}" == "95%" and "95 % of 4.8 TB/s" in PROSE
    for key in ((1, 1, 131_072), (1, 32, 8192), (1, 128, 8192)):  # a plain read, nearly
        assert SHAPES[key]["ours"]["bandwidth"] > 0.94 * DECODE["read"]
    for (queries, *_), points in SHAPES.items():
        best = max(points[flow]["bandwidth"] for flow in ("cuDNN", "FA-2"))
        if queries > 1:
            assert points["ours"]["bandwidth"] > 4 * best, "the libraries fall far behind"
        small, large = (points[f"ours, pages of {page}"]["bandwidth"] for page in (16, 128))
        assert large > 0.965 * points["ours"]["bandwidth"], "next to nothing"
        assert small < 0.93 * points["ours"]["bandwidth"]
    first = [p["ours"]["bandwidth"] >= p["cuDNN"]["bandwidth"] for p in SHAPES.values()]
    assert not all(first), "It is not first everywhere"
    rows = 16 * 8
    work = cost.attention(rows, 128, n_kv=8192, flow="ideal")
    assert work.intensity == pytest.approx(rows, rel=0.05) and "128 FLOP per byte" in PROSE
    assert round(roofline.ridge(H200, "bf16")) == 206


def test_one_sequence_occupies_few_programs():
    assert ex.idle.answer == H100.sms - 8
    assert SHAPES[1, 1, 131_072]["ours"]["splits"] == 16, "as the figure draws it"


def test_pages_of_the_text():
    lengths = np.random.default_rng(0).integers(1, 8193, 64).tolist()
    for page in (8192, 128, 16):
        empty = ex.slack.answer(lengths, page)
        assert f"{empty / (empty + sum(lengths)):6.1%}" in said("pages-computed")
        assert empty / 64 == pytest.approx(page / 2, rel=0.15), "About half a page"


def test_quantised_and_batched():
    """The answers of two questions, from the model."""
    assert serving.critical_batch(LLAMA, H100) == 296
    assert serving.critical_batch(LLAMA, H100, form="int4") == 77
    assert ex.guesses.answer == pytest.approx(serving.accepted(4, 0.8))
    share = serving.MODELS["Llama 3.1 70B"].cache_bytes(131_072)
    assert share == ex.blog_table.answer * GiB  # C3
    assert ex.kv_bytes.answer(ex.PLAIN[0], 2048) == GiB  # C1


@pytest.mark.parametrize("name", ["Llama 3.1 8B", "gpt-oss-120b", "DeepSeek-V3", "Gemma 3 27B"])
@pytest.mark.parametrize("tokens", [1, 100, 131_072])
def test_the_exercise_counts_as_the_course_does(name, tokens):  # C5
    model = serving.MODELS[name]
    assert ex.mixed_cache.answer(model, tokens) == model.cache_bytes(tokens)


# --- figures and tables -----------------------------------------------------------------------


def test_shares_are_those_of_the_record():
    figure = Figure()
    words = pictures.shares(figure.subplots(), DECODE)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    for flow, name in pictures.NAMES.items():
        wanted = [p[flow]["bandwidth"] / H200.bandwidth for p in SHAPES.values()]
        assert list(lines[name].get_xdata()) == wanted
    best = max(p["ours"]["bandwidth"] for p in SHAPES.values()) / H200.bandwidth
    assert f"up to {best:.0%}" in words


def test_the_table_of_the_record():
    table = pictures.against(DECODE)
    assert len(table.rows) == len(SHAPES) == 13
    row = next(r for r in table.rows if r[0] == "1 query, 32 × 8k keys")
    points = SHAPES[1, 32, 8192]
    assert row[3] == f"{points['ours']['bandwidth'] / points['cuDNN']['bandwidth']:.2f}×" == "0.99×"


def test_the_split_figure_counts():
    words = pictures.split_keys(Figure().subplots(1, 2))
    assert "8 SMs work and 124 wait" in words and "128 SMs work" in words


def test_the_page_figure_is_consistent():
    owners = pictures.POOL.split()
    for name, tokens in pictures.SEQUENCES.items():
        assert owners.count(name) == -(-tokens // pictures.PAGE)
    assert "A: 0, 3, 6; B: 1, 4; C: 2" in pictures.pages(Figure().subplots())


def test_bits_are_bytes_over_bandwidth():
    """The same predictions with and without a record, and the ratio of times where there is one."""
    stamp = {"device": "NVIDIA H200"}
    points = [
        {"form": f, "seconds": s} for f, s in (("bf16", 4e-5), ("int8", 2e-5), ("int4", 1e-5))
    ]
    plain = pictures.bits(None)
    timed = pictures.bits({"size": 8192, "points": points, "stamp": stamp})
    assert [row[:3] for row in timed.rows] == plain.rows
    assert [row[5] for row in timed.rows] == ["1.00×", "2.00×", "4.00×"]
    moved = 8192**2 * serving.FORMATS["int4"]
    assert timed.rows[2][4] == f"{moved / 1e-5 / H200.bandwidth:.0%}"


def test_caches_and_sources():
    some = [serving.MODELS[name] for name in ("Llama 3.1 70B", "DeepSeek-V3")]
    (llama, v3) = pictures.caches(some).rows
    assert llama[1:4] == ("2.62 MB", "328 kB", "2.68 GB") and v3[2] == "70.3 kB"
    assert len(pictures.sources(serving.MODELS.values()).rows) == len(serving.MODELS) == 14


def test_no_number_of_a_phone_is_invented():  # FACTS 11
    assert not re.search(
        r"\d", "".join(CELLS["phone"]["source"]).replace("4 bits", "").replace("T4", "")
    )
