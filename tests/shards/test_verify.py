"""Every fault of a folder is named, in its shards and in `index.json`: real files, real damage."""

import contextlib
import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import shard_folders
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from json_paths import list_paths
from laws import at_most_examples

from capsweep import cli
from capsweep.errors import DataError
from capsweep.shards import manifest
from capsweep.shards.manifest import INDEX, STATE, Manifest
from capsweep.shards.verify import list_faults
from capsweep.storage.files import hash_bytes, hash_file

NAME = "train-00001.h5"


@pytest.fixture
def folder(spoiled: tuple[Path, Manifest]) -> Path:
    """Three shards of the training split and one of test, to be spoiled."""
    return spoiled[0]


def find_faults(folder: Path) -> list[str]:
    """The lines on it, each without the folder."""
    faults = list_faults(folder, manifest.read_manifest(folder))
    assert all(fault.isprintable() for fault in faults)
    return [fault.removeprefix(f"{folder}/") for fault in faults]


def attribute_place(path: Path) -> int:
    return path.read_bytes().index(b"fingerprint") + 100


@pytest.mark.parametrize("place", [shard_folders.pixel_place, attribute_place, lambda path: 3])
def test_a_flipped_bit_is_found_wherever_it_is(folder: Path, place: Callable[[Path], int]) -> None:
    path = folder / NAME
    before = os.stat(path)
    assert find_faults(folder) == []
    shard_folders.flip_bit(path, place(path))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    [fault] = find_faults(folder)
    assert fault.startswith(f"{NAME}: sha256 {hash_file(path)}, ")


def test_all_faults_are_named_and_not_the_first(folder: Path, tmp_path: Path) -> None:
    (folder / "train-00000.h5").rename(tmp_path / "outside.h5")
    (folder / "train-00000.h5").symlink_to(tmp_path / "outside.h5")
    shard_folders.flip_bit(folder / NAME, 5000)
    (folder / "train-00002.h5").write_bytes(b"no HDF5")
    (folder / "test-00000.h5").unlink()
    os.mkfifo(folder / "test-00000.h5")
    (folder / "notes.txt").write_text("mine")
    (folder / STATE).mkdir()
    beginnings = (
        "train-00000.h5: it is a link, or not a regular file; run the same",
        f"{NAME}: sha256 ",
        "train-00002.h5: 7 bytes, ",
        "test-00000.h5: it is a link, or not a regular file; run the same",
        "notes.txt: not in index.json; move it away",
    )
    for fault, beginning in zip(find_faults(folder), beginnings, strict=True):
        assert fault.startswith(beginning)


def test_a_whole_folder_is_said_to_be_whole_and_what_it_holds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["data", "verify", str(folder)]) == 0
    output = capsys.readouterr().out
    for text in (
        "multimnist, made from digits",
        manifest.read_manifest(folder).content.fingerprint,
        "seed 0, margin 4, shift 4, validation 0; generator version 1",
        "train:       2,874 examples in 3 shards",
        "train on it: capsweep train dataset=multimnist_shards ",
        f"\n{folder}: complete (multimnist, 4 shards, all read)\n",
    ):
        assert text in output
    (folder / NAME).unlink()
    assert cli.main(["data", "verify", str(folder)]) == 1
    *_, fault, verdict = capsys.readouterr().out.splitlines()
    assert fault.startswith(f"{folder / NAME}: No such file or directory; run the same `make sh")
    assert verdict == f"{folder}: 1 fault (multimnist, 4 shards, all read)"


Change = Callable[[h5py.File, Path], object]


def put(file: h5py.File, name: str, value: Any) -> None:
    """Replace an array, or remove it: None."""
    if name in file:
        del file[name]
    if value is not None:
        file[name] = value


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda file, _: file.attrs.update(fingerprint="0" * 64), "fingerprint is '000"),
        (lambda file, _: file.attrs.update(source="mnist\x1b[2J"), r"source is 'mnist\x1b[2J'"),
        (lambda file, _: put(file, "shifts", None), "shifts is 'missing'"),
        (
            lambda file, _: put(file, "labels", file["labels"][:].astype("int64")),
            "labels is 'int64 [958, 2]', but 'uint8 [958, 2]' in index.json",
        ),
        (
            lambda file, outside: put(file, "labels", h5py.ExternalLink(str(outside), "labels")),
            "labels is 'no array in this file'",
        ),
        (
            lambda file, _: put(file, "hidden", np.zeros(3)),
            "hidden is 'float64 [3]', but 'nothing' in index.json",
        ),
    ],
)
def test_a_file_with_a_right_hash_says_what_the_manifest_says(
    folder: Path, pixels: tuple[Path, Manifest], change: Change, text: str
) -> None:
    with h5py.File(folder / NAME, "r+") as file:
        change(file, pixels[0] / NAME)
    shard_folders.rehash(folder, NAME)
    [fault] = find_faults(folder)
    assert fault.startswith(f"{NAME}: ")
    assert text in fault


