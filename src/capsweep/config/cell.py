"""The cell: one training run with all settings and a seed, and the signature of this run."""

import hashlib
import json
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

from capsweep.errors import ConfigError

SIGNATURE_VERSION = 1
NO_VALUE = "\0"  # placeholder for a value; no configuration contains this character

# Science settings decide the numbers and are hashed; all other keys at the root are logistics.
SCIENCE = (
    "dataset",
    "model",
    "routing",
    "loss",
    "optim",
    "seed",
    "epochs",
    "batch_size",
    "precision",
    "limit_batches",
    "stop_accuracy",
)
LOGISTICS = ("trainer", "logger", "resources", "cluster", "rerun", "places")

# Keys inside science groups that are logistics, and so are not hashed.
LOGISTICS_INSIDE = (
    "routing.impl",
    "dataset.examples",
    "dataset.class_names",  # for figures, pages and predictions
    "dataset.footnote",  # a note below tables with numbers of this data set
    "dataset.source",  # only a name; the fingerprint of the reader identifies the data
    "dataset.reader.folders",
    "dataset.reader.mirrors",
    "dataset.reader.sha256_plain",
    "dataset.test.folders",
    "dataset.shards.folders",
    "dataset.batches.workers",  # number of processes that read ahead
)

# Values that mean the same as a missing key, and are not hashed. A new key is added here with its
# neutral value, so that older results keep their signature. Entries are never changed or removed.
NEUTRAL: Mapping[str, Any] = {
    "limit_batches": None,
    "stop_accuracy": None,
    "model.padding": "valid",
    "model.primary.divided": False,
    "model.initial.weights": "variance",
    "model.initial.bias": None,
    "model.conv.pool": None,
    "routing.none_of_the_above": False,
    "routing.learned_prior": False,
    "routing.gradient": "full",
    "loss.classification.reduction": "sum",
    "optim.decayed": "all",
    "optim.clip_norm": None,
    "optim.schedule.warmup": 0,
    "routing.normaliser": "softmax",
    "model.head": "length",
    "model.votes.shared": False,
    "dataset.reader.axes": "chw",
    "loss.class_weight": None,
    "dataset.batches.pad": 0,
}

# Current path and first path of each `_target_` that moved. A cell is hashed and stored with the
# first path, so that older results keep their signature. Entries are never removed. If a
# path moves again, an entry for its newest path is added.
MOVED_TARGETS: Mapping[str, str] = {
    "capsweep.data.affine.AffnistTest": "capsweep.data.affnist.AffnistTest",
    "capsweep.data.image_batches.CroppedImages": "capsweep.data.cropped.CroppedImages",
    "capsweep.data.image_batches.ShiftedImages": "capsweep.data.shifted.ShiftedImages",
    "capsweep.data.image_batches.SignedImages": "capsweep.data.sign.SignedImages",
    "capsweep.data.digits.IdxReader": "capsweep.data.idx.IdxReader",
    "capsweep.data.digits.SignReader": "capsweep.data.sign.SignReader",
    "capsweep.data.digits.SvhnReader": "capsweep.data.svhn.SvhnReader",
    "capsweep.data.smallnorb.NovelViewpoints": "capsweep.data.viewpoints.NovelViewpoints",
    "capsweep.model.capsnet.Decoder": "capsweep.model.decoder.Decoder",
    "capsweep.model.routing.controls.RandomRouting": "capsweep.model.routing.random.RandomRouting",
    "capsweep.model.routing.controls.StaticRouting": "capsweep.model.routing.static.StaticRouting",
    "capsweep.model.routing.controls.UniformRouting": (
        "capsweep.model.routing.uniform.UniformRouting"
    ),
    "capsweep.shards.reader.ShardReader": "capsweep.data.shards.reader.ShardReader",
    "capsweep.shards.batches.StretchImages": "capsweep.data.shards.presented.StretchImages",
}

CURRENT_TARGETS = {first: current for current, first in MOVED_TARGETS.items()}

