"""The manifest `index.json`, which describes a data set of shards and identifies its content.

`index.json` is written last, when every shard is complete. The shards of a split hold its examples
in order, from index 0 on. A manifest may come from an untrusted source. Its values are printed,
used as file names, and used to allocate memory. So each value is checked when it is read.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from capsweep.errors import DataError
from capsweep.storage.checked import describe_fault
from capsweep.storage.files import hash_bytes, read_plain_file, write_text

FORMAT: Literal[1] = 1  # increase it when older programs cannot read new manifests any more
INDEX = "index.json"
STATE = ".making"  # folder with the state of `make shards`
REPAIR_HINT = "run the same `make shards` command again, or copy the file again"
MOST_COUNT = 2**63 - 1  # largest number of examples or bytes

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,79}$")]
ShardName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,99}\.h5$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Dtype = Annotated[str, StringConstraints(pattern=r"^(u?int(8|16|32|64)|float(32|64))$")]
Size = Annotated[int, Field(ge=0, le=MOST_COUNT)]  # a number of bytes, an index or a version
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
# The dtype and the shape of each field of an example, by name of the field.
Fields: TypeAlias = Mapping[Name, tuple[Dtype, tuple[Count, ...]]]


@dataclass(frozen=True)
class Origin:
    """The data set that provides the images from which the examples are made."""

    name: Name  # name of the data set
    sha256: Sha256  # hash of the declared hashes of its files; see `hash_declared`


@dataclass(frozen=True)
class DataSetContent:
    """The content of a data set, independent of how it is stored.

    Data sets of equal content have equal examples, and the same fingerprint.
    """

    dataset: Name  # name of the job that makes the examples
    version: Size  # version of the code that makes the examples
    settings: Mapping[str, Any]  # all settings that decide the content of the examples
    origin: Origin  # source of the images
    splits: Annotated[Mapping[Name, Count], Field(min_length=1)]  # number of examples, by split

    @property
    def fingerprint(self) -> str:
        """The sha256 of the content; it is part of the signature of cells with this data set.

        Raises:
            ValueError: If a setting is NaN or infinite.
        """
        return hash_bytes(json.dumps(asdict(self), sort_keys=True, allow_nan=False).encode())


@dataclass(frozen=True)
class ShardPart:
    """A range of the examples of a split, and the name of the shard for this range."""

    name: ShardName  # name of the file
    split: Name  # name of the split
    first: Size  # index of the first example in the split
    examples: Count  # number of examples


@dataclass(frozen=True)
class Shard(ShardPart):
    """A complete shard, as the manifest describes it."""

    bytes: Size  # size of the file
    sha256: Sha256  # hash of the file


@dataclass(frozen=True)
class Manifest:
    """A data set in shards, as `index.json` describes it."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # also for the nested values

    format: Literal[1]  # FORMAT of the program that wrote the manifest
    fingerprint: Sha256  # fingerprint of `content`
    content: DataSetContent  # the examples
    store: Literal["pixels"]  # how examples are stored; there is only one kind
    # dtype and shape of each field of an example, by name of the field
    fields: Annotated[Fields, Field(min_length=1)]
    shards: tuple[Shard, ...]  # all shards; within a split, in the order of examples

    def list_shards(self, split: str) -> tuple[Shard, ...]:
        """Return the shards of a split in the order of its examples.

        Args:
            split: Name of the split. The result is empty for an unknown split.
        """
        return tuple(shard for shard in self.shards if shard.split == split)


STORED = TypeAdapter(Manifest)


def count_bytes(fields: Fields) -> int:
    """Compute how many bytes one example has.

    Args:
        fields: dtype and shape of each field of an example.
    """
    return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in fields.values())


def hash_declared(declared: Mapping[str, object]) -> str:
    """Combine all declared hashes of a data set into one sha256.

    Args:
        declared: The declared hashes, as a value that JSON can store.
    """
    return hash_bytes(json.dumps(declared, sort_keys=True).encode())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `index.json` atomically, with one line per shard.

    Args:
        folder: Folder of the shards.
        manifest: The manifest. Its fingerprint is computed again from its content.

    Raises:
        OSError: If the file cannot be written.
    """
    values = asdict(manifest) | {"fingerprint": manifest.content.fingerprint}
    lines = ",\n  ".join(json.dumps(shard) for shard in values.pop("shards"))
    text = json.dumps(values, indent=1).removesuffix("\n}")
    write_text(folder / INDEX, f'{text},\n "shards": [{lines}]\n}}\n')


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a data set.

    Args:
        folder: Folder of the shards.

    Raises:
        DataError: If there is no `index.json`, if the file cannot be read, or if its values
            contradict each other.
    """
    path = folder / INDEX
    try:
        stored = STORED.validate_json(read_plain_file(path))
        if stored.content.fingerprint != stored.fingerprint:
            raise ValueError("the fingerprint does not match the content")
        _check_shards(stored)
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such file; `make shards` writes it when all shards are complete"
        ) from error
    except (OSError, ValueError) as error:
        why = describe_fault(error) if isinstance(error, ValidationError) else error
        cause = f"unreadable, altered, or written by another program ({why})"
        raise DataError(f"{path}: {cause}; {REPAIR_HINT}") from error
    return stored


def _check_shards(manifest: Manifest) -> None:
    """Raise ValueError if the shards do not hold each example once and in order.

    Each shard must also have a unique name and enough bytes for its examples.
    """
    following = dict.fromkeys(manifest.content.splits, 0)
    one = count_bytes(manifest.fields)
    for shard in manifest.shards:
        if shard.first != following.get(shard.split):
            raise ValueError(f"{shard.name} begins at example {shard.first} of {shard.split}")
        following[shard.split] += shard.examples
        if shard.examples * one > shard.bytes:
            raise ValueError(f"{shard.name} of {shard.bytes:,} bytes is too small for its examples")
    if following != manifest.content.splits:
        raise ValueError(f"shards hold {following} examples, not {manifest.content.splits}")
    if len({shard.name for shard in manifest.shards}) < len(manifest.shards):
        raise ValueError("two shards have the same name")
