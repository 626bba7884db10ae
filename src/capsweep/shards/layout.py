"""How examples lie in a shard: one data set of HDF5 for each field, in chunks of BLOCK examples.

    images   uint8  [N, C, H, W]      what a network is shown
    labels   uint8  [N, L], or [N]    classes; of two digits first the one below
    indices  uint32 [N, L], or [N]    places of the source images in their split
    shifts   int8   [N, L, 2]         rows down, columns right
    digits   uint8  [N, L, C, H, W]   the source digits alone, moved; where they were asked for

The attributes of the file say what it is without `index.json`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from capsweep.shards.manifest import Content, Manifest, Shard

# What h5py raises for what it finds in a file, beside OSError.
DAMAGE_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
BLOCK = 500  # examples of a chunk: about 0.6 MB of MultiMNIST


def shard_attributes(content: Content, split: str, first: int) -> dict[str, str | int]:
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


def open_shard(path: Path) -> h5py.File:
    """A shard for reading; the file system need not know locks. Raises OSError."""
    return h5py.File(path, "r", locking=False)


def find_disagreements(file: h5py.File, manifest: Manifest, shard: Shard) -> Iterator[str]:
    """Where a file is not what the manifest says of the shard; none where it is.

    A data set whose bytes lie in another file is none of the shard's: no hash would hold it. Raises
    one of DAMAGED where the file cannot be read.
    """
    wanted = shard_attributes(manifest.content, shard.split, shard.first)
    for name, value in wanted.items():
        found = file.attrs.get(name)
        if not _is_equal(found, value):
            yield f"{name} is {_printable(found)}, {_printable(value)} in index.json"
    if more := set(file.attrs) - set(wanted):
        yield f"attributes that no shard has: {_printable(sorted(more))}"
    for name, (dtype, shape) in manifest.fields.items():
        expected = f"{dtype} {[shard.examples, *shape]}"
        found = _describe_data_set(file, name)
        if found != expected:
            yield f"{name} is {found}, {expected} in index.json"
    if more := set(file) - set(manifest.fields):
        yield f"data sets that index.json does not name: {_printable(sorted(more))}"


def _describe_data_set(file: h5py.File, name: str) -> str:
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


def _is_equal(found: object, wanted: str | int) -> bool:
    if isinstance(wanted, str):
        return isinstance(found, str) and found == wanted
    return isinstance(found, int | np.integer) and int(found) == wanted


def _printable(value: object) -> str:
    """As it may be printed, and not at any length."""
    if value is None:
        return "missing"
    value = value.item() if isinstance(value, np.generic) else value
    shown = value if isinstance(value, str) and value.isprintable() else ascii(value)
    return shown if len(shown) <= 100 else f"{shown[:97]}..."
