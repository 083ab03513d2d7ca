"""Which weights are summed over processes together, and which part of them a replica updates.

    family    weights that are treated alike: decay or not, sliced by tensor parallelism or not, ...
    bucket    weights of one family in their order, as one flat vector that fills `bucket_mib`
    shard     the part of a bucket that one process updates: all of it, or one of equal parts

A bucket of weights a [2, 3], b [4] and c [1, 5], for 4 replicas that share the optimizer's state:

    a a a a a a b b b b c c c c c 0       16 elements, padded to a multiple of 4
    replica 0 | replica 1 | 2     | 3

Arithmetic alone: nothing here needs MindSpore.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from training.pieces import Float32, Slice

MIB = 2**20


@dataclass(frozen=True, order=True)
class Family:
    """What decides how a weight's gradient is summed, and how it is updated."""

    apart: bool
    """The tied embedding in a pipeline: the first and the last stage each hold one. It is alone in
    its bucket, so that both update it by the same arithmetic."""
    sliced: bool
    """Tensor-parallel partners hold other elements; else the same ones. What is the same is never
    in a bucket with what differs, so that it is updated by the same arithmetic everywhere."""
    partial: bool
    """Its gradient here is a part of a sum over the tensor-parallel group."""
    decays: bool
    """Weight decay acts: it has more than one axis."""
    rounded: bool
    """It is held below float32, so the optimizer keeps a float32 master."""


@dataclass(frozen=True)
class Member:
    """A weight in a bucket."""

    index: int
    """In the list of all weights of this process."""
    name: str
    slice: Slice
    at: int
    """Its first element's place in the bucket."""


@dataclass(frozen=True)
class Part:
    """Elements first..last-1 of a weight, which stand at `at` of a shard."""

    member: Member
    first: int
    last: int
    at: int


@dataclass(frozen=True)
class Shard:
    """What one process updates of a bucket."""

    parts: tuple[Part, ...]
    size: int
    """Elements, the padding included."""

    def fill(self, get: Callable[[Part], Float32]) -> Float32:
        """Its values, float32 [size], from those of its parts; padding is 0."""
        values = np.zeros(self.size, np.float32)
        for part in self.parts:
            values[part.at : part.at + part.last - part.first] = get(part)
        return values


@dataclass(frozen=True)
class Bucket:
    """Weights of one family, as one vector."""

    family: Family
    members: tuple[Member, ...]
    size: int
    """Elements, the padding included."""

    def shard(self, parts: int, index: int) -> Shard:
        """One of `parts` equal parts of the vector."""
        assert self.size % parts == 0, (self.size, parts)
        length = self.size // parts
        start, stop = length * index, length * (index + 1)
        found = []
        for m in self.members:
            first, last = max(start - m.at, 0), min(stop - m.at, m.slice.size)
            if first < last:
                found.append(Part(m, first, last, m.at + first - start))
        return Shard(tuple(found), length)


def make_buckets(
    weights: Sequence[tuple[str, Slice, Family]], bucket_mib: int, parts: int
) -> list[Bucket]:
    """The buckets of all weights, a tied embedding's first.

    Each holds at most `bucket_mib` MiB of float32 but at least one weight, and is padded to a
    multiple of `parts` elements.
    """
    buckets = []
    for family in sorted({f for *_, f in weights}, reverse=True):
        members: list[Member] = []
        at = 0
        for index, (name, slice_, own) in enumerate(weights):
            if own != family:
                continue
            if members and 4 * (at + slice_.size) > bucket_mib * MIB:
                buckets.append(Bucket(family, tuple(members), _padded(at, parts)))
                members, at = [], 0
            members.append(Member(index, name, slice_, at))
            at += slice_.size
        buckets.append(Bucket(family, tuple(members), _padded(at, parts)))
    return buckets


def _padded(size: int, parts: int) -> int:
    return -(-size // parts) * parts
