"""What many test examples say: error rates of one network and of two on the same examples, and the
worst examples.
"""

from dataclasses import dataclass

import numpy as np

from capsweep.statistics.seeds import CONFIDENCE

RESAMPLES = 10_000


def find_wrong(scores_MN: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return which of M examples are classified wrongly [M].

    labels [M]: the highest of the N scores is not the class. labels [M, K], K classes in one image:
    the K highest scores are not exactly those classes. Of equal scores the first counts as higher.
    Raises ValueError for scores that are no predictions of these labels.
    """
    classes = labels[:, None] if labels.ndim == 1 else labels
    is_matching = scores_MN.ndim == classes.ndim == 2 and len(scores_MN) == len(classes) > 0
    if not is_matching or not np.isfinite(scores_MN).all():
        raise ValueError("scores are not one row of finite numbers for each label")
    expected = np.sort(classes, axis=1)
    if (expected[:, 1:] == expected[:, :-1]).any():
        raise ValueError("an image has one class twice, which its highest scores cannot show")
    highest = predict_classes(scores_MN, classes.shape[1])
    if highest.shape != expected.shape:
        raise ValueError(f"{scores_MN.shape[1]} scores cannot name {classes.shape[1]} classes")
    return (np.sort(highest, axis=1) != expected).any(axis=1)


def wilson_interval(wrong: int, total: int) -> tuple[float, float]:
    """Return the score interval of an error rate; it stays in 0..1 and is not empty at 0 errors.

    Source: Wilson 1927.
    """
    from scipy.stats import binomtest  # which takes half a second to import

    interval = binomtest(wrong, total).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


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
    """Count two boolean vectors over the same examples."""
    both = int((first_wrong & second_wrong).sum())
    first, second = int(first_wrong.sum()), int(second_wrong.sum())
    return Disagreement(first - both, second - both, both, len(first_wrong) - first - second + both)


def mcnemar_p(counts: Disagreement) -> float:
    """Return the two-sided exact p of "equally many errors": binomial in the examples that differ.

    Source: McNemar 1947, exact form.
    """
    from scipy.stats import binomtest

    differing = counts.first_only + counts.second_only
    return float(binomtest(counts.first_only, differing).pvalue) if differing else 1.0


def bootstrap_interval(
    counts: Disagreement, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Return the percentile interval of the difference of error rates, first minus second, paired.

    Resampling examples is a multinomial draw over the four kinds, so it costs the same for any
    number of examples. Source: Efron 1979.
    """
    total = counts.total
    shares = np.array([counts.first_only, counts.second_only, counts.both + counts.neither]) / total
    draws = np.random.default_rng(seed).multinomial(total, shares, size=resamples)
    differences = (draws[:, 0] - draws[:, 1]) / total
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def predict_classes(scores_MN: np.ndarray, classes: int) -> np.ndarray:
    """Return the classes of the highest scores [M, classes]; of equal scores the first."""
    return np.argsort(-scores_MN, axis=1, kind="stable")[:, :classes]


def find_worst(
    scores_MN: np.ndarray, labels: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the wrongly classified examples of which a wrong class was the surest, at most
    `count`.

    Their indices [K] and the margins [K] by which the highest score of a class that is not shown
    exceeds the lowest of one that is, the largest first. labels: [M], or [M, L] of L classes in one
    image. Examples with scores that are no finite numbers are left out.
    """
    classes_ML = labels.reshape(len(labels), -1)
    shown_MN = np.zeros(scores_MN.shape, bool)
    np.put_along_axis(shown_MN, classes_ML, True, axis=1)
    predicted_ML = predict_classes(scores_MN, classes_ML.shape[1])
    wrong_M = ~np.take_along_axis(shown_MN, predicted_ML, axis=1).all(axis=1)
    wrong_M &= np.isfinite(scores_MN).all(axis=1)
    other_M = np.where(shown_MN, -np.inf, scores_MN).max(axis=1)
    own_M = np.where(shown_MN, scores_MN, np.inf).min(axis=1)
    (wrong_K,) = np.nonzero(wrong_M)
    margins_K = (other_M - own_M)[wrong_K]
    order_K = np.argsort(-margins_K, kind="stable")[:count]
    return wrong_K[order_K], margins_K[order_K]
