"""Official files in HDF5: shards that a job of `capsweep.data_prep` made, read in their place.

A reader asks in this order, and the first that is there decides: shards in one of its folders
(`index.json` or `shards/index.json`), decoded images in the user's cache, the official files. What
is damaged is an error, never a reason to go on to the next.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capsweep.data.shards import manifest, stretches
from capsweep.data.shards.layout import BLOCK, Field
from capsweep.data.shards.manifest import INDEX, Content, Manifest, Origin, digest_of
from capsweep.data.verified import UNKNOWN, OfficialFiles
from capsweep.errors import DataError

VERSION = 1  # to be raised when the same official files are stored otherwise
BELOW = "shards"  # a folder beside the official files, where shards are made if no other is named


def content(dataset: str, sha256: Mapping[str, str], splits: Mapping[str, int]) -> Content:
    """What the shards of official files are; sha256: of those files, by the names that declare
    them. splits: examples by split.
    """
    origin = Origin(dataset, digest_of({"sha256": dict(sha256)}))
    return Content(dataset, VERSION, {"sha256": dict(sha256)}, origin, dict(splits))


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
        count = self.manifest.content.splits.get(split, 0)
        if not count:
            raise DataError(f"{self.index}: has no {split} examples; {_again(self)}")
        return count

    def blocks(
        self, split: str, fields: Sequence[Field]
    ) -> Iterator[tuple[slice, Mapping[str, np.ndarray]]]:
        """Verified examples of a split in their order, a few at a time: their places, and these
        fields of them. Raises DataError naming the shard and the cure.
        """
        for field in fields:
            found = self.manifest.fields.get(field.name)
            if found != (field.dtype, field.shape):
                wanted = f"{field.dtype} {list(field.shape)}"
                raise DataError(
                    f"{self.index}: {field.name} is {found}, not {wanted}; {_again(self)}"
                )
        # Asked for here: a host that has no HDF5 reads the official files.
        from capsweep.data.shards.stored import StoredStretches

        count, names = self.count(split), [field.name for field in fields]
        examples = StoredStretches(self.folder, self.manifest, split, names)
        for begun in range(0, count, BLOCK):
            ended = min(begun + BLOCK, count)
            yield slice(begun, ended), stretches.read(examples, begun, ended)

    def whole(self, split: str, fields: Sequence[Field]) -> dict[str, np.ndarray]:
        """These fields of all examples of a split."""
        arrays = stretches.empty(fields, self.count(split))
        for places, found in self.blocks(split, fields):
            for name, array in found.items():
                arrays[name][places] = array
        return arrays


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
    ) -> ConvertedShards | None:
        """The first shards of this data set below the data folder; None where there are none.

        declared: sha256 of official files by name, or `unknown`. needed: those that the shards must
        have been made of; empty: whatever they were made of. Raises DataError naming index.json
        when it is damaged, or of other files than the declared ones.
        """
        for path in self.files.find_converted(folder, INDEX, BELOW, manifest.is_whole):
            found = ConvertedShards(path.parent, manifest.read(path.parent))
            if found.manifest.content.dataset == self.dataset:
                self._check_kind(found)
                self._check_origin(found, declared, needed)
                return found
        return None

    def _check_kind(self, found: ConvertedShards) -> None:
        made = found.manifest.content
        made_of = made.settings.get("sha256")
        # Of no files at all, nothing would be left to be compared with the declared ones.
        hashes = made_of if isinstance(made_of, Mapping) else {}
        if not hashes or made != content(self.dataset, hashes, made.splits):
            raise DataError(f"{found.index}: by another version of capsweep; {_again(found)}")
        if found.manifest.store != "pixels":
            raise DataError(f"{found.index}: has no shards; {_again(found)}")

    def _check_origin(
        self, found: ConvertedShards, declared: Mapping[str, str], needed: Sequence[str]
    ) -> None:
        """Refuse what was made of other files than the declared ones, as these would be."""
        made_of = found.manifest.content.settings["sha256"]
        names = needed or list(made_of)
        known = {name: declared.get(name, UNKNOWN) for name in names}
        for name in names:
            if made_of.get(name) != known[name] != UNKNOWN:
                raise DataError(
                    f"{found.index}: made of another {name} (sha256 {made_of.get(name, 'none')}, "
                    f"declared {known[name]} at {self.key}.{name}); {_again(found)}"
                )
        unknown = [name for name in names if known[name] == UNKNOWN]
        if unknown:
            settings = " ".join(f"{self.key}.{name}={made_of.get(name)}" for name in unknown)
            raise DataError(
                f"{found.index}: made of files of which the publisher's sha256 is not known to us, "
                f"so nothing is read. If they are those of {self.files.publisher}, set {settings}"
            )


def _again(shards: ConvertedShards) -> str:
    """The cure of shards that cannot be used."""
    dataset, folder = shards.manifest.content.dataset, shards.folder
    return (
        f"make them again, in a folder of their own (capsweep data make {dataset}), or remove "
        f"{folder / INDEX} to have the official files read"
    )
