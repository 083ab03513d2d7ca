"""The factor of the loss that keeps small gradients above float16's smallest number.

Losses are summed over a micro batch (loss.py), so the factor is for their mean: it is divided by
the micro batch's tokens, or no usual first factor would fit. All are powers of two by default, so
that exponents alone change: a gradient divided by it again is the same.
"""

from dataclasses import dataclass
from typing import Any

from training.sections import Precision

FLOOR = 1.0


@dataclass
class LossScale:
    """Dynamic: halved when a gradient overflows, doubled after a window of steps that did not.

    Mixed Precision Training (arXiv:1710.03740).
    """

    value: float = 1.0
    """What the mean of a micro batch's losses is multiplied by."""
    tokens: int = 1
    """Of a micro batch, rounded up to a power of two; 1 where there is no scale."""
    window: int = 0
    """Steps in a row without overflow after which it is doubled; 0: it stays as it is."""
    good: int = 0
    """Steps without overflow since it last changed."""

    @classmethod
    def of(cls, precision: Precision, tokens: int) -> "LossScale":
        """That of a run with so many tokens a micro batch: dynamic in float16, else 1."""
        if precision.compute_dtype != "float16":
            return cls()
        tokens = 1 << (tokens - 1).bit_length()
        return cls(precision.loss_scale, tokens, precision.loss_scale_window)

    @property
    def factor(self) -> float:
        """What the sum of a micro batch's losses is multiplied by."""
        return self.value / self.tokens

    @property
    def dynamic(self) -> bool:
        """Whether it changes."""
        return self.window > 0

    @property
    def falls(self) -> bool:
        """Whether an overflow halves it, and is no failure of the run but skips the step."""
        return self.dynamic and self.value > FLOOR

    def succeeded(self) -> None:
        """A step had finite gradients."""
        if not self.dynamic:
            return
        self.good += 1
        if self.good >= self.window:
            self.value, self.good = self.value * 2, 0

    def overflowed(self) -> None:
        """A step had a gradient that is not finite, and was left out."""
        assert self.falls
        self.value, self.good = max(self.value / 2, FLOOR), 0

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"value": self.value, "good": self.good}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from there; a scale that does not change stays as it is."""
        if self.dynamic:
            self.value, self.good = float(state["value"]), int(state["good"])
