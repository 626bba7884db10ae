"""The job `affnist`: the official test digits, pixel for pixel."""

from pathlib import Path

import h5py
import numpy as np
import official_files
import pytest
import shard_folders

from capsweep.data.shards.layout import Field
from capsweep.data_prep import affnist
from capsweep.data_prep.stored import Stored
from capsweep.errors import DataError

COUNT = 11
every_form = pytest.mark.parametrize(("batches", "name"), [(None, "test"), (3, "test_batches")])


def prepared(folder: Path, batches: int | None) -> Stored:
    """The job of small official files."""
    overrides = official_files.write_affnist(folder, test=COUNT, batches=batches)
    return affnist.prepare([f"places.data={folder}", *overrides])


@every_form
def test_shards_have_every_digit_of_the_official_files(
    batches: int | None, name: str, tmp_path: Path
) -> None:
    job = prepared(tmp_path, batches)
    assert job.content.splits == {"test": COUNT}
    assert list(job.content.settings["sha256"]) == [name]
    shard_folders.make(tmp_path / "shards", job, shards=1)
    with h5py.File(tmp_path / "shards" / "test-00000.h5") as file:
        images_NCHW, labels_N = np.asarray(file["images"]), np.asarray(file["labels"])
    np.testing.assert_array_equal(images_NCHW[:, 0], official_files.noise(7, COUNT, 40, 40))
    np.testing.assert_array_equal(labels_N, official_files.labels(COUNT))
    assert images_NCHW.dtype == labels_N.dtype == np.uint8


def test_its_fields_are_those_of_what_it_makes(tmp_path: Path) -> None:
    job = prepared(tmp_path, None)
    made = job.maker("test")(1, 3)
    assert job.fields() == [Field(n, str(a.dtype), a.shape[1:]) for n, a in made.items()]


def test_files_of_unknown_hash_are_never_converted(tmp_path: Path) -> None:
    overrides = official_files.write_affnist(tmp_path)
    source = [text for text in overrides if ".test.sha256." not in text]
    with pytest.raises(DataError, match=r"not known to us.* set dataset\.test\.sha256\.test="):
        affnist.prepare([f"places.data={tmp_path}", *source])
