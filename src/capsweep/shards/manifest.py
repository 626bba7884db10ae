"""`index.json`: what a folder of shards holds, and by what it is known again.

A manifest is written last, when every shard is whole. Shards of a split hold its examples in the
order of the sequence, k from 0 on. A manifest that is read may come from anywhere: what it says is
printed and reserved, and names files, so that each value is checked.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter

from capsweep.errors import DataError
from capsweep.storage.checked import parse_json
from capsweep.storage.files import hash_bytes, read_plain_file, write_text

FORMAT: Literal[1] = 1  # to be raised when a reader of today could not read what is written
INDEX = "index.json"
STATE = ".making"  # a folder of what `make shards` knows
AGAIN = "run the same `make shards` again, which makes it anew, or copy it again"
MOST = 2**63 - 1  # of examples, or of bytes

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,79}$")]
ShardName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,99}\.h5$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Dtype = Annotated[str, StringConstraints(pattern=r"^(u?int(8|16|32|64)|float(32|64))$")]
Size = Annotated[int, Field(ge=0, le=MOST)]  # a number of bytes, or a place in a split
Count = Annotated[int, Field(ge=1, le=MOST)]
Fields: TypeAlias = Mapping[Name, tuple[Dtype, tuple[Count, ...]]]  # dtype and shape of an example


@dataclass(frozen=True)
class Origin:
    """The digits, or other images, that examples are made of.

    name: of the data set. sha256: of what declares its official files; see `hash_declared`.
    """

    name: Name
    sha256: Sha256


@dataclass(frozen=True)
class DataSetContent:
    """What the examples are, however they are stored: two data sets of equal content are one.

    dataset: the job that makes them. version: of what makes them. settings: all that decides them
    beside their origin. splits: examples by split.
    """

    dataset: Name
    version: Size
    settings: Mapping[str, Any]
    origin: Origin
    splits: Annotated[Mapping[Name, Count], Field(min_length=1)]

    @property
    def fingerprint(self) -> str:
        """sha256 of all of it; part of the signature of every cell that is trained on it. Raises
        ValueError for a setting that is not finite.
        """
        return hash_bytes(json.dumps(asdict(self), sort_keys=True, allow_nan=False).encode())


@dataclass(frozen=True)
class ShardPart:
    """A shard that is to be made: examples first .. first + examples - 1 of a split."""

    name: ShardName
    split: Name
    first: Size
    examples: Count


@dataclass(frozen=True)
class Shard(ShardPart):
    """A file that was made."""

    bytes: Size
    sha256: Sha256


@dataclass(frozen=True)
class Manifest:
    """A data set on a disk, as `index.json` has it.

    format: FORMAT of the program that wrote it. fingerprint: of the content. store: always
    "pixels". fields: what is stored of each example, by name.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # of what is in it, too

    format: Literal[1]
    fingerprint: Sha256
    content: DataSetContent
    store: Literal["pixels"]
    fields: Annotated[Fields, Field(min_length=1)]
    shards: tuple[Shard, ...]

    def shards_of(self, split: str) -> tuple[Shard, ...]:
        """Return the shards of a split, in the order of its examples."""
        return tuple(shard for shard in self.shards if shard.split == split)


STORED = TypeAdapter(Manifest)


def count_bytes(fields: Fields) -> int:
    """Return how many bytes an example has."""
    return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in fields.values())


def hash_declared(declared: Mapping[str, object]) -> str:
    """Return one sha256 for all hashes that official files are verified by."""
    return hash_bytes(json.dumps(declared, sort_keys=True).encode())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `index.json`, atomically, one shard a line. Raises OSError."""
    values = asdict(manifest) | {"fingerprint": manifest.content.fingerprint}
    lines = ",\n  ".join(json.dumps(shard) for shard in values.pop("shards"))
    text = json.dumps(values, indent=1).removesuffix("\n}")
    write_text(folder / INDEX, f'{text},\n "shards": [{lines}]\n}}\n')


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder. Raises DataError naming the file and the cure."""
    path = folder / INDEX
    try:
        stored = parse_json(read_plain_file(path), STORED)
        if stored.content.fingerprint != stored.fingerprint:
            raise ValueError("the fingerprint is not that of the content")
        _check_shards(stored)
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such file; it is written when all shards are there, by `make shards`"
        ) from error
    except (OSError, ValueError) as error:
        cause = f"unreadable, altered, or of another program ({error})"
        raise DataError(f"{path}: {cause}; {AGAIN}") from error
    return stored


def _check_shards(manifest: Manifest) -> None:
    """Raise ValueError unless every example is in one shard, in order, and can be in its bytes."""
    following = dict.fromkeys(manifest.content.splits, 0)
    one = count_bytes(manifest.fields)
    for shard in manifest.shards:
        if shard.first != following.get(shard.split):
            raise ValueError(f"{shard.name} begins at {shard.first} of {shard.split}")
        following[shard.split] += shard.examples
        if shard.examples * one > shard.bytes:
            raise ValueError(f"{shard.name} of {shard.bytes:,} bytes has no room for its examples")
    if following != manifest.content.splits:
        raise ValueError(f"shards of {following} examples, not of {manifest.content.splits}")
    if len({shard.name for shard in manifest.shards}) < len(manifest.shards):
        raise ValueError("two shards of one name")
