"""`index.json`: what a folder of shards holds, and by what it is known again.

A manifest is written last, when every shard is whole. Shards of a split hold its examples in the
order of the sequence, k from 0 on. A virtual data set has no shards at all: its examples are made
when they are read.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from capsweep.errors import DataError
from capsweep.files import sha256_of, write_text

FORMAT = 1  # to be raised when a reader of today could not read what is written
INDEX = "index.json"
SHARD_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\.h5")

Store = Literal["pixels", "virtual"]


@dataclass(frozen=True)
class Origin:
    """The digits, or other images, that examples are made of.

    name: of the data set. sha256: of what declares its official files; see `digest_of`.
    """

    name: str
    sha256: str


@dataclass(frozen=True)
class Content:
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
        return sha256_of(json.dumps(asdict(self), sort_keys=True).encode())


@dataclass(frozen=True)
class Shard:
    """One file: examples first .. first + examples - 1 of a split."""

    name: str
    split: str
    first: int
    examples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A data set on a disk.

    fields: dtype and shape of one example, by name; of a virtual data set none.
    """

    content: Content
    store: Store
    fields: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()

    def of(self, split: str) -> tuple[Shard, ...]:
        """The shards of a split, in the order of its examples."""
        return tuple(shard for shard in self.shards if shard.split == split)


def digest_of(declared: Mapping[str, object]) -> str:
    """One sha256 for all hashes that official files are verified by."""
    return sha256_of(json.dumps(declared, sort_keys=True).encode())


def write(folder: Path, manifest: Manifest) -> None:
    """Write `index.json`, atomically, one shard a line. Raises OSError."""
    plain = {"format": FORMAT, "fingerprint": manifest.content.fingerprint, **asdict(manifest)}
    shards = [json.dumps(shard) for shard in plain.pop("shards")]
    text = json.dumps(plain, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(shards)
    write_text(folder / INDEX, f'{text},\n "shards": [{lines}]\n}}\n')


def read(folder: Path) -> Manifest:
    """The manifest of a folder. Raises DataError naming the file and the cure."""
    path = folder / INDEX
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such file; it is written when all shards are there, by `make shards`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    try:
        return _parsed(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{path}: altered, or of another program ({error!r}); run `make shards` again "
            "to write it anew: shards that are whole stay"
        ) from error


def _parsed(plain: dict[str, Any]) -> Manifest:
    """Raises ValueError, TypeError or KeyError for what `write` did not write."""
    if plain.pop("format") != FORMAT:
        raise ValueError(f"not of format {FORMAT}")
    fingerprint = plain.pop("fingerprint")
    content = plain.pop("content")
    manifest = Manifest(
        content=Content(**content | {"origin": Origin(**content["origin"])}),
        store=plain.pop("store"),
        fields={
            name: (str(dtype), tuple(map(int, shape)))
            for name, (dtype, shape) in plain.pop("fields").items()
        },
        shards=tuple(Shard(**shard) for shard in plain.pop("shards")),
    )
    if plain:
        raise ValueError(f"unknown: {', '.join(plain)}")
    if manifest.content.fingerprint != fingerprint:
        raise ValueError("the fingerprint is not that of the content")
    if manifest.store not in get_args(Store):
        raise ValueError(f"store {manifest.store}")
    if manifest.store == "pixels":
        for split, count in manifest.content.splits.items():
            _check_shards(split, count, manifest.of(split))
    if manifest.shards and {s.split for s in manifest.shards} - set(manifest.content.splits):
        raise ValueError("shards of a split that is none")
    return manifest


def _check_shards(split: str, count: int, shards: tuple[Shard, ...]) -> None:
    """Every example once and in order, and names that stay in the folder."""
    following = 0
    for shard in shards:
        if not SHARD_NAME.fullmatch(shard.name):
            raise ValueError(f"{shard.name!r} is no name of a shard")
        if shard.first != following or shard.examples < 1:
            raise ValueError(f"{shard.name} begins at {shard.first}, not at {following}")
        following += shard.examples
    if following != count:
        raise ValueError(f"{following} examples of {split} in shards, not {count}")
