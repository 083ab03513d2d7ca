"""Masked cross-entropy, as a sum and a count.

The mean of a step is taken over all its valid targets, whatever micro batch or process they are
in; a mean of means would weigh a target by how much padding stands beside it. So nothing here
divides.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

from training.comm import Group, Max, Sum


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


class VocabParallelLoss(nn.Cell):
    """`token_losses` of logits whose vocabulary is divided over a group: same arguments and result.

    Each process has the logits [B, S, V / parts] of its own ids, and all get the whole loss. Three
    numbers a token cross the group: a maximum, the sum of exponentials, and the label's logit,
    which one process has (Megatron-LM, arXiv:1909.08053).
    """

    def __init__(self, group: Group, first_id: int) -> None:
        """first_id: of this process's part, the ids of which follow one another."""
        super().__init__()
        self.first_id = first_id
        self.maximum, self.sum = Max(group), Sum(group)
        self.largest = ops.ReduceMax()

    def construct(self, logits: Tensor, labels: Tensor, loss_mask: Tensor) -> tuple[Tensor, Tensor]:
        size = logits.shape[-1]
        flat = logits.astype(ms.float32).reshape(-1, size)
        valid = loss_mask.reshape(-1).astype(ms.float32)
        # The shift keeps exp() small and cancels out of the loss, so it needs no gradient.
        shift = self.maximum(self.largest(ops.stop_gradient(flat), -1))
        shares = ops.exp(flat - ops.stop_gradient(shift).expand_dims(1)).sum(-1)
        own = (labels * loss_mask).reshape(-1) - self.first_id
        is_own = ops.logical_and(own >= 0, own < size).astype(ms.int32)
        found = ops.gather_elements(flat, 1, (own * is_own).expand_dims(1)).reshape(-1)
        both = self.sum(ops.stack((shares, found * is_own.astype(ms.float32))))
        losses = ops.log(both[0]) + shift - both[1]
        return (losses * valid).sum(), valid.sum()
