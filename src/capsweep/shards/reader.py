"""Reader of data sets in shards; a data set is found by its declared fingerprint.

Shape letters: B examples of a range.
"""

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import h5py
import numpy as np
import torch

from capsweep.data.batches import Split
from capsweep.data.images import Reader, Splits
from capsweep.data.pairs import VERSION, PairSource
from capsweep.errors import DataError
from capsweep.shards import manifest
from capsweep.shards.layout import MULTIMNIST, make_pair_source
from capsweep.shards.manifest import INDEX, DataSetContent, Fields, Manifest, Shard
from capsweep.shards.verify import ShardVerifier, check_sizes, report_damage
from capsweep.storage import official_files
from capsweep.storage.files import hash_bytes
from capsweep.storage.stores import hide_query

IMAGES = ("images", "labels")
DIGITS = "digits"
MOST_OPEN = 64  # most files that a process keeps open; HDF5 needs about 1 MB for each


def declare_data_set(content: DataSetContent) -> list[str]:
    """Return the overrides of a configuration that declare a data set in shards.

    A user types the overrides after `dataset=multimnist_shards`.

    Args:
        content: The content of the data set, from its manifest.
    """
    validation = content.splits.get("validation", 0)
    return [
        f"dataset.source={content.origin.name}",
        f"dataset.shards.fingerprint={content.fingerprint}",
        *([f"dataset.examples.validation={validation}"] if validation else []),
    ]


@dataclass(frozen=True)
class ShardReader:
    """A reader of a data set in shards.

    Attributes:
        fingerprint: The fingerprint that the manifest must have.
        folders: Where to look for the data set: names of folders below the data folder. The first
            folder that has the data set is used.
        digits: Reads the single digits from which the examples were composed.
        origin: The sha256 of all declared hashes of `digits`; see `hash_declared`.
        targets: Whether a decoder needs a separate image of each digit. These images are not in the
            shards; they are composed from `digits`.
    """

    fingerprint: str
    folders: Sequence[str]
    digits: Reader
    origin: str
    targets: bool

    def check(self, folder: str) -> None:
        """Check that all shards exist and have the size in the manifest.

        The hash of a shard is verified later, before the first use of the shard.

        Args:
            folder: The data folder, a path or the URL of an object store.

        Raises:
            DataError: If the data set is not found, or if a shard is missing or has another size.
                Also if a decoder needs single digits and they cannot be read.
            StoreError: If the object store does not answer.
        """
        place, whole = self._find_data_set(folder)
        self._read_digits(place, whole, folder)
        check_sizes(place, whole.shards)

    def read(self, folder: str) -> Splits:
        """Find the data set and return its splits; examples are read when they are used.

        Args:
            folder: The data folder, a path or the URL of an object store.

        Returns:
            The splits, each a `StoredRanges`. If the data set lacks a split, this split is empty.

        Raises:
            DataError: If the data set is not found, or if a decoder needs single digits and they
                cannot be read.
            StoreError: If the object store does not answer.
        """
        place, whole = self._find_data_set(folder)
        digits = self._read_digits(place, whole, folder)
        splits: dict[str, Any] = {}
        for split in get_args(Split):
            source = None
            if digits is not None and split in whole.content.splits:
                source = make_pair_source(digits, split, whole.content.settings)
            splits[split] = StoredRanges(place, whole, split, source)
        composed = {} if digits is None else digits.digests
        return Splits(**splits, parts={f"digits.{name}": sha for name, sha in composed.items()})

    def _read_digits(self, place: Path, whole: Manifest, folder: str) -> Splits | None:
        """Read the digits from which the targets of a decoder are composed.

        The result is None if no targets are needed.
        """
        if not self.targets:
            return None
        content = whole.content
        if content.version != VERSION:
            raise DataError(
                f"{place / INDEX}: version {content.version} of the program made the examples, but "
                f"this is version {VERSION}; make the data set again"
            )
        try:
            return self.digits.read(folder)
        except DataError as error:
            raise DataError(
                f"{place / INDEX}: the decoder needs single digits, which cannot be read from "
                f"{content.origin.name}: {error}; or train without a decoder: "
                "loss.reconstruction.weight=0"
            ) from error

    def _find_data_set(self, folder: str) -> tuple[Path, Manifest]:
        """Find the declared data set, and return its local folder and its manifest."""
        faults: list[str] = []
        for place in official_files.resolve_folders(folder, self.folders):
            if not official_files.fetch_file(place, INDEX, self._is_declared):
                faults.append(f"{hide_query(place)}/{INDEX}: no such file")
                continue
            local = official_files.locate_folder(place)
            whole = manifest.read_manifest(local)
            if whole.content.fingerprint == self.fingerprint:
                self._check_origin(local, whole.content)
                return local, whole
            declared = " ".join(declare_data_set(whole.content))
            faults.append(f"{local / INDEX}: another data set, declared by {declared}")
        raise DataError(
            f"dataset.shards.fingerprint={self.fingerprint}: {'; '.join(faults)}; make the data "
            "set (make shards DATASET=multimnist), declare one that is there, or set its folder: "
            "dataset.shards.folders=[FOLDER]"
        )

    def _is_declared(self, path: Path) -> bool:
        """Return whether a manifest that was fetched earlier describes the declared data set."""
        with suppress(DataError):
            return manifest.read_manifest(path.parent).content.fingerprint == self.fingerprint
        return False

    def _check_origin(self, place: Path, content: DataSetContent) -> None:
        if content.dataset != MULTIMNIST or content.origin.sha256 != self.origin:
            raise DataError(
                f"{place / INDEX}: it was made from the digits of {content.origin.name}, but "
                f"dataset.source has others; set dataset.source={content.origin.name}"
            )


