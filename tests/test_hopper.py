"""hopper_forward.py without a GPU: what the compiler makes of it, and the order it claims."""

from importlib.util import find_spec

import pytest

if find_spec("triton") is None:
    pytest.skip("Triton has no wheel for this platform", allow_module_level=True)

from course import kernels
from course.kernels import hopper_report


def schedule(**ideas):
    from course.kernels.hopper_forward import Schedule

    return Schedule(**ideas)


@pytest.fixture(scope="module")
def full():
    """The listings at d = 128, without a mask."""
    ideas = ({"overlap": False}, {}, {"pinned": True})
    return [hopper_report.listing(128, False, schedule(**idea)) for idea in ideas]


def steps(listing):
    """What stands between one `product` and the next, through the listing."""
    order = [name for name, _count in listing["order"]]
    starts = [i for i, name in enumerate(order) if name == "product"]
    return [order[a:b] for a, b in zip(starts, [*starts[1:], len(order)], strict=True)]


def test_it_uses_what_hopper_has(full):
    for listing in full:
        names = {name for name, _count in listing["order"]}
        assert {"product", "fetch", "exp2", "registers"} <= names
        assert listing["stack"] <= 64 and listing["registers"] == 168
        assert listing["shared"] <= 232_448


def test_without_overlap_every_product_is_waited_for(full):
    waits = [name for name, _count in full[0]["order"] if name.startswith("wait")]
    assert set(waits) == {"wait 0"}


def test_the_compiler_loses_the_overlap_and_the_pin_wins_it_back(full):
    """Between wait 1 (the scores are there) and wait 0 (P V is done) the exponentials should run."""
    _in_turn, lost, won = full

    def under_the_product(listing):
        return [s[s.index("wait 1") : s.index("wait 0")] for s in steps(listing) if "wait 1" in s]

    assert under_the_product(lost) and not any("exp2" in s for s in under_the_product(lost))
    assert under_the_product(won) and all("exp2" in s for s in under_the_product(won))


@pytest.mark.parametrize(
    "d, ideas", [(64, {"consumers": 3, "overlap": False}), (128, {"pinned": True})]
)
def test_what_auto_launches_compiles_with_the_mask(d, ideas):
    listing = hopper_report.listing(d, True, schedule(**ideas))
    assert listing["stack"] <= 64 and listing["shared"] <= 232_448


def test_a_failure_of_the_compiler_is_one_line():
    with pytest.raises(RuntimeError, match="the compiler failed on") as refusal:
        hopper_report.listing(128, False, schedule(block_kv=100))
    assert "\n" not in str(refusal.value)


def test_order_reads_the_disassembly():
    text = "\n".join(
        ["HGMMA.64x128x16.F32", "  HGMMA", "WARPGROUP.DEPBAR.LE gsb0, 0x1", "MUFU.EX2 R1"]
    )
    assert hopper_report.order(text) == [["product", 2], ["wait 1", 1], ["exp2", 1]]


def test_nothing_of_it_is_imported_where_it_cannot_run():
    import torch

    from course.kernels import auto

    q = torch.zeros(1, 1, 4096, 128, dtype=torch.float16)
    assert kernels.interpreted and auto.hopper_schedule(q, q, False) is None
