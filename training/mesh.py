"""Which process does what: rank <-> (pipeline stage, replica, tensor-parallel part).

    rank = (pp_rank * dp + dp_rank) * tp + tp_rank

Tensor-parallel partners talk most, so they are neighbours, and stages, which talk least, lie
furthest apart. With dp = tp = pp = 2:

    stage 0   replica 0: 0 1   replica 1: 2 3
    stage 1   replica 0: 4 5   replica 1: 6 7

Arithmetic alone: nothing here needs MindSpore.
"""

from dataclasses import dataclass

from dataprep.errors import UserError
from training.sections import Parallel


@dataclass(frozen=True)
class Mesh:
    """The grid of processes as seen by one of them."""

    pp: int = 1
    """Pipeline stages."""
    dp: int = 1
    """Replicas."""
    tp: int = 1
    """Tensor-parallel parts."""
    rank: int = 0
    """Of this process, 0 to size - 1."""

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.pp * self.dp * self.tp

    @property
    def pp_rank(self) -> int:
        """Stage of this process."""
        return self.rank // (self.dp * self.tp)

    @property
    def dp_rank(self) -> int:
        """Replica of this process."""
        return self.rank // self.tp % self.dp

    @property
    def tp_rank(self) -> int:
        """Part of this process in its tensor-parallel group."""
        return self.rank % self.tp

    @property
    def is_first_stage(self) -> bool:
        """Whether the embedding is here."""
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether the head and the loss are here."""
        return self.pp_rank == self.pp - 1

    def rank_at(self, pp_rank: int, dp_rank: int, tp_rank: int) -> int:
        """Rank of the process at a place of the grid."""
        return (pp_rank * self.dp + dp_rank) * self.tp + tp_rank

    def tp_group(self) -> list[int]:
        """Ranks that share the stage's matrices with this process, itself included, ascending."""
        return [self.rank_at(self.pp_rank, self.dp_rank, t) for t in range(self.tp)]

    def dp_group(self) -> list[int]:
        """Ranks that hold the same weights and read other rows."""
        return [self.rank_at(self.pp_rank, d, self.tp_rank) for d in range(self.dp)]

    def pp_group(self) -> list[int]:
        """Ranks of all stages of this replica and part, first stage first."""
        return [self.rank_at(p, self.dp_rank, self.tp_rank) for p in range(self.pp)]


def make_mesh(parallel: Parallel, size: int, rank: int) -> Mesh:
    """The mesh of `size` processes. Raises UserError when the factors do not multiply to them."""
    tp, pp, dp = parallel.model_parallel, parallel.pipeline_stage, parallel.data_parallel
    if dp is None and size % (tp * pp) == 0:
        dp = size // (tp * pp)
    if dp is None or dp * tp * pp != size:
        told = "not a divisor of" if dp is None else f"{dp * tp * pp}, not"
        raise UserError(
            f"parallel.data_parallel {'(left out)' if dp is None else dp} x model_parallel {tp} x "
            f"pipeline_stage {pp} is {told} the number of processes, {size}; start as many as the "
            "product, or change a factor"
        )
    return Mesh(pp, dp, tp, rank)
