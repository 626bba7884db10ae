"""A finished cell of the ledger, loaded from its checkpoint: its network and its test examples.

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
from capsweep.config.cell import LOGISTICS_INSIDE, get, put
from capsweep.data.batches import Batch, EvaluatedSplit, EvaluationParts
from capsweep.data.images import EVALUATION_BATCH, PreparedSplits
from capsweep.errors import ConfigError, DamageError, UserError
from capsweep.ledger.ledger import Ledger, Predictions, load_predictions
from capsweep.ledger.stored_files import DATA, REMOVE
from capsweep.model.capsules import NetworkOutput
from capsweep.statistics.examples import find_wrong
from capsweep.training import build, devices
from capsweep.training.step import autocast

# Overrides that are left out when a cell is loaded, because they belong to the machine on which the
# cell was trained: folders, devices (older cells could have several), and the choice of kernels,
# because some kernels do not run on all devices.
MACHINE_KEYS = ("places.", "resources.", "trainer.devices=", "routing.impl=")
# If two scores differ by less than this fraction of the highest score, another device may choose
# another class.
TIE_GAP = 1e-3


class Retest(NamedTuple):
    """The result of testing a trained network again.

    Attributes:
        examples: Number of tested examples, counted from the first test example.
        wrong: Number of examples that the network classifies wrongly.
        ties: Number of examples that are right in only one of the two predictions, the new or the
            stored. All of them are near ties: two classes have almost the same score.
    """

    examples: int
    wrong: int
    ties: int


@dataclass(frozen=True)
class TrainedCell:
    """A finished cell with its trained network and its data.

    Attributes:
        name: Signature of the cell.
        config: Science of the cell (the settings that decide its numbers), with the locations of
            its data on this machine.
        network: Network with trained, frozen weights, in evaluation mode.
        test: Test examples, prepared as in training.
        stored: Predictions that the cell stored after its test.
        train: Training examples.
        source_shape: C, H and W of the images in the data set's files.
    """

    name: str
    config: Mapping[str, Any]
    network: nn.Module
    test: EvaluatedSplit
    stored: Predictions
    train: EvaluatedSplit
    source_shape: tuple[int, ...]

    def __call__(self, images_BCHW: Tensor, **options: bool) -> NetworkOutput:
        """Return the network's output, computed in the precision of the cell's training and test.

        TF32 is replaced by float32 if the device has no TF32.
        """
        precision, device = self.config["precision"], self.test.device
        devices.allow_tf32(precision == "tf32")  # the previous cell may have another precision
        with autocast(precision, device):
            return self.network(images_BCHW, **options)

    @cached_property
    def parts(self) -> EvaluationParts:
        """An object that evaluates batches in parts that fit into memory."""
        return EvaluationParts(self.config["batch_size"])

    @torch.no_grad()
    def predict_batch(self, batch: Batch) -> Tensor:
        """Compute the scores [B, N] of a batch, part by part, and return them on the CPU."""
        evaluated = self.parts.evaluate(batch, lambda part: self(part.images_BCHW).scores_BN.cpu())
        return torch.cat([scores_BN for _, scores_BN in evaluated])

    def predict_scores(self, count: int, at_once: int = EVALUATION_BATCH) -> Predictions:
        """Return scores [M, N] and labels of the first `count` test examples.

        The network is run on batches of `at_once` examples.
        """
        scores, labels = [], []
        for batch in iterate_batches(self.test, count, at_once):
            scores.append(self.predict_batch(batch).float())
            labels.append(batch.labels.cpu())
        return torch.cat(scores).numpy(), torch.cat(labels).numpy()

    def verify(self, examples: int | None = None) -> Retest:
        """Test the network again, and check that it reproduces the stored predictions of the cell.

        Args:
            examples: Number of test examples, counted from the first; None: all examples on which
                the cell was tested.

        Raises:
            UserError: The network does not reproduce the stored predictions; the error names the
                cell. Near ties may differ, because devices round differently (see `count_ties`).
        """
        tested = len(self.stored[1])
        count = tested if examples is None else min(examples, tested)
        scores_MN, labels = self.predict_scores(count)
        ties = self.count_ties((scores_MN, labels), slice(0, count))
        return Retest(count, int(find_wrong(scores_MN, labels).sum()), ties)

    def count_ties(self, predictions: Predictions, index: Any) -> int:
        """Count test examples that are right in only one of two predictions: the new or the stored.

        All counted examples must be near ties. An example with one label is a near tie if its two
        highest stored scores differ by at most TIE_GAP * |highest stored score|. For an example
        with L labels, the L-th and the (L + 1)-th highest stored scores are compared instead.

        Args:
            predictions: New scores and labels of some test examples.
            index: Indices of these examples in the test set, as a slice or a list.

        Raises:
            UserError: The new labels differ from the stored labels, or a counted example is no near
                tie; the error names the cell.
        """
        (scores_MN, labels), (stored_MN, stored_labels) = predictions, self.stored
        stored_MN = stored_MN[index]
        cure = f"code or data have changed: capsweep ledger reproduce {self.name}"
        if not np.array_equal(labels, stored_labels[index]):
            raise UserError(f"{self.name}: its predictions.npz has different labels; {cure}")
        differs_M = find_wrong(scores_MN, labels) != find_wrong(stored_MN, labels)
        ranked_MN = np.sort(stored_MN, axis=1)
        shown = labels.reshape(len(labels), -1).shape[1]
        gap_M = ranked_MN[:, -shown] - ranked_MN[:, -shown - 1]
        if (differs_M & (gap_M > TIE_GAP * np.abs(ranked_MN[:, -1]))).any():
            raise UserError(
                f"{self.name}: its network classifies {differs_M.sum()} of {len(labels)} test "
                f"examples differently from its predictions.npz; {cure}"
            )
        return int(differs_M.sum())


@dataclass
class CellLoader:
    """An object that loads finished cells onto a device.

    The data set of the last cell stays in memory, because the next cell may use the same data set.

    Attributes:
        ledger: Ledger of the cells.
        data: Folder of the data sets.
        device: Device for networks and data.
    """

    ledger: Ledger
    data: str
    device: torch.device
    _splits: tuple[str, PreparedSplits] | None = field(default=None, init=False)

    def load(self, name: str, logistics: Mapping[str, Any] | None = None) -> TrainedCell:
        """Load the finished cell with the signature `name`.

        Args:
            name: Signature of the cell.
            logistics: Configuration with the locations of the data set's files; None: the
                configuration is composed from the overrides with which the cell was run.

        Raises:
            UserError: The cell is not finished, the present code does not accept the cell's
                settings or weights, or the data has changed. The error names the cell.
            DamageError: A file of the cell is missing or damaged.
        """
        if (result := self.ledger.read_result(name)) is None:
            raise UserError(f"{name}: it is not finished; run the cell first")
        if (science := self.ledger.read_science(name)) is None:
            raise DamageError(f"{name}: its config.yaml is missing; {REMOVE}")
        config = _add_logistics(science, logistics or self._compose_again(name))
        network = self._load_network(name, config)
        splits = self._load_splits(config)
        for split, digest in result.get(DATA, {}).items():  # older cells have no digests
            if (read := splits.digests.get(split, digest)) != digest:
                raise UserError(
                    f"{name}: its {split} data had the sha256 {digest}, but the data here has "
                    f"{read}; set DATA_DIR to the data that it was trained on"
                )
        stored = load_predictions(self.ledger, name)
        examples = splits["test"], stored, splits["train"], splits.source_shape
        return TrainedCell(name, config, network, *examples)

    def _compose_again(self, name: str) -> Mapping[str, Any]:
        """Compose a cell's configuration from its recorded overrides, to locate its data files.

        The ledger stores only the science. The science does not contain the locations of files.

        Raises:
            DamageError: The recorded overrides are missing.
            UserError: The present code refuses the overrides.
        """
        overrides = self.ledger.read_provenance(name).get("overrides")
        if overrides is None:
            raise DamageError(f"{name}: its provenance.json is missing; {REMOVE}")
        try:
            return compose.cell([o for o in overrides if not o.startswith(MACHINE_KEYS)]).config
        except ConfigError as error:
            raise _refuse(name, f"the present code refuses its settings ({error})") from error

    def _load_network(self, name: str, config: Mapping[str, Any]) -> nn.Module:
        """Build the network of a cell, and load its weights.

        Raises:
            DamageError: The cell has no weights.
            UserError: The weights do not fit the network that the present code builds.
        """
        if config["precision"] == "tf32" and not devices.has_tf32(self.device):
            line = f"{name}: trained with precision=tf32, evaluated in float32 on {self.device}"
            print(line, file=sys.stderr)
        content = self.ledger.read(name, "weights.ckpt")
        if content is None:
            cure = f"import an export with weights, or {REMOVE}"
            raise DamageError(f"{name}: its weights.ckpt is missing; {cure}")
        with torch.random.fork_rng(devices=[]):  # keeps the caller's random state
            network = build.build_network(config, self.device.type)
        try:
            weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            network.load_state_dict(weights)
        except Exception as error:  # a file that does not fit can raise any exception
            why = "weights.ckpt does not fit the network that the present code builds"
            raise _refuse(name, f"{why} ({type(error).__name__})") from error
        return network.to(self.device).eval().requires_grad_(False)

    def _load_splits(self, config: Mapping[str, Any]) -> PreparedSplits:
        """Return a configuration's data set; read it if the last cell had another data set."""
        dataset = config["dataset"]
        key = json.dumps(dataset, sort_keys=True)
        if self._splits is None or self._splits[0] != key:
            self._splits = None  # frees memory before the next data set is read
            self._splits = key, build.load_splits(config, self.data, self.device)
        return self._splits[1]


