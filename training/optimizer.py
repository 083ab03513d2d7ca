"""The optimizer over all processes: sums gradients, clips by the global norm, updates, shares.

    gradients -> reduce -> norm -> [the loop decides] -> update -> weights

Each process updates all weights that it holds; or, sharded (ZeRO stage 1, arXiv:1910.02054), the
replicas share them out: each gets its part of the summed gradients, keeps the moments and masters
of that part alone, updates it, and the updated parts are gathered.

float32 weights are their own masters. Lower ones have a float32 master, and are its rounding.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from mindspore import Parameter, Tensor
from mindspore import dtype as mstype

from training.adamw import DeviceState, HostState, State, Step
from training.buckets import Bucket, Family, Part, Shard, make_buckets
from training.comm import Comm
from training.flat import flatten, host, in_host_memory, unflatten, write
from training.mesh import Mesh
from training.parallel import Layout
from training.pieces import Float32, Kind, Piece, Read
from training.reduce import Reducer
from training.sections import OptimizerConfig
from training.shapes import EMBEDDING


class Optimizer:
    """AdamW over the weights of this process."""

    def __init__(
        self,
        params: Sequence[Parameter],
        config: OptimizerConfig,
        mesh: Mesh,
        comm: Comm,
        layout: Layout,
        shard: bool,
        bucket_mib: int,
    ) -> None:
        """All processes make it at once.

        `params`: those that are trained; `shard`: the replicas share out moments and masters;
        `bucket_mib`: gradients are summed in vectors of at most so many MiB.
        """
        self.params, self.config, self.comm = list(params), config, comm
        self.sharded = shard and mesh.dp > 1
        apart = self._held_twice()
        weights = []
        for p in self.params:
            family = Family(
                apart=apart and p.name == EMBEDDING,
                sliced=layout.slices[p.name].axis is not None,
                partial=p.name in layout.partial,
                decays=p.ndim > 1,
                rounded=p.dtype != mstype.float32,
            )
            weights.append((p.name, layout.slices[p.name], family))
        parts, index = (mesh.dp, mesh.dp_rank) if self.sharded else (1, 0)
        buckets = make_buckets(weights, bucket_mib, parts)
        self.reducer = Reducer(buckets, mesh, comm, self.sharded)
        self.shards = [bucket.shard(parts, index) for bucket in buckets]
        self.states = [self._state(b, s) for b, s in zip(buckets, self.shards, strict=True)]
        self.reduced: list[Tensor] | None = None
        self.share = 1.0

    def reduce(self, gradients: Sequence[Tensor], share: float) -> float:
        """Sums gradients over all processes, keeps the sums, and returns their norm x share.

        `gradients`: of the summed loss of this process's rows, in the order of the parameters;
        `share`: what they are multiplied by, one over the valid targets of the step, and over the
        loss scale. The norm counts each element of the model once, is the same on all processes,
        and is not finite when an element is not. All processes call this at once.
        """
        assert len(gradients) == len(self.params), (len(gradients), len(self.params))
        self.reduced, self.share = self.reducer.reduce(gradients), share
        return self.reducer.norm(self.reduced, share)

    def update(self, rate: float, step: int, norm: float) -> None:
        """One step with the gradients of the last `reduce`, which are given up.

        `rate`: the learning rate; `step` counts from 1; `norm`: what `reduce` returned. A longer
        gradient is scaled down to the norm `max_grad_norm` (arXiv:1211.5063). All processes call
        this at once.
        """
        assert self.reduced is not None, "reduce comes first"
        assert math.isfinite(norm), norm
        c = self.config
        scale = self.share * min(1.0, c.max_grad_norm / norm) if norm else self.share
        for gradient, bucket, shard, state in zip(self.reduced, *self._buckets(), strict=True):
            decay = c.weight_decay if bucket.family.decays else 0.0
            numbers = Step(step, rate, c.betas, c.eps, decay, scale)
            if isinstance(state, HostState) and self._holds_result(bucket):
                state.update_in_place(self._weights(bucket), gradient, numbers)
                continue
            present = None if bucket.family.rounded else self._present(shard)
            updated = state.update(present, gradient, numbers)
            if self.sharded:
                updated = self.comm.dp.all_gather(updated)
            unflatten(updated, [self.params[m.index] for m in bucket.members])
        self.reduced = None

    def pieces(self) -> Iterator[Piece]:
        """What this process writes of a checkpoint: masters and moments of the elements it owns.

        Over all processes, each element of the trained weights comes once.
        """
        kinds: tuple[Kind, ...] = ("w", "m", "v")
        for bucket, shard, state in zip(*self._buckets(), strict=True):
            if not self.reducer.owns(bucket):
                continue
            for p in shard.parts:
                for kind in kinds:
                    get = partial(self._values, kind, bucket, state, p)
                    yield Piece(kind, p.member.name, p.member.slice, p.first, p.last, get)

    def restore(self, read: Read) -> None:
        """Sets weights, masters and moments to those of a checkpoint, of whatever layout."""
        self.load_weights(read)
        moments: tuple[Kind, ...] = ("m", "v")
        for shard, state in zip(self.shards, self.states, strict=True):
            for kind in moments:
                state.load(kind, shard.fill(partial(_read_part, read, kind)))

    def load_weights(self, read: Read) -> None:
        """Sets weights, and masters where there are some, and leaves the moments."""
        for bucket, shard, state in zip(*self._buckets(), strict=True):
            for m in bucket.members:
                values = read("w", m.name, m.slice, 0, m.slice.size)
                write(self.params[m.index], Tensor(values))
            if bucket.family.rounded:
                state.load("w", shard.fill(partial(_read_part, read, "w")))

    def bytes(self) -> dict[str, int]:
        """Bytes that this process holds: parameters, gradients, masters, moments.

        Gradients are those between `reduce` and `update`; padding is counted.
        """
        counts = {"parameters": sum(p.nbytes for p in self.params)}
        counts["gradients"] = sum(gradient.nbytes for gradient in self.reduced or [])
        counts |= {"masters": 0, "moments": 0}
        for bucket, shard, _ in zip(*self._buckets(), strict=True):
            counts["masters"] += 4 * shard.size if bucket.family.rounded else 0
            counts["moments"] += 8 * shard.size
        return counts

    def _buckets(self) -> tuple[list[Bucket], list[Shard], list[State]]:
        return self.reducer.buckets, self.shards, self.states

    def _held_twice(self) -> bool:
        """Whether the first and the last stage both train an embedding of this name: a tied one."""
        if self.comm.ends.size == 1:
            return False
        mine = float(any(p.name == EMBEDDING for p in self.params))
        both = self.comm.ends.all_reduce(Tensor(np.array([mine], np.float32)))
        return bool(both.asnumpy()[0] == 2)

    def _state(self, bucket: Bucket, shard: Shard) -> State:
        masters = shard.fill(self._weights_of) if bucket.family.rounded else None
        offload = self.config.offload
        on_host = in_host_memory() if offload is None else offload
        return (HostState if on_host else DeviceState)(shard.size, masters)

    def _holds_result(self, bucket: Bucket) -> bool:
        """Whether the weights themselves, in this process's memory, are what its update changes.

        No copy of them is made then: of 34 MB, one cost 20 to 60 ms.
        """
        return in_host_memory() and not (self.sharded or bucket.family.rounded)

    def _weights(self, bucket: Bucket) -> list[Float32]:
        return [host(self.params[m.index]) for m in bucket.members]

    def _weights_of(self, p: Part) -> Float32:
        return host(self.params[p.member.index])[p.first : p.last]

    def _values(self, kind: Kind, bucket: Bucket, state: State, p: Part) -> Float32:
        if kind == "w" and not bucket.family.rounded:
            return self._weights_of(p).copy()
        return state.read(kind)[p.at : p.at + p.last - p.first].copy()

    def _present(self, shard: Shard) -> Tensor:
        """A copy of a shard's weights."""
        ranges = [(self.params[p.member.index], p.first, p.last) for p in shard.parts]
        return flatten(ranges, shard.size)


def _read_part(read: Read, kind: Kind, p: Part) -> Float32:
    return read(kind, p.member.name, p.member.slice, p.first, p.last)
