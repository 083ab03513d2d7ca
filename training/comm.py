"""Groups of processes that talk, and the Cells that make a model parallel from outside.

    world     all processes
    dp        those that hold the same weights and read other rows
    tp        those that share the stage's matrices
    ends      first and last stage of one replica and part: they hold a tied embedding twice
    previous, next       neighbouring stages

Two ways to talk. A `Group` or `Edge` (groups.py) is called between compiled steps: it is timed and
has no gradient. A Cell (`Sum`, `Copy`, ...) is a part of a model, in PyNative and under `ms.jit`,
and has the gradient that belongs to it. Everything is float32.
"""

from dataclasses import dataclass, field

from mindspore import Tensor, nn, ops

from training.groups import Clock, Edge, Group
from training.launch import processes
from training.mesh import Mesh


@dataclass(frozen=True)
class Comm:
    """All groups of one process."""

    mesh: Mesh
    world: Group
    tp: Group
    dp: Group
    ends: Group
    """Of one when there is one stage, or this is neither the first nor the last."""
    previous: Edge | None
    next: Edge | None
    clock: Clock = field(default_factory=Clock)

    @property
    def seconds(self) -> float:
        """Spent in calls of groups and edges since the last `take_seconds`."""
        return self.clock.seconds

    def take_seconds(self) -> float:
        """Those seconds, which start from 0 again."""
        seconds, self.clock.seconds = self.clock.seconds, 0.0
        return seconds


def open_comm(mesh: Mesh) -> Comm:
    """The groups of a mesh over all processes, which must call this in the same order.

    It may be called again with another mesh of the same size; a group of the same ranks is used
    again.
    """
    assert mesh.size in (1, processes()[1]), (mesh, processes())
    clock = Clock()
    stages = mesh.pp_group()
    outer = mesh.is_first_stage or mesh.is_last_stage
    ends = sorted({stages[0], stages[-1]}) if outer else [mesh.rank]
    # In the order of stages, so that nobody waits for one that waits for him.
    edges = {}
    for name, first in (("previous", mesh.pp_rank - 1), ("next", mesh.pp_rank)):
        exists = 0 <= first < mesh.pp - 1
        pair = stages[first : first + 2] if exists else []
        edges[name] = Edge(Group(pair, mesh.rank, clock)) if pair else None
    return Comm(
        mesh,
        world=Group(range(mesh.size), mesh.rank, clock),
        tp=Group(mesh.tp_group(), mesh.rank, clock),
        dp=Group(mesh.dp_group(), mesh.rank, clock),
        ends=Group(ends, mesh.rank, clock),
        previous=edges["previous"],
        next=edges["next"],
        clock=clock,
    )


class Seam(nn.Cell):
    """A part of a model that talks: one operation forward, another one backward."""

    def __init__(self, there: nn.Cell, back: nn.Cell) -> None:
        super().__init__()
        self.there, self.back = there, back

    def construct(self, x: Tensor) -> Tensor:
        return self.there(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.back(dout),)


class Copy(Seam):
    """Into a part that works on own weights: forward x, backward the sum over the group.

    f of Megatron-LM (arXiv:1909.08053).
    """

    def __init__(self, group: Group) -> None:
        super().__init__(nn.Identity(), group.cell("reduce"))


class Sum(Seam):
    """Out of such a part: forward the sum over the group, backward the gradient as it is.

    g of Megatron-LM.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group.cell("reduce"), nn.Identity())


class Gather(Seam):
    """Into such a part from sequence parallelism (arXiv:2205.05198): forward all parts side by
    side, backward own part of the sum."""

    def __init__(self, group: Group, axis: int) -> None:
        super().__init__(group.cell("gather", axis), group.cell("scatter", axis))


class Scatter(Seam):
    """Out of such a part into sequence parallelism: forward own part of the sum, backward all
    parts side by side."""

    def __init__(self, group: Group, axis: int) -> None:
        super().__init__(group.cell("scatter", axis), group.cell("gather", axis))


class Split(Seam):
    """Forward own part of what all hold, backward all parts side by side."""

    def __init__(self, group: Group, axis: int) -> None:
        super().__init__(group.cell("part", axis), group.cell("gather", axis))


class Join(Seam):
    """Forward all parts side by side, backward own part: for what all then compute alike."""

    def __init__(self, group: Group, axis: int) -> None:
        super().__init__(group.cell("gather", axis), group.cell("part", axis))


class Max(Seam):
    """Forward the elementwise maximum, backward zeros: for a shift that cancels out."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.cell("maximum"), ops.ZerosLike())