# Science settings that change the numbers, but neither the time nor the memory of a training step.
WORKLESS = (
    "seed",
    "epochs",
    "limit_batches",
    "optim.optimizer.lr",
    "optim.optimizer.betas",
    "optim.optimizer.eps",
    "optim.optimizer.weight_decay",
    "optim.schedule",
    "dataset.name",
    "dataset.reader",
    "dataset.shards",
    "dataset.examples",
    "dataset.validation",
    "dataset.shift",
    "dataset.test",
    "stop_accuracy",
    "model.vote_gain",
    "model.initial",
    "model.dropout",
)

# Logistics that change the time or the memory of a training step.
WORKING = (
    "routing.impl",
    "trainer.threads",
    "trainer.accelerator",
    "trainer.convolution",
    "trainer.fused_optimizer",
    "trainer.graphs",
)


@dataclass(frozen=True)
class Cell:
    """One training run, with all of its settings."""

    config: Mapping[str, Any]  # the whole configuration: canonical, resolved, plain data
    overrides: tuple[str, ...]  # arguments of `capsweep train` that compose this cell

    @cached_property
    def science(self) -> dict[str, Any]:
        """The settings that decide the results of the run: the configuration without logistics.

        A `_target_` that has moved has its first path here, not its current path.
        """
        science = {key: self.config[key] for key in SCIENCE}
        return rename_targets(reduce(remove_key, LOGISTICS_INSIDE, science), MOVED_TARGETS)

    @cached_property
    def signature(self) -> str:
        """A hash (16 hex digits) of the science. Cells with equal science have equal signatures."""
        before, after = self._hashed_text
        return _hash_text(f"{before}{json.dumps(self.config['seed'])}{after}")

    @cached_property
    def _hashed_text(self) -> tuple[str, str]:
        """The hashed text of the signature in two parts: before and after the value of the seed."""
        return _split_hashed(self.science, "seed")

    def list_shorter(self) -> Iterator[tuple[int, str]]:
        """Yield epochs and signature of each cell with fewer epochs and otherwise equal science.

        The cell with the most epochs comes first.
        """
        before, after = _split_hashed(self.science, "epochs")
        for epochs in range(self.config["epochs"] - 1, 0, -1):
            yield epochs, _hash_text(f"{before}{epochs}{after}")

    @cached_property
    def shape(self) -> str:
        """A hash (8 hex digits) of the settings that decide time and memory of a training step.

        The hash covers sizes of layers and images, routing iterations, batch size, precision,
        implementation and threads. It also covers the name of the loss, and whether there is a
        reconstruction.
        """
        work = reduce(remove_key, WORKLESS, self.science)
        loss = self.science["loss"]
        work["loss"] = [loss["name"], loss["reconstruction"]["weight"] > 0]
        work["logistics"] = [get(self.config, path) for path in WORKING]
        return _hash_text(json.dumps(work, sort_keys=True))[:8]

    @property
    def command(self) -> str:
        """The command line that runs this cell."""
        return shlex.join(["capsweep", "train", *self.overrides])

    def with_seed(self, seed: int) -> "Cell":
        """Return a copy of the cell with another seed.

        This takes microseconds, because nothing is composed again. No other setting depends on the
        seed (see `compose`), so both cells share the objects of all other settings. These objects
        must not be changed in place.

        Raises:
            ConfigError: If the seed is not a whole number from 0 to 2**63 - 1.
        """
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise ConfigError(f"seed must be a whole number >= 0 and below 2**63, got {seed!r}")
        texts = [t for t in self.overrides if t.partition("=")[0].strip() != "seed"]
        cell = Cell({**self.config, "seed": seed}, (*texts, f"seed={seed}"))
        shared = {"_hashed_text": self._hashed_text, "shape": self.shape}
        vars(cell).update(shared, science={**self.science, "seed": seed})
        return cell

    def with_mode(self, mode: str) -> "Cell":
        """Return a copy of the cell with a fixed mode of W&B: "online", "offline" or "none".

        Workers then use this mode and do not decide it again. "none" switches W&B off. Other
        loggers have no mode.
        """
        logger = self.config["logger"]
        if logger["name"] == "wandb":
            logger = logger | ({"name": "csv"} if mode == "none" else {"mode": mode})
        return Cell({**self.config, "logger": logger}, self.overrides)

    def to_json(self) -> str:
        """Write the cell as JSON, for a worker on another node."""
        return json.dumps({"config": self.config, "overrides": self.overrides})

    @classmethod
    def from_json(cls, text: str) -> "Cell":
        """Read a cell that `to_json` wrote."""
        plain = json.loads(text)
        return cls(config=plain["config"], overrides=tuple(plain["overrides"]))


