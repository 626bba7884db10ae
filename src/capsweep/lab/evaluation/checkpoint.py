"""A finished cell of the ledger, loaded from its checkpoint: its network, and its test examples.

Shape letters: B batch, M test examples, N classes, C H W image.
"""

import copy
import io
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from capsweep.config import compose
from capsweep.config.cell import LOGISTICS_INSIDE, get
from capsweep.data.batches import Batch, EvaluatedSplit, EvaluationParts
from capsweep.data.images import EVALUATION_BATCH, PreparedSplits
from capsweep.errors import ConfigError, DamageError, UserError
from capsweep.ledger.ledger import Ledger, Predictions, load_predictions
from capsweep.ledger.stored_files import DATA, REMOVE
from capsweep.model.capsules import NetworkOutput
from capsweep.statistics.examples import find_wrong
from capsweep.training import build, devices

# Overrides of where a cell was trained, and of kernels that there are on some devices alone; older
# cells may have had several devices.
OF_TRAINING = ("places.", "resources.", "trainer.devices=", "routing.impl=")
AMBIGUOUS = 1e-3  # of the highest score: the next lower one may win on another device


class Retest(NamedTuple):
    """How many of the first `examples` test examples are classified wrongly.

    ties: those whose correctness is not as stored, while their two highest stored scores differ by
    less than AMBIGUOUS.
    """

    examples: int
    wrong: int
    ties: int


@dataclass(frozen=True)
class TrainedCell:
    """name: the cell's signature. config: its science, and where things are on this node.

    network: in evaluation mode, its weights frozen. test: the examples as in training. train: those
    it was trained on, None where nobody read them. stored: the predictions of its test.
    """

    name: str
    config: Mapping[str, Any]
    network: nn.Module
    test: EvaluatedSplit
    stored: Predictions
    train: EvaluatedSplit | None = None

    def __call__(self, images_BCHW: Tensor, **options: bool) -> NetworkOutput:
        """Return the network's output, in the precision in which it was trained and tested; in
        float32 for TF32 where the device has none.
        """
        precision, device = self.config["precision"], self.test.device
        devices.allow_tf32(precision == "tf32")  # other cells may be evaluated in turns with it
        mixed = precision == "bf16-mixed"
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
            return self.network(images_BCHW, **options)

    @cached_property
    def parts(self) -> EvaluationParts:
        """How many images are evaluated at once."""
        return EvaluationParts(self.config["batch_size"])

    def predict_batch(self, batch: Batch) -> Tensor:
        """Return the scores [B, N] of a batch on the processor, computed in parts that fit."""
        evaluated = self.parts.evaluate(batch, lambda part: self(part.images_BCHW).scores_BN.cpu())
        return torch.cat([scores_BN for _, scores_BN in evaluated])

    def predict_scores(self, count: int, at_once: int = EVALUATION_BATCH) -> Predictions:
        """Return scores and labels of the first `count` test examples."""
        scores, labels = [], []
        with torch.no_grad():
            for batch in iterate_batches(self.test, count, at_once):
                scores.append(self.predict_batch(batch).float())
                labels.append(batch.labels.cpu())
        return torch.cat(scores).numpy(), torch.cat(labels).numpy()

    def verify(self, examples: int | None = None) -> Retest:
        """Test the network again, once and for all that is asked of it.

        examples: the first so many; None: all that it was tested on. Raises UserError naming the
        cell when it classifies otherwise than stored. Devices round differently, so ties may
        differ.
        """
        tested = len(self.stored[1])
        count = tested if examples is None else min(examples, tested)
        scores_MN, labels = self.predict_scores(count)
        ties = self.count_ties((scores_MN, labels), slice(0, count))
        return Retest(count, int(find_wrong(scores_MN, labels).sum()), ties)

    def count_ties(self, predictions: Predictions, places: Any) -> int:
        """Return how many examples of these places in the test are right in one alone of these and
        the stored predictions, all of which must be near ties.

        Raises UserError naming the cell when any other example is.
        """
        (scores_MN, labels), (stored_MN, stored_labels) = predictions, self.stored
        stored_MN = stored_MN[places]
        cure = f"code or data have changed: {_reproduce(self.name)}"
        if not np.array_equal(labels, stored_labels[places]):
            raise UserError(f"{self.name}: its predictions.npz has other labels; {cure}")
        differs_M = find_wrong(scores_MN, labels) != find_wrong(stored_MN, labels)
        ranked_MN = np.sort(stored_MN, axis=1)
        shown = labels.reshape(len(labels), -1).shape[1]
        gap_M = ranked_MN[:, -shown] - ranked_MN[:, -shown - 1]
        if (differs_M & (gap_M > AMBIGUOUS * np.abs(ranked_MN[:, -1]))).any():
            raise UserError(
                f"{self.name}: its network classifies {differs_M.sum()} of {len(labels)} test "
                f"examples otherwise than its predictions.npz says; {cure}"
            )
        return int(differs_M.sum())


