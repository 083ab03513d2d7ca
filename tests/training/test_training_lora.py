"""Adapters: names, merging, gradients, and dropout that is a function of what it is told."""

import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt
import pytest
from mindspore import Tensor

from training.derive import Batch
from training.flat import write
from training.gradients import accumulate, gradient_function, loss_function, tensors
from training.lora import (
    DROPOUT,
    Dropout,
    LoraLinear,
    apply_lora,
    dropout_seed,
    place_dropout,
    set_dropout_seed,
)
from training.model import Decoder, initialize
from training.sections import Lora, ModelConfig, Precision
from training.shapes import parameter_shapes
from training.weights import Weights

VOCAB, LENGTH, SEED = 12, 6, 3
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Make = Callable[..., Decoder]


@pytest.fixture
def make(tiny_model: ModelConfig) -> Make:
    """`make(lora)`: a decoder with adapters (None: without), B drawn too unless `fresh`.

    Of one layer, unless `layers` says which.
    """

    def build(lora: Lora | None, fresh: bool = False, **options: Any) -> Decoder:
        model = Decoder(tiny_model, VOCAB, **{"layers": range(1), **options})
        initialize(model, tiny_model, SEED)
        if lora is not None:
            apply_lora(model, lora, SEED)
        rng = np.random.default_rng(5)
        for weight in model.get_parameters():
            if weight.name.endswith("lora_b") and not fresh:
                write(weight, Tensor(rng.normal(0, 0.1, weight.shape).astype(np.float32)))
        return model

    return build


def batch(rows: int = 4, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return {
        "input_ids": rng.integers(0, VOCAB, (rows, LENGTH)).astype(np.int32),
        "position_ids": np.tile(np.arange(LENGTH, dtype=np.int32), (rows, 1)),
        "segments": np.zeros((rows, LENGTH), np.int32),
        "labels": rng.integers(0, VOCAB, (rows, LENGTH)).astype(np.int32),
        "loss_mask": np.ones((rows, LENGTH), np.int32),
    }


def logits(model: Decoder, rows: Batch) -> npt.NDArray[np.float32]:
    return model(*tensors(rows)[:3]).asnumpy()


def values(model: Decoder) -> dict[str, npt.NDArray[np.float32]]:
    return {p.name: p.asnumpy().copy() for p in model.get_parameters()}


def merged(model: Decoder, lora: Lora) -> dict[str, npt.NDArray[np.float32]]:
    """The weights as weights.py merges them."""
    found = {name: array for name, array in values(model).items() if name != DROPOUT}
    tensors = SimpleNamespace(
        source=Path("here"),
        weights=lambda: {name: array.shape for name, array in found.items()},
        whole=lambda name: found[name].copy(),
    )
    weights = Weights(tensors, lora)  # type: ignore[arg-type]
    return {name: weights.whole(name) for name in weights.shapes}


def test_names_are_global_and_in_order(make: Make, tiny_model: ModelConfig) -> None:
    lora = Lora(rank=2, targets=["q_proj", "down_proj"], dropout=0.5)
    model = make(lora, fresh=True, layers=range(2))
    weights = [p for p in model.get_parameters() if p.name != DROPOUT]
    assert {p.name: p.shape for p in weights} == parameter_shapes(tiny_model, VOCAB, lora)
    assert [p.name for p in weights] == list(parameter_shapes(tiny_model, VOCAB, lora))
    assert [p.name for p in model.trainable_params()] == [
        f"layers.{i}.{part}.lora_{end}"
        for i in range(2)
        for part in ("self_attn.q_proj", "mlp.down_proj")
        for end in "ab"
    ]
    assert sum(p.name == DROPOUT for p in model.get_parameters()) == 1


def test_a_part_of_the_model_has_the_same_adapters(make: Make, tiny_model: ModelConfig) -> None:
    lora = Lora(rank=2, targets=ALL, dropout=0.1)
    whole = values(make(lora, fresh=True, layers=range(2)))
    for layers, embed in ((range(0, 1), True), (range(1, 2), False)):
        part = make(lora, fresh=True, layers=layers, embed=embed, head=not embed)
        shapes = parameter_shapes(tiny_model, VOCAB, lora, layers, embed, not embed)
        found = values(part)
        assert set(found) == {*shapes, DROPOUT}
        for name, array in found.items():
            np.testing.assert_array_equal(array, whole[name])


def test_adapters_begin_with_what_the_model_is(make: Make) -> None:
    two = {"fresh": True, "layers": range(2)}
    model = make(Lora(rank=2, targets=ALL), **two)
    np.testing.assert_array_equal(logits(model, batch()), logits(make(None, **two), batch()))
    a = values(model)["layers.1.mlp.down_proj.lora_a"]
    assert a.std() == pytest.approx(24**-0.5, rel=0.2)
    # Each by its name alone.
    assert not np.array_equal(a, values(model)["layers.0.mlp.down_proj.lora_a"])
    alone = values(make(Lora(rank=2, targets=["down_proj"]), **two))
    np.testing.assert_array_equal(alone["layers.1.mlp.down_proj.lora_a"], a)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ALL])
