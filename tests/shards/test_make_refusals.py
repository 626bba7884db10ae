"""What `capsweep data make` refuses, before anything is written, with the key and the cure."""

from pathlib import Path

import pytest
from made_folders import Make, hashes

from capsweep.shards import making_plan

Capture = pytest.CaptureFixture[str]

# Arguments, and what is said of them.
BAD = [
    (["--shards=0"], "SHARDS=0: must be 1 to 2,874, the number of train examples"),
    (["--shards=-3"], "SHARDS=-3: must be 1 to 2,874"),
    (["--shards=2875"], "SHARDS=2875: must be 1 to 2,874"),
    (["--pairs=0"], "PAIRS must be >= 1, got 0"),
    (["--gzip=3"], "--gzip: shards are not compressed; leave it out"),
    (["--store=virtual"], "STORE=virtual: shards hold pixels; dataset=multimnist composes"),
    (["--executor=slurm"], "EXECUTOR=slurm: have ray, local"),
    (["--address=head:6379"], "RAY_ADDRESS: --executor local uses no Ray"),
    (["--storage=s3://bucket/pairs"], "STORAGE=s3://bucket/pairs: must be a folder of a file"),
    (["dataset.batches.sead=1"], "dataset.batches.sead"),
    (["dataset.batches.seed=one"], "dataset.batches.seed"),
    (["dataset.validation=1437"], "dataset.validation must be below the 1437 training examples"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_be_meant(
    make: Make, tmp_path: Path, arguments: list[str], said: str, capsys: Capture
) -> None:
    assert make(*arguments) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_data_set(tmp_path: Path, capsys: Capture) -> None:
    from capsweep import cli

    assert cli.main(["data", "make", "multinist", f"--storage={tmp_path / 'x'}"]) == 2
    assert (
        "DATASET=multinist: no job makes it; data_prep has affnist_like, multimnist"
        in capsys.readouterr().err
    )


def test_no_source_data(make: Make, tmp_path: Path, capsys: Capture) -> None:
    nowhere = tmp_path / "nowhere"
    assert make("dataset.source=mnist", f"--data-dir={nowhere}") == 2
    said = capsys.readouterr().err
    assert f"places.data: {nowhere} does not exist; set DATA_DIR" in said
    nowhere.mkdir()
    assert make("dataset.source=mnist", f"--data-dir={nowhere}") == 2
    assert "train-images-idx3-ubyte" in capsys.readouterr().err


OTHERS = [
    (["dataset.batches.seed=1"], "settings.seed: 0 there, 1 asked for"),
    (["dataset.batches.shift=6"], "settings.shift: 4 there, 6 asked for"),
    (["--pairs=3"], "splits.train: 2874 there, 4311 asked for"),
    (["--shards=5"], "shards.train: 4 there, 5 asked for"),
    (["--with-sources"], "fields: images, labels, indices, shifts there, images,"),
]


@pytest.mark.parametrize(("arguments", "said"), OTHERS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_folder_of_another_data_set_or_layout(
    make: Make, folder: Path, arguments: list[str], said: str, is_whole: bool, capsys: Capture
) -> None:
    assert make() == 0
    if not is_whole:
        (folder / "index.json").unlink()
        (folder / "train-00003.h5").unlink()
    before = hashes(folder)
    assert make(*arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: STORAGE={folder}: another data set, or another layout of it")
    assert said in told
    assert hashes(folder) == before


def test_digits_of_another_source(
    make: Make, folder: Path, data_folder: Path, capsys: Capture
) -> None:
    assert make() == 0
    before = hashes(folder)
    assert make("dataset.source=mnist", f"--data-dir={data_folder}") == 2
    assert "origin.name: digits there, mnist asked for" in capsys.readouterr().err
    assert hashes(folder) == before


def test_a_folder_with_files_of_others(make: Make, folder: Path, capsys: Capture) -> None:
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("mine")
    (folder / "train-00000.h5").write_text("mine too")
    before = hashes(folder)
    assert make() == 2
    assert f"STORAGE={folder}: holds other files (thesis.tex, train" in capsys.readouterr().err
    assert hashes(folder) == before


@pytest.mark.parametrize("below", ["", "pairs"])
def test_a_storage_that_is_a_file(make: Make, tmp_path: Path, below: str, capsys: Capture) -> None:
    (tmp_path / "file").write_text("mine")
    assert make(f"--storage={tmp_path / 'file' / below}") == 2
    assert f"STORAGE={tmp_path / 'file'}" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_less_space_than_is_needed(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The real disk, of which it is said that hardly any is left."""
    usage = making_plan.shutil.disk_usage(folder.anchor)
    monkeypatch.setattr(making_plan.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    for asked in ([], ["--dry-run"]):
        assert make(*asked) == 2
        said = capsys.readouterr().err
        assert "bytes are to be written and 1,000 are free there; free space" in said
        assert not folder.exists()
