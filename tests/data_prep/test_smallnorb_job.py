"""The job `smallnorb`: all that the six official files say, as published; a worker has its part."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import official_files
import pytest
import shard_folders

from capsweep.data.shards.layout import Field
from capsweep.data_prep import smallnorb
from capsweep.data_prep.making import worker
from capsweep.data_prep.making.shard import Part
from capsweep.data_prep.making.work import Work
from capsweep.data_prep.stored import Stored
from capsweep.errors import DataError

COLUMNS = ("instance", "elevation", "azimuth", "light")
COUNTS = {"train": 9, "test": 6}


def prepared(folder: Path, is_compressed: bool = True) -> Stored:
    """The job of small official files."""
    overrides = official_files.write_viewpoints(folder, 3, 4, is_compressed)
    return smallnorb.prepare([f"places.data={folder}", *overrides])


def expected(seed: int, count: int) -> dict[str, np.ndarray]:
    """What these files have."""
    info_NE = official_files.viewpoints(count)
    columns = {name: info_NE[:, place] for place, name in enumerate(COLUMNS)}
    images_NCHW = official_files.noise(seed, count, 2, 96, 96)
    return {"images": images_NCHW, "labels": official_files.labels(count, 5), **columns}


@pytest.mark.parametrize("is_compressed", [True, False])
def test_shards_have_every_number_of_the_official_files(
    is_compressed: bool, tmp_path: Path
) -> None:
    job = prepared(tmp_path, is_compressed)
    assert job.content.splits == COUNTS
    whole = shard_folders.make(tmp_path / "shards", job, shards=2)
    for seed, (split, count) in enumerate(COUNTS.items()):
        files = [h5py.File(tmp_path / "shards" / shard.name) for shard in whole.of(split)]
        for name, array in expected(seed, count).items():
            found = np.concatenate([np.asarray(file[name]) for file in files])
            assert found.dtype == np.uint8
            np.testing.assert_array_equal(found, array)
        for file in files:
            file.close()


def test_its_fields_are_those_of_what_it_makes(tmp_path: Path) -> None:
    job = prepared(tmp_path)
    for split in COUNTS:
        made = job.maker(split)(1, 3)
        assert job.fields() == [Field(n, str(a.dtype), a.shape[1:]) for n, a in made.items()]


def test_a_worker_is_given_its_examples_alone(tmp_path: Path) -> None:
    job = prepared(tmp_path)
    portion = job.portion("train", 2, 5)
    data = pickle.dumps(portion)
    assert len(data) < 4 * 2 * 96 * 96  # of nine
    given = pickle.loads(data)
    assert (given.content, given.fields()) == (job.content, job.fields())
    for name, array in given.maker("train")(3, 5).items():
        np.testing.assert_array_equal(array, job.maker("train")(3, 5)[name])
    for start, stop in ((1, 3), (4, 6)):
        with pytest.raises(ValueError, match=rf"examples {start}\.\.{stop} of train, not 2\.\.5"):
            given.maker("train")(start, stop)
    with pytest.raises(ValueError, match=r"not 0\.\.9"):
        job.maker("train")(8, 10)


def test_a_worker_makes_one_portion_after_the_other(tmp_path: Path) -> None:
    """In the same process, where a maker of the first one would be at hand."""
    job = prepared(tmp_path)
    folder = tmp_path / "made"
    folder.mkdir()
    parts = [Part("train-00000.h5", "train", 0, 4), Part("train-00001.h5", "train", 4, 5)]
    made = [
        worker.do(job.portion(p.split, p.first, p.first + p.examples), Work(folder, p)).shard
        for p in parts
    ]
    whole = tmp_path / "whole"
    whole.mkdir()
    again = [worker.do(job, Work(whole, part)).shard for part in parts]
    assert made == again


def test_what_its_pairs_are_is_told_by_the_declared_hashes(tmp_path: Path) -> None:
    job = prepared(tmp_path)
    assert set(job.content.settings["sha256"]) == {
        f"{prefix}-{kind}"
        for prefix in official_files.SMALLNORB.values()
        for kind in ("dat", "cat", "info")
    }
    assert prepared(tmp_path / "again").content.fingerprint == job.content.fingerprint
    plain = prepared(tmp_path / "plain", is_compressed=False)
    assert plain.content.fingerprint != job.content.fingerprint


@pytest.mark.parametrize("kind", ["dat", "cat", "info"])
def test_a_truncated_official_file_is_never_converted(kind: str, tmp_path: Path) -> None:
    overrides = official_files.write_viewpoints(tmp_path, 3, 4)
    path = tmp_path / "smallnorb" / f"{official_files.SMALLNORB['testing']}-{kind}.mat.gz"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=rf"{path}: truncated or altered .*https://cs\.nyu\.edu"):
        smallnorb.prepare([f"places.data={tmp_path}", *overrides])


def test_files_that_are_not_there_are_named_with_who_offers_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"-info\.mat\.gz.* not found .*https://cs\.nyu\.edu"):
        smallnorb.prepare([f"places.data={tmp_path}"])