def find_device(name: str) -> torch.device:
    """Return the torch device for a name; `auto` gives the GPU if there is one, else the CPU.

    Raises:
        UserError: There is no such device; the error names `--device`.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch has no CUDA
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {name}: {reason}; use auto, cpu, cuda:0 ...") from error


def iterate_batches(split: EvaluatedSplit, count: int, at_once: int) -> Iterator[Batch]:
    """Yield the first `count` examples of a split, in batches of `at_once` examples.

    If the split has fewer than `count` examples, all examples are yielded.
    """
    return map(split.evaluation_batch, split_range(min(count, len(split)), at_once))


def split_range(count: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` examples that together cover the first `count` examples."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _add_logistics(science: Mapping[str, Any], logistics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy `science`, and add the values of the keys LOGISTICS_INSIDE from `logistics`."""
    config = copy.deepcopy(dict(science))
    for path in LOGISTICS_INSIDE:
        section, value = get(config, path.rpartition(".")[0]), get(logistics, path)
        if value is not None and isinstance(section, dict):
            put(config, path, value)
    return config


def _refuse(name: str, why: str) -> UserError:
    """Return the error for a cell that the present code cannot load."""
    cure = f"use the code that trained it: capsweep ledger reproduce {name}"
    return UserError(f"{name}: {why}; {cure}")
