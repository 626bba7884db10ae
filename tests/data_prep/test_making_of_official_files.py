"""`capsweep data make smallnorb | affnist | affnist_like`: made by a command, found by readers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import h5py
import official_files
import pytest

from capsweep import cli
from capsweep.config import compose
from capsweep.data.images import Splits
from capsweep.data.shards import manifest
from capsweep.data_prep import affnist_like, jobs
from capsweep.data_prep.making import cut
from capsweep.data_prep.making.cut import parts
from capsweep.errors import ConfigError
from capsweep.files import sha256_of_file, user_cache
from capsweep.training import build

OFFLINE = ["dataset.reader.mirrors=[]", "dataset.validation=0"]
DIGITS = ["dataset.source=digits"]


def make(folder: Path, name: str, *arguments: str) -> int:
    """The exit status of the command."""
    place = ["--data-dir", str(folder), "--executor", "local"]
    return cli.main(["data", "make", name, *place, *arguments])


def read(folder: Path, dataset: str, overrides: Sequence[str]) -> Splits:
    config = compose.cell([f"dataset={dataset}", *overrides]).config
    return build.reader(config).read(str(folder))


@pytest.mark.parametrize("name", ["smallnorb", "affnist"])
def test_what_is_made_beside_the_official_files_is_read_in_their_place(
    name: str, tmp_path: Path
) -> None:
    if name == "smallnorb":
        dataset, overrides = "smallnorb_azimuth", official_files.write_viewpoints(tmp_path, 3, 4)
    else:
        declared = official_files.write_affnist(tmp_path, 6, 11, batches=3)
        dataset, overrides = "affnist", list(dict.fromkeys([*OFFLINE, *declared]))
    assert make(tmp_path, name, *overrides) == 0
    for path in (tmp_path / name).rglob("*.mat*"):
        path.unlink()
    splits = read(tmp_path, dataset, overrides)
    assert len(splits.train) == {"smallnorb": 3, "affnist": 6}[name]
    assert not list(user_cache().glob("*.npz"))
    assert manifest.read(tmp_path / name / "shards").content.dataset == name


@pytest.mark.parametrize("name", ["smallnorb", "affnist", "affnist_like"])
def test_what_is_made_is_compared_with_its_source_example_by_example(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = {
        "smallnorb": lambda: official_files.write_viewpoints(tmp_path, 3, 4),
        "affnist": lambda: official_files.write_affnist(tmp_path, 6, 11, batches=3),
        "affnist_like": lambda: ["--pairs", "2", *DIGITS, "dataset.test.scale=[0.9,1.1]"],
    }[name]()
    assert make(tmp_path, name, *overrides) == 0
    folder = tmp_path / (name if name == "affnist_like" else f"{name}/shards")
    deep = ["data", "verify", str(folder), "--deep", "--data-dir", str(tmp_path)]
    assert cli.main([*deep, "--sample", "100%"]) == 0
    alter_one_example(folder)
    assert cli.main([*deep, "--sample", "100%"]) == 1
    assert "labels of test 5" in capsys.readouterr().out


def alter_one_example(folder: Path) -> None:
    """As a maker that errs would have it: with hashes of what is there."""
    whole = manifest.read(folder)
    [shard] = whole.of("test")
    path = folder / shard.name
    with h5py.File(path, "r+") as file:
        labels = cast(h5py.Dataset, file["labels"])
        labels[5] = (labels[5] + 1) % 5
    altered = replace(shard, bytes=path.stat().st_size, sha256=sha256_of_file(path))
    shards = tuple(altered if one == shard else one for one in whole.shards)
    manifest.write(folder, replace(whole, shards=shards))


def test_shards_among_the_official_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not of the data set could not be told from what is surplus."""
    overrides = official_files.write_viewpoints(tmp_path, 3, 4)
    assert make(tmp_path, "smallnorb", "--storage", str(tmp_path / "smallnorb"), *overrides) == 2
    assert "name a folder of the data set's own" in capsys.readouterr().err


def test_pairs_are_copies_of_each_test_digit(tmp_path: Path) -> None:
    assert make(tmp_path, "affnist_like", "--pairs", "2", "--shards", "3", *DIGITS) == 0
    found = manifest.read(tmp_path / "affnist_like")
    assert found.content == affnist_like.prepare(DIGITS, 2).content
    assert [shard.examples for shard in found.of("test")] == [240, 240, 240]


def test_pairs_of_official_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(tmp_path, "smallnorb", "--pairs", "2") == 2
    assert "PAIRS: smallnorb is not composed of others" in capsys.readouterr().err


def test_a_worker_is_never_given_more_than_it_has_memory_for() -> None:
    """18,438 bytes a stereo pair and 1,601 a digit, for a process that takes 230 MB alone."""
    splits = {"smallnorb": {"train": 24_300, "test": 24_300}, "affnist": {"test": 320_000}}
    for (name, counts), nbytes in zip(splits.items(), (18_438, 1_601), strict=True):
        kind = jobs.kind(name)
        assert kind.most is not None
        assert nbytes * kind.most < 120e6
        usual = parts(counts, None, kind.usual, kind.most)
        assert all(nbytes * part.examples < 50e6 for part in usual)
        with pytest.raises(ConfigError, match=r"SHARDS=1: must be \d or more, since a worker"):
            parts(counts, 1, kind.usual, kind.most)


def test_a_data_set_without_training_examples_is_cut_by_its_first_split() -> None:
    assert [part.examples for part in parts({"test": 11}, 3)] == [3, 4, 4]
    assert len(parts({"test": 2 * cut.USUAL + 1}, None)) == 3
    with pytest.raises(ConfigError, match=r"SHARDS=12: must be 1 to 11, the number of test ex"):
        parts({"test": 11}, 12)
