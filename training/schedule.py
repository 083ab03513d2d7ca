"""The learning rate as a function of the step: linear warm-up, then a cosine down to a floor."""

import math

from training.config import OptimizerConfig


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Learning rate of step 1 … `steps` (arXiv:1608.03983 without restarts).

    Step `warmup_steps` has the peak, step `steps` the floor, peak x min_lr_ratio.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    floor = peak * config.min_lr_ratio
    progress = (step - warmup) / (steps - warmup)
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))
