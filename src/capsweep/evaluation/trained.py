"""A finished cell of the ledger, ready to be asked: its network, and its test examples.

Shape letters: B batch, M test examples, N classes, C H W image.
"""

import contextlib
import io
import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capsweep.config import compose
from capsweep.config.cell import LOGISTICS_INSIDE, get, plain_copy, signature
from capsweep.data.batches import EvaluatedSplit, EvaluationLoader
from capsweep.data.module import EVALUATION_BATCH, prepare_splits
from capsweep.errors import ConfigError, DamageError, UserError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger
from capsweep.ledger.stored_files import REMOVE
from capsweep.model.capsules import NetworkOutput
from capsweep.training import build
from capsweep.training.devices import disable_tf32

# What torch ends with on a file that is none of its own.
BROKEN = (RuntimeError, EOFError, OSError, MemoryError, pickle.UnpicklingError)
UNREADABLE = (*BROKEN, ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True)
class Trained:
    """name: the cell's signature. config: its science, and where things are on this node.

    network: in evaluation mode, its weights frozen. test: the examples as in training.
    """

    name: str
    config: Mapping[str, Any]
    network: nn.Module
    test: EvaluatedSplit

    def __call__(self, images_BCHW: Tensor, **options: bool) -> NetworkOutput:
        """What the network says, in the precision in which it was trained and tested."""
        with self._precision():
            return self.network(images_BCHW, **options)

    def scores(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores [M, N] and labels of the first `count` test examples, in batches of the test."""
        scores, labels, found = [], [], 0
        with torch.no_grad():
            for batch in EvaluationLoader(self.test, EVALUATION_BATCH):
                scores.append(self(batch.images_BCHW).scores_BN.float().cpu())
                labels.append(batch.labels.cpu())
                found += len(batch.labels)
                if found >= count:
                    break
        return torch.cat(scores)[:count].numpy(), torch.cat(labels)[:count].numpy()

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.config["precision"] == "32":
            return contextlib.nullcontext()
        return torch.autocast(self.test.device.type, dtype=torch.bfloat16)


@dataclass
class Loader:
    """Cells of a ledger on a device. The test set of the cell before is kept for the next."""

    ledger: Ledger
    data: str
    device: torch.device
    _kept: tuple[str, EvaluatedSplit] | None = field(default=None, init=False)

    def load(self, name: str, logistics: Mapping[str, Any] | None = None) -> Trained:
        """The finished cell of a signature.

        logistics: a configuration that says where the files of the data set are; None: the one
        that the cell was asked for with. Raises UserError naming the cell and the cure.
        """
        science = self._science(name)
        config = _located(science, logistics or self._asked_for(name))
        network = self._network(name, config)
        return Trained(name, config, network, self._test(config))

    def _science(self, name: str) -> dict[str, Any]:
        if self.ledger.read_result(name) is None:
            raise UserError(f"{name}: it is not finished; run the cell first")
        science = self.ledger.read_science(name)
        if science is None:
            raise DamageError(f"{name}: it has no config.yaml; {REMOVE}")
        if (found := signature(science)) != name:
            where = f"{self.ledger.where(name)}/config.yaml"
            raise stored_files.damage(where, f"it was altered: its signature is {found}", REMOVE)
        return science

    def _asked_for(self, name: str) -> Mapping[str, Any]:
        """Where the files of its data set are is no science: today's answer to its overrides."""
        asked = self.ledger.read_provenance(name).get("overrides")
        if asked is None:
            raise DamageError(f"{name}: its provenance.json is absent; {REMOVE}")
        try:
            return compose.cell([o for o in asked if not o.startswith("places.")]).config
        except ConfigError as error:
            raise UserError(
                f"{name}: today's configuration refuses its settings ({error}); use the code that "
                f"made it: capsweep ledger reproduce {name}"
            ) from error

    def _network(self, name: str, config: Mapping[str, Any]) -> nn.Module:
        disable_tf32()  # as it was trained
        content = self.ledger.read(name, "weights.ckpt")
        if content is None:
            raise DamageError(
                f"{name}: it has no weights.ckpt; import an export with weights, or {REMOVE}"
            )
        with torch.random.fork_rng(devices=[]):  # what it is built with is not what it is
            network = build.build_network(_routable(config, self.device))
        try:
            weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except UNREADABLE as error:
            where = f"{self.ledger.where(name)}/weights.ckpt"
            raise stored_files.damage(where, type(error).__name__, REMOVE) from error
        try:
            network.load_state_dict(weights)
        except (RuntimeError, TypeError, AttributeError) as error:
            raise UserError(
                f"{name}: weights.ckpt is not of the network that today's code makes of its "
                f"settings; use the code that made it: capsweep ledger reproduce {name}"
            ) from error
        return network.to(self.device).eval().requires_grad_(False)

    def _test(self, config: Mapping[str, Any]) -> EvaluatedSplit:
        dataset = config["dataset"]
        key = json.dumps(dataset, sort_keys=True)
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # before the next is read: there may be room for one
            parts = prepare_splits(
                build.build_source(config),
                str(self.data),
                build.build_presenter(config),
                dataset["validation"],
                self.device,
                dataset.get("examples"),
                dataset["image_shape"],
            )
            self._kept = (key, parts["test"])
        return self._kept[1]


def device_of(name: str) -> torch.device:
    """The device of a name; auto: a GPU where there is one. Raises UserError naming `--device`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {name}: {reason}; have auto, cpu, cuda:0 ...") from error
    return device


def batches(count: int, size: int) -> Iterator[slice]:
    """The first `count` examples in parts of `size`."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _located(science: Mapping[str, Any], logistics: Mapping[str, Any]) -> dict[str, Any]:
    """The science with the logistics that stand inside it."""
    config = plain_copy(science)
    for path in LOGISTICS_INSIDE:
        *sections, key = path.split(".")
        value = get(logistics, path)
        section = get(config, ".".join(sections))
        if value is not None and isinstance(section, dict):
            section[key] = plain_copy(value)
    return config


def _routable(config: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """What was trained by a GPU's kernels is routed without them elsewhere, and that is said."""
    routing = config["routing"]
    if routing is None or routing["impl"] != "triton" or device.type == "cuda":
        return config
    print(f"routing.impl=triton needs a GPU: routed by impl=fast on {device.type}", file=sys.stderr)
    return {**config, "routing": {**routing, "impl": "fast"}}
