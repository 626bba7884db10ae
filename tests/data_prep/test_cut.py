"""A split is cut into shards without a gap, and their bytes are known beforehand."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.data.shards import manifest
from capsweep.data.shards.manifest import Shard
from capsweep.data_prep.making import cut
from capsweep.errors import ConfigError


@given(st.integers(1, 5000), st.integers(0, 5000), st.data())
def test_every_example_is_in_one_shard(train: int, test: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, train))
    splits = {"train": train, "test": test} if test else {"train": train}
    parts = cut.parts(splits, shards)
    assert len({part.name for part in parts}) == len(parts)
    assert sum(part.split == "train" for part in parts) == shards
    for split, examples in splits.items():
        mine = [part for part in parts if part.split == split]
        places = [k for part in mine for k in range(part.first, part.first + part.examples)]
        assert places == list(range(examples))
        sizes = {part.examples for part in mine}
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= -(-train // shards)


def test_the_data_set_of_the_paper_is_cut_as_it_is_asked() -> None:
    parts = cut.parts({"train": 60_000_000, "test": 10_000_000}, 600)
    assert len(parts) == 700
    assert {part.examples for part in parts} == {100_000}
    assert (parts[0].name, parts[-1].name) == ("train-00000.h5", "test-00099.h5")
    assert parts == cut.parts({"train": 60_000_000, "test": 10_000_000}, None)


@pytest.mark.parametrize("shards", [0, -1, 11])
def test_more_shards_than_examples_or_none(shards: int) -> None:
    with pytest.raises(ConfigError, match=rf"SHARDS={shards}: must be 1 to 10"):
        cut.parts({"train": 10}, shards)


@pytest.mark.parametrize(("train", "shards"), [(10**9, 190_000), (10**14, None)])
def test_more_shards_than_a_manifest_has_room_for(train: int, shards: int | None) -> None:
    with pytest.raises(ConfigError, match=r"^SHARDS=\d+: .* set SHARDS to fewer"):
        cut.parts({"train": train, "test": train // 10}, shards)


def test_the_longest_manifest_is_one_that_is_read() -> None:
    digest, most = "0" * 64, 2**50  # examples and bytes
    line = json.dumps(asdict(Shard("validation-000000.h5", "validation", most, most, most, digest)))
    assert (len(line) + 4) * cut.LONGEST < manifest.LARGEST
