"""A data set of shards: the folder that has the declared fingerprint, and its splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from capsweep.data.images import Reader
from capsweep.data.presented import Split
from capsweep.data.shards import manifest, sequence
from capsweep.data.shards.manifest import INDEX, Content, Manifest
from capsweep.data.shards.stored import ComposedStretches, StoredStretches, Stretches
from capsweep.data.shards.verified import check_size
from capsweep.errors import DataError

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
    this data set is read. digits: what they are made of, whose official files `origin` tells; only
    a virtual data set reads them. targets: whether the digits alone are wanted, for a decoder.
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
        if found.store == "virtual":
            self.digits.check(folder)
        for shard in found.shards:
            check_size(place, shard)

    def open(self, folder: str) -> Mapping[Split, Stretches]:
        """Its splits; one that it has not is empty. Raises DataError naming the file and the cure.

        Nothing is read before it is asked for.
        """
        place, found = self._found(folder)
        names = [*SHOWN, *([TARGETS] if self.targets else [])]
        splits: tuple[Split, ...] = get_args(Split)
        if found.store == "pixels":
            return {split: StoredStretches(place, found, split, names) for split in splits}
        digits, content = self.digits.read(folder), found.content
        return {
            split: ComposedStretches(
                sequence.pair_source(digits, split, content.settings) if count else None,
                count,
                names,
            )
            for split in splits
            for count in [content.splits.get(split, 0)]
        }

    def _found(self, folder: str) -> tuple[Path, Manifest]:
        """The folder that has the declared data set."""
        places = [Path(folder) / below for below in self.folders]
        there = [place for place in places if (place / INDEX).is_file()]
        if not there:
            looked = ", ".join(str(place / INDEX) for place in places)
            raise DataError(
                f"{looked}: no such file; make the data set (make shards DATASET=multimnist), or "
                "say where it is: dataset.shards.folders=[FOLDER]"
            )
        others: list[tuple[Path, Content]] = []
        for place in there:
            found = manifest.read(place)
            if found.content.fingerprint == self.fingerprint:
                self._check(place, found)
                return place, found
            others.append((place, found.content))
        said = "; ".join(
            f"{place / INDEX} is declared by {' '.join(declaring(content))}"
            for place, content in others
        )
        raise DataError(
            f"dataset.shards.fingerprint is {self.fingerprint}, and no folder has this data set: "
            f"{said}; declare it so, or make the other (make shards)"
        )

    def _check(self, place: Path, found: Manifest) -> None:
        content = found.content
        if content.dataset != sequence.DATASET or content.origin.sha256 != self.origin:
            raise DataError(
                f"{place / INDEX}: made of the digits of {content.origin.name}, and dataset.source "
                f"declares others; set dataset.source={content.origin.name}"
            )
        if self.targets and found.store == "pixels" and TARGETS not in found.fields:
            raise DataError(
                f"{place / INDEX}: its shards have no digits alone, which a decoder is to draw; "
                "make them with ARGS=--with-sources or with STORE=virtual, or train without a "
                "decoder: loss.reconstruction.weight=0"
            )
