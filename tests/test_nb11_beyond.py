"""Notebook 11: its loop is right for any number of processes, and its words hold."""

import ast
import importlib
import json
import linecache
import re
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from course import attention, cost, ring, roofline
from course.draw import ring as pictures
from course.draw import show
from course.exercises import ring as ex
from course.hardware import GPUS, LINKS
from course.serving import MODELS
from tests.notebook_code import DEFINED, definitions

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "11_beyond_one_gpu.ipynb"
CELLS = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
PROSE = "\n".join("".join(c["source"]) for c in CELLS if c["cell_type"] == "markdown")
CODE = {c["id"]: "".join(c["source"]) for c in CELLS if c["cell_type"] == "code"}


@pytest.fixture(scope="module")
def nb(tmp_path_factory):
    """What the notebook defines, in a module that processes can import."""
    folder = tmp_path_factory.mktemp("nb11")
    code = definitions(PATH, (ast.Import, ast.ImportFrom, *DEFINED))
    head = "import torch.distributed as dist\n"
    (folder / "notebook_11.py").write_text(head + code, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("notebook_11")


@pytest.mark.parametrize("size", (1, 3))
def test_the_loop_of_the_page_is_attention(nb, size):
    with ring.Team(size) as team:
        shards = team.run(nb.go_round, 24, 8)
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 2, 24, 8, dtype=torch.float64)
        whole, _ = attention.naive(*(x.numpy() for x in (q, k, v)))
        np.testing.assert_allclose(ring.unshard(shards).numpy(), whole, rtol=1e-11)
        if size == 3:
            orders = [ex.turns.answer(rank, 3) for rank in range(3)]
            assert team.run(nb.once_round, orders) == [2, 0, 1]
            with pytest.raises(ring.Failed, match="once_round did not end within 3 s"):
                team.run(nb.once_round, [nb.broken(rank, 3) for rank in range(3)], timeout=3)


def test_a_cell_of_a_notebook_is_sent_by_its_source():
    """As JupyterLab has it: the module is __main__, and no other Python can import that."""
    scope = types.ModuleType("__main__").__dict__
    code = CODE["def-go-round"]
    linecache.cache["<cell>"] = len(code), None, code.splitlines(True), "<cell>"
    exec(compile(code, "<cell>", "exec"), scope)
    module, name, source = ring._portable(scope["go_round"])
    assert (module, name) == ("__main__", "go_round") and source.strip() == code.strip()
    assert (
        ring._found(module, name, source).__code__.co_names == scope["go_round"].__code__.co_names
    )


def test_a_million_tokens_do_not_fit():
    model = MODELS["Llama 3.1 8B"]
    assert model.cache_bytes(10**6) > GPUS["H100 SXM"].hbm_bytes
    assert (model.heads, model.kv_heads, model.head_dim) == (32, 8, 128)
    layer = model.cache_bytes(10**6) / model.layers
    assert f"{layer / 1e9:.1f} GB for a million tokens" == "4.1 GB for a million tokens" in PROSE


def test_a_byte_pays_for_the_tokens_at_home():
    for rows, heads, kv_heads in ((512, 4, 4), (2048, 32, 8)):
        one = cost.ring(2 * rows, 64, processes=2, heads=heads, kv_heads=kv_heads)
        assert one.flops / 2 / one.written == rows * heads / kv_heads
    h100 = GPUS["H100 SXM"]
    assert f"{roofline.link_ridge(h100, LINKS['NVLink 4']):,.0f}" == "2,199" in PROSE
    assert 19_000 < roofline.link_ridge(h100, LINKS["InfiniBand NDR"]) < 21_000
    assert "c · G FLOPs" in PROSE


def test_the_message_and_the_time_of_the_slowed_wire():
    message = cost.ring(1536, 64, processes=2, heads=4, itemsize=4).written
    assert f"{message / 1e6:.2f} MB" == "1.57 MB" in PROSE
    assert "1.57 MB / 8 MB/s = 0.2 s" in PROSE and round(message / 8e6, 1) == 0.2
    assert "(400e6, 8e6)" in CODE["def-timed"]


def test_eight_reach_53_per_cent():
    reached = 1 - cost.ring_idle(4096 * 8, 8, causal=True)
    assert reached == pytest.approx(8 / 15, rel=1e-3) and "8 / 15 = 53 %" in PROSE


def test_who_holds_whose_keys():
    rows = re.findall(r"^\| (\d) \| (\d) \| (\d) \| (\d) \| (\d) \|$", PROSE, re.MULTILINE)
    assert [list(map(int, row[1:])) for row in rows] == [
        [(process - step) % 4 for process in range(4)] for step in range(4)
    ]


def test_which_way_sends_least():
    def sent(way, processes):
        shape = dict(heads=32, kv_heads=8, way=way, processes=processes)
        return cost.ring(131072, 128, **shape).written

    assert all(sent("ring", p) == sent("gather", p) for p in (2, 4, 8))
    assert sent("ring", 2) < sent("heads", 2) and sent("heads", 8) < sent("ring", 8)


def test_the_pictures_say_what_they_show():
    words = repr(show(pictures.steps, 4, panels=(1, 2)))
    assert "ring 43%, zigzag 0%" in words
    logs = [[("tile", 0.0, 0.02), ("wire", 0.0, 0.05), ("wait", 0.02, 0.05)]] * 2
    assert repr(show(pictures.time_line, logs)).startswith("Measured: 50 ms for 2 processes")
    assert ring.span(logs) == 0.05
    assert ring.idle([[1.0, 1.0], [1.0, 0.0]]) == 0.25
