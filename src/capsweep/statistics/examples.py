"""Error rates over test examples: of one network, and of two on the same examples."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from capsweep.statistics.summary import LEVEL

RESAMPLES = 10_000


def find_wrong(scores_MN: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Which of M examples are classified wrongly [M].

    labels [M]: the highest of the N scores is not the class. labels [M, K], K classes in one image:
    the K highest scores are not exactly those classes. Of equal scores the first counts as higher.
    Raises ValueError for scores that are no predictions of these labels.
    """
    classes = labels[:, None] if labels.ndim == 1 else labels
    fit = scores_MN.ndim == classes.ndim == 2 and len(scores_MN) == len(classes) > 0
    if not fit or not np.isfinite(scores_MN).all():
        raise ValueError("scores are not one row of finite numbers for each label")
    wanted = np.sort(classes, axis=1)
    if (wanted[:, 1:] == wanted[:, :-1]).any():
        raise ValueError("an image has one class twice, which its highest scores cannot show")
    highest = np.argsort(-scores_MN, axis=1, kind="stable")[:, : classes.shape[1]]
    if highest.shape != wanted.shape:
        raise ValueError(f"{scores_MN.shape[1]} scores cannot name {classes.shape[1]} classes")
    return (np.sort(highest, axis=1) != wanted).any(axis=1)


def wilson_interval(wrong: int, total: int, level: float = LEVEL) -> tuple[float, float]:
    """The score interval of an error rate; it stays in 0..1 and is not empty at 0 errors.

    Raises ValueError for counts that cannot be. Source: Wilson 1927.
    """
    if total < 1 or not 0 <= wrong <= total:
        raise ValueError(f"{wrong} of {total} examples is not a rate")
    z = float(special.ndtri((1 + level) / 2))
    rate = wrong / total
    centre = (rate + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total))
    half /= 1 + z * z / total
    low = 0.0 if wrong == 0 else centre - half
    high = 1.0 if wrong == total else centre + half
    return low, high


@dataclass(frozen=True)
class Disagreement:
    """Examples that only the first network got wrong, only the second, both, and neither."""

    first_only: int
    second_only: int
    both: int
    neither: int

    @property
    def total(self) -> int:
        """All examples."""
        return self.first_only + self.second_only + self.both + self.neither


def count_disagreement(first_wrong: np.ndarray, second_wrong: np.ndarray) -> Disagreement:
    """Count two boolean vectors over the same examples. Raises ValueError for unequal lengths."""
    first, second = np.asarray(first_wrong, bool), np.asarray(second_wrong, bool)
    if first.shape != second.shape:
        raise ValueError(f"{len(first)} and {len(second)} examples cannot be compared")
    both, one, two = int((first & second).sum()), int(first.sum()), int(second.sum())
    return Disagreement(one - both, two - both, both, len(first) - one - two + both)


def mcnemar_p(counts: Disagreement) -> float:
    """Two-sided exact p of "equally many errors": binomial in the examples that differ.

    Source: McNemar 1947, exact form.
    """
    differing = counts.first_only + counts.second_only
    if differing == 0:
        return 1.0
    fewer = min(counts.first_only, counts.second_only)
    return min(1.0, 2 * float(special.bdtr(fewer, differing, 0.5)))


def bootstrap_interval(
    counts: Disagreement, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[float, float]:
    """Percentile interval of the difference of error rates, first minus second, paired.

    Resampling examples is a multinomial draw over the four kinds, so it costs the same for any
    number of examples. Raises ValueError for no examples or no resamples. Source: Efron 1979.
    """
    if counts.total < 1 or resamples < 1:
        raise ValueError(f"cannot resample {counts.total} examples {resamples} times")
    total = counts.total
    shares = np.array([counts.first_only, counts.second_only, counts.both + counts.neither]) / total
    draws = np.random.default_rng(seed).multinomial(total, shares, size=resamples)
    differences = (draws[:, 0] - draws[:, 1]) / total
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(differences, tails)
    return float(low), float(high)


def predict_classes(scores_MN: np.ndarray, classes: int) -> np.ndarray:
    """The `classes` classes of the highest scores [M, classes]; of equal scores the first."""
    return np.argsort(-scores_MN, axis=1, kind="stable")[:, :classes]


def find_worst(
    scores_MN: np.ndarray, labels: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The wrongly classified examples of which a wrong class was the surest, at most `count`.

    Their indices [K] and the margins [K] by which the highest score of a class that is not shown
    exceeds the lowest of one that is, the largest first. labels: [M], or [M, L] of L classes in one
    image. Examples with scores that are no finite numbers are left out.
    """
    classes_ML = labels.reshape(len(labels), -1)
    shown_MN = np.zeros(scores_MN.shape, bool)
    np.put_along_axis(shown_MN, classes_ML, True, axis=1)
    found_ML = predict_classes(scores_MN, classes_ML.shape[1])
    wrong_M = ~np.take_along_axis(shown_MN, found_ML, axis=1).all(axis=1)
    wrong_M &= np.isfinite(scores_MN).all(axis=1)
    other_M = np.where(shown_MN, -np.inf, scores_MN).max(axis=1)
    own_M = np.where(shown_MN, scores_MN, np.inf).min(axis=1)
    (wrong_K,) = np.nonzero(wrong_M)
    margins_K = (other_M - own_M)[wrong_K]
    order_K = np.argsort(-margins_K, kind="stable")[:count]
    return wrong_K[order_K], margins_K[order_K]