def test_merged_is_unmerged(make: Make, targets: list[str]) -> None:
    lora = Lora(rank=3, alpha=6.0, targets=targets)
    model, plain = make(lora), make(None)
    before = logits(plain, batch())
    for weight in plain.get_parameters():
        write(weight, Tensor(merged(model, lora)[weight.name]))
    assert np.abs(logits(plain, batch()) - before).max() > 1e-3
    np.testing.assert_allclose(logits(model, batch()), logits(plain, batch()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_gradients_are_those_of_the_merged_matrix(make: Make, mode: str) -> None:
    """W' = W + s B A, so dB = s dW' A^T and dA = s B^T dW'."""
    lora = Lora(rank=3, alpha=6.0, targets=ALL)
    model, plain = make(lora), make(None)
    for weight in plain.get_parameters():
        write(weight, Tensor(merged(model, lora)[weight.name]))

    def gradients(of: Decoder) -> dict[str, npt.NDArray[np.float32]]:
        found = accumulate(gradient_function(of, mode), [batch()]).gradients
        return {p.name: g.asnumpy() for p, g in zip(of.trainable_params(), found, strict=True)}

    whole, present = gradients(plain), values(model)
    for name, gradient in gradients(model).items():
        prefix, end = name.split(".lora_")
        dense, a, b = (
            whole[f"{prefix}.weight"],
            present[f"{prefix}.lora_a"],
            present[f"{prefix}.lora_b"],
        )
        expected = 2.0 * (dense @ a.T if end == "b" else b.T @ dense)
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)


def test_weights_held_below_float32(make: Make) -> None:
    lora = Lora(rank=2, targets=["v_proj", "o_proj"], dropout=0.2)
    model = make(lora, precision=Precision("bfloat16", param_init_type="bfloat16"))
    assert {p.dtype for p in model.get_parameters() if p.name != DROPOUT} == {ms.bfloat16}
    set_dropout_seed(model, 5)
    found = accumulate(gradient_function(model, "graph"), [batch()])
    assert all(g.dtype == ms.float32 and np.isfinite(g.asnumpy()).all() for g in found.gradients)


def mix(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """lowbias32, by its definition."""
    x = x ^ x >> np.uint32(16)
    x = x * np.uint32(0x7FEB352D)
    x = x ^ x >> np.uint32(15)
    x = x * np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)


def mask(name: str, shape: tuple[int, ...], share: float, seed: int, rows: range) -> Any:
    """The reference: 1 where an element is kept, [B, S, C]."""
    key = zlib.crc32(name.encode()) & 0x7FFFFFFF
    row = mix(np.array([r + seed for r in rows], np.uint32))
    token = mix(row[:, None] + np.arange(shape[1], dtype=np.uint32))
    channel = mix(np.arange(shape[2], dtype=np.uint32) + np.uint32(key))
    hashed = mix(token[:, :, None] ^ channel).astype(np.int32)
    return hashed >= int(round(share * 2**32)) - 2**31


def dropout(share: float, name: str = "layers.0.self_attn.q_proj") -> tuple[Dropout, Any]:
    state = ms.Parameter(Tensor(np.zeros(4, np.int32)), name=DROPOUT, requires_grad=False)
    cell = Dropout(state, name, share)

    def forward(x: Tensor) -> Tensor:
        return cell(x)

    return cell, ms.jit(forward)


@pytest.mark.parametrize(
    ("share", "shape"), [(0.1, (4, 50, 64)), (0.5, (2, 64, 96)), (0.0, (1, 2, 3))]
)
def test_dropout_against_numpy(share: float, shape: tuple[int, ...]) -> None:
    cell, compiled = dropout(share)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(cell(Tensor(x)).asnumpy(), x)  # off at first
    for seed, first, stride in ((dropout_seed(17, 3), 0, 1), (2**31 - 1, 12, 5)):
        set_dropout_seed(cell, seed, first, stride)
        rows = range(first, first + shape[0] * stride, stride)
        kept = mask("layers.0.self_attn.q_proj", shape, share, seed, rows)
        expected = np.where(kept, x * np.float32(1 / (1 - share)), 0)
        for function in (cell, compiled):
            np.testing.assert_allclose(function(Tensor(x)).asnumpy(), expected, rtol=1e-6)
        if x.size > 10_000:
            deviation = (share * (1 - share) / x.size) ** 0.5
            assert abs(1 - kept.mean() - share) < 4 * deviation
    set_dropout_seed(cell, None)
    for function in (cell, compiled):
        np.testing.assert_array_equal(function(Tensor(x)).asnumpy(), x)


def test_masks_of_layers_seeds_rows_and_channels_are_unrelated() -> None:
    shape, share = (8, 64, 32), 0.5
    first = mask("layers.0.mlp.up_proj", shape, share, 99, range(8))
    for other in (
        mask("layers.1.mlp.up_proj", shape, share, 99, range(8)),
        mask("layers.0.mlp.up_proj", shape, share, dropout_seed(99, 1), range(8)),
        np.roll(first, 1, 0),
        np.roll(first, 1, 1),
        np.roll(first, 1, 2),
    ):
        same = (first == other).mean()
        assert abs(same - 0.5) < 4 * (0.25 / first.size) ** 0.5
    for axes in ((0, 1), (0, 2), (1, 2)):  # no channel, token or row is preferred
        means = first.mean(axes)
        assert np.abs(means - 0.5).max() < 4.5 * (0.25 * means.size / first.size) ** 0.5
    assert len({dropout_seed(seed, step) for seed in range(50) for step in range(50)}) == 2500


def test_parts_of_the_channels_have_their_parts_of_the_mask() -> None:
    cell, _ = dropout(0.5)
    x = np.ones((2, 5, 12), np.float32)
    set_dropout_seed(cell, 7)
    whole = cell(Tensor(x)).asnumpy()
    cell.first_channel = 8
    np.testing.assert_array_equal(cell(Tensor(x[..., 8:])).asnumpy(), whole[..., 8:])


def test_offsets_go_to_divided_inputs_only(make: Make) -> None:
    model = make(Lora(rank=2, targets=["q_proj", "o_proj"], dropout=0.5), layers=range(2))
    place_dropout(model, {f"layers.{i}.self_attn.o_proj.lora_a": 8 for i in range(2)})
    found = [
        cell.dropout.first_channel
        for _, cell in model.cells_and_names()
        if isinstance(cell, LoraLinear)
    ]
    assert sorted(found) == [0, 0, 8, 8]


@pytest.mark.parity
def test_gradients_do_not_depend_on_micro_batches(make: Make) -> None:
    """Rows keep their masks: four at once, two by two, every second one on each replica."""
    model, rows, seed = make(Lora(rank=2, targets=ALL, dropout=0.4)), batch(), dropout_seed(1, 2)
    function = gradient_function(model, "graph")

    def gradients(size: int, stride: int = 1, first: int = 0) -> Any:
        mine = {name: array[first::stride] for name, array in rows.items()}
        count = len(mine["labels"])
        parts = [{n: a[i : i + size] for n, a in mine.items()} for i in range(0, count, size)]

        def prepare(i: int) -> None:
            set_dropout_seed(model, seed, first + i * size * stride, stride)

        found = accumulate(function, parts, prepare=prepare)
        return found.loss_sum, [g.asnumpy() for g in found.gradients]

    loss, expected = gradients(4)
    again, same = gradients(4)
    assert again == loss and all(map(np.array_equal, same, expected))
    for runs in ([gradients(2)], [gradients(2, 2, 0), gradients(2, 2, 1)]):
        assert sum(run[0] for run in runs) == pytest.approx(loss, rel=1e-5)
        for gradient, *parts in zip(expected, *(run[1] for run in runs)):
            np.testing.assert_allclose(sum(parts), gradient, rtol=1e-3, atol=1e-6)
    set_dropout_seed(model, None)
    assert accumulate(function, [rows]).loss_sum != pytest.approx(loss, rel=1e-4)


def test_modes_agree_and_evaluation_leaves_nothing_out(make: Make) -> None:
    lora = Lora(rank=2, targets=ALL, dropout=0.4)
    model, rows = make(lora), batch()
    without = logits(make(Lora(rank=2, targets=ALL)), rows)
    np.testing.assert_array_equal(logits(model, rows), without)
    evaluate = {mode: loss_function(model, mode) for mode in ("graph", "pynative")}
    losses = {}
    for seed in (None, 3, 4, None):
        set_dropout_seed(model, seed)
        found = [float(f(*tensors(rows))[0].asnumpy()) for f in evaluate.values()]
        assert found[0] == pytest.approx(found[1], rel=1e-6)
        assert losses.setdefault(seed, found) == found
    assert len({loss for loss, _ in losses.values()}) == 3
    np.testing.assert_array_equal(logits(model, rows), without)


@pytest.mark.parity
def test_recompute_sees_the_same_masks(make: Make) -> None:
    lora, found = Lora(rank=2, targets=["q_proj", "down_proj"], dropout=0.4), []
    for again in (False, True):
        model = make(lora)
        if again:
            for layer in model.layers:
                layer.recompute()
        set_dropout_seed(model, 8)
        found.append(accumulate(gradient_function(model, "graph"), [batch()]).gradients)
    for plain, recomputed in zip(*found, strict=True):
        np.testing.assert_array_equal(plain.asnumpy(), recomputed.asnumpy())
