"""AdamW against NumPy, and clipping by its definition."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from training.config import OptimizerConfig
from training.optimizer import AdamW, clip, global_norm


def vectors(*values: list[float]) -> list[Tensor]:
    return [Tensor(np.array(v, np.float32)) for v in values]


def test_global_norm_and_clipping_by_eye() -> None:
    gradients = vectors([3.0, 0.0], [4.0])
    assert global_norm(gradients) == 5.0
    clipped, norm = clip(gradients, 1.0)
    assert norm == 5.0
    np.testing.assert_allclose(np.concatenate([g.asnumpy() for g in clipped]), [0.6, 0.0, 0.8])
    same, norm = clip(gradients, 5.0)
    assert norm == 5.0
    assert [g.asnumpy().tolist() for g in same] == [[3.0, 0.0], [4.0]]


def test_a_zero_gradient_stays_zero() -> None:
    clipped, norm = clip(vectors([0.0, 0.0]), 1.0)
    assert (norm, clipped[0].asnumpy().tolist()) == (0.0, [0.0, 0.0])


def test_first_step_by_eye() -> None:
    """With bias correction the first step is lr x sign(gradient), after decay of the matrix."""
    matrix = Parameter(Tensor(np.array([[1.0, -1.0]], np.float32)), name="matrix")
    norm = Parameter(Tensor(np.array([1.0, 1.0], np.float32)), name="norm")
    config = OptimizerConfig(weight_decay=0.5, eps=1e-12)
    AdamW([matrix, norm], config).update(vectors([[0.3, -2.0]], [5.0, -0.1]), 0.1, 1)
    np.testing.assert_allclose(matrix.asnumpy(), [[0.95 - 0.1, -0.95 + 0.1]], rtol=1e-6)
    np.testing.assert_allclose(norm.asnumpy(), [0.9, 1.1], rtol=1e-6)


def test_five_steps_against_numpy() -> None:
    rng = np.random.default_rng(0)
    shapes = [(3, 4), (4,), (2, 2)]
    expected = [rng.standard_normal(shape) for shape in shapes]
    weights = [
        Parameter(Tensor(x.astype(np.float32)), name=f"w{i}") for i, x in enumerate(expected)
    ]
    config = OptimizerConfig(betas=(0.8, 0.9), eps=1e-3, weight_decay=0.3)
    optimizer = AdamW(weights, config)
    m, v = ([np.zeros(shape) for shape in shapes] for _ in range(2))
    for t in range(1, 6):
        rate = 0.1 / t
        gradients = [rng.standard_normal(shape) for shape in shapes]
        optimizer.update([Tensor(g.astype(np.float32)) for g in gradients], rate, t)
        for i, g in enumerate(gradients):
            m[i] = 0.8 * m[i] + 0.2 * g
            v[i] = 0.9 * v[i] + 0.1 * g**2
            m_hat, v_hat = m[i] / (1 - 0.8**t), v[i] / (1 - 0.9**t)
            decay = 0.3 if g.ndim > 1 else 0.0
            expected[i] -= rate * decay * expected[i]
            expected[i] -= rate * m_hat / (np.sqrt(v_hat) + 1e-3)
        for weight, values in zip(weights, expected, strict=True):
            np.testing.assert_allclose(weight.asnumpy(), values, rtol=1e-5, atol=1e-6)
    assert [p.name for p in optimizer.moments] == ["m.w0", "m.w1", "m.w2", "v.w0", "v.w1", "v.w2"]
    assert all(p.dtype == ms.float32 for p in optimizer.moments)
    assert optimizer.second[0].asnumpy() == pytest.approx(v[0], rel=1e-5)
