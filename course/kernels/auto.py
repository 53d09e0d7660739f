"""variant="auto": for each call the kernels that are fastest for what it asks."""

from course.kernels import launch, split_kv

MANY = 1024  # keys; below, a program walks over all of them before splitting would pay

backward = launch.backward


def forward(q, k, v, *, causal, scale, keep_rest=False):
    """(o, o_rest, m, 1/l), as `launch.forward`."""
    if keep_rest or not few_queries(q, k):
        return launch.forward(q, k, v, causal=causal, scale=scale, keep_rest=keep_rest)
    o, m, l = split_kv.forward(q, k, v, causal=causal, scale=scale)
    return o, None, m, 1 / l


def few_queries(q, k):
    """Whether one program a tile of queries would leave SMs idle, or half of its rows empty."""
    b, h, n_q, _ = q.shape
    sms, _ = split_kv.gpu(q.device.index)
    return k.shape[2] >= MANY and (n_q < 64 or b * h * launch.cdiv(n_q, 64) < sms)
