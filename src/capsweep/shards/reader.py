"""A data set of shards: the folder that has the declared fingerprint, and its splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from capsweep.data.batches import ExampleRanges, Split
from capsweep.data.images import Reader, Splits
from capsweep.data.pairs import VERSION
from capsweep.errors import DataError
from capsweep.shards import manifest, pair_examples
from capsweep.shards.manifest import INDEX, Content, Manifest
from capsweep.shards.ranges import ComposedRanges, JoinedRanges
from capsweep.shards.verified_files import check_sizes
from capsweep.storage import official_files
from capsweep.storage.stores import hide_query

SHOWN = ("images", "labels")
TARGETS = "digits"


def declaring_overrides(content: Content) -> list[str]:
    """The overrides of `dataset=multimnist_shards` that declare a data set."""
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
    where something wanted is not stored. targets: whether the digits alone are wanted, for a
    decoder.
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
        place, found = self._find_data_set(folder)
        if self._composed_fields(found):
            self._read_digits(place, found, folder)
        check_sizes(place, found.shards)

    def open(self, folder: str) -> Mapping[Split, ExampleRanges]:
        """Its splits; one that it has not is empty. Raises DataError naming the file and the cure.

        Nothing is read before it is asked for.
        """
        place, found = self._find_data_set(folder)
        splits: tuple[Split, ...] = get_args(Split)
        composed = self._composed_fields(found)
        stored = [name for name in self._wanted_fields() if name not in composed]
        parts: dict[Split, list[ExampleRanges]] = {split: [] for split in splits}
        if stored:
            # Asked for here: a host that has no HDF5 trains on everything else.
            from capsweep.shards.stored_ranges import StoredRanges

            for split in splits:
                parts[split].append(StoredRanges(place, found, split, stored))
        if composed:
            digits = self._read_digits(place, found, folder)
            for split in splits:
                parts[split].append(_composed_ranges(digits, split, found.content, composed))
        return {split: _join(*of_split) for split, of_split in parts.items()}

    def _wanted_fields(self) -> list[str]:
        return [*SHOWN, *([TARGETS] if self.targets else [])]

    def _composed_fields(self, found: Manifest) -> list[str]:
        """Fields that are wanted and not stored, so that they are made when they are read."""
        return [name for name in self._wanted_fields() if name not in found.fields]

    def _read_digits(self, place: Path, found: Manifest, folder: str) -> Splits:
        """The digits that examples are composed of."""
        try:
            return self.digits.read(folder)
        except DataError as error:
            raise DataError(
                f"{place / INDEX}: its shards have no digits alone, which the decoder is to draw, "
                f"and they cannot be made of {found.content.origin.name}: {error}; or make shards "
                "with ARGS=--with-sources, or train without a decoder: loss.reconstruction.weight=0"
            ) from error

    def _find_data_set(self, folder: str) -> tuple[Path, Manifest]:
        """The folder that has the declared data set."""
        places = official_files.resolve_folders(folder, self.folders)
        others: list[tuple[Path, Content]] = []
        there: list[Path] = []
        for place in official_files.find_current(places, INDEX, self._is_declared):
            there.append(place)
            found = _read_manifest(place)
            if found.content.fingerprint == self.fingerprint:
                self._check_origin(place, found)
                return place, found
            if found.content.dataset == pair_examples.DATASET:
                others.append((place, found.content))
        if not there:
            looked = ", ".join(f"{hide_query(place)}/{INDEX}" for place in places)
            raise DataError(
                f"{looked}: no such file; make the data set (make shards DATASET=multimnist), or "
                "say where it is: dataset.shards.folders=[FOLDER]"
            )
        said = "; ".join(
            f"{place / INDEX} is declared by {' '.join(declaring_overrides(content))}"
            for place, content in others
        )
        raise DataError(
            f"dataset.shards.fingerprint is {self.fingerprint}, and none of "
            f"{', '.join(map(str, there))} has this data set: {said or 'they hold others'}; "
            "declare what is there, or make the other (make shards)"
        )

    def _is_declared(self, path: Path) -> bool:
        return manifest.has_fingerprint(path, self.fingerprint)

    def _check_origin(self, place: Path, found: Manifest) -> None:
        content = found.content
        if content.dataset != pair_examples.DATASET or content.origin.sha256 != self.origin:
            raise DataError(
                f"{place / INDEX}: made of the digits of {content.origin.name}, and dataset.source "
                f"declares others; set dataset.source={content.origin.name}"
            )
        if self._composed_fields(found) and content.version != VERSION:
            raise DataError(
                f"{place / INDEX}: its examples are composed by version {content.version}, and "
                f"this program composes version {VERSION}; make the data set again, or take the "
                "program that made it"
            )


def _read_manifest(place: Path) -> Manifest:
    """A copy from an object store that cannot be read is fetched anew the next time."""
    try:
        return manifest.read_manifest(place)
    except DataError:
        official_files.forget_copy(place / INDEX)
        raise


def _composed_ranges(
    digits: Splits, split: Split, content: Content, names: Sequence[str]
) -> ComposedRanges:
    count = content.splits.get(split, 0)
    source = pair_examples.make_pair_source(digits, split, content.settings) if count else None
    return ComposedRanges(source, count, names)


def _join(one: ExampleRanges, *others: ExampleRanges) -> ExampleRanges:
    return JoinedRanges(one, *others) if others else one
