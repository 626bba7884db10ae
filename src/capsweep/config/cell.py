"""A cell: one fully resolved training run, seed included, and its identity."""

import difflib
import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

from capsweep.errors import ConfigError

SIGNATURE_VERSION = 1
NO_SEED = "\0"  # stands for the value of a seed: no text of a configuration has this character

# Science decides the numbers and is hashed; everything else at the root is logistics.
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

# Logistics that stand inside a science group, beside what they serve.
LOGISTICS_INSIDE = (
    "routing.impl",
    "dataset.examples",
    "dataset.footnote",  # what a table says below numbers of this data set
    "dataset.source",  # a name: what is read is told by the reader's fingerprint
    "dataset.reader.folders",
    "dataset.reader.mirrors",
    "dataset.reader.sha256_plain",
    "dataset.test.folders",
    "dataset.shards.folders",
    "dataset.batches.workers",  # processes that read ahead
)

# Values that mean "as if this key did not exist". A new option is added with its neutral value
# here, so that the results of yesterday keep their signature. Append only.
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
}

# A `_target_` that moved is hashed and stored under the path that it had first, so that results of
# yesterday keep their signature: today's path, and the first. Append only; a path may move again.
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

# Of the science, what changes numbers but not the work of a step.
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

# Logistics that change the work of a step.
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
    """One run. `config` is canonical, resolved, plain data; `overrides` is how it was asked for."""

    config: Mapping[str, Any]
    overrides: tuple[str, ...]

    @cached_property
    def science(self) -> dict[str, Any]:
        """The part of the configuration that decides the numbers."""
        science = {key: self.config[key] for key in SCIENCE}
        return rename_targets(reduce(without, LOGISTICS_INSIDE, science), MOVED_TARGETS)

    @cached_property
    def signature(self) -> str:
        """16 hexadecimal digits: equal for two cells if and only if their science is equal."""
        before, after = self._hashed_text
        return _hash_text(f"{before}{json.dumps(self.config['seed'])}{after}")

    @cached_property
    def _hashed_text(self) -> tuple[str, str]:
        """What the signature hashes, before and after the value of the seed."""
        before, after = _write_hashed({**self.science, "seed": NO_SEED}).split(json.dumps(NO_SEED))
        return before, after

    @cached_property
    def shape(self) -> str:
        """8 hexadecimal digits, equal for cells of equal work per step and equal memory.

        Sizes, routing iterations, batch, precision, implementation and threads count; loss weights
        count only as far as they switch a part on.
        """
        work = reduce(without, WORKLESS, self.science)
        loss = self.science["loss"]
        work["loss"] = [loss["name"], loss["reconstruction"]["weight"] > 0]
        work["logistics"] = [get(self.config, path) for path in WORKING]
        return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def command(self) -> str:
        """The command line that runs this cell."""
        return shlex.join(["capsweep", "train", *self.overrides])

    def with_seed(self, seed: int) -> "Cell":
        """Return the cell of another seed, as if it were composed, in microseconds.

        No setting is drawn from the seed (see `compose`), so all others are shared with this
        cell: they are read, never changed. Raises ConfigError for what is no seed.
        """
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise ConfigError(f"seed must be a whole number >= 0 and below 2**63, got {seed!r}")
        texts = [t for t in self.overrides if t.partition("=")[0].strip() != "seed"]
        cell = Cell({**self.config, "seed": seed}, (*texts, f"seed={seed}"))
        shared = {"_hashed_text": self._hashed_text, "shape": self.shape}
        vars(cell).update(shared, science={**self.science, "seed": seed})
        return cell

    def with_mode(self, mode: str) -> "Cell":
        """Return the cell with the mode of W&B fixed, for a worker that must not decide again."""
        logger = {"name": "csv"} if mode == "none" else {"mode": mode}
        return Cell({**self.config, "logger": self.config["logger"] | logger}, self.overrides)

    def to_json(self) -> str:
        """All of the cell as text, for a worker on another node."""
        return json.dumps({"config": self.config, "overrides": self.overrides})

    @classmethod
    def from_json(cls, text: str) -> "Cell":
        """The cell that `to_json` wrote."""
        plain = json.loads(text)
        return cls(config=plain["config"], overrides=tuple(plain["overrides"]))


def signature(science: Mapping[str, Any], version: int = SIGNATURE_VERSION) -> str:
    """Hash of a canonical science configuration, data fingerprint included, and the version."""
    return _hash_text(_write_hashed(science, version))


def _write_hashed(science: Mapping[str, Any], version: int = SIGNATURE_VERSION) -> str:
    absent = (path for path, neutral in NEUTRAL.items() if get(science, path) == neutral)
    hashed = reduce(without, absent, dict(science))
    return json.dumps({"version": version, "science": hashed}, sort_keys=True, allow_nan=False)


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_current_targets(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, stored by any version, with the `_target_` paths of today's modules."""
    return rename_targets(config, CURRENT_TARGETS)


def rename_targets(value: Any, names: Mapping[str, str]) -> Any:
    """A copy of plain data in which each `_target_` that `names` has is renamed."""
    if isinstance(value, Mapping):
        copy = {key: rename_targets(item, names) for key, item in value.items()}
        if isinstance(target := copy.get("_target_"), str):
            copy["_target_"] = names.get(target, target)
        return copy
    return [rename_targets(item, names) for item in value] if isinstance(value, list) else value


def count_steps(cell: Cell, train_examples: int) -> int:
    """Training steps of the whole run; held-out examples are not trained on."""
    trained = train_examples - cell.config["dataset"]["validation"]
    batches = math.ceil(trained / cell.config["batch_size"])
    limit = cell.config["limit_batches"]
    return cell.config["epochs"] * (batches if limit is None else min(batches, limit))


def get(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted key, None when the key or a section above it is absent."""
    value: Any = config
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def put(config: dict[str, Any], path: str, value: Any) -> None:
    """Set the value of a dotted key, in place; the sections above it are there."""
    *parents, name = path.split(".")
    reduce(dict.__getitem__, parents, config)[name] = value


def without(section: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A copy of `section` that lacks the key at a dotted path; absent keys are no error.

    A section of which nothing is left goes too.
    """
    name, _, rest = path.partition(".")
    copy = dict(section)
    if not rest:
        copy.pop(name, None)
    elif isinstance(copy.get(name), Mapping):
        copy[name] = without(copy[name], rest)
        if not copy[name]:
            del copy[name]
    return copy


def flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys to values, such as `routing.num_iters`; lists and empty sections are values."""
    columns: dict[str, Any] = {}
    for key, value in section.items():
        path = f"{prefix}.{key}" if prefix else key
        is_section = isinstance(value, Mapping) and value
        columns |= flat(value, path) if is_section else {path: value}
    return columns


def name_nearest(name: str, known: Iterable[str]) -> str:
    """A question whether the nearest of some names was meant; empty where none is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else ""
