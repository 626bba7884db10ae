"""A data set of shards: the folder that has the declared fingerprint, and its splits.

Shape letters: B examples of a range.
"""

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import h5py
import numpy as np
import torch

from capsweep.data.batches import Field, OnDevice, Split
from capsweep.data.images import Reader, Splits
from capsweep.data.pairs import VERSION, PairSource
from capsweep.errors import DataError
from capsweep.shards import manifest
from capsweep.shards.layout import MULTIMNIST, compose_pairs, make_pair_source
from capsweep.shards.manifest import INDEX, DataSetContent, Manifest, Shard
from capsweep.shards.verify import Fault, ShardVerifier, check_sizes, damage_fault
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
    where digits alone are wanted and not stored. targets: whether they are, for a decoder. classes:
    of the labels; None: any.
    """

    fingerprint: str
    folders: Sequence[str]
    digits: Reader
    origin: str
    targets: bool
    classes: int | None = None

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
        names = [*IMAGES, *([DIGITS] if self.targets and digits is None else [])]
        splits: dict[str, Any] = {}
        for split in get_args(Split):
            source = None
            if digits is not None and split in whole.content.splits:
                source = make_pair_source(digits, split, whole.content.settings)
            splits[split] = StoredRanges(place, whole, split, names, source, self.classes)
        composed = {} if digits is None else digits.digests
        return Splits(**splits, parts={f"digits.{name}": sha for name, sha in composed.items()})

    def _read_digits(self, place: Path, whole: Manifest, folder: str) -> Splits | None:
        """Return the digits that examples are composed of, where those alone are wanted and not
        stored.
        """
        if not self.targets or DIGITS in whole.fields:
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
                f"{place / INDEX}: no digits alone, which the decoder is to draw, are stored, and "
                f"they cannot be made of {content.origin.name}: {error}; or make shards with "
                "ARGS=--with-sources, or train without a decoder: loss.reconstruction.weight=0"
            ) from error

    def _find_data_set(self, folder: str) -> tuple[Path, Manifest]:
        """Return the folder that has the declared data set."""
        places = official_files.resolve_folders(folder, self.folders)
        others: list[str] = []
        for place in official_files.find_current(places, INDEX, self._is_declared):
            whole = manifest.read_manifest(place)
            if whole.content.fingerprint == self.fingerprint:
                self._check_origin(place, whole.content)
                return place, whole
            others.append(f"{place / INDEX} by {' '.join(declare_data_set(whole.content))}")
        if others:
            raise DataError(
                f"dataset.shards.fingerprint is {self.fingerprint}, which no folder has. Declared "
                f"are {'; '.join(others)}; declare what is there, or make the other (make shards)"
            )
        looked = ", ".join(f"{hide_query(place)}/{INDEX}" for place in places)
        raise DataError(
            f"{looked}: no such file; make the data set (make shards DATASET=multimnist), or "
            "say where it is: dataset.shards.folders=[FOLDER]"
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

    names: the fields that are read; None: all. source: composes the digits alone where they are
    wanted and not stored. classes: of the labels; None: any. A shard is verified on its first use.
    Files are opened by the process that reads: none is inherited over a fork or a pickle. Raises
    DataError naming file and cure.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        split: str,
        names: Sequence[str] | None = None,
        source: PairSource | None = None,
        classes: int | None = None,
    ) -> None:
        names = list(manifest.fields) if names is None else names
        if absent := sorted(set(names) - set(manifest.fields)):
            raise DataError(f"{folder}: its shards have no {', '.join(absent)}")
        self.fields = [Field(name, *manifest.fields[name]) for name in names]
        if source is not None:
            _, images = manifest.fields["images"]
            self.fields.append(Field(DIGITS, "uint8", (2, *images)))
        self.source, self.count = source, manifest.content.splits.get(split, 0)
        self.classes = classes
        self.shards = manifest.shards_of(split)
        self.verifier = ShardVerifier(folder, manifest)
        self._open: OrderedDict[tuple[int, str], h5py.File] = OrderedDict()

    @property
    def digest(self) -> str:
        """The sha256 over those of its files, in order; each is verified before it is read."""
        return hash_bytes("".join(shard.sha256 for shard in self.shards).encode())

    def __len__(self) -> int:
        return self.count

    def to(self, device: torch.device) -> OnDevice:
        """Return the same ranges, whose batches are to be on a device."""
        return OnDevice(self, device)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def read_into(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Fill arrays with the examples from `start` on, from as many shards as it takes."""
        count = max(map(len, arrays.values()), default=0)
        if start < 0 or start + count > len(self):
            raise IndexError(f"examples {start} .. {start + count} of {len(self)}")
        if self.source is not None:
            k_B = torch.arange(start, start + count)
            arrays[DIGITS][:] = compose_pairs(self.source, k_B)[DIGITS]
            arrays = {name: array for name, array in arrays.items() if name != DIGITS}
        stop = start + count
        while start < stop:
            shard = self.shards[bisect_right(self.shards, start, key=lambda s: s.first) - 1]
            read = min(stop, shard.first + shard.examples) - start
            self._read_shard(shard, start, {name: a[:read] for name, a in arrays.items()})
            arrays = {name: array[read:] for name, array in arrays.items()}
            start += read

    def _read_shard(self, shard: Shard, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        file, first = self._find_open(shard), start - shard.first
        try:
            for name, array in arrays.items():
                stored = h5py.Dataset(h5py.h5d.open(file.id, name.encode()))
                stored.read_direct(array, np.s_[first : first + len(array)])
        except OSError as error:  # a checksum of HDF5's, or the disk
            raise damage_fault(shard, error).as_error(self.verifier.folder) from error
        if self.classes is not None and "labels" in arrays:
            self._check_labels(shard, start, arrays["labels"], self.classes)

    def _check_labels(self, shard: Shard, start: int, labels: np.ndarray, classes: int) -> None:
        """Raise DataError naming the file and the first example of a class beyond the last."""
        wrong_B = ((labels < 0) | (labels >= classes)).reshape(len(labels), -1).any(axis=1)
        if wrong_B.any():
            place = int(wrong_B.argmax())
            label = ", ".join(map(str, labels[place].flatten().tolist()))
            text = f"example {start + place} of {shard.split} is of class {label}, of {classes}"
            raise Fault(shard.name, "different", text).as_error(self.verifier.folder)

    def _find_open(self, shard: Shard) -> h5py.File:
        """Return a shard that this process has open; of all, those used last stay open."""
        key = os.getpid(), shard.name  # after a fork, what was open is the parent's
        if key not in self._open:
            while len(self._open) >= OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[key] = self.verifier.open_shard(shard)
        self._open.move_to_end(key)
        return self._open[key]
