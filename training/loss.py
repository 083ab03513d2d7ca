"""Masked cross-entropy, as a sum and a count.

The mean of a step is taken over all its valid targets, whatever micro batch or process they are
in; a mean of means would weigh a target by how much padding stands beside it. So nothing here
divides.
"""

import mindspore as ms
from mindspore import Tensor, ops


def token_losses(logits: Tensor, labels: Tensor, loss_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of -log p(label) over the valid targets, in nats, and their number.

    logits float32 [B, S, V]; labels int32 [B, S], any value where loss_mask is 0; loss_mask int32
    [B, S], 1 = counts -> two float32 scalars. Both are 0, with a zero gradient, when no target is
    valid.
    """
    flat = logits.astype(ms.float32).reshape(-1, logits.shape[-1])
    valid = loss_mask.reshape(-1).astype(ms.float32)
    targets = (labels * loss_mask).reshape(-1, 1)  # a masked -100 would be no index
    log_shares = ops.log_softmax(flat, -1)
    losses = -ops.gather_elements(log_shares, 1, targets).reshape(-1)
    return (losses * valid).sum(), valid.sum()
