"""What the compiler made of a kernel, for GPUs that are not here."""

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from time import perf_counter

import numpy as np
import pytest

if find_spec("triton") is None:
    pytest.skip("Triton has no wheel for this platform", allow_module_level=True)

from course.kernels import report as module
from course.kernels import tiles
from course.kernels.report import SM, occupancy, report, resources
from course.records import one_pass

SMALL = {"d": 64, "block_q": 32, "block_kv": 32}
LARGEST = {"d": 256, "block_q": 128, "block_kv": 128, "num_warps": 1}


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
    types = dict.fromkeys(("x_ptr", "out_ptr"), "*fp16") | {"n": "i64"}
    r = resources("course.exercises.fusion:copy_kernel", types, {"BLOCK": 1024})
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
        (32, 0, 32, 90, (2, "registers")),
        (32, 10_264, 64, 90, (0, "threads")),  # CUDA starts no block of 2,048 threads
        (255, 240_000, 64, 90, (0, "threads")),
    ],
)
def test_occupancy(registers, shared, warps, arch, expected):
    """Worked by hand from the table of compute capabilities."""
    assert occupancy(registers, shared, warps, arch) == expected


def test_occupancy_never_promises_more_than_an_sm_has():
    for arch, registers, shared, warps in itertools.product(
        SM, (16, 17, 64, 129, 255), (0, 1, 40_000, 99_000), (1, 4, 8, 64)
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
    (empty_cache / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty_cache / "file"))
    assert report("forward", **SMALL).registers


def test_a_child_that_dies_is_replaced(empty_cache):
    report("forward", **SMALL)
    module._child().kill()
    module._child().wait()
    with pytest.raises(ValueError, match="crashed"):
        report("forward", num_stages=3, **SMALL)
    for path in empty_cache.rglob("report-*.json"):
        assert "crashed" not in path.read_text(encoding="utf-8")  # a crash is not kept
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
        ({"block_q": 96}, "96. It must be a power of two of at least 16"),
        ({"block_kv": 8}, "at least 16"),  # D11: a GPU's dot takes no less
        ({"d": 300}, "1 to 256"),
        ({"num_warps": 3}, "power of two from 1 to 32"),
        ({"num_warps": 64}, "power of two from 1 to 32"),
        ({"num_stages": 0}, "from 1 to 8"),
        ({"num_stages": 64}, "from 1 to 8"),
        ({"maxnreg": 0}, "from 24 to 255"),
        ({"maxnreg": 256}, "from 24 to 255"),
        ({"causal": "no"}, "causal is of type str. Choose True or False"),
        ({"dtype": "bf16", "arch": 75}, "sm_75 cannot run bf16 kernels. Choose fp16"),
        (
            {"arch": 75, "num_warps": 4},
            "16,384 .* without tensor cores.*choose a smaller tile or more warps",
        ),
        ({"dtype": "fp32", "num_warps": 8, "kernel": "dkdv"}, "unrolls into 16,384"),
        (LARGEST, "holds 1,536 FP32 numbers at once. Up to 256"),
        ({"kernel": "dkdv", "block_q": 256, "arch": 90}, "holds 384 FP32 numbers"),
        ({"d": 256, "block_q": 64, "block_kv": 256}, "unrolls into 65,536 multiply-adds on tensor"),
        *(
            (LARGEST | wrong, message)  # what cannot be is named before what takes long
            for wrong, message in (
                ({"arch": 70}, "arch 70 is unknown"),
                ({"arch": None}, "arch of type NoneType is unknown"),
                ({"arch": "90"}, "arch of type str is unknown"),
                ({"kernel": "sideways"}, "unknown"),
                ({"kernel": ["dq"]}, "unknown"),
                ({"dtype": ["fp16"]}, "unknown"),
                ({"num_warps": 3}, "power of two"),
                ({"maxnreg": 8}, "24 to 255"),
                ({"dtype": "bf16", "arch": 75}, "bf16"),
            )
        ),
    ],
)
def test_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message) as error:
        report(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["d", "block_q", "block_kv", "num_warps", "num_stages", "maxnreg", "arch"]
)
@pytest.mark.parametrize("x", [64.0, "64", [64], {}, np.float32(64), np.arange(99), float("nan")])
def test_what_is_no_whole_number_is_refused(name, x):
    with pytest.raises(ValueError, match=f"{name} (is )?of type {type(x).__name__}") as error:
        report(**SMALL | {name: x})
    assert "\n" not in str(error.value)