def hash_science(science: Mapping[str, Any]) -> str:
    """Compute the signature of a canonical science configuration.

    The configuration must include the fingerprint of the data.
    """
    return _hash_text(_write_hashed(science))


def _write_hashed(science: Mapping[str, Any]) -> str:
    """Write the text that a signature hashes: version, and science without neutral values."""
    absent = (path for path, neutral in NEUTRAL.items() if get(science, path) == neutral)
    hashed = reduce(remove_key, absent, dict(science))
    content = {"version": SIGNATURE_VERSION, "science": hashed}
    return json.dumps(content, sort_keys=True, allow_nan=False)


def _split_hashed(science: Mapping[str, Any], key: str) -> tuple[str, str]:
    """Return the text that a signature hashes, in two parts: before and after the value of a key.

    The key is at the root and has no neutral value.
    """
    before, after = _write_hashed({**science, key: NO_VALUE}).split(json.dumps(NO_VALUE))
    return before, after


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_current_targets(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with the current path of each `_target_` that has moved."""
    return rename_targets(config, CURRENT_TARGETS)


def rename_targets(value: Any, names: Mapping[str, str]) -> Any:
    """Copy plain data, and replace each `_target_` path that `names` has as a key.

    The value of this key in `names` is the new path.
    """
    if isinstance(value, Mapping):
        copy = {key: rename_targets(item, names) for key, item in value.items()}
        if isinstance(target := copy.get("_target_"), str):
            copy["_target_"] = names.get(target, target)
        return copy
    return [rename_targets(item, names) for item in value] if isinstance(value, list) else value


def count_steps(cell: Cell) -> int:
    """Compute the number of training steps in the whole run of a cell."""
    dataset = cell.config["dataset"]
    trained = dataset["examples"]["train"] - dataset["validation"]  # the rest is held out
    batches = math.ceil(trained / cell.config["batch_size"])
    limit = cell.config["limit_batches"]
    return cell.config["epochs"] * (batches if limit is None else min(batches, limit))


def get(config: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted key; None if the key or a section above it is absent."""
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def put(config: dict[str, Any], path: str, value: Any) -> None:
    """Set the value of a dotted key in place; the sections above the key must exist."""
    *parents, name = path.split(".")
    reduce(dict.__getitem__, parents, config)[name] = value


def remove_key(section: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Copy a section without the value at one dotted key; the key may be absent.

    Inner sections that become empty are removed too.
    """
    name, _, rest = path.partition(".")
    copy = dict(section)
    if not rest:
        copy.pop(name, None)
    elif isinstance(copy.get(name), Mapping):
        copy[name] = remove_key(copy[name], rest)
        if not copy[name]:
            del copy[name]
    return copy


def flatten(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return each value of a nested section by its dotted key, such as `routing.num_iters`.

    A list is one value, and an empty section is one value.

    Args:
        section: The nested section.
        prefix: The dotted key of the section itself; empty for a whole configuration.
    """
    columns: dict[str, Any] = {}
    for key, value in section.items():
        path = f"{prefix}.{key}" if prefix else key
        is_section = isinstance(value, Mapping) and value
        columns |= flatten(value, path) if is_section else {path: value}
    return columns


def name_classes(config: Mapping[str, Any]) -> list[str]:
    """Return the names of a cell's classes: `dataset.class_names`, or else numbers."""
    dataset = config["dataset"]
    return [str(name) for name in dataset.get("class_names") or range(dataset["num_classes"])]
