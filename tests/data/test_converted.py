"""Official files in HDF5: the same tensors, preferred where they are, and never read damaged."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import official_files
import pytest
import shard_folders
import torch

from capsweep.data import converted
from capsweep.data.images import LabelledImages, Reader, Splits
from capsweep.data.shards import manifest
from capsweep.data.shards.manifest import Origin, digest_of
from capsweep.data_prep import affnist, smallnorb
from capsweep.data_prep.stored import Stored
from capsweep.files import user_cache

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]

NORB = ("smallnorb", "smallnorb_azimuth", "smallnorb_elevation")
every_dataset = pytest.mark.parametrize("dataset", NORB)


class Official:
    """Small official files in a folder, the overrides that declare them, and the shards of them."""

    def __init__(self, place: Path, dataset: str, batches: int | None = None) -> None:
        self.place, self.name = place, "affnist" if dataset == "affnist" else "smallnorb"
        if self.name == "affnist":
            declared = official_files.write_affnist(place, 6, 11, batches)
            self.all = ["dataset.reader.mirrors=[]", "dataset.validation=0"]
            self.all += [text for text in declared if text not in self.all]
        else:
            self.all = official_files.write_viewpoints(place, 3, 4)
        is_whole = dataset == "smallnorb"  # which knows of no info files, nor who validates
        self.overrides = [f"dataset={dataset}"] + [
            text for text in self.all if not (is_whole and ("-info" in text or "valid" in text))
        ]

    @property
    def folder(self) -> Path:
        return self.place / self.name

    def job(self) -> Stored:
        job = {"affnist": affnist, "smallnorb": smallnorb}[self.name]
        return job.prepare([f"places.data={self.place}", *self.all])

    def convert(self, shards: int = 2) -> Path:
        """A shard of them, of test images."""
        shard_folders.make(self.folder, self.job(), shards)
        return self.folder / "test-00000.h5"

    def remove(self) -> None:
        """The official files alone."""
        for path in self.folder.rglob("*.mat*"):
            path.unlink()


def forget_decoded() -> None:
    shutil.rmtree(user_cache(), ignore_errors=True)


def same(found: Splits, expected: Splits) -> bool:
    """Whether all tensors are equal, and of equal types."""

    def equal(one: LabelledImages | None, other: LabelledImages | None) -> bool:
        if one is None or other is None:
            return one is other
        pairs = ((one.images_NCHW, other.images_NCHW), (one.labels_N, other.labels_N))
        return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)

    names = ("train", "validation", "test")
    return all(equal(getattr(found, name), getattr(expected, name)) for name in names)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dataset", [*NORB, "affnist", "affnist in batches"])
def test_shards_give_the_same_tensors_as_the_official_files(
    dataset: str, shards: int, tmp_path: Path, reader_of: ReaderOf
) -> None:
    name, _, in_batches = dataset.partition(" in ")
    official = Official(tmp_path, name, 3 if in_batches else None)
    reader = reader_of(*official.overrides)
    expected = reader.read(str(tmp_path))
    official.convert(shards)
    official.remove()
    forget_decoded()
    reader.check(str(tmp_path))
    assert same(reader.read(str(tmp_path)), expected)
    assert not list(user_cache().glob("*.npz"))  # nothing was decoded, so nothing is kept


@pytest.mark.parametrize("dataset", [*NORB, "affnist"])
@pytest.mark.parametrize("fault", ["flipped", "truncated", "absent", "empty", "a link"])
def test_a_damaged_shard_is_an_error_though_all_else_is_whole(
    dataset: str, fault: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    official = Official(tmp_path, dataset)
    reader = reader_of(*official.overrides)
    reader.read(str(tmp_path))  # the decoded images are kept, too
    path = official.convert()
    damage(path, fault)
    refuses(reader, tmp_path, rf"{path}: .*; run `make shards` again")


def damage(path: Path, fault: str) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    if fault == "a link":
        (path.parent / "elsewhere").write_bytes(content)
        path.symlink_to("elsewhere")
    elif fault != "absent":
        kept = {"flipped": len(content), "truncated": len(content) - 1, "empty": 0}[fault]
        path.write_bytes(content[:kept])


@pytest.mark.parametrize("dataset", ["smallnorb", "affnist"])
@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 99}'])
def test_a_damaged_manifest_is_an_error_though_all_else_is_whole(
    dataset: str, text: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    official = Official(tmp_path, dataset)
    official.convert()
    path = official.folder / manifest.INDEX
    path.write_text(text)
    refuses(reader_of(*official.overrides), tmp_path, rf"{path}: altered, or of another program")
    path.unlink()
    reader_of(*official.overrides).read(str(tmp_path))  # the official files


@every_dataset
def test_shards_of_other_pairs_are_refused_by_the_hash_that_differs(
    dataset: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    official = Official(tmp_path, dataset)
    official.convert()
    name = f"{official_files.SMALLNORB['training']}-{'dat' if dataset == 'smallnorb' else 'info'}"
    key = f"dataset.reader.sha256.{name}"
    declared = [text for text in official.overrides if not text.startswith(f"{key}=")]
    message = rf"{official.folder}/index\.json: made of another {name} .*declared {'0' * 64} at "
    refuses(reader_of(*declared, f"{key}={'0' * 64}"), tmp_path, rf"{message}{key}\); make them")


@pytest.mark.parametrize("batches", [None, 3])
def test_shards_of_files_of_unknown_hash_are_never_read(
    batches: int | None, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    official = Official(tmp_path, "affnist", batches)
    official.convert()
    source = [text for text in official.overrides if ".test.sha256." not in text]
    [declared] = [text for text in official.overrides if ".test.sha256." in text]
    path = official.folder / manifest.INDEX
    refuses(reader_of(*source), tmp_path, f"{path}: .*not known to us.* set {declared}$")
    reader_of(*source, declared).check(str(tmp_path))


def test_shards_of_another_data_set_are_none_of_these(tmp_path: Path, reader_of: ReaderOf) -> None:
    """As where the data folder itself is STORAGE of MultiMNIST."""
    official = Official(tmp_path, "affnist")
    shard_folders.make(tmp_path, store="virtual")
    expected = official_files.noise(7, 11, 40, 40)
    found = reader_of(*official.overrides).read(str(tmp_path)).test.images_NCHW
    np.testing.assert_array_equal(found[:, 0], expected)


def test_decoded_images_are_found_without_any_data_folder(
    tmp_path: Path, reader_of: ReaderOf
) -> None:
    official = Official(tmp_path / "data", "smallnorb")
    reader = reader_of(*official.overrides)
    expected = reader.read(str(tmp_path / "data"))
    shutil.rmtree(tmp_path / "data")
    assert same(reader.read(str(tmp_path / "data")), expected)


def test_a_manifest_without_shards_is_refused(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    official = Official(tmp_path, "smallnorb")
    shard_folders.make(official.folder, official.job(), store="virtual")
    path = official.folder / manifest.INDEX
    refuses(
        reader_of(*official.overrides), tmp_path, rf"{path}: has no shards; .* or remove {path}"
    )


def test_what_another_version_stored_is_refused(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    official = Official(tmp_path, "smallnorb")
    job = official.job()
    newer = replace(job, content=replace(job.content, version=converted.VERSION + 1))
    shard_folders.make(official.folder, newer)
    refuses(reader_of(*official.overrides), tmp_path, r"index\.json: by another version of capsw")


@pytest.mark.parametrize("dataset", ["smallnorb", "affnist"])
@pytest.mark.parametrize("settings", [{}, {"sha256": {}}, {"sha256": 5}, {"sha256": ["test"]}])
def test_shards_that_do_not_tell_what_they_are_made_of_are_refused(
    dataset: str,
    settings: Mapping[str, Any],
    tmp_path: Path,
    reader_of: ReaderOf,
    refuses: Refuses,
) -> None:
    official = Official(tmp_path, dataset)
    job = official.job()
    origin = Origin(official.name, digest_of(settings))
    told = replace(job.content, settings=settings, origin=origin)
    shard_folders.make(official.folder, replace(job, content=told))
    refuses(reader_of(*official.overrides), tmp_path, r"index\.json: by another version of capsw")


@pytest.mark.parametrize(
    ("dataset", "field", "message"),
    [
        ("smallnorb", "labels", r"categories 99\.\.99, not 0\.\.4"),
        ("affnist", "labels", r"label_int 99\.\.99, not 0\.\.9"),
        ("smallnorb_azimuth", "azimuth", "azimuth 99 is none of"),
    ],
)
def test_numbers_that_official_files_cannot_have_are_refused(
    dataset: str, field: str, message: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    official = Official(tmp_path, dataset)
    job = official.job()
    wrong = {split: dict(arrays) for split, arrays in job.arrays.items()}
    wrong["test"][field] = np.full_like(wrong["test"][field], 99)
    shard_folders.make(official.folder, replace(job, arrays=wrong))
    refuses(reader_of(*official.overrides), tmp_path, message)


@pytest.mark.parametrize(("dataset", "field"), [("smallnorb", "images"), ("affnist", "labels")])
def test_fields_of_another_type_are_refused(
    dataset: str, field: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    official = Official(tmp_path, dataset)
    job = official.job()
    wrong = {
        split: {**arrays, field: arrays[field].astype(np.int16)}
        for split, arrays in job.arrays.items()
    }
    shard_folders.make(official.folder, replace(job, arrays=wrong))
    refuses(reader_of(*official.overrides), tmp_path, rf"index\.json: {field} is .*not uint8")
