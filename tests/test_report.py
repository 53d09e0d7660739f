"""What the compiler made of a kernel, for GPUs that are not here."""

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from time import perf_counter

import pytest

if find_spec("triton") is None:
    pytest.skip("Triton has no wheel for this platform", allow_module_level=True)

from course.kernels import report as module
from course.kernels import tiles
from course.kernels.report import SM, occupancy, report, resources
from course.records import one_pass

SMALL = {"d": 64, "block_q": 32, "block_kv": 32}


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module._facts.cache_clear()
    yield tmp_path
    module._facts.cache_clear()


@pytest.mark.parametrize("arch", SM)
def test_every_architecture(arch):
    r = report("forward", arch=arch, **SMALL)
    assert 16 <= r.registers <= 255 and r.spilled_bytes == 0
    assert 0 < r.shared_bytes <= SM[arch][3] and r.blocks_per_sm >= 1
    assert f"sm_{arch}" in r.source and "not run" in r.source


def test_tensor_cores_and_copies_by_architecture():
    hopper = report("forward", d=64, block_q=64, block_kv=64, arch=90).instructions
    assert hopper["wgmma"] and hopper["TMA"] and not hopper["mma"] and not hopper["cp.async"]
    ampere = report("forward", arch=80, **SMALL)
    assert ampere.instructions["mma"] and ampere.instructions["cp.async"]
    assert ampere.tensor_cores and ampere.async_copy
    turing = report("forward", arch=75, **SMALL)
    assert not turing.async_copy  # cp.async came with Ampere
    ieee = report("forward", dtype="fp32", arch=90, **SMALL)
    assert not ieee.tensor_cores  # they would round to TF32


@pytest.mark.parametrize("kernel", ["dkdv", "dq"])
def test_the_backward_kernels(kernel):
    r = report(kernel, causal=True, **SMALL)
    assert r.tensor_cores and r.blocks_per_sm >= 1


@pytest.mark.parametrize("d", [64, 128])
def test_the_one_pass_that_was_measured(d):  # it runs on a GPU alone: here, that it compiles
    block_q, block_kv, num_warps, num_stages, _ = one_pass.TILES[d][0]
    types = {"scale": "fp32", "heads": "i32", "n": "i32"}
    types |= dict.fromkeys(("q", "do"), f"tensordesc<fp16[1, 1, {block_q}, {d}]>")
    types |= dict.fromkeys(
        ("k", "v", "dk_out", "dv_out"), f"tensordesc<fp16[1, 1, {block_kv}, {d}]>"
    )
    types |= dict.fromkeys(("m", "inv_l", "delta"), f"tensordesc<fp32[1, {block_q}]>")
    types["dq_sum"] = f"tensordesc<fp32[1, 1, {block_q}, {d}]>"
    constants = {"causal": True, "block_q": block_q, "block_kv": block_kv, "block_d": d}
    options = {"num_warps": num_warps, "num_stages": num_stages}
    r = resources("course.records.one_pass:one_pass_kernel", types, constants, **options)
    assert r.instructions["wgmma"] and r.spilled_bytes < 200 and r.blocks_per_sm >= 1


def test_a_kernel_of_another_kind():
    types = dict.fromkeys(("x_ptr", "y_ptr", "out_ptr"), "*fp16") | {"n": "i64"}
    r = resources("course.kernels.elementwise:add_kernel", types, {"BLOCK": 1024})
    assert r.shared_bytes == 0 and not r.tensor_cores and r.blocks_per_sm == 16  # 2048 / 128


def test_more_tiles_in_flight_take_more_shared_memory():
    one, two, three = (report("forward", num_stages=s, **SMALL).shared_bytes for s in (1, 2, 3))
    assert one < two < three
    a_stage = 2 * 32 * 64 * 2  # K and V, 32 rows of 64 halves
    assert a_stage <= three - two < a_stage + 64


def test_a_tile_too_large_does_not_start():
    r = report("forward", d=256, block_q=128, block_kv=128, num_warps=8, num_stages=2, arch=90)
    assert r.shared_bytes > SM[90][3]
    assert r.blocks_per_sm == 0 and r.limited_by == "shared memory"


@pytest.mark.parametrize("arch", [75, 86, 90])
@pytest.mark.parametrize("kernel", module.KERNELS)
def test_the_tile_chosen_for_a_gpu_fits_it(kernel, arch):  # D12
    tile = tiles.choose(kernel, d=128, itemsize=2, shared_memory=SM[arch][3])
    assert report(kernel, causal=True, arch=arch, **tile._asdict()).blocks_per_sm >= 1


def test_a_cap_on_registers_is_kept():
    assert report("forward", maxnreg=96, **SMALL).registers <= 96


