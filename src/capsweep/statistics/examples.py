"""Statistics over test examples: the error rate of a network, and the worst examples."""

import numpy as np

from capsweep.statistics.seeds import CONFIDENCE


def find_wrong(scores_MN: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Find the examples that a network classifies wrongly.

    With labels [M], an example is wrong if its class does not have the highest of the N scores.
    With labels [M, K], for K classes in one image, an example is wrong if the classes with the K
    highest scores are not exactly its K labels. If two classes have equal scores, the class with
    the lower index counts as higher.

    Args:
        scores_MN: Scores of the classes.
        labels: Classes of the examples, [M] or [M, K].

    Returns:
        A boolean array [M].

    Raises:
        ValueError: If the scores are not finite or do not fit the labels, or if the labels of an
            image name one class twice.
    """
    classes = labels[:, None] if labels.ndim == 1 else labels
    is_matching = scores_MN.ndim == classes.ndim == 2 and len(scores_MN) == len(classes) > 0
    if not is_matching or not np.isfinite(scores_MN).all():
        raise ValueError("scores must be one row of finite numbers for each label")
    expected = np.sort(classes, axis=1)
    if (expected[:, 1:] == expected[:, :-1]).any():
        raise ValueError("labels must not name one class twice for an image")
    if scores_MN.shape[1] < classes.shape[1]:
        raise ValueError(f"{scores_MN.shape[1]} scores cannot name {classes.shape[1]} classes")
    return np.any(find_missed(scores_MN, labels), axis=1)


def wilson_interval(wrong: int, total: int) -> tuple[float, float]:
    """Compute Wilson's score interval of an error rate, at the level CONFIDENCE.

    The interval stays in 0..1 and has a positive width even if there are no errors. Source: Wilson
    1927.

    Args:
        wrong: Number of errors.
        total: Number of examples.

    Returns:
        Lower and upper bound.
    """
    from scipy.stats import binomtest  # imported here, because the import takes half a second

    interval = binomtest(wrong, total).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def predict_classes(scores_MN: np.ndarray, classes: int) -> np.ndarray:
    """Return, for each example, the classes with the highest scores; the result is [M, classes].

    `classes` is the number of classes to return for each example. If two classes have equal scores,
    the class with the lower index comes first.
    """
    return np.argsort(-scores_MN, axis=1, kind="stable")[:, :classes]


def count_classes(scores_MN: np.ndarray, labels: np.ndarray) -> dict[str, list[int]]:
    """Count for each class its test examples, and how often a network missed and predicted it.

    An example with L labels is predicted to show the classes with the L highest scores.

    Args:
        scores_MN: Scores of the classes.
        labels: Classes of the examples, [M], or [M, L] for L classes in one image.

    Returns:
        Three counts for each class: "examples" that show the class, examples that show the class
        but are not predicted to show it ("missed"), and examples that are predicted to show it
        ("predicted").
    """
    labels_ML, size = labels.reshape(len(labels), -1), scores_MN.shape[1]
    missed_ML = find_missed(scores_MN, labels)
    predicted_ML = predict_classes(scores_MN, labels_ML.shape[1])
    found = {"examples": labels_ML, "missed": labels_ML[missed_ML], "predicted": predicted_ML}
    return {key: np.bincount(each.ravel(), minlength=size).tolist() for key, each in found.items()}


def count_confusions(scores_MN: np.ndarray, labels_M: np.ndarray) -> np.ndarray:
    """Count how often each class was predicted for the examples of each class.

    Args:
        scores_MN: Scores of the classes.
        labels_M: Classes of the examples, one for each example.

    Returns:
        The counts [N, N]: a row for each true class, a column for each predicted class.
    """
    counts_NN = np.zeros((scores_MN.shape[1],) * 2, np.int64)
    np.add.at(counts_NN, (labels_M, predict_classes(scores_MN, 1)[:, 0]), 1)
    return counts_NN


def find_missed(scores_MN: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for each of the L labels of an example whether the network missed it, [M, L].

    A label is missed if its class does not have one of the L highest scores.
    """
    labels_ML = labels.reshape(len(labels), -1)
    predicted_ML = predict_classes(scores_MN, labels_ML.shape[1])
    return (labels_ML[:, :, None] != predicted_ML[:, None, :]).all(axis=2)


def find_worst(scores_MN: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the wrongly classified examples on which the network was most certain.

    Certainty is measured by the margin: the highest score of a class not in the image minus the
    lowest score of a class in the image. An example is left out if one of its scores is not finite.

    Args:
        scores_MN: Scores of the classes.
        labels: Classes of the examples, [M], or [M, L] for L classes in one image.

    Returns:
        The indices [K] of the examples and their margins [K], the largest margin first.
    """
    classes_ML = labels.reshape(len(labels), -1)
    shown_MN = np.zeros(scores_MN.shape, bool)
    np.put_along_axis(shown_MN, classes_ML, True, axis=1)
    wrong_M = find_missed(scores_MN, labels).any(axis=1) & np.isfinite(scores_MN).all(axis=1)
    highest_absent_M = np.where(shown_MN, -np.inf, scores_MN).max(axis=1)
    lowest_shown_M = np.where(shown_MN, scores_MN, np.inf).min(axis=1)
    margins_M = highest_absent_M - lowest_shown_M
    wrong_K = np.flatnonzero(wrong_M)
    worst_K = wrong_K[np.argsort(-margins_M[wrong_K], kind="stable")]
    return worst_K, margins_M[worst_K]
