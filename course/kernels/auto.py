"""variant="auto": for each call the kernels that are fastest for what it asks."""

import torch

from course.kernels import interpreted, launch, split_kv, tiles

MANY = 1024  # keys; below, a program walks over all of them before splitting would pay

backward = launch.backward


def forward(q, k, v, *, causal, scale, keep_rest=False):
    """(o, o_rest, m, 1/l), as `launch.forward`."""
    options = {"causal": causal, "scale": scale}
    if not keep_rest and few_queries(q, k):
        o, m, l = split_kv.forward(q, k, v, **options)
        return o, None, m, 1 / l
    if schedule := hopper_schedule(q, k, causal):
        return hopper(q, k, v, keep_rest, schedule, **options)
    return launch.forward(q, k, v, keep_rest=keep_rest, **options)


def few_queries(q, k):
    """Whether one program a tile of queries would leave SMs idle, or half of its rows empty."""
    b, h, n_q, _ = q.shape
    sms, _ = split_kv.gpu(q.device.index)
    return k.shape[2] >= MANY and (n_q < 64 or b * h * launch.cdiv(n_q, 64) < sms)


SCHEDULES = {  # (d, causal): from how many rows on hopper_forward.py is faster, and with what ideas
    (128, False): (1024, {"persistent": True}),
    (128, True): (2048, {"pinned": True}),
    (64, False): (2048, {"consumers": 3, "overlap": False}),
    (64, True): (8192, {"consumers": 3, "overlap": False}),
}
"""By the section "hopper_forward" of the records, measured on an H200."""


def hopper_schedule(q, k, causal):
    """How hopper_forward.py does it where it is the faster, else None."""
    if interpreted or q.dtype == torch.float32 or tiles.gpu(q.device.index)[0] != 90:
        return None
    least, ideas = SCHEDULES.get((q.shape[3], causal), (None, None))
    if least is None or min(q.shape[2], k.shape[2]) < least:
        return None
    from course.kernels.hopper_forward import Schedule  # Gluon: only where it runs

    return Schedule(**ideas)


def hopper(q, k, v, keep_rest, schedule, **options):
    """(o, o_rest, m, 1/l) by hopper_forward.py."""
    from course.kernels import hopper_forward

    q, k, v = (launch.aligned(x) for x in (q, k, v))
    o = launch.empty_aligned(q.shape, q)
    o_rest = launch.empty_aligned(q.shape, q) if keep_rest else None
    m, inv_l = launch.row_statistics(q), launch.row_statistics(q)
    hopper_forward.launch(q, k, v, o, o_rest, m, inv_l, schedule=schedule, **options)
    return o, o_rest, m, inv_l
