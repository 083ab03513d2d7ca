"""Communicators: groups of ranks, and pairs of neighbours. They are timed and have no gradient.

A `Group` or `Edge` is called between compiled steps, never inside of one. Everything is float32. A
group of one does nothing, and needs no other process.
"""

import hashlib
import time
from collections.abc import Callable, Sequence

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.communication import create_group

from training import collectives
from training.collectives import Shape

_created: set[str] = set()  # communicators live as long as the process


class Clock:
    """Seconds spent in timed calls, the wait for slower partners included."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[[Tensor | None], Tensor], x: Tensor | None) -> Tensor:
        """call(x), and counts what it takes; not the work before it, which is waited for."""
        if x is not None:
            _wait_for(x)
        start = time.perf_counter()
        result = call(x)
        _wait_for(result)
        self.seconds += time.perf_counter() - start
        return result


class Group:
    """A communicator of some ranks, as seen by one of them."""

    def __init__(self, ranks: Sequence[int], rank: int, clock: Clock | None = None) -> None:
        """All its ranks must make it, and each rank its groups in the same order."""
        self.ranks = tuple(ranks)
        self.index, self.size = self.ranks.index(rank), len(self.ranks)
        self.name = _communicator(self.ranks) if self.size > 1 else ""
        self.clock = clock or Clock()
        self._cells: dict[object, nn.Cell] = {}

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the group."""
        return self._run("reduce", x)

    def all_gather(self, x: Tensor, axis: int = 0) -> Tensor:
        """All members' x of one shape, side by side along an axis."""
        return self._run("gather", x, axis)

    def reduce_scatter(self, x: Tensor, axis: int = 0) -> Tensor:
        """Own part of the sum, along an axis that the group's size divides."""
        assert x.shape[axis] % self.size == 0, (x.shape, axis, self.size)
        return self._run("scatter", x, axis)

    def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        """x of the root, an index in the group; the others give one of its shape."""
        return self._run("broadcast", x, root)

    def maximum(self, x: Tensor) -> Tensor:
        """The elementwise maximum over the group."""
        return self._run("maximum", x)

    def cell(self, kind: str, place: int = 0) -> nn.Cell:
        """An operation to be built into another Cell; `place` is its axis, or the root.

        Kinds: reduce, gather, scatter (of a sum), part (own one), broadcast, maximum.
        """
        if (kind, place) not in self._cells:
            self._cells[kind, place] = self._make(kind, place)
        return self._cells[kind, place]

    def _run(self, kind: str, x: Tensor, place: int = 0) -> Tensor:
        assert x.dtype == ms.float32, x.dtype
        return x if self.size == 1 else self.clock.timed(self.cell(kind, place), x)

    def _make(self, kind: str, place: int) -> nn.Cell:
        name, size, index = self.name, self.size, self.index
        if size == 1:
            return nn.Identity()
        if kind == "part":
            return collectives.Part(size, index, place)
        if kind == "reduce":
            return collectives.Reduce(name)
        if collectives.is_native():
            native: dict[str, Callable[[], nn.Cell]] = {
                "gather": lambda: collectives.NativeGather(name, place),
                "scatter": lambda: collectives.NativeReduceScatter(name, place),
                "broadcast": lambda: collectives.NativeBroadcast(name, place),
                "maximum": lambda: collectives.NativeMaximum(name),
            }
            return native[kind]()
        composed: dict[str, Callable[[], nn.Cell]] = {
            "gather": lambda: collectives.Gather(name, size, index, place),
            "scatter": lambda: collectives.ReduceScatter(name, size, index, place),
            "broadcast": lambda: collectives.Broadcast(name, index == place),
            "maximum": lambda: collectives.Maximum(name, size, index),
        }
        return composed[kind]()


class Edge:
    """Between two neighbouring stages. Each call meets one of the partner's; both then go on.

    send meets receive, exchange meets exchange. A call waits for the partner's.
    """

    def __init__(self, group: Group) -> None:
        assert group.size == 2, group.ranks
        self.group = group
        self._cells: dict[object, nn.Cell] = {}

    def send(self, x: Tensor) -> None:
        """Gives x to the partner, which must know its shape."""
        self._run(x, None)

    def receive(self, shape: Shape) -> Tensor:
        """What the partner sends."""
        return self._run(None, shape)

    def exchange(self, x: Tensor, shape: Shape) -> Tensor:
        """Gives x and takes the partner's of `shape`, at once."""
        return self._run(x, shape)

    def _run(self, x: Tensor | None, gets: Shape | None) -> Tensor:
        assert x is None or x.dtype == ms.float32, x
        key = (None if x is None else x.shape, gets)
        if key not in self._cells:
            name, index = self.group.name, self.group.index
            if collectives.is_native():
                self._cells[key] = collectives.NativeExchange(name, index, *key)
            else:
                self._cells[key] = collectives.Exchange(name, index, gets)
        return self.group.clock.timed(self._cells[key], x)


def _wait_for(x: Tensor) -> None:
    """Until it is computed: MindSpore runs behind Python."""
    if collectives.is_native():
        ms.runtime.synchronize()  # Ascend: not verified
    else:
        x.asnumpy()  # without a copy; synchronize() does nothing on CPU


def _communicator(ranks: tuple[int, ...]) -> str:
    """The name of a group of several ranks; the group is made when it does not exist."""
    digest = hashlib.sha256(repr(ranks).encode()).hexdigest()[:12]
    name = f"ranks-{ranks[0]}-{ranks[-1]}-{digest}"
    if name not in _created:
        create_group(name, list(ranks))
        _created.add(name)
    return name
