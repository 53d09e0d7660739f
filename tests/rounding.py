"""What an error may be granted on top of twice plain PyTorch's, which may have been lucky."""

import torch


def of_scores(q, k, v, scale=None):
    """What one rounding of each score, in FP32, can do to an output: eps/2 · max |S| · max |v|.

    No kernel avoids it, and a sum taken in another order rounds differently. No score is larger than
    the longest query times the longest key.
    """
    longest_q, longest_k = (x.double().norm(dim=-1).max() for x in (q, k))
    scale = q.shape[-1] ** -0.5 if scale is None else abs(scale)
    largest = longest_q * longest_k * scale
    return torch.finfo(torch.float32).eps / 2 * largest * v.double().abs().max()
