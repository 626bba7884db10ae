"""Official files in HDF5: shards that a job of `capsweep.data_prep` made, read in their place.

A reader asks in this order, and the first that is there decides: shards in one of its folders
(`index.json`), decoded images in the user's cache, the official files. What is damaged is an
error, never a reason to go on to the next.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from capsweep.data.shards import manifest
from capsweep.data.shards.layout import BLOCK, Field
from capsweep.data.shards.manifest import INDEX, Content, Manifest, Origin, Shard, digest_of
from capsweep.data.verified import UNKNOWN, OfficialFiles
from capsweep.errors import DataError

VERSION = 1  # to be raised when the same official files are stored otherwise


def content(dataset: str, sha256: Mapping[str, str], splits: Mapping[str, int]) -> Content:
    """What the shards of official files are; sha256: of those files, by the names that declare
    them. splits: examples by split.
    """
    origin = Origin(dataset, digest_of({"sha256": dict(sha256)}))
    return Content(dataset, VERSION, {"sha256": dict(sha256)}, origin, dict(splits))


@dataclass(frozen=True)
class ConvertedFiles:
    """Where shards of a data set may be, and by what they are accepted.

    dataset: the job that makes them. key: where the configuration declares the hashes.
    """

    dataset: str
    files: OfficialFiles
    key: str

    def find(
        self, folder: str, declared: Mapping[str, str], needed: Sequence[str] = ()
    ) -> "ConvertedShards | None":
        """The first shards of this data set below the data folder; None where there are none.

        declared: sha256 of official files by name, or `unknown`. needed: those that the shards must
        have been made of; empty: whatever they were made of. Raises DataError naming index.json
        when it is damaged, or of other files than the declared ones.
        """
        for path in self.files.find_each(folder, INDEX):
            found = manifest.read(path.parent)
            if found.content.dataset == self.dataset:
                self._accept(path, found, declared, needed)
                return ConvertedShards(path.parent, found)
        return None

    def _accept(
        self, path: Path, found: Manifest, declared: Mapping[str, str], needed: Sequence[str]
    ) -> None:
        sha256 = found.content.settings.get("sha256", {})
        if found.content != content(self.dataset, sha256, found.content.splits):
            raise DataError(
                f"{path}: made by another version of capsweep; {_again(path.parent, self.dataset)}"
            )
        if found.store != "pixels":
            raise DataError(f"{path}: has no shards; {_again(path.parent, self.dataset)}")
        names = needed or list(sha256)
        known = {name: declared.get(name, UNKNOWN) for name in names}
        differing = [name for name in names if sha256.get(name) != known[name] != UNKNOWN]
        if differing:
            name = differing[0]
            raise DataError(
                f"{path}: made of another {name} (sha256 {sha256.get(name, 'none')}, declared "
                f"{known[name]} at {self.key}.{name}); {_again(path.parent, self.dataset)}"
            )
        unknown = [name for name in names if known[name] == UNKNOWN]
        if unknown:
            settings = " ".join(f"{self.key}.{name}={sha256.get(name)}" for name in unknown)
            raise DataError(
                f"{path}: made of files whose sha256 by the publisher is not known to us, so "
                f"nothing is read. If they were those of {self.files.publisher}, set {settings}"
            )


@dataclass(frozen=True)
class ConvertedShards:
    """Shards whose manifest was accepted."""

    folder: Path
    manifest: Manifest

    @property
    def index(self) -> Path:
        """The manifest's file, for messages."""
        return self.folder / INDEX

    def count(self, split: str) -> int:
        """Examples of a split. Raises DataError where there are none."""
        if split not in self.manifest.content.splits:
            raise self._damaged(self.index, f"has no {split} examples")
        return self.manifest.content.splits[split]

    def blocks(
        self, split: str, fields: Sequence[Field]
    ) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
        """Verified examples of a split in their order, a few at a time: their places, and these
        fields of them. Raises DataError naming the shard and the cure.
        """
        self.count(split)
        for shard in self.manifest.of(split):
            path = self.folder / shard.name
            self._verify(path, shard)
            with self._opened(path) as file:
                for begun in range(0, shard.examples, BLOCK):
                    part = slice(begun, min(begun + BLOCK, shard.examples))
                    arrays = {field.name: self._read(path, file, field, part) for field in fields}
                    yield slice(shard.first + part.start, shard.first + part.stop), arrays

    def whole(self, split: str, *fields: Field) -> dict[str, np.ndarray]:
        """These fields of all examples of a split."""
        count = self.count(split)
        arrays = {field.name: np.empty((count, *field.shape), field.dtype) for field in fields}
        for places, found in self.blocks(split, fields):
            for name, array in found.items():
                arrays[name][places] = array
        return arrays

    def _verify(self, path: Path, shard: Shard) -> None:
        try:
            with path.open("rb", buffering=0) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise self._damaged(path, f"cannot be read ({error.strerror})") from error
        if found != shard.sha256:
            raise self._damaged(path, f"truncated or altered (sha256 {found}, not {shard.sha256})")

    def _opened(self, path: Path) -> h5py.File:
        try:
            return h5py.File(path, "r")
        except OSError as error:
            raise self._damaged(path, f"cannot be read ({error})") from error

    def _read(self, path: Path, file: h5py.File, field: Field, part: slice) -> np.ndarray:
        try:
            array = np.asarray(file[field.name][part])
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise self._damaged(path, f"{field.name} cannot be read ({error})") from error
        expected = (part.stop - part.start, *field.shape)
        if array.dtype != field.dtype or array.shape != expected:
            found = f"{array.dtype} {list(array.shape)}, not {field.dtype} {list(expected)}"
            raise self._damaged(path, f"{field.name} is {found}")
        return array

    def _damaged(self, path: Path, what: str) -> DataError:
        return DataError(f"{path}: {what}; {_again(self.folder, self.manifest.content.dataset)}")


def _again(folder: Path, dataset: str) -> str:
    """The cure."""
    return (
        f"make it again from the official files (capsweep data make {dataset} --storage {folder}), "
        f"or delete {folder / INDEX} to have those read"
    )
