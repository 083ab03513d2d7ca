"""Collective operations without gradients, as Cells that run alone or inside `ms.jit`.

They are made of primitives: the functions of `mindspore.ops` check their arguments in Python, which
the compiler refuses in a `bprop`.

Collectives of one compiled function that do not depend on each other run in an order that follows
from its graph. Members with different graphs would wait for each other in a circle, or take each
other's sums. So a member's index is nowhere a number in the graph (equal numbers are merged into
one node, and 0 is frequent), but a tensor, and the graph is the same on all members of a group.
Independent collectives of two groups in one function are still out of order: a process may have
the same index in both, and its partner not. Make one depend on the other, or compile them apart.
"""

from math import prod

import mindspore as ms
from mindspore import Tensor, nn, ops

Shape = tuple[int, ...]


def is_native() -> bool:
    """Whether the device has all collectives of its own."""
    return ms.get_context("device_target") == "Ascend"


class Reduce(nn.Cell):
    """Elementwise sum over the group; every member gets it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.sum = ops.AllReduce(ops.ReduceOp.SUM, name)

    def construct(self, x: Tensor) -> Tensor:
        return self.sum(x)


class Gather(nn.Cell):
    """The members' parts side by side along an axis: [.., n, ..] -> [.., size * n, ..]."""

    def __init__(self, name: str, size: int, index: int, axis: int) -> None:
        super().__init__()
        self.sum = ops.AllReduce(ops.ReduceOp.SUM, name)
        self.concat, self.zeros = ops.Concat(axis), ops.ZerosLike()
        self.new_axis, self.take = ops.ExpandDims(), ops.Gather()
        self.where = Tensor([int(i == index) for i in range(size)], ms.int32)
        self.size, self.axis = size, axis

    def construct(self, x: Tensor) -> Tensor:
        before, length, after = x.shape[: self.axis], x.shape[self.axis], x.shape[self.axis + 1 :]
        x = self.new_axis(x, self.axis)
        placed = self.take(self.concat((self.zeros(x), x)), self.where, self.axis)
        return self.sum(placed.reshape(before + (self.size * length,) + after))


class ReduceScatter(nn.Cell):
    """Own part of the sum along an axis: [.., size * n, ..] -> [.., n, ..]."""

    def __init__(self, name: str, size: int, index: int, axis: int) -> None:
        super().__init__()
        self.sum = ops.AllReduce(ops.ReduceOp.SUM, name)
        self.part = Part(size, index, axis)

    def construct(self, x: Tensor) -> Tensor:
        return self.part(self.sum(x))


class Part(nn.Cell):
    """Own part of what every member holds whole: [.., size * n, ..] -> [.., n, ..]. No traffic."""

    def __init__(self, size: int, index: int, axis: int) -> None:
        super().__init__()
        self.take, self.where = ops.Gather(), Tensor(index, ms.int32)
        self.size, self.axis = size, axis

    def construct(self, x: Tensor) -> Tensor:
        before, length, after = x.shape[: self.axis], x.shape[self.axis], x.shape[self.axis + 1 :]
        parts = x.reshape(before + (self.size, length // self.size) + after)
        return self.take(parts, self.where, self.axis)


class Broadcast(nn.Cell):
    """The root's values on every member."""

    def __init__(self, name: str, is_root: bool) -> None:
        super().__init__()
        self.sum = ops.AllReduce(ops.ReduceOp.SUM, name)
        self.mine: ops.Primitive = ops.Identity() if is_root else ops.ZerosLike()

    def construct(self, x: Tensor) -> Tensor:
        return self.sum(self.mine(x))


class Maximum(nn.Cell):
    """Elementwise maximum over the group."""

    def __init__(self, name: str, size: int, index: int) -> None:
        super().__init__()
        self.gather = Gather(name, size, index, 0)
        self.new_axis, self.maximum = ops.ExpandDims(), ops.ReduceMax()

    def construct(self, x: Tensor) -> Tensor:
        return self.maximum(self.gather(self.new_axis(x, 0)), 0)


class Exchange(nn.Cell):
    """In a group of two, each sends its own and gets the other's; None: nothing, one way.

    The result of a mere send has no meaning, but that it is there when all is sent.
    """

    def __init__(self, name: str, index: int, gets: Shape | None) -> None:
        super().__init__()
        self.sum = ops.AllReduce(ops.ReduceOp.SUM, name)
        self.is_first, self.gets = index == 0, gets
        self.taken = prod(gets or (0,))

    def construct(self, x: Tensor | None) -> Tensor:
        parts = [ops.zeros(self.taken, ms.float32)] if self.gets is not None else []
        if x is not None:
            parts = [x.reshape(-1), *parts] if self.is_first else [*parts, x.reshape(-1)]
        total = self.sum(ops.concat(parts, 0))
        if self.gets is None:
            return total
        start = total.shape[0] - self.taken if self.is_first else 0
        return ops.narrow(total, 0, start, self.taken).reshape(self.gets)


class NativeGather(nn.Cell):
    """`Gather` by HCCL."""  # Ascend: not verified

    def __init__(self, name: str, axis: int) -> None:
        super().__init__()
        self.gather, self.axis = ops.AllGather(name), axis

    def construct(self, x: Tensor) -> Tensor:
        return ops.swapaxes(self.gather(ops.swapaxes(x, 0, self.axis)), 0, self.axis)


class NativeReduceScatter(nn.Cell):
    """`ReduceScatter` by HCCL."""  # Ascend: not verified

    def __init__(self, name: str, axis: int) -> None:
        super().__init__()
        self.scatter, self.axis = ops.ReduceScatter(ops.ReduceOp.SUM, name), axis

    def construct(self, x: Tensor) -> Tensor:
        return ops.swapaxes(self.scatter(ops.swapaxes(x, 0, self.axis)), 0, self.axis)


class NativeBroadcast(nn.Cell):
    """`Broadcast` by HCCL."""  # Ascend: not verified

    def __init__(self, name: str, root: int) -> None:
        super().__init__()
        self.broadcast = ops.Broadcast(root, name)

    def construct(self, x: Tensor) -> Tensor:
        return self.broadcast((x,))[0]


class NativeMaximum(nn.Cell):
    """`Maximum` by HCCL."""  # Ascend: not verified

    def __init__(self, name: str) -> None:
        super().__init__()
        self.maximum = ops.AllReduce(ops.ReduceOp.MAX, name)

    def construct(self, x: Tensor) -> Tensor:
        return self.maximum(x)


class NativeExchange(nn.Cell):
    """`Exchange` by HCCL: the first sends before it receives, the other the other way round."""

    # Ascend: not verified

    def __init__(self, name: str, index: int, sends: Shape | None, gets: Shape | None) -> None:
        super().__init__()
        self.is_first, self.sends, self.gets = index == 0, sends is not None, gets is not None
        self.send = ops.Send(0, 1 - index, name)
        self.receive = ops.Receive(0, 1 - index, list(gets or (1,)), ms.float32, name)

    def construct(self, x: Tensor | None) -> Tensor:
        result = self.send(x) if self.sends and self.is_first else None
        result = self.receive() if self.gets else result
        sent = self.send(x) if self.sends and not self.is_first else None
        return sent if result is None else result
