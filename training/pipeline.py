"""One stage of a pipeline: runs its part of the model, and passes on what the neighbours need.

    previous stage -> residual stream [B, S, H] -> this stage -> residual stream -> next stage
                   <- its gradient              <-            <- its gradient    <-

Of a micro batch that went forward, a stage keeps only what entered it, and runs forward again when
the gradient comes (GPipe, arXiv:1811.06965). The last stage need not wait for one: it runs forward
and backward at once. timeline.py says what happens when.
"""

from collections.abc import Callable, Iterable

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from training.comm import Comm, Edge
from training.derive import Batch
from training.gradients import (
    Losses,
    StepGradients,
    add,
    loss_function,
    scaled_loss_of,
    tensors,
)
from training.loss import token_losses
from training.mesh import Mesh
from training.timeline import Action, Backward, Forward, Kind, Side, Transfer, timeline


class PipelineStage:
    """Runs the micro batches of a step through one stage; other processes run the others."""

    def __init__(
        self,
        model: nn.Cell,
        mesh: Mesh,
        comm: Comm,
        mode: str,
        kind: Kind,
        hidden_size: int,
        sequence_parts: int = 1,
        losses: Losses = token_losses,
        prepare: Callable[[int], None] | None = None,
    ) -> None:
        """model: (x, position_ids, segments) -> residual stream, or logits on the last stage.

        mode: "graph" compiles each function, once for each shape of a batch.
        hidden_size: H of the residual stream between stages, float32 [B, S / sequence_parts, H].
        losses: see token_losses.
        prepare: called with a micro batch's number before the model runs on it, but not in
            `evaluate`.
        """
        self.mesh, self.comm, self.kind = mesh, comm, kind
        self.hidden_size, self.sequence_parts = hidden_size, sequence_parts
        self.prepare = prepare
        last, weights = mesh.is_last_stage, model.trainable_params()
        # Nobody wants the gradient of a first stage without weights.
        self.differentiates = bool(weights) or not mesh.is_first_stage
        value = scaled_loss_of(model, losses) if last else product_of(model)
        position = None if mesh.is_first_stage else 0
        forward = loss_function(model, "pynative", losses) if last else stream_of(model)
        gradient = ms.value_and_grad(value, position, weights, has_aux=last)
        self.forward = ms.jit(forward) if mode == "graph" else forward
        self.gradient = ms.jit(gradient) if mode == "graph" else gradient

    def run(self, micro_batches: Iterable[Batch], scale: float) -> StepGradients:
        """Sums over micro batches: of losses, valid targets, and gradients of loss x scale.

        Every stage gets the same micro batches. The loss is known on the last stage, and 0 on the
        others. A tied embedding gets the gradient of its use here, not that of the other end.
        """
        step = Step(self, list(micro_batches), scale)
        for action in timeline(self.kind, self.mesh.pp_rank, self.mesh.pp, len(step.batches)):
            step.act(action)
        return step.result()

    def evaluate(self, micro_batches: Iterable[Batch]) -> tuple[float, int]:
        """(summed loss, valid targets) without gradients; the loss is 0 but on the last stage."""
        total, count = 0.0, 0
        for batch in micro_batches:
            x, *others = tensors(batch)
            if self.comm.previous is not None:
                x = self.comm.previous.receive(self.stream_shape(batch))
            if self.comm.next is not None:
                self.comm.next.send(self.forward(x, *others[:2]))
            else:
                total += float(self.forward(x, *others)[0].asnumpy())
            count += count_valid(batch)
        return total, count

    def stream_shape(self, batch: Batch) -> tuple[int, int, int]:
        """Of the residual stream of a micro batch between stages."""
        rows, length = batch["input_ids"].shape
        return rows, length // self.sequence_parts, self.hidden_size


class Step:
    """What a stage holds of a step's micro batches while they are under way, by their numbers."""

    def __init__(self, stage: PipelineStage, batches: list[Batch], scale: float) -> None:
        self.stage, self.batches = stage, batches
        self.scale = Tensor(np.float32(scale))
        self.fields: dict[int, tuple[Tensor, ...]] = {}
        self.incoming: dict[Side, dict[int, Tensor]] = {"previous": {}, "next": {}}
        self.outgoing: dict[Side, dict[int, Tensor]] = {"previous": {}, "next": {}}
        self.losses: list[Tensor] = []
        self.gradients: list[Tensor] = []

    def act(self, action: Action) -> None:
        """One step of the timeline."""
        match action:
            case Forward(i):
                self.forward(i)
            case Backward(i):
                self.backward(i)
            case Transfer(side, sends, receives):
                self.transfer(side, sends, receives)

    def forward(self, i: int) -> None:
        """Keeps what enters; the last stage does no more."""
        self.fields[i] = tensors(self.batches[i])
        if not self.stage.mesh.is_first_stage:
            self.fields[i] = (self.incoming["previous"].pop(i), *self.fields[i][1:])
        if not self.stage.mesh.is_last_stage:
            self.prepare(i)
            self.outgoing["next"][i] = self.stage.forward(*self.fields[i][:3])

    def backward(self, i: int) -> None:
        """Adds the gradients of the weights; what entered is let go."""
        fields, mesh = self.fields.pop(i), self.stage.mesh
        last = mesh.is_last_stage
        arguments = (*fields, self.scale) if last else (*fields[:3], self.incoming["next"].pop(i))
        if not self.stage.differentiates:
            return
        self.prepare(i)
        value, gradients = self.stage.gradient(*arguments)
        if last:
            _, (loss, _) = value
            self.losses.append(loss)
        if not mesh.is_first_stage:
            self.outgoing["previous"][i], gradients = gradients
        add(self.gradients, gradients)

    def transfer(self, side: Side, sends: int | None, receives: int | None) -> None:
        """Meets the neighbour, which does the same the other way round."""
        comm, going, coming = self.stage.comm, self.outgoing[side], self.incoming[side]
        edge: Edge | None = comm.previous if side == "previous" else comm.next
        assert edge is not None
        if receives is None:
            assert sends is not None
            edge.send(going.pop(sends))
            return
        shape = self.stage.stream_shape(self.batches[receives])
        if sends is None:
            coming[receives] = edge.receive(shape)
        else:
            coming[receives] = edge.exchange(going.pop(sends), shape)

    def prepare(self, i: int) -> None:
        """Tells the model which micro batch comes."""
        if self.stage.prepare is not None:
            self.stage.prepare(i)

    def result(self) -> StepGradients:
        """The sums, when all micro batches went backward."""
        assert not self.fields
        loss = sum(float(loss.asnumpy()) for loss in self.losses)
        return StepGradients(loss, sum(map(count_valid, self.batches)), self.gradients)


def count_valid(batch: Batch) -> int:
    """Valid targets, on any stage."""
    return int(batch["loss_mask"].sum())


def stream_of(model: nn.Cell) -> Callable[..., Tensor]:
    """(x, position_ids, segments) -> what the model returns; a Cell alone is no function to jit."""

    def function(x: Tensor, position_ids: Tensor, segments: Tensor) -> Tensor:
        return model(x, position_ids, segments)

    return function


def product_of(model: nn.Cell) -> Callable[..., Tensor]:
    """(x, position_ids, segments, g) -> sum of model(...) x g.

    Its gradient is that of the loss when g is the loss's gradient by what the model returns.
    """

    def function(x: Tensor, position_ids: Tensor, segments: Tensor, gradient: Tensor) -> Tensor:
        return (model(x, position_ids, segments) * gradient).sum()

    return function
