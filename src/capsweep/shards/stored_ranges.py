"""A split that is read from HDF5 shards, stretch by stretch."""

import contextlib
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from capsweep.data.batches import Field
from capsweep.errors import DataError
from capsweep.shards.layout import DAMAGE_ERRORS, find_disagreements
from capsweep.shards.manifest import Manifest, Shard
from capsweep.shards.ranges import check_range
from capsweep.shards.verified_files import AGAIN, ShardVerifier, unreadable_error

OPEN = 64  # files at once in a process, about 1 MB each: HDF5 keeps a large table for every one
FOREIGN = "it is a shard of another data set; run `make shards` again, or copy it again"


class StoredRanges:
    """Examples of HDF5 shards.

    names: the fields that are wanted; None: all. A shard is verified on its first use, and what it
    says of itself compared with the manifest. Files are opened when they are read, by the process
    that reads: none is inherited over a fork or a pickle. Raises DataError naming file and cure.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, split: str, names: Sequence[str] | None = None
    ) -> None:
        names = list(manifest.fields) if names is None else names
        if absent := sorted(set(names) - set(manifest.fields)):
            raise DataError(f"{folder}: its shards have no {', '.join(absent)}")
        self.folder, self.manifest, self.split = folder, manifest, split
        self.fields = [Field(name, *manifest.fields[name]) for name in names]
        self.shards = manifest.shards_of(split)
        self.starts = np.array([shard.first for shard in self.shards], dtype=np.int64)
        self._open = _OpenFiles(folder, manifest, self.fields)

    def __len__(self) -> int:
        return self.manifest.content.splits.get(self.split, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = _OpenFiles(self.folder, self.manifest, self.fields)

    def read_into(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Fill arrays with the examples from `start` on, from as many shards as it takes."""
        stop = start + check_range(self, start, arrays)
        while start < stop:
            shard = self.shards[int(self.starts.searchsorted(start, side="right")) - 1]
            ended = min(stop, shard.first + shard.examples)
            self._read_shard(shard, start, {n: a[: ended - start] for n, a in arrays.items()})
            arrays = {name: array[ended - start :] for name, array in arrays.items()}
            start = ended

    def open_files(self) -> Mapping[str, Mapping[str, h5py.Dataset]]:
        """What this process has open: data sets by shard and field."""
        return self._open.held()

    def _read_shard(self, shard: Shard, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        first = start - shard.first
        stored = self._open.data_sets_of(shard)
        for name, array in arrays.items():
            try:
                stored[name].read_direct(array, np.s_[first : first + len(array)])
            except OSError as error:  # a checksum of HDF5's, or the disk
                raise unreadable_error(self.folder / shard.name, error) from error


class _OpenFiles:
    """The data sets of shards that this process has open, those used last.

    They are closed with the stretches that they serve, which are therefore not known here.
    """

    def __init__(self, folder: Path, manifest: Manifest, fields: Sequence[Field]) -> None:
        self.manifest, self.fields = manifest, fields
        self.verifier = ShardVerifier(folder)
        self.process = os.getpid()
        self.described: dict[str, tuple[int, ...]] = {}
        self.files: OrderedDict[str, tuple[h5py.File, dict[str, h5py.Dataset]]] = OrderedDict()

    def data_sets_of(self, shard: Shard) -> Mapping[str, h5py.Dataset]:
        """The data sets of a shard, by field."""
        self._leave_to_parent()
        if shard.name in self.files:
            self.files.move_to_end(shard.name)
            return self.files[shard.name][1]
        while len(self.files) >= OPEN:
            self.files.popitem(last=False)[1][0].close()
        file, stored = self._open_shard(shard)
        self.files[shard.name] = file, stored
        return stored

    def held(self) -> dict[str, dict[str, h5py.Dataset]]:
        """What is open now."""
        self._leave_to_parent()
        return {name: stored for name, (_, stored) in self.files.items()}

    def _leave_to_parent(self) -> None:
        if self.process != os.getpid():  # a fork: what was open is the parent's
            self.files, self.process = OrderedDict(), os.getpid()

    def _open_shard(self, shard: Shard) -> tuple[h5py.File, dict[str, h5py.Dataset]]:
        path = self.verifier.verified_path(shard)
        with contextlib.ExitStack() as opened:
            try:
                # Blocks are read whole and come in no order, so that nothing is worth a cache.
                file = opened.enter_context(h5py.File(path, "r", rdcc_nbytes=0, locking=False))
            except OSError as error:
                raise unreadable_error(path, error) from error
            names = [field.name for field in self.fields]
            self._check_description(path, file, shard)
            stored = {name: h5py.Dataset(h5py.h5d.open(file.id, name.encode())) for name in names}
            opened.pop_all()  # it stays open
        return file, stored

    def _check_description(self, path: Path, file: h5py.File, shard: Shard) -> None:
        """Raise DataError unless a file says of itself what the manifest says; once for each."""
        found = os.stat(path)
        seen = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        if self.described.get(shard.name) == seen:
            return
        try:
            said = next(find_disagreements(file, self.manifest, shard), None)
        except DAMAGE_ERRORS as error:
            raise DataError(f"{path}: cannot be read ({error}); {AGAIN}") from error
        if said is not None:
            raise DataError(f"{path}: {said}; {FOREIGN}")
        self.described[shard.name] = seen
