"""The learning rate as a function of the step: linear warm-up, then one of four ways on.

    constant  /----------      linear  /\\        cosine  /-.          wsd  /------\\
             /                        /  `--.           /   `-._          /        \\
"""

import math

from training.sections import OptimizerConfig


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Learning rate of step 1 … `steps`.

    Step `warmup_steps` has the peak, and step `steps` the floor, peak x min_lr_ratio; with a
    constant one, the peak. Cosine: arXiv:1608.03983 without restarts. wsd, warm-up-stable-decay:
    arXiv:2404.06395, with the decay in a line of arXiv:2405.18392.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    floor = peak * config.min_lr_ratio
    return floor + (peak - floor) * _height(step, steps, config)


def _height(step: int, steps: int, config: OptimizerConfig) -> float:
    """Of a step after the warm-up, above the floor: 1 at the peak, 0 at the last step."""
    start: float = config.warmup_steps
    if config.schedule == "wsd":
        start = max(start, steps * (1 - config.decay_ratio))
    if config.schedule == "constant" or step <= start:
        return 1.0
    progress = (step - start) / (steps - start)
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    return 1 - progress