def test_a_number_of_numpy_is_a_number():
    numbers = SMALL | {"num_warps": 4, "num_stages": 2, "arch": 90, "maxnreg": 96}
    expected = report(**numbers, causal=True)
    for kind in (np.int64, np.uint16, np.array):
        r = report(**{name: kind(x) for name, x in numbers.items()}, causal=np.bool_(True))
        assert r == expected and type(r.arch) is int


@pytest.mark.parametrize("constants", [{"BLOCK": 1024}, {"BLOCK": np.int32(1024)}])
def test_any_kernel_is_asked_as_strictly(constants):
    copy = "course.exercises.fusion:copy_kernel"
    half, bf16 = (
        dict.fromkeys(("x_ptr", "out_ptr"), kind) | {"n": "i64"} for kind in ("*fp16", "*bf16")
    )
    assert resources(copy, half, constants, maxnreg=None).registers
    for types, options, message in (
        (half, {"foo": 3}, "option 'foo' is unknown. Choose num_warps, num_stages, maxnreg"),
        (half, {"d": 64}, "option 'd' is unknown"),
        (half, {"num_warps": 64}, "from 1 to 32"),
        (half, {"num_stages": None}, "num_stages is of type NoneType"),
        (bf16, {"arch": 75}, "bf16"),
    ):
        with pytest.raises(ValueError, match=message):
            resources(copy, types, constants, **options)
    with pytest.raises(ValueError, match="a type cannot be a constant"):
        resources(copy, half, {"BLOCK": int})


def test_it_is_ptxas_that_says_why(empty_cache, capfd):
    module._child.cache_clear()  # the new child prints where capfd looks
    with pytest.raises(ValueError, match=r"Insufficient registers .24. .*28 or higher") as error:
        report("forward", maxnreg=24, **SMALL)
    assert "\n" not in str(error.value) and "Repro" not in str(error.value)
    assert report("forward", maxnreg=28, **SMALL).registers == 28
    printed = capfd.readouterr()
    assert ".version" not in printed.err + printed.out  # the whole PTX


@pytest.mark.parametrize(
    "said, reason",
    [
        (
            "PTXAS error: `ptxas` raised SIGSEGV\n`ptxas` stderr:\n\nRepro command: ptxas",
            "`ptxas` raised SIGSEGV",
        ),
        (
            "PTXAS error: failed\nptxas warning : so\nptxas a.ptx, line 9; error   : Not x\nptxas fatal : aborted\nRepro",
            "Not x",
        ),
        ("at 3:4:\n  code\n  ^\nthe reason \n\n", "the reason"),
        ("", ""),
    ],
)
def test_the_reason_in_an_error(said, reason, monkeypatch):
    def refuse(**_):
        raise RuntimeError(said)

    monkeypatch.setattr(module, "_compile", refuse)
    assert module._try("{}") == {"error": f"RuntimeError: {reason}"}


@pytest.mark.parametrize("kernel", ["forward", "dkdv", "dq"])
def test_every_tile_of_the_table_is_reported(kernel, monkeypatch):
    monkeypatch.setattr(module, "_facts", lambda request: {"error": "asked"})  # not refused
    for (size, rows), archs in zip(tiles.TABLE.items(), ((90, 100), (86, 80), (75,)), strict=True):
        for (itemsize, d), tile in rows[kernel].items():
            dtype = {2: "fp16", 4: "fp32"}[itemsize]
            for arch in archs:
                assert size <= SM[arch][3]
                with pytest.raises(ValueError, match="asked"):
                    report(kernel, d=d, arch=arch, dtype=dtype, causal=True, **tile._asdict())


def test_what_does_not_compile_says_so_in_one_line():
    with pytest.raises(ValueError, match="does not compile for sm_90") as error:
        resources("course.exercises.fusion:copy_kernel", {}, {})
    assert "\n" not in str(error.value)


def test_it_needs_no_torch_in_the_child():
    code = (
        "import os, sys; os.environ['TRITON_INTERPRET'] = '0'\n"
        "import course.kernels.report as r, course.kernels.forward, course.kernels.backward\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
