"""Test examples with their class poses, and what the decoder draws from chosen capsules.

Shape letters: K examples or columns, N = J classes, D class pose, L classes shown in one image,
C H W image.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from capsweep.errors import NotApplicableError
from capsweep.evaluation import stored as as_tested
from capsweep.evaluation.trained import Trained
from capsweep.statistics.examples import find_wrong

Stored = tuple[np.ndarray, np.ndarray]  # scores [M, N] and labels, [M] or [M, L], of the test


@dataclass(frozen=True)
class Examples:
    """Some test examples, and what the network says of them.

    places_K: in the test set. labels_KL: the classes shown. predictions_KL: the L most active ones,
    each that is shown at the place of its label. digits_KLCHW: what the decoder shall draw;
    None: the images.
    """

    places_K: np.ndarray
    images_KCHW: Tensor
    labels_KL: np.ndarray
    predictions_KL: np.ndarray
    scores_KN: np.ndarray
    pose_KJD: Tensor
    digits_KLCHW: Tensor | None

    @property
    def right(self) -> np.ndarray:
        """The examples that are classified correctly, 0..K-1."""
        return np.flatnonzero((self.predictions_KL == self.labels_KL).all(axis=1))

    @property
    def failed(self) -> np.ndarray:
        """The others."""
        return np.flatnonzero((self.predictions_KL != self.labels_KL).any(axis=1))


@dataclass(frozen=True)
class Columns:
    """Examples beside what was drawn of them: drawn_KLCHW from the capsules of from_KL.

    An example may stand in several columns, drawn from other capsules in each.
    """

    places_K: np.ndarray
    images_KCHW: np.ndarray
    labels_KL: np.ndarray
    predictions_KL: np.ndarray
    from_KL: np.ndarray
    drawn_KLCHW: np.ndarray

    @property
    def failures(self) -> list[int]:
        """The first of the two columns of each example that is classified wrongly."""
        return np.flatnonzero((self.predictions_KL != self.labels_KL).any(axis=1))[::2].tolist()

    def told(self, right: int, total: int, wrong: int) -> str:
        """Which examples these are, for a caption: so many right ones first, the failures last, of
        a test of `total` examples of which so many are wrong.
        """
        shown = len(self.failures)
        which = f"all {right}" if right == total - wrong else f"the first {right}"
        correct = f"{which} examples that are classified correctly" if right else ""
        if total == wrong:
            correct = "none is classified correctly"
        failed = f"{f'the first {shown}' if shown else 'none'} of {wrong} failures" if wrong else ""
        parts = [part for part in (correct, failed or "there are no failures") if part]
        return f"{'; '.join(parts)} among {total} test examples"

    @property
    def told_places(self) -> str:
        """The places in the test set, for a caption."""
        places = ", ".join(str(place) for place in dict.fromkeys(self.places_K.tolist()))
        return f"examples, from left to right: {places}"


def decoder_of(trained: Trained) -> nn.Module:
    """Its decoder; raises NotApplicableError where it has none."""
    decoder = getattr(trained.network, "decoder", None)
    if not isinstance(decoder, nn.Module):
        raise NotApplicableError(
            "its network has no decoder; train one: loss.reconstruction.weight=0.0005 and a model "
            "with a decoder"
        )
    return decoder


def first(stored: Stored, *, right: int, failed: int) -> list[int]:
    """Places of the first so many examples that the test found right, and of those it found not."""
    wrong_M = find_wrong(*stored)
    chosen = np.flatnonzero(~wrong_M)[:right], np.flatnonzero(wrong_M)[:failed]
    return np.concatenate(chosen).tolist()


def ask(trained: Trained, stored: Stored, places: Sequence[int]) -> Examples:
    """What the network says of test examples.

    Raises UserError naming the cell where that is not what it stored; near ties may fall otherwise.
    Raises NotApplicableError where there are none to ask about.
    """
    if not places:
        raise NotApplicableError("its test has no such examples; ask for --correct or --failures")
    asked = [trained.test.evaluation_batch(slice(place, place + 1)) for place in places]
    images_KCHW = torch.cat([batch.images_BCHW for batch in asked])
    digits = [batch.targets_BLCHW for batch in asked if batch.targets_BLCHW is not None]
    labels = torch.cat([batch.labels for batch in asked]).cpu().numpy()
    with torch.no_grad():
        output = trained(images_KCHW)
    if output.pose_BJD is None:
        raise NotApplicableError("its network has no class capsules")
    scores_KN = output.scores_BN.float().cpu().numpy()
    as_tested.check(trained, scores_KN, labels, (stored[0][places], stored[1][places]))
    labels_KL = labels.reshape(len(places), -1)
    return Examples(
        places_K=np.array(places),
        images_KCHW=images_KCHW,
        labels_KL=labels_KL,
        predictions_KL=predicted(scores_KN, labels_KL),
        scores_KN=scores_KN,
        pose_KJD=output.pose_BJD.float(),
        digits_KLCHW=torch.cat(digits) if digits else None,
    )


def predicted(scores_KN: np.ndarray, labels_KL: np.ndarray) -> np.ndarray:
    """[K, L]: the L most active classes, each that is shown at its label's place, the others as
    active as they are.
    """
    most_KL = np.argsort(-scores_KN, axis=1, kind="stable")[:, : labels_KL.shape[1]]
    rows = []
    for most, labels in zip(most_KL.tolist(), labels_KL.tolist(), strict=True):
        others = iter([one for one in most if one not in labels])
        rows.append([label if label in most else next(others) for label in labels])
    return np.array(rows, dtype=labels_KL.dtype).reshape(labels_KL.shape)


def draw(decoder: nn.Module, pose_KJD: Tensor, from_K: np.ndarray) -> Tensor:
    """[K, C, H, W] in 0..1: each drawn from the capsule of one class, as in training."""
    classes_K = torch.as_tensor(from_K, device=pose_KJD.device)
    only_KJ = nn.functional.one_hot(classes_K, pose_KJD.shape[1]).to(pose_KJD.dtype)
    with torch.no_grad():
        return decoder(pose_KJD, only_KJ)


def columns(
    trained: Trained, examples: Examples, index: np.ndarray, from_KL: np.ndarray
) -> Columns:
    """The examples of `index` [K], drawn from the capsules of from_KL, each class by itself."""
    shown = from_KL.shape[1]
    pose_KJD = examples.pose_KJD[torch.as_tensor(index, device=examples.pose_KJD.device)]
    drawn = draw(decoder_of(trained), pose_KJD.repeat_interleave(shown, dim=0), from_KL.reshape(-1))
    return Columns(
        places_K=examples.places_K[index],
        images_KCHW=examples.images_KCHW.cpu().numpy()[index],
        labels_KL=examples.labels_KL[index],
        predictions_KL=examples.predictions_KL[index],
        from_KL=from_KL,
        drawn_KLCHW=drawn.unflatten(0, (-1, shown)).cpu().numpy(),
    )
