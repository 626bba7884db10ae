"""A data set of shards: the folder that has the declared fingerprint, and its splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from capsweep.data import fetched
from capsweep.data.images import Reader, Splits
from capsweep.data.pairs import VERSION
from capsweep.data.presented import Split
from capsweep.data.shards import manifest, sequence
from capsweep.data.shards.manifest import INDEX, Content, Manifest
from capsweep.data.shards.stretches import ComposedStretches, JoinedStretches, Stretches
from capsweep.data.shards.verified import check_sizes
from capsweep.errors import DataError
from capsweep.object_store import shown

SHOWN = ("images", "labels")
TARGETS = "digits"


def declaring(content: Content) -> list[str]:
    """The overrides of `dataset=multimnist_shards` that declare a data set."""
    validation = content.splits.get("validation", 0)
    return [
        f"dataset.source={content.origin.name}",
        f"dataset.shards.fingerprint={content.fingerprint}",
        *([f"dataset.examples.validation={validation}"] if validation else []),
    ]


@dataclass(frozen=True)
class ShardReader:
    """A data set of shards, stored or virtual.

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
        place, found = self._found(folder)
        if self._composed(found):
            self._digits(place, found, folder)
        check_sizes(place, found.shards)

    def open(self, folder: str) -> Mapping[Split, Stretches]:
        """Its splits; one that it has not is empty. Raises DataError naming the file and the cure.

        Nothing is read before it is asked for.
        """
        place, found = self._found(folder)
        splits: tuple[Split, ...] = get_args(Split)
        composed = self._composed(found)
        stored = [name for name in self._wanted() if name not in composed]
        parts: dict[Split, list[Stretches]] = {split: [] for split in splits}
        if stored:
            # Asked for here: a host that has no HDF5 trains on everything else.
            from capsweep.data.shards.stored import StoredStretches

            for split in splits:
                parts[split].append(StoredStretches(place, found, split, stored))
        if composed:
            digits = self._digits(place, found, folder)
            for split in splits:
                parts[split].append(_composed(digits, split, found.content, composed))
        return {split: _joined(*of_split) for split, of_split in parts.items()}

    def _wanted(self) -> list[str]:
        return [*SHOWN, *([TARGETS] if self.targets else [])]

    def _composed(self, found: Manifest) -> list[str]:
        """Fields that are wanted and not stored, so that they are made when they are read."""
        return [name for name in self._wanted() if name not in found.fields]

    def _digits(self, place: Path, found: Manifest, folder: str) -> Splits:
        """The digits that examples are composed of."""
        try:
            return self.digits.read(folder)
        except DataError as error:
            if found.store == "virtual":
                raise
            raise DataError(
                f"{place / INDEX}: its shards have no digits alone, which the decoder is to draw, "
                f"and they cannot be made of {found.content.origin.name}: {error}; or make shards "
                "with ARGS=--with-sources, or train without a decoder: loss.reconstruction.weight=0"
            ) from error

    def _found(self, folder: str) -> tuple[Path, Manifest]:
        """The folder that has the declared data set."""
        places = fetched.places(folder, self.folders)
        others: list[tuple[Path, Content]] = []
        there: list[Path] = []
        for place in fetched.find_current(places, INDEX, self._is_declared):
            there.append(place)
            found = _manifest(place)
            if found.content.fingerprint == self.fingerprint:
                self._check(place, found)
                return place, found
            if found.content.dataset == sequence.DATASET:
                others.append((place, found.content))
        if not there:
            looked = ", ".join(f"{shown(place)}/{INDEX}" for place in places)
            raise DataError(
                f"{looked}: no such file; make the data set (make shards DATASET=multimnist), or "
                "say where it is: dataset.shards.folders=[FOLDER]"
            )
        said = "; ".join(
            f"{place / INDEX} is declared by {' '.join(declaring(content))}"
            for place, content in others
        )
        raise DataError(
            f"dataset.shards.fingerprint is {self.fingerprint}, and none of "
            f"{', '.join(map(str, there))} has this data set: {said or 'they hold others'}; "
            "declare what is there, or make the other (make shards)"
        )

    def _is_declared(self, path: Path) -> bool:
        return manifest.says(path, self.fingerprint)

    def _check(self, place: Path, found: Manifest) -> None:
        content = found.content
        if content.dataset != sequence.DATASET or content.origin.sha256 != self.origin:
            raise DataError(
                f"{place / INDEX}: made of the digits of {content.origin.name}, and dataset.source "
                f"declares others; set dataset.source={content.origin.name}"
            )
        if self._composed(found) and content.version != VERSION:
            raise DataError(
                f"{place / INDEX}: its examples are composed by version {content.version}, and "
                f"this program composes version {VERSION}; make the data set again, or take the "
                "program that made it"
            )


def _manifest(place: Path) -> Manifest:
    """A copy from an object store that cannot be read is fetched anew the next time."""
    try:
        return manifest.read(place)
    except DataError:
        fetched.forget(place / INDEX)
        raise


def _composed(
    digits: Splits, split: Split, content: Content, names: Sequence[str]
) -> ComposedStretches:
    count = content.splits.get(split, 0)
    source = sequence.pair_source(digits, split, content.settings) if count else None
    return ComposedStretches(source, count, names)


def _joined(one: Stretches, *others: Stretches) -> Stretches:
    return JoinedStretches(one, *others) if others else one
