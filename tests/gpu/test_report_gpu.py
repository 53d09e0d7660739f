"""The report made without a GPU agrees with the kernel that the GPU loads."""

import itertools
from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available() or find_spec("triton") is None:
    pytest.skip("needs a CUDA GPU and Triton", allow_module_level=True)

from course.kernels import launch
from course.kernels import report as module
from course.kernels.report import SM, report
from course.kernels.tiles import Tile

pytestmark = pytest.mark.gpu
major, minor = torch.cuda.get_device_capability()
ARCH = major * 10 + minor


@pytest.mark.skipif(ARCH not in SM, reason="not in the table of architectures")
@pytest.mark.parametrize("d, causal", list(itertools.product((64, 128), (False, True))))
def test_registers_spills_and_shared_memory(d, causal, monkeypatch, tmp_path):
    tile = Tile(64, 64, 4, 2)
    options = {"d": d, "causal": causal, "arch": ARCH, **tile._asdict()}
    q, k, v = torch.randn(3, 1, 2, 256, d, device="cuda", dtype=torch.float16)
    o, (m, inv_l) = torch.empty_like(q), (launch.row_statistics(q) for _ in range(2))
    loaded = launch.launch_forward(q, k, v, o, None, m, inv_l, causal=causal, scale=1.0, tile=tile)
    here = report(**options)
    assert "as loaded on" in here.source
    monkeypatch.setattr(module, "_this_gpu", lambda: None)
    module._facts.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    elsewhere = report(**options)
    module._facts.cache_clear()
    assert "not run" in elsewhere.source
    for r in (here, elsewhere):
        assert r.registers == loaded.n_regs
        assert r.spilled_bytes == 4 * loaded.n_spills
        assert r.shared_bytes == loaded.metadata.shared
        assert r.tensor_cores
