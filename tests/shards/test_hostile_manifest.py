"""`index.json` may come from anywhere: what is no manifest is refused, and never in another way."""

import contextlib
import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import shard_folders
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from laws import at_most_examples

from capsweep.errors import DataError
from capsweep.shards import manifest
from capsweep.shards.manifest import INDEX, Manifest
from capsweep.storage.files import hash_bytes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `write` writes."""
    folder = tmp_path_factory.mktemp("whole")
    written = shard_folders.make(folder)
    assert manifest.read_manifest(folder) == written
    return json.loads((folder / INDEX).read_text())


def refused(folder: Path, text: str | bytes) -> str:
    """What is said of such an index.json."""
    (folder / INDEX).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as caught:
        manifest.read_manifest(folder)
    said = str(caught.value)
    assert said.startswith(str(folder))
    assert "\n" not in said
    assert said.isprintable()
    assert len(said) < 700 + len(str(folder))
    return said


def changed(whole: dict[str, Any], way: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """The manifest with one value put elsewhere; a way that ends in None is of a new key."""
    made = copy.deepcopy(whole)
    inner = made
    for step in way[:-1]:
        inner = inner[step]
    inner[way[-1]] = value
    return made


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../train-00000.h5",
        "..",
        "a/b.h5",
        "a\\b.h5",
        ".hidden.h5",
        "train-00000.h5\n",
        "train\0.h5",
        "index.json",
        "TRAIN.h5",
        "x" * 300 + ".h5",
        "",
        7,
        None,
        ["train-00000.h5"],
    ],
)
def test_a_name_that_is_no_plain_file_of_the_folder_is_refused(
    tmp_path: Path, whole: dict[str, Any], name: object
) -> None:
    said = refused(tmp_path, json.dumps(changed(whole, ("shards", 0, "name"), name)))
    assert "name of a shard" in said


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("format",), 2),
        (("format",), True),
        (("format",), "1"),
        (("fingerprint",), "0" * 64),
        (("fingerprint",), None),
        (("store",), "tape"),
        (("store",), {}),
        (("content",), []),
        (("content", "dataset"), "../elsewhere"),
        (("content", "version"), 1.0),
        (("content", "settings"), "seed"),
        (("content", "settings", "seed"), float("nan")),
        (("content", "settings", "seed"), float("inf")),
        (("content", "settings", "seed"), 10**20),
        (("content", "settings", "seed"), "\x1b[2J"),
        (("content", "origin", "name"), "\ud800"),
        (("content", "origin", "sha256"), "unknown"),
        (("content", "splits"), {"train": 10**20}),
        (("content", "splits"), {"train": 0}),
        (("content", "splits"), {"train": -1}),
        (("content", "splits"), {}),
        (("fields",), {}),
        (("fields", "images"), ["object", [1]]),
        (("fields", "images"), ["uint8", [2**40, 2**40]]),
        (("fields", "images"), ["uint8", [1] * 60]),
        (("fields", "images"), ["uint8"]),
        (("fields", "../images"), ["uint8", [1]]),
        (("shards",), {}),
        (("shards",), []),
        (("shards", 0), []),
        (("shards", 0, "first"), -1),
        (("shards", 0, "first"), 1),
        (("shards", 0, "examples"), 10**20),
        (("shards", 0, "examples"), 599.0),
        (("shards", 0, "bytes"), "1000"),
        (("shards", 0, "sha256"), "0" * 63),
        (("shards", 0, "split"), "train2"),
        (("shards", 0, "more"), 1),
        (("shards", 1, "name"), "train-00000.h5"),
        (("more",), 1),
    ],
)
def test_a_value_that_write_would_not_write_is_refused(
    tmp_path: Path, whole: dict[str, Any], way: tuple[str | int, ...], value: object
) -> None:
    made = changed(whole, way, value)
    if way[0] == "content":
        made["fingerprint"] = hash_bytes(json.dumps(made["content"], sort_keys=True).encode())
    assert "altered" in refused(tmp_path, json.dumps(made))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "7",
        b"\xff\xfe",
        b"\x89HDF\r\n\x1a\n",
        "[" * 100_000,
        '{"format":' * 100_000,
        '{"format": 1, "format": 1}',
        '{"format": ' + "9" * 5000 + "}",
        json.dumps({"format": 1, **{f"key{n}": n for n in range(10_000)}}),
    ],
)
def test_what_is_no_manifest_at_all_is_refused(tmp_path: Path, text: str | bytes) -> None:
    refused(tmp_path, text)


def test_settings_within_settings_have_an_end(tmp_path: Path, whole: dict[str, Any]) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"a": [deep]}
    refused(tmp_path, json.dumps(changed(whole, ("content", "settings", "seed"), deep)))


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**20, -1, 0, 2**63, -(2**70)])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["../x.h5", "/dev/zero", "train-00000.h5", "pixels", "virtual"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def ways(value: Any, above: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """All places of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, below in inner:
        found.append((*above, key))
        if isinstance(below, dict | list):
            found += ways(below, (*above, key))
    return found


@at_most_examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_manifest_with_anything_in_it_is_read_or_refused(
    tmp_path: Path, whole: dict[str, Any], data: st.DataObject
) -> None:
    way = data.draw(st.sampled_from(ways(whole)))
    made = changed(whole, way, data.draw(junk))
    if data.draw(st.booleans()):  # by somebody who knows how a fingerprint is made
        made["fingerprint"] = hash_bytes(json.dumps(made["content"], sort_keys=True).encode())
    text = json.dumps(made)
    cut = data.draw(st.none() | st.integers(0, len(text)))
    (tmp_path / INDEX).write_text(text[:cut])
    with contextlib.suppress(DataError):
        _check_like_any_other(tmp_path, manifest.read_manifest(tmp_path))


def _check_like_any_other(folder: Path, found: Manifest) -> None:
    for split, count in found.content.splits.items():
        assert sum(shard.examples for shard in found.shards_of(split)) == count
    manifest.write_manifest(folder, found)
    assert manifest.read_manifest(folder) == found


@at_most_examples(200)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    refused(tmp_path_factory.getbasetemp(), text)


def test_an_index_that_would_not_end_is_not_opened(tmp_path: Path, whole: dict[str, Any]) -> None:
    os.mkfifo(tmp_path / INDEX)
    with pytest.raises(DataError, match="a pipe, where a file"):
        manifest.read_manifest(tmp_path)
    (tmp_path / INDEX).unlink()
    (tmp_path / INDEX).symlink_to("/dev/zero")
    with pytest.raises(DataError, match="a link, where a file"):
        manifest.read_manifest(tmp_path)
    (tmp_path / INDEX).unlink()
    with (tmp_path / INDEX).open("wb") as file:
        file.truncate(manifest.LARGEST + 1)
    with pytest.raises(DataError, match="more than any manifest has"):
        manifest.read_manifest(tmp_path)
    (tmp_path / INDEX).unlink()
    (tmp_path / INDEX).mkdir()
    with pytest.raises(DataError, match="a folder, where a file"):
        manifest.read_manifest(tmp_path)


def test_a_link_is_refused_wherever_it_leads(tmp_path: Path, whole: dict[str, Any]) -> None:
    (tmp_path / "other.json").write_text(json.dumps(whole))
    for target in ("other.json", INDEX, "gone"):
        (tmp_path / INDEX).symlink_to(target)
        with pytest.raises(DataError, match="a link, where a file of this folder is to be"):
            manifest.read_manifest(tmp_path)
        (tmp_path / INDEX).unlink()