@dataclass
class CellLoader:
    """Loads cells of a ledger onto a device. The data set of the last cell is kept for the next.

    data: the folder of the data sets.
    """

    ledger: Ledger
    data: str
    device: torch.device
    _splits: tuple[str, PreparedSplits] | None = field(default=None, init=False)

    def load(self, name: str, logistics: Mapping[str, Any] | None = None) -> TrainedCell:
        """Return the finished cell of a signature.

        logistics: a configuration that says where the files of the data set are; None: the one
        that the cell was run with. Raises UserError naming the cell and the cure.
        """
        if (result := self.ledger.read_result(name)) is None:
            raise UserError(f"{name}: it is not finished; run the cell first")
        if (science := self.ledger.read_science(name)) is None:
            raise DamageError(f"{name}: it has no config.yaml; {REMOVE}")
        config = _add_logistics(science, logistics or self._compose_again(name))
        network = self._load_network(name, config)
        splits = self._load_splits(config)
        for split, digest in result.get(DATA, {}).items():  # none, of earlier code
            if (read := splits.digests.get(split, digest)) != digest:
                raise UserError(
                    f"{name}: its {split} data had sha256 {digest}, and what is read now has "
                    f"{read}; set DATA_DIR to the data that it was trained on"
                )
        stored = load_predictions(self.ledger, name)
        return TrainedCell(name, config, network, splits["test"], stored, splits["train"])

    def _compose_again(self, name: str) -> Mapping[str, Any]:
        """Where the files of its data set are is no science: its overrides say it, as of today."""
        overrides = self.ledger.read_provenance(name).get("overrides")
        if overrides is None:
            raise DamageError(f"{name}: its provenance.json is absent; {REMOVE}")
        try:
            return compose.cell([o for o in overrides if not o.startswith(OF_TRAINING)]).config
        except ConfigError as error:
            why = f"today's configuration refuses its settings ({error})"
            cure = f"use the code that made it: {_reproduce(name)}"
            raise UserError(f"{name}: {why}; {cure}") from error

    def _load_network(self, name: str, config: Mapping[str, Any]) -> nn.Module:
        if config["precision"] == "tf32" and not devices.has_tf32(self.device):
            line = f"{name}: trained with precision=tf32, evaluated in float32 on {self.device}"
            print(line, file=sys.stderr)
        content = self.ledger.read(name, "weights.ckpt")
        if content is None:
            cure = f"import an export with weights, or {REMOVE}"
            raise DamageError(f"{name}: it has no weights.ckpt; {cure}")
        with torch.random.fork_rng(devices=[]):  # the first weights are replaced
            network = build.build_network(config, self.device.type)
        try:
            weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            network.load_state_dict(weights)
        except Exception as error:  # anything, for a file that is not one of its own
            why = "weights.ckpt is not of the network that today's code makes of its settings"
            cure = f"use the code that made it: {_reproduce(name)}"
            raise UserError(f"{name}: {why} ({type(error).__name__}); {cure}") from error
        return network.to(self.device).eval().requires_grad_(False)

    def _load_splits(self, config: Mapping[str, Any]) -> PreparedSplits:
        dataset = config["dataset"]
        key = json.dumps(dataset, sort_keys=True)
        if self._splits is None or self._splits[0] != key:
            self._splits = None  # before the next is read: there may be room for one
            self._splits = key, build.load_splits(config, str(self.data), self.device)
        return self._splits[1]


def find_device(name: str) -> torch.device:
    """The device of a name; auto: a GPU where there is one. Raises UserError naming `--device`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {name}: {reason}; have auto, cpu, cuda:0 ...") from error


def iterate_batches(split: EvaluatedSplit, count: int, at_once: int) -> Iterator[Batch]:
    """Yield the first `count` examples of a split, at most all, so many at a time."""
    return map(split.evaluation_batch, split_range(min(count, len(split)), at_once))


def split_range(count: int, size: int) -> Iterator[slice]:
    """The first `count` examples in parts of `size`."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _add_logistics(science: Mapping[str, Any], logistics: Mapping[str, Any]) -> Mapping[str, Any]:
    """The science with the logistics that stand inside it."""
    config = copy.deepcopy(dict(science))
    for path in LOGISTICS_INSIDE:
        section, _, key = path.rpartition(".")
        inside, value = get(config, section), get(logistics, path)
        if value is not None and isinstance(inside, dict):
            inside[key] = value
    return config


def _reproduce(name: str) -> str:
    return f"capsweep ledger reproduce {name}"
