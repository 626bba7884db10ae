"""What a manifest says, for people and for programs; no file is hashed for it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from capsweep.data.shards.described import DAMAGED, opened
from capsweep.data.shards.manifest import Manifest
from capsweep.data.shards.regular import regular
from capsweep.data_prep import train_command
from capsweep.errors import DataError

UNKNOWN = "unknown: its first shard cannot be read"


def plain(folder: Path, manifest: Manifest, data: str) -> dict[str, Any]:
    """For programs. data: the folder of all data sets."""
    content = manifest.content
    splits = {
        split: {
            "examples": examples,
            "shards": len(manifest.of(split)),
            "bytes": sum(shard.bytes for shard in manifest.of(split)),
        }
        for split, examples in content.splits.items()
    }
    return {
        "path": str(folder),
        **asdict(content),
        "splits": splits,
        "store": manifest.store,
        "fingerprint": content.fingerprint,
        "fields": {
            name: {"dtype": dtype, "shape": shape, "bytes": _nbytes(dtype, shape)}
            for name, (dtype, shape) in manifest.fields.items()
        },
        "compression": compression(folder, manifest),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "train": train_command.command(folder, manifest, data),
    }


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return np.dtype(dtype).itemsize * math.prod(shape)


def compression(folder: Path, manifest: Manifest) -> str | None:
    """How the fields of the first shard are compressed, `gzip 4`; None: not."""
    if not manifest.shards:
        return None
    name, field = manifest.shards[0].name, next(iter(manifest.fields))
    try:
        regular(folder, name)
        with opened(folder / name) as file:
            stored = file[field]
            if not isinstance(stored, h5py.Dataset):
                return UNKNOWN
            return stored.compression and f"{stored.compression} {stored.compression_opts}"
    except (*DAMAGED, DataError):
        return UNKNOWN


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """What stands above the tables, of `plain`."""
    yield f"data set:    {told['dataset']} of {told['origin']['name']}, {told['store']}"
    yield f"folder:      {told['path']}"
    yield f"fingerprint: {told['fingerprint']}"
    yield f"origin:      sha256 {told['origin']['sha256']}"
    settings = ", ".join(_setting(key, value) for key, value in told["settings"].items())
    yield f"settings:    {settings or 'none'}; generator version {told['version']}"
    if told["store"] == "virtual":
        yield "stored:      nothing; examples are composed when they are read"
    else:
        how = told["compression"] or "not compressed"
        yield f"stored:      {told['bytes']:,} bytes, {how}"


def _setting(key: str, value: object) -> str:
    return f"{key} of {len(value)} files" if isinstance(value, Mapping) else f"{key} {value}"


def split_rows(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Split, examples, shards, bytes."""
    for split, counts in told["splits"].items():
        numbers = (counts[name] for name in ("examples", "shards", "bytes"))
        yield split, *(f"{number:,}" for number in numbers)


def field_rows(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Field, dtype, shape, bytes of an example."""
    for name, field in told["fields"].items():
        shape = "x".join(map(str, field["shape"])) or "one number"
        yield name, field["dtype"], shape, f"{field['bytes']:,}"
