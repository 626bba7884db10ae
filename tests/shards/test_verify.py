"""Every fault of a folder is named, and what is whole is called so: real files, real damage."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import shard_folders

from capsweep.errors import DataError
from capsweep.shards import manifest
from capsweep.shards.layout import find_disagreements
from capsweep.shards.making_plan import STATE
from capsweep.shards.verify import Fault, describe_cures, verify_files
from capsweep.storage.files import hash_file

NAME = "train-00001.h5"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards a split, with the digits alone. To be read only."""
    folder = tmp_path_factory.mktemp("whole") / "shards"
    shard_folders.make(folder, shard_folders.job(with_sources=True))
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """The same, to be spoiled."""
    return shutil.copytree(whole, tmp_path / "shards")


def checked(folder: Path, read: list[int] | None = None) -> list[Fault]:
    found = manifest.read_manifest(folder)
    return verify_files(
        folder,
        found.shards,
        lambda file, shard: find_disagreements(file, found, shard),
        ([] if read is None else read).append,
    )


def faults(folder: Path) -> list[tuple[str, str]]:
    """File and kind of each."""
    return [(fault.file, fault.kind) for fault in checked(folder)]


def flip(path: Path, place: int) -> None:
    """Change one bit."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def rehash(folder: Path, name: str = NAME, **more: object) -> None:
    """Write index.json anew for a file that was altered, as whoever altered it would."""
    found, path = manifest.read_manifest(folder), folder / name
    facts = {"bytes": path.stat().st_size, "sha256": hash_file(path), **more}
    shards = [replace(s, **facts) if s.name == name else s for s in found.shards]
    manifest.write_manifest(folder, replace(found, shards=tuple(shards)))


def test_a_whole_folder_has_no_fault_and_every_byte_was_read(whole: Path) -> None:
    read: list[int] = []
    assert checked(whole, read) == []
    assert sum(read) == sum(path.stat().st_size for path in whole.glob("*.h5"))


def pixel(path: Path) -> int:
    with h5py.File(path) as file:
        return file["images"].id.get_chunk_info(1).byte_offset + 1000


def attribute(path: Path) -> int:
    return path.read_bytes().index(b"fingerprint") + 100


def header(path: Path) -> int:
    return path.read_bytes().index(b"TREE") + 9


@pytest.mark.parametrize("place", [pixel, attribute, header, lambda path: 3])
def test_a_flipped_bit_is_found_wherever_it_is(folder: Path, place: Callable[[Path], int]) -> None:
    flip(folder / NAME, place(folder / NAME))
    assert faults(folder) == [(NAME, "altered")]
    assert hash_file(folder / NAME) in checked(folder)[0].text


def test_verify_reads_now_whatever_a_reader_has_verified_before(folder: Path) -> None:
    path = folder / NAME
    then = os.stat(path)
    assert faults(folder) == []
    flip(path, pixel(path))
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert faults(folder) == [(NAME, "altered")]


def test_files_of_another_length_are_truncated_or_grown(folder: Path) -> None:
    with (folder / NAME).open("r+b") as file:
        file.truncate(5000)
    (folder / "test-00000.h5").write_bytes(b"")
    with (folder / "train-00000.h5").open("ab") as file:
        file.write(b"more")
    assert faults(folder) == [
        ("train-00000.h5", "grown"),
        (NAME, "truncated"),
        ("test-00000.h5", "truncated"),
    ]
    assert "5,000 bytes" in checked(folder)[1].text
    assert "0 bytes" in checked(folder)[2].text


def test_all_faults_are_named_and_not_the_first(folder: Path) -> None:
    (folder / "train-00000.h5").unlink()
    flip(folder / NAME, 5000)
    (folder / "train-00002.h5").write_bytes(b"no HDF5")
    (folder / "notes.txt").write_text("mine")
    (folder / "train-00003.h5").write_bytes(b"of another data set")
    (folder / "more").mkdir()
    (folder / ".train-00000.h5.123.tmp").write_bytes(b"half")
    (folder / STATE).mkdir()
    assert faults(folder) == [
        ("train-00000.h5", "missing"),
        (NAME, "altered"),
        ("train-00002.h5", "truncated"),
        (".train-00000.h5.123.tmp", "leftover"),
        ("more", "surplus"),
        ("notes.txt", "surplus"),
        ("train-00003.h5", "surplus"),
    ]
    kinds = {
        kind for line in describe_cures(checked(folder)) for kind in line.split(":")[0].split(", ")
    }
    assert kinds == {"missing", "altered", "truncated", "surplus", "leftover"}


def test_two_shards_that_were_swapped_are_known_by_what_they_are(folder: Path) -> None:
    one, other = folder / "train-00000.h5", folder / NAME
    one.rename(folder / "x")
    other.rename(one)
    (folder / "x").rename(other)
    said = {fault.file: fault for fault in checked(folder)}
    assert [fault.kind for fault in said.values()] == ["altered", "altered"]
    assert NAME in said["train-00000.h5"].text
    assert "train-00000.h5" in said[NAME].text


def test_shards_of_other_sizes_that_were_swapped_are_known_too(folder: Path) -> None:
    shutil.copy(folder / "test-00000.h5", folder / NAME)
    assert "test-00000.h5" in checked(folder)[0].text


def test_what_is_no_file_is_not_opened(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.h5"
    (folder / NAME).rename(outside)
    (folder / NAME).symlink_to(outside)
    (folder / "train-00000.h5").unlink()
    os.mkfifo(folder / "train-00000.h5")
    (folder / "train-00002.h5").unlink()
    (folder / "train-00002.h5").mkdir()
    (folder / "test-00000.h5").unlink()
    (folder / "test-00000.h5").symlink_to("/dev/zero")
    found = checked(folder)
    assert {fault.kind for fault in found} == {"unreadable"}
    assert [fault.file for fault in found] == [
        "train-00000.h5",
        NAME,
        "train-00002.h5",
        "test-00000.h5",
    ]
    assert "a pipe" in found[0].text
    assert "a link" in found[1].text
    assert "a folder" in found[2].text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read what nobody may")
def test_a_file_that_may_not_be_read_is_named(folder: Path) -> None:
    (folder / NAME).chmod(0)
    assert faults(folder) == [(NAME, "unreadable")]


def test_a_name_of_any_bytes_can_be_printed(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\x1b[2J\n.h5")).write_bytes(b"")
    (fault,) = checked(folder)
    assert str(fault).isprintable()
    assert json.dumps(fault.file)


def alter(**attributes: object) -> Callable[[h5py.File, Path], None]:
    return lambda file, outside: file.attrs.update(attributes)


def lose(file: h5py.File, outside: Path) -> None:
    del file["shifts"]


def widen(file: h5py.File, outside: Path) -> None:
    stored = file["labels"][:].astype(np.int64)
    del file["labels"]
    file["labels"] = stored


def shorten(file: h5py.File, outside: Path) -> None:
    stored = file["labels"][:-1]
    del file["labels"]
    file["labels"] = stored


def link(file: h5py.File, outside: Path) -> None:
    del file["labels"]
    file["labels"] = h5py.ExternalLink(str(outside), "labels")


def store_elsewhere(file: h5py.File, outside: Path) -> None:
    stored = file["labels"]
    shape, dtype = stored.shape, stored.dtype
    del file["labels"]
    place = [(str(outside), 0, h5py.h5f.UNLIMITED)]
    file.create_dataset("labels", shape, dtype, external=place)


def view(file: h5py.File, outside: Path) -> None:
    stored = file["labels"]
    layout = h5py.VirtualLayout(stored.shape, stored.dtype)
    layout[:] = h5py.VirtualSource(str(outside), "labels", shape=stored.shape)
    del file["labels"]
    file.create_virtual_dataset("labels", layout)


def group(file: h5py.File, outside: Path) -> None:
    del file["labels"]
    file.create_group("labels")


def add(file: h5py.File, outside: Path) -> None:
    file["hidden"] = np.zeros(3)
    file.attrs["author"] = "me"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (alter(fingerprint="0" * 64), "fingerprint is 000"),
        (alter(split="test"), "split is test, train in index.json"),
        (alter(first=0), "first is 0"),
        (alter(first=np.zeros(4, int)), "first is "),
        (alter(first=1.5), "first is "),
        (alter(generator_version=2), "generator_version is 2, 1 in index.json"),
        (alter(settings="{}"), "settings is {}"),
        (alter(source="mnist\x1b[2J"), r"source is 'mnist\x1b[2J'"),
        (lose, "shifts is missing"),
        (widen, "labels is int64 [958, 2], uint8 [958, 2] in index.json"),
        (shorten, "labels is uint8 [957, 2], uint8 [958, 2] in index.json"),
        (link, "labels is a link"),
        (store_elsewhere, "labels is in another file"),
        (view, "labels is in another file"),
        (group, "labels is no data set"),
        (add, "['author']"),
        (add, "['hidden']"),
    ],
)
def test_a_file_with_a_right_hash_says_what_the_manifest_says(
    folder: Path, whole: Path, change: Callable[[h5py.File, Path], None], said: str
) -> None:
    with h5py.File(folder / NAME, "r+") as file:
        change(file, whole / NAME)
    rehash(folder)
    found = checked(folder)
    assert {(fault.file, fault.kind) for fault in found} == {(NAME, "unlike")}
    assert any(said in fault.text for fault in found)
    assert all(str(fault).isprintable() for fault in found)


@pytest.mark.parametrize("content", [b"", b"no HDF5 at all", b"\x89HDF\r\n\x1a\n" + bytes(500)])
def test_what_is_no_hdf5_is_named_though_its_hash_is_right(folder: Path, content: bytes) -> None:
    (folder / NAME).write_bytes(content)
    rehash(folder)
    assert faults(folder) == [(NAME, "unreadable")]


def test_damage_in_hdf5_with_a_right_hash_is_a_fault_and_no_crash(folder: Path) -> None:
    size = (folder / NAME).stat().st_size
    original = (folder / NAME).read_bytes()
    for place in range(0, min(size, 4096), 61):
        flip(folder / NAME, place)
        rehash(folder)
        assert {kind for _, kind in faults(folder)} <= {"unlike", "unreadable"}
        (folder / NAME).write_bytes(original)


def test_a_folder_that_cannot_be_listed_is_an_error(whole: Path, tmp_path: Path) -> None:
    shards = manifest.read_manifest(whole).shards
    with pytest.raises(DataError, match="cannot be listed"):
        verify_files(tmp_path / "gone", shards, lambda file, shard: (), lambda count: None)