def test_damage_in_hdf5_with_a_right_hash_is_a_fault_and_no_crash(folder: Path) -> None:
    original = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(b"no HDF5 at all".ljust(len(original)))
    shard_folders.rehash(folder, NAME)
    assert len(find_faults(folder)) == 1
    (folder / NAME).write_bytes(original)
    for place in range(0, 4096, 61):
        shard_folders.flip_bit(folder / NAME, place)
        shard_folders.rehash(folder, NAME)
        assert len(find_faults(folder)) <= 1
        (folder / NAME).write_bytes(original)


Way = tuple[str | int, ...]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `write_manifest` writes."""
    folder = tmp_path_factory.mktemp("whole")
    written = shard_folders.make(folder)
    assert manifest.read_manifest(folder) == written
    return json.loads((folder / INDEX).read_text())


def read_refusal(folder: Path, text: str | bytes) -> str:
    """The message on such an index.json."""
    (folder / INDEX).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as caught:
        manifest.read_manifest(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert message.isprintable()
    assert len(message) < 700 + len(str(folder))
    return message


def with_value(values: dict[str, Any], way: Way, value: Any) -> str:
    """The manifest with one value put elsewhere, by somebody who knows what a fingerprint is."""
    made = copy.deepcopy(values)
    inner = made
    for step in way[:-1]:
        inner = inner[step]
    inner[way[-1]] = value
    if way[0] == "content":
        made["fingerprint"] = hash_bytes(json.dumps(made["content"], sort_keys=True).encode())
    return json.dumps(made)


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("format",), 2),
        (("fingerprint",), "0" * 64),
        (("store",), "tape"),
        (("content", "dataset"), "../elsewhere"),
        (("content", "origin", "name"), "\ud800"),
        (("content", "splits"), {"train": 0}),
        (("fields", "images"), ["object", [1]]),
        (("fields", "../images"), ["uint8", [1]]),
        *((("shards", 0, "name"), name) for name in ("/etc/passwd", "../a.h5", None)),
        (("shards", 0, "first"), 1),
        (("shards", 1, "name"), "train-00000.h5"),
        (("more",), 1),
        (("shards", 0, "bytes"), 10**400),
        (("shards", 0, "examples"), 3.0),
        (("shards", 0, "sha256"), [1]),
        (("content", "settings"), {"seed": float("nan")}),
        (("fields", "images"), ["uint8", [2**62, 2**62]]),  # more than its shards have bytes
    ],
)
def test_a_value_that_is_never_written_is_refused(
    tmp_path: Path, values: dict[str, Any], way: Way, value: object
) -> None:
    assert "altered" in read_refusal(tmp_path, with_value(values, way, value))


@pytest.mark.parametrize("text", ["", "null", b"\xff\xfe", "[" * 100_000, "9" * 5000])
def test_what_is_no_manifest_at_all_is_refused(tmp_path: Path, text: str | bytes) -> None:
    read_refusal(tmp_path, text)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**63, "../x.h5", "/dev/zero", "train-00000.h5"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@at_most_examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_manifest_with_anything_in_it_is_read_or_refused(
    tmp_path: Path, values: dict[str, Any], data: st.DataObject
) -> None:
    text = with_value(values, data.draw(st.sampled_from([*list_paths(values)])), data.draw(JUNK))
    (tmp_path / INDEX).write_text(text[: data.draw(st.none() | st.integers(0, len(text)))])
    with contextlib.suppress(DataError):
        stored = manifest.read_manifest(tmp_path)
        for split, count in stored.content.splits.items():
            assert sum(shard.examples for shard in stored.list_shards(split)) == count
        manifest.write_manifest(tmp_path, stored)
        assert manifest.read_manifest(tmp_path) == stored
