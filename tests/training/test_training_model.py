"""Each part of the decoder against NumPy, and the isolation of documents in a packed row."""

from dataclasses import replace

import mindspore as ms
import numpy as np
import numpy.typing as npt
import pytest
from mindspore import Tensor

from training.config import ModelConfig
from training.gradients import loss_function
from training.layers import Attention, FeedForward, RMSNorm, attention_bias, rotate
from training.model import Decoder, initialize
from training.sections import Precision

Floats = npt.NDArray[np.float32]


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def ints(*rows: object) -> Tensor:
    return Tensor(np.array(rows, np.int32))


def softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rotated(x: Floats, positions: list[int], theta: float = 10000.0) -> Floats:
    """RoPE by complex numbers: channel pairs (i, i + D/2) of x [..., S, D] turn by pos x freq."""
    half = x.shape[-1] // 2
    angles = np.outer(positions, theta ** (-2 * np.arange(half) / x.shape[-1]))
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], -1).astype(np.float32)


def randomize(cell: ms.nn.Cell) -> None:
    for i, weight in enumerate(cell.trainable_params()):
        weight.set_data(Tensor(normal(*weight.shape, seed=i) * np.float32(0.3)))


def test_rms_norm() -> None:
    norm = RMSNorm(4, 1e-5, Precision())
    norm.weight.set_data(Tensor(np.array([1, 2, 3, 4], np.float32)))
    x = np.array([[3, 4, 0, 0], [0, 0, 0, 0]], np.float32)  # root mean square 2.5, and 0
    expected = [[1.2, 3.2, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(norm(Tensor(x)).asnumpy(), expected, atol=1e-5)


def test_rope_by_eye() -> None:
    quarter = Tensor(np.array([[[[0.0]], [[0.0]]]], np.float32))  # cos of 90 degrees
    x = Tensor(np.array([[[[1.0, 0.0]], [[0.0, 1.0]]]], np.float32))
    turned = rotate(x, quarter, quarter + 1).asnumpy()
    assert turned.tolist() == [[[[0.0, 1.0]], [[-1.0, 0.0]]]]


def test_rope_against_complex_numbers(tiny_model: ModelConfig) -> None:
    config = replace(tiny_model, hidden_size=32, rope_theta=500.0)
    model = Decoder(config, 10)
    positions = [0, 1, 2, 0, 1, 900]
    x = normal(1, 4, 6, 8)
    cos, sin = model.rotary(ints(positions))
    expected = rotated(x, positions, theta=500.0)
    np.testing.assert_allclose(rotate(Tensor(x), cos, sin).asnumpy(), expected, atol=2e-4)


def test_attention_bias_by_eye() -> None:
    bias = attention_bias(ints([0, 0, 1, 1])).asnumpy()
    assert (bias == 0).astype(int).tolist() == [
        [[[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]]
    ]
    assert set(bias.ravel().tolist()) == {0.0, -1e9}


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_query_attention_against_numpy(tiny_model: ModelConfig, kv_heads: int) -> None:
    config = replace(tiny_model, n_kv_heads=kv_heads)
    attention, batch, length, size = Attention(config, Precision()), 2, 5, 4
    randomize(attention)
    positions, segments = [[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]], [[0, 0, 0, 1, 1], [0] * 5]
    x = normal(batch, length, 16, seed=9)
    weights = {w.name.split(".")[0]: w.asnumpy() for w in attention.trainable_params()}
    expected = np.zeros_like(x)
    for b in range(batch):
        q, k, v = (x[b] @ weights[name].T for name in ("q_proj", "k_proj", "v_proj"))
        heads = []
        for head in range(4):
            shared = head // (4 // kv_heads)  # the key head of this query head
            query = rotated(q[:, head * size :][:, :size], positions[b])
            key = rotated(k[:, shared * size :][:, :size], positions[b])
            scores = query @ key.T / np.sqrt(size)
            for i in range(length):
                for j in range(length):
                    if j > i or segments[b][i] != segments[b][j]:
                        scores[i, j] = -np.inf
            heads.append(softmax(scores) @ v[:, shared * size :][:, :size])
        expected[b] = np.concatenate(heads, -1) @ weights["o_proj"].T
    cos, sin = Decoder(config, 10).rotary(ints(*positions))
    actual = attention(Tensor(x), cos, sin, attention_bias(ints(*segments)))
    np.testing.assert_allclose(actual.asnumpy(), expected, atol=1e-5)


def test_swiglu_against_numpy(tiny_model: ModelConfig) -> None:
    block = FeedForward(tiny_model, Precision())
    randomize(block)
    gate, up, down = (w.asnumpy() for w in block.trainable_params())
    x = normal(3, 16, seed=9)
    gated = x @ gate.T
    expected = (gated / (1 + np.exp(-gated)) * (x @ up.T)) @ down.T
    np.testing.assert_allclose(block(Tensor(x)).asnumpy(), expected, atol=1e-5)


def test_names_shapes_and_initial_values(tiny_model: ModelConfig) -> None:
    model = Decoder(replace(tiny_model, tie_word_embeddings=False), 50)
    initialize(model, tiny_model, seed=1)
    shapes = {w.name: w.shape for w in model.trainable_params()}
    assert len(shapes) == 3 + 2 * 9
    assert shapes["embed_tokens.weight"] == shapes["lm_head.weight"] == (50, 16)
    assert shapes["layers.1.self_attn.k_proj.weight"] == (8, 16)
    assert shapes["layers.1.mlp.down_proj.weight"] == (16, 24)
    assert shapes["layers.0.input_layernorm.weight"] == shapes["norm.weight"] == (16,)
    assert (model.norm.weight.asnumpy() == 1).all()
    assert model.embed_tokens.weight.asnumpy().std() == pytest.approx(0.02, rel=0.1)
    down = model.layers[0].mlp.down_proj.weight.asnumpy()
    assert down.std() == pytest.approx(0.02 / 2, rel=0.1)  # sqrt(2 x 2 layers)


def test_initial_weights_follow_from_seed_and_name(tiny_model: ModelConfig) -> None:
    models = []
    for layers, seed in ((2, 1), (2, 1), (2, 2), (3, 1)):
        config = replace(tiny_model, num_layers=layers)
        model = Decoder(config, 50)
        initialize(model, config, seed)
        models.append({w.name: w.asnumpy() for w in model.trainable_params()})
    name = "layers.1.self_attn.q_proj.weight"
    assert all((models[0][key] == models[1][key]).all() for key in models[0])
    assert (models[0][name] != models[2][name]).any()
    assert (models[0][name] == models[3][name]).all()
    assert (models[0][name] != models[0][name.replace("1", "0")]).any()


def test_a_tied_head_is_the_embedding(tiny_model: ModelConfig) -> None:
    tied = Decoder(tiny_model, 50)
    initialize(tied, tiny_model, seed=1)
    untied = Decoder(replace(tiny_model, tie_word_embeddings=False), 50)
    initialize(untied, tiny_model, seed=1)
    untied.lm_head.weight.set_data(tied.embed_tokens.weight)
    inputs = ints([3, 4, 5]), ints([0, 1, 2]), ints([0, 0, 0])
    assert (tied(*inputs).asnumpy() == untied(*inputs).asnumpy()).all()


A, B, PADDING = [3, 7, 5, 2, 9], [8, 8, 4, 6], [0, 0, 0]
POSITIONS = ints([0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0])
SEGMENTS = ints([0] * 5 + [1] * 4 + [2] * 3)


@pytest.fixture
def model(tiny_model: ModelConfig) -> Decoder:
    decoder = Decoder(tiny_model, 12)
    initialize(decoder, replace(tiny_model, initializer_range=0.5), seed=3)
    return decoder


def test_one_document_never_reaches_another(model: Decoder) -> None:
    before = model(ints(A + B + PADDING), POSITIONS, SEGMENTS).asnumpy()[0]
    after = model(ints([1, 1, 11, 1, 10] + B + [4, 4, 4]), POSITIONS, SEGMENTS).asnumpy()[0]
    assert (before[5:9] == after[5:9]).all()  # bit-equal
    assert (before[:5] != after[:5]).any(-1).all()


def test_a_later_token_never_reaches_an_earlier_one(model: Decoder) -> None:
    before = model(ints(A + B + PADDING), POSITIONS, SEGMENTS).asnumpy()[0]
    changed = model(ints(A + [8, 8, 1, 6, *PADDING]), POSITIONS, SEGMENTS).asnumpy()[0]
    assert (before[:7] == changed[:7]).all()
    assert (before[7:9] != changed[7:9]).any(-1).all()


def test_in_one_segment_documents_do_see_one_another(model: Decoder) -> None:
    together = ints([0] * 12)
    before = model(ints(A + B + PADDING), POSITIONS, together).asnumpy()[0]
    after = model(ints([1, 1, 11, 1, 10] + B + PADDING), POSITIONS, together).asnumpy()[0]
    assert (before[5:9] != after[5:9]).any()


def test_loss_of_a_packed_row_is_the_sum_of_its_documents(model: Decoder) -> None:
    loss = loss_function(model, "pynative")

    def alone(document: list[int]) -> float:
        n = len(document)
        labels, mask = [*document[1:], -100], [1] * (n - 1) + [0]
        total, count = loss(ints(document), ints(range(n)), ints([0] * n), ints(labels), ints(mask))
        assert float(count.asnumpy()) == n - 1
        return float(total.asnumpy())

    labels = A[1:] + [-100] + B[1:] + [-100] * 4
    mask = [int(label >= 0) for label in labels]
    total, count = loss(ints(A + B + PADDING), POSITIONS, SEGMENTS, ints(labels), ints(mask))
    assert float(count.asnumpy()) == 7
    assert float(total.asnumpy()) == pytest.approx(alone(A) + alone(B), rel=1e-5)
