"""Sums over processes: of losses and counts, and of gradients with their global norm.

What a step divides by, its number of valid targets, is known only when all replicas have counted
theirs. So gradients of sums travel, and are multiplied once, when they are used.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from mindspore import Tensor

from training.buckets import Bucket
from training.comm import Comm, Group
from training.flat import flatten, squares
from training.mesh import Mesh

Float64 = npt.NDArray[np.float64]


def gather_numbers(group: Group, numbers: Sequence[float]) -> Float64:
    """Some numbers of each process, float64 [processes, numbers], the same on all.

    A float64 travels as the sum of two float32, so 48 of its 53 bits arrive: whole numbers below
    2^48 exactly.
    """
    exact = np.array(numbers, np.float64)
    with np.errstate(over="ignore"):  # too large is infinite, as in any float32
        high = exact.astype(np.float32)
    low = np.where(np.isfinite(high), exact - np.where(np.isfinite(high), high, 0), 0)
    sent = np.concatenate([high, low.astype(np.float32)])
    received = group.all_gather(Tensor(sent)).asnumpy().astype(np.float64)
    halves = received.reshape(group.size, 2, len(exact))
    return halves[:, 0] + halves[:, 1]


def step_totals(comm: Comm, loss_sum: float, valid: int) -> tuple[float, int]:
    """A step's summed loss and number of valid targets over all replicas; the same everywhere.

    `loss_sum` is that of this process's replica, known on its last stage; `valid` the number of
    valid targets of its rows. Each replica counts once, whatever it is spread over.
    """
    mesh = comm.mesh
    numbers = gather_numbers(comm.world, [loss_sum, valid])
    ends = [mesh.rank_at(mesh.pp - 1, replica, 0) for replica in range(mesh.dp)]
    return math.fsum(numbers[ends, 0]), int(numbers[ends, 1].sum())


def speaks(mesh: Mesh, sliced: bool, copied: bool, sharded: bool = False) -> bool:
    """Whether this process is the one of all holders of a weight, or of its part of it, that counts
    it in norms and writes it into checkpoints.

    sliced: tensor-parallel partners hold different parts. copied: it is a tied embedding, which the
    last stage holds too. sharded: replicas answer for different elements.
    """
    first_part = sliced or mesh.tp_rank == 0
    first_replica = sharded or mesh.dp_rank == 0
    return first_part and first_replica and not (copied and not mesh.is_first_stage)


class Reducer:
    """Sums gradients over the processes that hold the same weights."""

    def __init__(self, buckets: Sequence[Bucket], mesh: Mesh, comm: Comm, sharded: bool) -> None:
        self.buckets = list(buckets)
        self.mesh, self.comm, self.sharded = mesh, comm, sharded

    def owns(self, bucket: Bucket) -> bool:
        """Whether this process speaks for a bucket's weights, or for its own shard of them."""
        family = bucket.family
        return speaks(self.mesh, family.sliced, family.apart, self.sharded)

    def reduce(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Float32 sums, flat: of each bucket, or of this replica's part of it.

        `gradients` in the order of the weights.
        """
        return [self._reduce(bucket, gradients) for bucket in self.buckets]

    def norm(self, reduced: Sequence[Tensor], share: float) -> float:
        """L2 norm of all gradients of the model x share, each element once; the same everywhere.

        Not finite when an element of any process is not.
        """
        own = 0.0
        for bucket, gradient in zip(self.buckets, reduced, strict=True):
            if self.owns(bucket):
                own += squares(gradient)
        norms = gather_numbers(self.comm.world, [math.sqrt(own) * share])
        return math.sqrt(math.fsum(norms[:, 0] ** 2))

    def _reduce(self, bucket: Bucket, gradients: Sequence[Tensor]) -> Tensor:
        comm, family = self.comm, bucket.family
        ranges = [(gradients[m.index], 0, m.slice.size) for m in bucket.members]
        flat = flatten(ranges, bucket.size)
        if family.partial:
            flat = comm.tp.all_reduce(flat)
        if family.apart:
            flat = comm.ends.all_reduce(flat)
        return comm.dp.reduce_scatter(flat) if self.sharded else comm.dp.all_reduce(flat)
