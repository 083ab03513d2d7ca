"""The loss, its gradient over micro batches, and the compiled form against the plain one."""

from collections.abc import Iterator

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from training.config import ModelConfig
from training.data import Batch
from training.gradients import accumulate, gradient_function, loss_function, tensors
from training.loss import token_losses
from training.model import Decoder, initialize

VOCAB, LENGTH = 12, 6


def random_batch(rows: int, seed: int = 0) -> Batch:
    """Rows of one document each, of which row i has about i valid targets."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(LENGTH) < np.arange(rows)[:, None] % LENGTH).astype(np.int32)
    labels = rng.integers(0, VOCAB, (rows, LENGTH)).astype(np.int32)
    return {
        "input_ids": rng.integers(0, VOCAB, (rows, LENGTH)).astype(np.int32),
        "position_ids": np.tile(np.arange(LENGTH, dtype=np.int32), (rows, 1)),
        "segments": np.zeros((rows, LENGTH), np.int32),
        "labels": np.where(mask == 1, labels, np.int32(-100)),
        "loss_mask": mask,
    }


def parts(batch: Batch, size: int) -> Iterator[Batch]:
    for i in range(0, len(batch["labels"]), size):
        yield {name: rows[i : i + size] for name, rows in batch.items()}


@pytest.fixture
def model(tiny_model: ModelConfig) -> Decoder:
    decoder = Decoder(tiny_model, VOCAB)
    initialize(decoder, tiny_model, seed=3)
    return decoder


def test_loss_by_eye() -> None:
    logits = Tensor(np.log(np.array([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [1, 1, 1]]], np.float32)))
    labels, mask = np.array([[1, 1, -100]], np.int32), np.array([[1, 1, 0]], np.int32)
    total, count = token_losses(logits, Tensor(labels), Tensor(mask))
    assert float(total.asnumpy()) == pytest.approx(-np.log(0.25) - np.log(0.8), rel=1e-6)
    assert float(count.asnumpy()) == 2


def test_loss_and_its_gradient_against_numpy() -> None:
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal((2, LENGTH, VOCAB)) * 5).astype(np.float32)
    batch = random_batch(2, seed=2)
    batch["loss_mask"][:] = [[1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 1]]
    labels, mask = np.abs(batch["labels"]) % VOCAB, batch["loss_mask"]
    shares = np.exp(logits.astype(np.float64))
    shares /= shares.sum(-1, keepdims=True)
    right = np.eye(VOCAB)[labels]
    expected = -(np.log(shares) * right).sum(-1) * mask
    function = ms.value_and_grad(token_losses, 0, has_aux=True)
    (total, count), gradient = function(Tensor(logits), Tensor(labels), Tensor(mask))
    assert float(total.asnumpy()) == pytest.approx(expected.sum(), rel=1e-6)
    assert float(count.asnumpy()) == mask.sum()
    np.testing.assert_allclose(gradient.asnumpy(), (shares - right) * mask[..., None], atol=1e-5)


def test_four_micro_batches_equal_one_batch(model: Decoder) -> None:
    function, batch = gradient_function(model, "pynative"), random_batch(8)
    whole = accumulate(function, parts(batch, 8))
    quarters = accumulate(function, parts(batch, 2))  # 1, 5, 9 and 1 valid targets
    assert quarters.valid_tokens == whole.valid_tokens == 16
    assert quarters.loss_sum == pytest.approx(whole.loss_sum, rel=1e-5)
    for a, b in zip(quarters.gradients, whole.gradients, strict=True):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-4, atol=1e-5)


def test_no_valid_target_gives_a_zero_gradient(model: Decoder) -> None:
    batch = random_batch(2)
    batch["loss_mask"][:] = 0
    loss, count, gradients = accumulate(gradient_function(model, "pynative"), [batch])
    assert (loss, count) == (0.0, 0)
    assert all((g.asnumpy() == 0).all() for g in gradients)


def test_graph_mode_equals_pynative(tiny_model: ModelConfig) -> None:
    """Over two micro batches: a second call must not overwrite what the first returned."""
    model, batch = Decoder(tiny_model, VOCAB), random_batch(4)
    initialize(model, tiny_model, seed=3)
    plain = accumulate(gradient_function(model, "pynative"), parts(batch, 2))
    compiled = accumulate(gradient_function(model, "graph"), parts(batch, 2))
    assert compiled.loss_sum == pytest.approx(plain.loss_sum, rel=1e-6)
    for a, b in zip(compiled.gradients, plain.gradients, strict=True):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-4, atol=1e-6)
    total, count = loss_function(model, "graph")(*tensors(batch))
    assert float(total.asnumpy()) == pytest.approx(plain.loss_sum, rel=1e-6)


def test_gradient_is_the_slope(model: Decoder) -> None:
    """Against a finite difference along the gradient itself."""
    function, batch = gradient_function(model, "pynative"), random_batch(4)
    here = accumulate(function, [batch])
    start = [w.asnumpy().copy() for w in model.trainable_params()]
    losses = []
    for step in (1e-4, -1e-4):
        for weight, values, g in zip(model.trainable_params(), start, here.gradients):
            weight.set_data(Tensor(values + np.float32(step) * g.asnumpy()))
        losses.append(accumulate(function, [batch]).loss_sum)
    squared = sum(float((g.asnumpy() ** 2).sum()) for g in here.gradients)
    assert (losses[0] - losses[1]) / 2e-4 == pytest.approx(squared, rel=1e-2)
