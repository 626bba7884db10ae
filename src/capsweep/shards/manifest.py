"""`index.json`: what a folder of shards holds, and by what it is known again.

A manifest is written last, when every shard is whole. Shards of a split hold its examples in the
order of the sequence, k from 0 on.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from capsweep.errors import DataError
from capsweep.shards import json_values
from capsweep.storage.files import hash_bytes, stat_regular_file, write_text

FORMAT = 1  # to be raised when a reader of today could not read what is written
INDEX = "index.json"
SHARD_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}\.h5")

Store = Literal["pixels"]  # kept for what was written when there were others

# What a manifest may say: it may come from anywhere, and what it says is printed and reserved.
HEAD = 2**10  # bytes, with the fingerprint among them
LARGEST = 2**26  # bytes, of some 300,000 shards
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
SHA256 = re.compile(r"[0-9a-f]{64}")
STORES = re.compile("|".join(get_args(Store)))
DTYPES = re.compile(r"u?int(8|16|32|64)|float(32|64)")
DIMENSIONS = 8
ONE_EXAMPLE = 2**28  # numbers of a field


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
        return hash_bytes(json.dumps(asdict(self), sort_keys=True).encode())


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

    fields: dtype and shape of one example, by name.
    """

    content: Content
    store: Store
    fields: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()

    def shards_of(self, split: str) -> tuple[Shard, ...]:
        """The shards of a split, in the order of its examples."""
        return tuple(shard for shard in self.shards if shard.split == split)


def hash_declared(declared: Mapping[str, object]) -> str:
    """One sha256 for all hashes that official files are verified by."""
    return hash_bytes(json.dumps(declared, sort_keys=True).encode())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `index.json`, atomically, one shard a line. Raises OSError."""
    whole = {"format": FORMAT, "fingerprint": manifest.content.fingerprint, **asdict(manifest)}
    shards = [json.dumps(shard) for shard in whole.pop("shards")]
    text = json.dumps(whole, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(shards)
    write_text(folder / INDEX, f'{text},\n "shards": [{lines}]\n}}\n')


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder. Raises DataError naming the file and the cure."""
    path = folder / INDEX
    try:
        return _parse_manifest(json_values.parse_json(_read_text(folder)))
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such file; it is written when all shards are there, by `make shards`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: altered, or of another program ({error}); run `make shards` again "
            "to write it anew: shards that are whole stay"
        ) from error


def is_whole(path: Path) -> bool:
    """Whether a file is a manifest, of whatever data set."""
    try:
        read_manifest(path.parent)
    except DataError:
        return False
    return True


def has_fingerprint(path: Path, fingerprint: str) -> bool:
    """Whether a file has this fingerprint in its first lines; `read` proves it."""
    with path.open("rb") as file:
        return f'"fingerprint": "{fingerprint}"'.encode() in file.read(HEAD)


def _read_text(folder: Path) -> str:
    """Raises DataError for what no manifest is: it would not end, or not fit."""
    if (size := stat_regular_file(folder, INDEX).st_size) > LARGEST:
        raise DataError(f"{folder / INDEX}: {size:,} bytes, more than any manifest has")
    return (folder / INDEX).read_text(encoding="utf-8")


def _parse_manifest(value: Any) -> Manifest:
    """Raises ValueError for what `write` did not write."""
    keys = ("format", "fingerprint", "content", "store", "fields", "shards")
    whole = json_values.check_object(value, INDEX)
    if (written := json_values.check_count(whole.get("format"), "format")) != FORMAT:
        raise ValueError(f"of format {written}, and this program reads format {FORMAT}")
    json_values.check_object(whole, INDEX, *keys)
    manifest = Manifest(
        content=parse_content(whole["content"]),
        store=cast(Store, json_values.check_text(whole["store"], "store", STORES)),
        fields=_parse_fields(whole["fields"]),
        shards=tuple(
            parse_shard(shard) for shard in json_values.check_list(whole["shards"], "shards")
        ),
    )
    if manifest.content.fingerprint != whole["fingerprint"]:
        raise ValueError("the fingerprint is not that of the content")
    _check_shards(manifest)
    return manifest


def parse_content(value: Any) -> Content:
    """From JSON. Raises ValueError."""
    keys = ("dataset", "version", "settings", "origin", "splits")
    content = json_values.check_object(value, "content", *keys)
    origin = json_values.check_object(content["origin"], "origin", "name", "sha256")
    if not (splits := json_values.check_object(content["splits"], "splits")):
        raise ValueError("no split has examples")
    return Content(
        dataset=json_values.check_text(content["dataset"], "dataset", NAME),
        version=json_values.check_count(content["version"], "version"),
        settings=json_values.check_setting(
            json_values.check_object(content["settings"], "settings"), "settings"
        ),
        origin=Origin(
            json_values.check_text(origin["name"], "origin", NAME),
            json_values.check_text(origin["sha256"], "sha256 of the origin", SHA256),
        ),
        splits={
            json_values.check_text(split, "split", NAME): json_values.check_count(
                examples, f"examples of {split}", 1
            )
            for split, examples in splits.items()
        },
    )


def _parse_fields(value: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    made = {}
    for name, described in json_values.check_object(value, "fields").items():
        json_values.check_text(name, "field", NAME)
        dtype, shape = json_values.check_list(described, name, 2)
        sizes = [
            json_values.check_count(size, f"shape of {name}", 1)
            for size in json_values.check_list(shape, name)
        ]
        if len(sizes) > DIMENSIONS or math.prod(sizes) > ONE_EXAMPLE:
            raise ValueError(f"no example has a field {name} of such a shape")
        made[name] = (json_values.check_text(dtype, "dtype", DTYPES), tuple(sizes))
    return made


def parse_shard(value: Any) -> Shard:
    """From JSON. Raises ValueError."""
    keys = ("name", "split", "first", "examples", "bytes", "sha256")
    shard = json_values.check_object(value, "shard", *keys)
    return Shard(
        name=json_values.check_text(shard["name"], "name of a shard", SHARD_NAME),
        split=json_values.check_text(shard["split"], "split", NAME),
        first=json_values.check_count(shard["first"], "first"),
        examples=json_values.check_count(shard["examples"], "examples", 1),
        bytes=json_values.check_count(shard["bytes"], "bytes"),
        sha256=json_values.check_text(shard["sha256"], "sha256 of a shard", SHA256),
    )


def _check_shards(manifest: Manifest) -> None:
    """Every example once and in order, every file once."""
    if not manifest.fields:
        raise ValueError("shards without a field")
    following = dict.fromkeys(manifest.content.splits, 0)
    for shard in manifest.shards:
        if shard.split not in following:
            raise ValueError(f"{shard.name} is of {shard.split}, a split that is none")
        if shard.first != following[shard.split]:
            raise ValueError(
                f"{shard.name} begins at {shard.first}, not at {following[shard.split]}"
            )
        following[shard.split] += shard.examples
    for split, count in manifest.content.splits.items():
        if following[split] != count:
            raise ValueError(f"{following[split]} examples of {split} in shards, not {count}")
    if len({shard.name for shard in manifest.shards}) < len(manifest.shards):
        raise ValueError("two shards of one name")
