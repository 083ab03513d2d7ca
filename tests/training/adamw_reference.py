"""AdamW and clipping in float64 NumPy: the outside judge of the optimizer."""

import math

import numpy as np
import numpy.typing as npt

from training.sections import OptimizerConfig

Arrays = dict[str, npt.NDArray[np.float64]]


class Reference:
    """The whole model's weights and moments on one process."""

    def __init__(self, weights: Arrays, config: OptimizerConfig) -> None:
        self.w = {name: x.astype(np.float64) for name, x in weights.items()}
        self.m, self.v = ({n: np.zeros(x.shape) for n, x in weights.items()} for _ in range(2))
        self.config = config

    def step(self, gradients: Arrays, rate: float, t: int) -> float:
        """One step, as it stands in the paper; returns the norm before clipping."""
        c = self.config
        b1, b2 = c.betas
        norm = math.sqrt(sum(float((g * g).sum()) for g in gradients.values()))
        for name, w in self.w.items():
            g = gradients[name] * min(1.0, c.max_grad_norm / norm)
            self.m[name] = b1 * self.m[name] + (1 - b1) * g
            self.v[name] = b2 * self.v[name] + (1 - b2) * g**2
            m_hat, v_hat = self.m[name] / (1 - b1**t), self.v[name] / (1 - b2**t)
            decay = c.weight_decay if w.ndim > 1 else 0.0
            self.w[name] = w - rate * (m_hat / (np.sqrt(v_hat) + c.eps) + decay * w)
        return norm
