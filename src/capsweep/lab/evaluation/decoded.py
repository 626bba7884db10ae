"""Test examples with their class poses, and what the decoder draws from chosen capsules.

Shape letters: K examples or columns, N = J classes, D class pose, L classes shown in one image,
C H W image.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.checkpoint import TrainedCell, count_ties
from capsweep.lab.evaluation.figures import Drawing
from capsweep.ledger.ledger import Predictions
from capsweep.report import charts
from capsweep.report.charts import Grid
from capsweep.runtime.terminal import count_of
from capsweep.statistics.examples import find_wrong


@dataclass(frozen=True)
class Examples:
    """Some test examples, and what the network says of them.

    places_K: in the test set. labels_KL: the classes shown. predictions_KL: the L most active
    classes; a correct prediction stands in the column of its label, the rest follow by activity.
    digits_KLCHW: what the decoder shall draw; None: the images.
    """

    places_K: np.ndarray
    images_KCHW: np.ndarray
    labels_KL: np.ndarray
    predictions_KL: np.ndarray
    pose_KJD: Tensor
    digits_KLCHW: np.ndarray | None

    def select_examples(self, index_K: np.ndarray) -> "Examples":
        """Some of them, some perhaps several times."""
        arrays = {name: array[index_K] for name, array in vars(self).items() if array is not None}
        return replace(self, **arrays)

    @property
    def correct(self) -> np.ndarray:
        """The examples that are classified correctly, 0..K-1."""
        return np.flatnonzero((self.predictions_KL == self.labels_KL).all(axis=1))

    @property
    def failures(self) -> np.ndarray:
        """The others."""
        return np.flatnonzero((self.predictions_KL != self.labels_KL).any(axis=1))


@dataclass(frozen=True)
class Columns:
    """The example of each column, and what was drawn of it: drawn_KLCHW from capsules of from_KL.

    An example may stand in several columns, drawn from other capsules in each. correct, wrong: how
    many examples of the whole test are.
    """

    examples: Examples
    from_KL: np.ndarray
    drawn_KLCHW: np.ndarray
    correct: int
    wrong: int

    @property
    def failures(self) -> list[int]:
        """Return the first of the two columns of each example that is classified wrongly."""
        return self.examples.failures[::2].tolist()

    def describe_examples(self) -> str:
        """Return for a caption: the first columns are correct ones, the last are failures."""
        correct = len(self.examples.places_K) - 2 * len(self.failures)
        return (
            f"the first {correct} of {self.correct} examples that are classified correctly, and "
            f"the first {len(self.failures)} of {self.wrong} failures among "
            f"{self.correct + self.wrong} test examples"
        )

    def make_drawing(
        self,
        names: tuple[str, str],
        options: Namespace,
        below_KHW3: np.ndarray,
        above: Sequence[str],
        caption: str,
    ) -> Drawing:
        """Return a drawing: inputs above, and what was drawn of them below.

        names: of the figure and of the cell. above: a text for each column.
        """
        figure, cell = names
        inputs_KHW3 = charts.to_rgb(charts.scale_images(self.examples.images_KCHW))
        tiles = np.stack([inputs_KHW3, below_KHW3])
        grid = Grid(tiles, ("input", "output"), above, f"cell {cell}: {figure}", caption)
        arrays = {
            "places": self.examples.places_K,
            "images": self.examples.images_KCHW,
            "labels": self.examples.labels_KL,
            "predictions": self.examples.predictions_KL,
            "drawn_from": self.from_KL,
            "reconstructions": self.drawn_KLCHW,
        }
        if self.from_KL.shape[1] == 1:  # of the one class
            several = ("labels", "predictions", "drawn_from", "reconstructions")
            arrays |= {name: arrays[name][:, 0] for name in several}
        elif self.examples.digits_KLCHW is not None:
            arrays["digits"] = self.examples.digits_KLCHW
        stem = f"{figure}-correct{options.correct}-failures{options.failures}"
        return Drawing(stem, arrays, charts.draw_grid(grid), caption)


def find_decoder(cell: TrainedCell) -> nn.Module:
    """Its decoder; raises NotApplicableError where it has none."""
    decoder = getattr(cell.network, "decoder", None)
    if not isinstance(decoder, nn.Module):
        raise NotApplicableError(
            "its network has no decoder; train one: loss.reconstruction.weight=0.0005 and a model "
            "with a decoder"
        )
    return decoder


def choose_places(predictions: Predictions, correct: int, failures: int) -> list[int]:
    """Places of the first so many correct examples of a test, and of the first failures."""
    wrong_M = find_wrong(*predictions)
    places = np.flatnonzero(~wrong_M)[:correct], np.flatnonzero(wrong_M)[:failures]
    return np.concatenate(places).tolist()


def ask_network(cell: TrainedCell, stored: Predictions, places: Sequence[int]) -> Examples:
    """What the network says of test examples.

    Raises UserError naming the cell where that is not what it stored; near ties may fall otherwise.
    Raises NotApplicableError where there are no places.
    """
    if not places:
        raise NotApplicableError("its test has no such examples; ask for --correct or --failures")
    batches = [cell.test.evaluation_batch(slice(place, place + 1)) for place in places]
    images_KCHW = torch.cat([batch.images_BCHW for batch in batches])
    digits = [batch.targets_BLCHW for batch in batches if batch.targets_BLCHW is not None]
    labels = torch.cat([batch.labels for batch in batches]).cpu().numpy()
    with torch.no_grad():
        output = cell(images_KCHW)
    if output.pose_BJD is None:
        raise NotApplicableError("its network has no class capsules")
    scores_KN = output.scores_BN.float().cpu().numpy()
    count_ties(cell, (scores_KN, labels), (stored[0][places], stored[1][places]))
    labels_KL = labels.reshape(len(places), -1)
    return Examples(
        places_K=np.array(places),
        images_KCHW=images_KCHW.cpu().numpy(),
        labels_KL=labels_KL,
        predictions_KL=match_predictions(scores_KN, labels_KL),
        pose_KJD=output.pose_BJD.float(),
        digits_KLCHW=torch.cat(digits).cpu().numpy() if digits else None,
    )


def match_predictions(scores_KN: np.ndarray, labels_KL: np.ndarray) -> np.ndarray:
    """[K, L]: the L most active classes; those that are labels in the column of their label."""
    highest_KL = np.argsort(-scores_KN, axis=1, kind="stable")[:, : labels_KL.shape[1]]
    rows = []
    for highest, labels in zip(highest_KL.tolist(), labels_KL.tolist(), strict=True):
        others = iter([label for label in highest if label not in labels])
        rows.append([label if label in highest else next(others) for label in labels])
    return np.array(rows, dtype=labels_KL.dtype).reshape(labels_KL.shape)


def draw_from_class(decoder: nn.Module, pose_KJD: Tensor, class_K: np.ndarray) -> Tensor:
    """[K, C, H, W] in 0..1: each drawn from the capsule of one class, as in training."""
    classes_K = torch.as_tensor(class_K, device=pose_KJD.device)
    only_KJ = nn.functional.one_hot(classes_K, pose_KJD.shape[1]).to(pose_KJD.dtype)
    with torch.no_grad():
        return decoder(pose_KJD, only_KJ)


def draw_columns(
    cell: TrainedCell, stored: Predictions, options: Namespace, classes: int
) -> Columns:
    """Return the first `options.correct` examples that are classified correctly, drawn from the
    labels' capsules; then the first failures, each drawn from its labels and from the predictions.

    Raises NotApplicableError for a network without a decoder, and where an image shows more or
    fewer classes.
    """
    decoder, shown = find_decoder(cell), stored[1].reshape(len(stored[1]), -1).shape[1]
    if shown != classes:
        cure = "ask for segmentation" if classes == 1 else "segmentation needs dataset=multimnist"
        raise NotApplicableError(f"each of its images has {count_of(shown, 'label')}; {cure}")
    examples = ask_network(cell, stored, choose_places(stored, options.correct, options.failures))
    index = np.concatenate([examples.correct, np.repeat(examples.failures, 2)])
    selected = examples.select_examples(index)
    from_KL = selected.labels_KL.copy()
    from_KL[len(examples.correct) + 1 :: 2] = examples.predictions_KL[examples.failures]
    pose_KJD = selected.pose_KJD.repeat_interleave(shown, dim=0)
    drawn = draw_from_class(decoder, pose_KJD, from_KL.reshape(-1))
    drawn_KLCHW = drawn.unflatten(0, (-1, shown)).cpu().numpy()
    wrong = int(find_wrong(*stored).sum())
    return Columns(selected, from_KL, drawn_KLCHW, len(stored[1]) - wrong, wrong)