@pytest.mark.parametrize(
    "registers, shared, warps, arch, expected",
    [
        (255, 98_336, 4, 90, (2, "registers")),
        (167, 50_176, 4, 90, (3, "registers")),
        (32, 0, 4, 90, (16, "registers")),  # a tie with the threads
        (24, 0, 4, 90, (16, "threads")),
        (16, 0, 1, 90, (32, "blocks")),
        (64, 100_000, 4, 86, (1, "shared memory")),
        (64, 101_377, 4, 86, (0, "shared memory")),
        (64, 65_536, 4, 75, (1, "shared memory")),
    ],
)
def test_occupancy(registers, shared, warps, arch, expected):
    """Worked by hand from the table of compute capabilities."""
    assert occupancy(registers, shared, warps, arch) == expected


def test_occupancy_never_promises_more_than_an_sm_has():
    for arch, registers, shared, warps in itertools.product(
        SM, (16, 17, 64, 129, 255), (0, 1, 40_000, 99_000), (1, 4, 8)
    ):
        blocks, _ = occupancy(registers, shared, warps, arch)
        threads_max, blocks_max, shared_max, _, reserved = SM[arch]
        assert blocks * warps * 32 <= threads_max and blocks <= blocks_max
        assert blocks * warps * 32 * registers <= 65_536
        assert blocks * (shared + reserved) <= shared_max


def test_an_answer_is_kept_on_disk(empty_cache, monkeypatch):
    first = report("forward", **SMALL)
    module._facts.cache_clear()
    monkeypatch.setattr(module, "_ask", lambda request: pytest.fail("asked twice"))
    start = perf_counter()
    assert report("forward", **SMALL) == first
    assert perf_counter() - start < 0.5
    assert len(list(empty_cache.rglob("report-*.json"))) == 1


def test_a_home_that_cannot_be_written(empty_cache, monkeypatch):
    (empty_cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty_cache / "file"))
    assert report("forward", **SMALL).registers


def test_a_child_that_dies_is_replaced(empty_cache):
    report("forward", **SMALL)
    module._child().kill()
    module._child().wait()
    with pytest.raises(ValueError, match="crashed"):
        report("forward", num_stages=3, **SMALL)
    for path in empty_cache.rglob("report-*.json"):
        assert "crashed" not in path.read_text()  # a crash is not kept
    assert report("forward", num_stages=3, **SMALL).registers


def test_an_interrupted_request_leaves_no_answer_behind(empty_cache, monkeypatch):
    report("forward", **SMALL)
    child = module._child()

    class Interrupted:
        def readline(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(child, "stdout", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        report("forward", num_stages=1, **SMALL)
    assert child.wait(5) and module._child() is not child
    three = report("forward", num_stages=3, **SMALL)
    assert three.shared_bytes > report("forward", num_stages=2, **SMALL).shared_bytes


def test_the_stop_button_does_not_end_the_child(empty_cache):
    report("forward", **SMALL)
    child = module._child()
    assert os.getpgid(child.pid) != os.getpgid(0)  # it interrupts the kernel's whole group


def test_questions_from_two_threads(empty_cache):
    expected = {s: report("forward", num_stages=s, **SMALL).shared_bytes for s in (1, 2, 3)}
    for path in empty_cache.rglob("report-*.json"):
        path.unlink()
    module._facts.cache_clear()
    stages = [1, 2, 3] * 2
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda s: report("forward", num_stages=s, **SMALL), stages))
    assert [r.shared_bytes for r in found] == [expected[s] for s in stages]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kernel": "sideways"}, "unknown. Choose one of forward, dkdv, dq"),
        ({"dtype": "fp8"}, "Choose fp16, bf16 or fp32"),
        ({"block_q": 96}, "powers of two, at least 16"),
        ({"block_kv": 8}, "at least 16"),  # D11: a GPU's dot takes no less
        ({"d": 300}, "1 to 256"),
        ({"arch": 70}, "arch 70 is unknown"),
        ({"num_warps": 3}, "power of two"),
        ({"arch": 75, "num_warps": 4}, "unrolls into 16,384 .*choose a smaller tile or more warps"),
        ({"dtype": "fp32", "num_warps": 8, "kernel": "dkdv"}, "unrolls into 16,384"),
    ],
)
def test_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message) as error:
        report(**options)
    assert "\n" not in str(error.value)


def test_what_does_not_compile_says_so_in_one_line():
    with pytest.raises(ValueError, match="does not compile for sm_90") as error:
        resources("course.kernels.elementwise:add_kernel", {}, {})
    assert "\n" not in str(error.value)


def test_it_needs_no_torch_in_the_child():
    code = (
        "import os, sys; os.environ['TRITON_INTERPRET'] = '0'\n"
        "import course.kernels.report as r, course.kernels.forward, course.kernels.backward\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