class StoredRanges:
    """A split in HDF5 shards; any range of its examples can be read.

    A shard is verified before its first use. Each process opens the files itself, so that this
    object can be used after a fork or after pickling.

    Args:
        folder: Local folder of the shards.
        manifest: Manifest of the data set.
        split: Name of the split.
        source: Composes separate images of the digits; None if no decoder needs them.

    Raises:
        DataError: If the shards have no images or no labels.
    """

    device = torch.device("cpu")  # device of the batches

    def __init__(
        self, folder: Path, manifest: Manifest, split: str, source: PairSource | None = None
    ) -> None:
        if absent := sorted(set(IMAGES) - set(manifest.fields)):
            raise DataError(f"{folder}: its shards have no {', '.join(absent)}; make them again")
        self.fields = {name: manifest.fields[name] for name in IMAGES}
        if source is not None:
            self.fields[DIGITS] = "uint8", (2, *manifest.fields["images"][1])
        self.source, self.count = source, manifest.content.splits.get(split, 0)
        self.shards = manifest.list_shards(split)
        self.verifier = ShardVerifier(folder, manifest)

    @property
    def digest(self) -> str:
        """The sha256 of the concatenated hashes of all shards of the split, in order.

        The hash of a shard is verified before the first use of the shard.
        """
        return hash_bytes("".join(shard.sha256 for shard in self.shards).encode())

    def __len__(self) -> int:
        return self.count

    def to(self, device: torch.device) -> "StoredRanges":
        """Return a copy of this split whose batches are on a device.

        Args:
            device: The training device.
        """
        moved = copy(self)
        moved.device = device
        return moved

    def read_into(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Read consecutive examples into arrays; the examples may be in several shards.

        Args:
            start: Index of the first example in the split.
            arrays: An array [B, ...] for each field to read, by its name; see `allocate_arrays`.

        Raises:
            IndexError: If some of the examples are not in the split.
            DataError: If a shard is missing or does not match the manifest.
            StoreError: If the object store does not answer.
        """
        count = max(map(len, arrays.values()), default=0)
        if start < 0 or start + count > len(self):
            raise IndexError(f"examples {start} .. {start + count} of {len(self)}")
        if self.source is not None:
            k_B = torch.arange(start, start + count)
            arrays[DIGITS][:] = self.source.compose_pairs(k_B).digits_BLCHW.numpy()
            arrays = {name: array for name, array in arrays.items() if name != DIGITS}
        stop = start + count
        while start < stop:
            shard = self.shards[bisect_right(self.shards, start, key=lambda s: s.first) - 1]
            read = min(stop, shard.first + shard.examples) - start
            self._read_shard(shard, start, {name: a[:read] for name, a in arrays.items()})
            arrays = {name: array[read:] for name, array in arrays.items()}
            start += read

    def _read_shard(self, shard: Shard, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        file, first = open_shard_once(os.getpid(), self.verifier, shard), start - shard.first
        with report_damage(self.verifier.folder / shard.name):  # HDF5 verifies its checksums
            for name, array in arrays.items():
                stored = h5py.Dataset(h5py.h5d.open(file.id, name.encode()))
                stored.read_direct(array, np.s_[first : first + len(array)])


@lru_cache(maxsize=MOST_OPEN)
def open_shard_once(process: int, verifier: ShardVerifier, shard: Shard) -> h5py.File:
    """Open a shard, or return the open file if this process has already opened the shard.

    The MOST_OPEN shards that were used most recently stay open.

    Args:
        process: Id of this process. After a fork, the child has another id, so that it does not
            use the files that its parent opened.
        verifier: Verifies and opens the shard.
        shard: Entry of the shard in the manifest.

    Raises:
        DataError: If the shard is missing or does not match the manifest.
        StoreError: If the object store does not answer.
    """
    return verifier.open_shard(shard)


def allocate_arrays(fields: Fields, count: int) -> dict[str, np.ndarray]:
    """Allocate an array for each field of some examples.

    Args:
        fields: dtype and shape of each field of an example.
        count: Number of examples.

    Returns:
        An array [count, ...] for each field, with arbitrary values.
    """
    return {name: np.empty((count, *shape), dtype) for name, (dtype, shape) in fields.items()}


def read_range(examples: StoredRanges, start: int, stop: int) -> dict[str, np.ndarray]:
    """Read the examples start .. stop - 1 of a split.

    Args:
        examples: The split.
        start: Index of the first example.
        stop: Index of the last example, plus 1.

    Returns:
        An array [stop - start, ...] for each field.

    Raises:
        IndexError: If some of the examples are not in the split.
        DataError: If a shard is missing or does not match the manifest.
        StoreError: If the object store does not answer.
    """
    arrays = allocate_arrays(examples.fields, stop - start)
    examples.read_into(start, arrays)
    return arrays
