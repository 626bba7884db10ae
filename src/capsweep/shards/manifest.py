"""`index.json`: what a folder of shards holds, and by what it is known again.

A manifest is written last, when every shard is whole. Shards of a split hold its examples in the
order of the sequence, k from 0 on. A manifest that is read may come from anywhere: what it says is
printed and reserved, and names files, so that each value is checked.
"""

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes, stat_regular_file, write_text

FORMAT = 1  # to be raised when a reader of today could not read what is written
INDEX = "index.json"
STATE = ".making"  # what `make shards` knows of a folder
WANTED = "wanted.json"  # in STATE: what the folder is to hold
MOST = 2**63 - 1  # of examples, or of bytes

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
SHARD_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}\.h5")
SHA256 = re.compile(r"[0-9a-f]{64}")
DTYPE = re.compile(r"u?int(8|16|32|64)|float(32|64)")

# What a value may be: a text of a pattern, a whole number from one on, an object of exactly these
# keys (or of any keys of a pattern), a list of any length, a list of exactly these, of a type.
Rule: TypeAlias = "re.Pattern[str] | int | Mapping[Any, Any] | list[Any] | tuple[Any, ...] | type"
ORIGIN_RULE = dict(name=NAME, sha256=SHA256)
SHARD_RULE = dict(name=SHARD_NAME, split=NAME, first=0, examples=1, bytes=0, sha256=SHA256)
RULE: Rule = dict(
    format=FORMAT,
    fingerprint=SHA256,
    content=dict(dataset=NAME, version=0, settings=dict, origin=ORIGIN_RULE, splits={NAME: 1}),
    store=re.compile("pixels"),
    fields={NAME: (DTYPE, [1])},
    shards=[SHARD_RULE],
)


@dataclass(frozen=True)
class Origin:
    """The digits, or other images, that examples are made of.

    name: of the data set. sha256: of what declares its official files; see `hash_declared`.
    """

    name: str
    sha256: str


@dataclass(frozen=True)
class DataSetContent:
    """What the examples are, however they are stored: two data sets of equal content are one.

    dataset: the job that makes them. version: of what makes them. settings: all that decides them
    beside their origin. splits: examples by split.
    """

    dataset: str
    version: int
    settings: Mapping[str, Any]
    origin: Origin
    splits: Mapping[str, int]

    @property
    def fingerprint(self) -> str:
        """sha256 of all of it; part of the signature of every cell that is trained on it."""
        return hash_bytes(json.dumps(asdict(self), sort_keys=True).encode())


@dataclass(frozen=True)
class ShardPart:
    """A shard that is to be made: examples first .. first + examples - 1 of a split."""

    name: str
    split: str
    first: int
    examples: int


@dataclass(frozen=True)
class Shard(ShardPart):
    """A file that was made."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A data set on a disk.

    store: "pixels", kept for what was written when there were others. fields: dtype and shape of
    one example, by name.
    """

    content: DataSetContent
    store: str
    fields: Mapping[str, tuple[str, tuple[int, ...]]]
    shards: tuple[Shard, ...] = ()

    def shards_of(self, split: str) -> tuple[Shard, ...]:
        """The shards of a split, in the order of its examples."""
        return tuple(shard for shard in self.shards if shard.split == split)


def hash_declared(declared: Mapping[str, object]) -> str:
    """One sha256 for all hashes that official files are verified by."""
    return hash_bytes(json.dumps(declared, sort_keys=True).encode())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `index.json`, atomically, one shard a line. Raises OSError."""
    values = {"format": FORMAT, "fingerprint": manifest.content.fingerprint, **asdict(manifest)}
    lines = ",\n  ".join(json.dumps(shard) for shard in values.pop("shards"))
    text = json.dumps(values, indent=1).removesuffix("\n}")
    write_text(folder / INDEX, f'{text},\n "shards": [{lines}]\n}}\n')


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder. Raises DataError naming the file and the cure."""
    path = folder / INDEX
    try:
        stat_regular_file(folder, INDEX)
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict) and value.get("store") == "virtual":
            cure = "make one with pixels in another folder, by `make shards`"
            raise DataError(f"{path}: a virtual data set, which is no longer read; {cure}")
        return _parse_manifest(value)
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such file; it is written when all shards are there, by `make shards`"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:
        cure = "run `make shards` again, which writes it anew"
        if not (folder / STATE / WANTED).exists():
            cure = "copy it there again, or make the data set in an empty folder"
        raise DataError(f"{path}: altered, or of another program ({error}); {cure}") from error


def _parse_manifest(value: Any) -> Manifest:
    """Raises ValueError for what `write_manifest` did not write."""
    if isinstance(value, dict) and (written := value.get("format")) != FORMAT:
        raise ValueError(f"of format {reprlib.repr(written)}; this program reads {FORMAT}")
    _check_value(value, RULE, INDEX)
    content = value["content"]
    manifest = Manifest(
        content=DataSetContent(**{**content, "origin": Origin(**content["origin"])}),
        store=value["store"],
        fields={name: (dtype, tuple(shape)) for name, (dtype, shape) in value["fields"].items()},
        shards=tuple(Shard(**shard) for shard in value["shards"]),
    )
    if manifest.content.fingerprint != value["fingerprint"]:
        raise ValueError("the fingerprint is not that of the content")
    _check_shards(manifest)
    return manifest


def _check_value(value: Any, rule: Rule, name: str) -> None:
    """Raise ValueError, with the name of the value, unless a rule allows it."""
    if isinstance(rule, list | tuple) and isinstance(value, list):
        rules = rule if isinstance(rule, tuple) else rule * len(value)
        is_allowed = len(rules) == len(value)
        parts = [(inner, of_inner, name) for inner, of_inner in zip(value, rules, strict=False)]
    elif isinstance(rule, Mapping) and isinstance(value, dict):
        (first, of_first), *_ = rule.items()
        rules = rule if isinstance(first, str) else dict.fromkeys(value, of_first)
        is_allowed = bool(value) and value.keys() == rules.keys()
        parts = [(value[key], rules[key], f"{key} of {name}") for key in value if key in rules]
        if isinstance(first, re.Pattern):
            parts += [(key, first, f"a name in {name}") for key in value]
    else:
        is_allowed, parts = _is_scalar_of(value, rule), []
    if not is_allowed:
        raise ValueError(f"{name} must not be {reprlib.repr(value)}")
    for inner, of_inner, inner_name in parts:
        _check_value(inner, of_inner, inner_name)


def _is_scalar_of(value: Any, rule: Rule) -> bool:
    if isinstance(rule, re.Pattern):
        return isinstance(value, str) and rule.fullmatch(value) is not None
    if isinstance(rule, type):
        return isinstance(value, rule)
    return isinstance(rule, int) and type(value) is int and rule <= value <= MOST


def _check_shards(manifest: Manifest) -> None:
    """Every example once and in order, every file once. Raises ValueError."""
    following = dict.fromkeys(manifest.content.splits, 0)
    for shard in manifest.shards:
        if shard.first != following.get(shard.split):
            raise ValueError(f"{shard.name} begins at {shard.first} of {shard.split}")
        following[shard.split] += shard.examples
    if following != manifest.content.splits:
        raise ValueError(f"shards of {following} examples, not of {manifest.content.splits}")
    if len({shard.name for shard in manifest.shards}) < len(manifest.shards):
        raise ValueError("two shards of one name")
