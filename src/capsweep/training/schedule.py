"""The learning-rate schedule."""


def continuous_decay(step: int, *, lr: float, rate: float, steps: int, floor: float) -> float:
    """The factor on `lr` at an optimiser step: rate ** (step / steps), never below floor / lr.

    Continuous, as `tf.train.exponential_decay` without staircase, which the authors' code uses.
    """
    return max(rate ** (step / steps), floor / lr)
