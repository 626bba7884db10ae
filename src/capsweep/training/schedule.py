"""The learning-rate schedule."""


def continuous_decay(
    step: int, *, lr: float, rate: float, steps: int, floor: float, warmup: int = 0
) -> float:
    """The factor on `lr` at an optimiser step: rate ** (step / steps), never below floor / lr; in
    the first `warmup` steps it rises to that in equal parts.

    Continuous, as `tf.train.exponential_decay` without staircase, which the authors' code uses.
    """
    risen = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return risen * max(rate ** (step / steps), floor / lr)
