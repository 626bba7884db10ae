"""`index.json` may come from anywhere: what is no manifest is refused, and never in another way."""

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import shard_folders
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from laws import at_most_examples

from capsweep.errors import DataError
from capsweep.shards import manifest
from capsweep.shards.manifest import INDEX
from capsweep.storage.files import hash_bytes

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


def list_ways(value: Any, above: Way = ()) -> list[Way]:
    """All places of a JSON value."""
    ways = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        ways.append((*above, key))
        if isinstance(inner, dict | list):
            ways += list_ways(inner, (*above, key))
    return ways


@at_most_examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_manifest_with_anything_in_it_is_read_or_refused(
    tmp_path: Path, values: dict[str, Any], data: st.DataObject
) -> None:
    text = with_value(values, data.draw(st.sampled_from(list_ways(values))), data.draw(JUNK))
    (tmp_path / INDEX).write_text(text[: data.draw(st.none() | st.integers(0, len(text)))])
    with contextlib.suppress(DataError):
        stored = manifest.read_manifest(tmp_path)
        for split, count in stored.content.splits.items():
            assert sum(shard.examples for shard in stored.shards_of(split)) == count
        manifest.write_manifest(tmp_path, stored)
        assert manifest.read_manifest(tmp_path) == stored
