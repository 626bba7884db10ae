"""What a shard says of itself, in attributes and shapes: written, and held against its manifest."""

import json
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from capsweep.data.shards.manifest import Content, Manifest, Shard

# What h5py raises for what it finds in a file, beside OSError.
DAMAGED = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def attributes(content: Content, split: str, first: int) -> dict[str, str | int]:
    """Of the file that has the examples of a split from `first` on; enough without `index.json`."""
    return {
        "dataset": content.dataset,
        "fingerprint": content.fingerprint,
        "generator_version": content.version,
        "settings": json.dumps(content.settings, sort_keys=True),
        "source": content.origin.name,
        "source_sha256": content.origin.sha256,
        "split": split,
        "first": first,
    }


def opened(path: Path) -> h5py.File:
    """A shard for reading; the file system need not know locks. Raises OSError."""
    return h5py.File(path, "r", locking=False)


def disagreements(file: h5py.File, manifest: Manifest, shard: Shard) -> Iterator[str]:
    """Where a file is not what the manifest says of the shard; none where it is.

    A data set whose bytes lie in another file is none of the shard's: no hash would hold it. Raises
    one of DAMAGED where the file cannot be read.
    """
    wanted = attributes(manifest.content, shard.split, shard.first)
    for name, value in wanted.items():
        found = file.attrs.get(name)
        if not _is(found, value):
            yield f"{name} is {_told(found)}, {_told(value)} in index.json"
    if more := set(file.attrs) - set(wanted):
        yield f"attributes that no shard has: {_told(sorted(more))}"
    for name, (dtype, shape) in manifest.fields.items():
        expected = f"{dtype} {[shard.examples, *shape]}"
        found = _data_set(file, name)
        if found != expected:
            yield f"{name} is {found}, {expected} in index.json"
    if more := set(file) - set(manifest.fields):
        yield f"data sets that index.json does not name: {_told(sorted(more))}"


def _data_set(file: h5py.File, name: str) -> str:
    """Its dtype and shape; or why it is none."""
    if name not in file:
        return "missing"
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        return "a link"
    found = file[name]
    if not isinstance(found, h5py.Dataset):
        return "no data set"
    if found.is_virtual or found.external:
        return "in another file"
    return f"{found.dtype} {list(found.shape or ())}"


def _is(found: object, wanted: str | int) -> bool:
    if isinstance(wanted, str):
        return isinstance(found, str) and found == wanted
    return isinstance(found, int | np.integer) and int(found) == wanted


def _told(value: object) -> str:
    """As it may be printed, and not at any length."""
    if value is None:
        return "missing"
    value = value.item() if isinstance(value, np.generic) else value
    shown = value if isinstance(value, str) and value.isprintable() else ascii(value)
    return shown if len(shown) <= 100 else f"{shown[:97]}..."
