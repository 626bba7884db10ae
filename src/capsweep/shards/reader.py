"""A data set of shards: the folder that has the declared fingerprint, and its splits.

Shape letters: B examples of a range.
"""

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
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
from capsweep.shards.verify import ShardVerifier, check_sizes, naming_damage
from capsweep.storage import official_files
from capsweep.storage.files import hash_bytes
from capsweep.storage.stores import hide_query

IMAGES = ("images", "labels")
DIGITS = "digits"
OPEN = 64  # files at once in a process, about 1 MB each: HDF5 keeps a large table for every one


def declare_data_set(content: DataSetContent) -> list[str]:
    """Return the overrides of `dataset=multimnist_shards` that declare a data set."""
    validation = content.splits.get("validation", 0)
    return [
        f"dataset.source={content.origin.name}",
        f"dataset.shards.fingerprint={content.fingerprint}",
        *([f"dataset.examples.validation={validation}"] if validation else []),
    ]


@dataclass(frozen=True)
class ShardReader:
    """A data set of shards.

    fingerprint: of its manifest. folders: where to look below the data folder; the first that has
    this data set is read. digits: what they are made of, whose official files `origin` tells; read
    where `targets`, the digits alone, are wanted for a decoder.
    """

    fingerprint: str
    folders: Sequence[str]
    digits: Reader
    origin: str
    targets: bool

    def check(self, folder: str) -> None:
        """Prove that it is there, each file of its size; a sha256 is proved on first use.

        Raises DataError naming the file and the cure.
        """
        place, whole = self._find_data_set(folder)
        self._read_digits(place, whole, folder)
        check_sizes(place, whole.shards)

    def read(self, folder: str) -> Splits:
        """Return its splits, each a StoredRanges, of which nothing is read yet; one that it has not
        is empty. Raises DataError naming the file and the cure.
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
        """Return the digits that targets are composed of, where those are wanted."""
        if not self.targets:
            return None
        content = whole.content
        if content.version != VERSION:
            raise DataError(
                f"{place / INDEX}: its examples are composed by version {content.version}, and "
                f"this program composes version {VERSION}; make the data set again"
            )
        try:
            return self.digits.read(folder)
        except DataError as error:
            raise DataError(
                f"{place / INDEX}: the digits alone, which the decoder is to draw, cannot be made "
                f"of {content.origin.name}: {error}; or train without a decoder: "
                "loss.reconstruction.weight=0"
            ) from error

    def _find_data_set(self, folder: str) -> tuple[Path, Manifest]:
        """Return the folder that has the declared data set."""
        found: list[str] = []
        for place in official_files.resolve_folders(folder, self.folders):
            if not official_files.has_file(place, INDEX, self._is_declared):
                found.append(f"{hide_query(place)}/{INDEX}: no such file")
                continue
            local = official_files.local_folder(place)
            whole = manifest.read_manifest(local)
            if whole.content.fingerprint == self.fingerprint:
                self._check_origin(local, whole.content)
                return local, whole
            declared = " ".join(declare_data_set(whole.content))
            found.append(f"{local / INDEX}: another data set, declared by {declared}")
        raise DataError(
            f"dataset.shards.fingerprint={self.fingerprint}: {'; '.join(found)}; make the data set "
            "(make shards DATASET=multimnist), declare what is there, or say where it is: "
            "dataset.shards.folders=[FOLDER]"
        )

    def _is_declared(self, path: Path) -> bool:
        """Return whether a manifest that was fetched before will do."""
        try:
            return manifest.read_manifest(path.parent).content.fingerprint == self.fingerprint
        except DataError:
            return False

    def _check_origin(self, place: Path, content: DataSetContent) -> None:
        if content.dataset != MULTIMNIST or content.origin.sha256 != self.origin:
            raise DataError(
                f"{place / INDEX}: made of the digits of {content.origin.name}, and dataset.source "
                f"declares others; set dataset.source={content.origin.name}"
            )


class StoredRanges:
    """Ranges of the examples of a split, read from HDF5 shards.

    source: composes the digits alone, where they are wanted. A shard is verified on its first use.
    Files are opened by the process that reads: none is inherited over a fork or a pickle. Raises
    DataError naming file and cure.
    """

    device = torch.device("cpu")  # of batches

    def __init__(
        self, folder: Path, manifest: Manifest, split: str, source: PairSource | None = None
    ) -> None:
        if absent := sorted(set(IMAGES) - set(manifest.fields)):
            raise DataError(f"{folder}: its shards have no {', '.join(absent)}")
        self.fields = {name: manifest.fields[name] for name in IMAGES}
        if source is not None:
            self.fields[DIGITS] = "uint8", (2, *manifest.fields["images"][1])
        self.source, self.count = source, manifest.content.splits.get(split, 0)
        self.shards = manifest.shards_of(split)
        self.verifier = ShardVerifier(folder, manifest)

    @property
    def digest(self) -> str:
        """The sha256 over those of its files, in order; each is verified before it is read."""
        return hash_bytes("".join(shard.sha256 for shard in self.shards).encode())

    def __len__(self) -> int:
        return self.count

    def to(self, device: torch.device) -> "StoredRanges":
        """Return the same ranges, whose batches are to be on a device."""
        moved = copy(self)
        moved.device = device
        return moved

    def read_into(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Fill arrays with the examples from `start` on, from as many shards as it takes."""
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
        file, first = find_open(os.getpid(), self.verifier, shard), start - shard.first
        with naming_damage(self.verifier.folder / shard.name):  # a checksum of HDF5's, or the disk
            for name, array in arrays.items():
                stored = h5py.Dataset(h5py.h5d.open(file.id, name.encode()))
                stored.read_direct(array, np.s_[first : first + len(array)])


@lru_cache(maxsize=OPEN)
def find_open(process: int, verifier: ShardVerifier, shard: Shard) -> h5py.File:
    """Return a shard that this process has open; those used last stay open. process: after a fork,
    what was open is the parent's.
    """
    return verifier.open_shard(shard)


def make_room(fields: Fields, count: int) -> dict[str, np.ndarray]:
    """Allocate arrays for so many examples."""
    return {name: np.empty((count, *shape), dtype) for name, (dtype, shape) in fields.items()}


def read_range(examples: StoredRanges, start: int, stop: int) -> dict[str, np.ndarray]:
    """Return the examples start .. stop - 1, by field. Raises DataError, IndexError beyond the
    split.
    """
    arrays = make_room(examples.fields, stop - start)
    examples.read_into(start, arrays)
    return arrays
