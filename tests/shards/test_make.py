"""`capsweep data make`: what is missing is made, the rest stays, the same examples are the same
bytes."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import shard_folders
from made_folders import Make, hashes, times

from capsweep.config import compose
from capsweep.shards import making_plan, manifest


def test_a_fresh_folder_is_filled(make: Make, folder: Path) -> None:
    assert make() == 0
    found = manifest.read_manifest(folder)
    assert found.content == shard_folders.job().content
    assert [shard.name for shard in found.shards_of("train")] == [
        f"train-{n:05d}.h5" for n in range(4)
    ]
    assert sum(shard.examples for shard in found.shards_of("train")) == 2874
    assert len(found.shards_of("test")) == 2
    for shard in found.shards:
        assert hashes(folder)[shard.name] == shard.sha256
        assert (folder / shard.name).stat().st_size == shard.bytes


def test_any_reader_of_hdf5_sees_the_examples(make: Make, folder: Path) -> None:
    """And they are those of the sequence, in its order."""
    assert make() == 0
    whole = shard_folders.job().maker("train")(0, 2874)
    paths = sorted(folder.glob("train-*.h5"))
    for name, array in whole.items():
        parts = []
        for path in paths:
            with h5py.File(path) as file:
                assert file[name].fletcher32
                assert file.attrs["split"] == "train"
                parts.append(file[name][:])
        stored = np.concatenate(parts)
        assert stored.dtype == array.dtype
        assert np.array_equal(stored, array)


def test_a_second_time_nothing_is_written(
    make: Make, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make() == 0
    before = times(folder)
    assert make() == 0
    assert times(folder) == before
    assert "0 shards made, 6 kept, of 6" in capsys.readouterr().out


def deleted(path: Path) -> None:
    path.unlink()


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def linked(path: Path) -> None:
    path.rename(path.with_name(".elsewhere"))
    path.symlink_to(path.with_name(".elsewhere"))


@pytest.mark.parametrize("damage", [deleted, flipped, truncated, emptied, linked])
def test_a_shard_that_is_not_whole_is_made_again(
    make: Make, folder: Path, damage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make() == 0
    before, written = hashes(folder), times(folder)
    damage(folder / "train-00002.h5")
    assert make() == 0
    after = {name: sha256 for name, sha256 in hashes(folder).items() if name != ".elsewhere"}
    assert after == before
    changed = [name for name, when in times(folder).items() if written.get(name, when) != when]
    assert changed in ([], ["train-00002.h5"])
    assert not (folder / "train-00002.h5").is_symlink()
    assert "1 shards made, 5 kept, of 6" in capsys.readouterr().out


def test_an_altered_manifest_is_written_again_and_shards_stay(make: Make, folder: Path) -> None:
    assert make() == 0
    before, written = hashes(folder), times(folder)
    (folder / "index.json").write_text("{")
    assert make() == 0
    assert hashes(folder) == before
    after = times(folder)
    assert {n for n in after if after[n] != written[n]} == {"index.json"}


def test_a_folder_that_was_copied_without_what_is_hidden_is_known(
    make: Make, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make() == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.glob("[!.]*"):
        (copy / path.name).write_bytes(path.read_bytes())
    assert make(f"--storage={copy}") == 0
    assert "0 shards made, 6 kept, of 6" in capsys.readouterr().out
    assert hashes(copy) == hashes(folder)


def test_folders_are_equal_whenever_they_are_made(
    make: Make, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make() == 0
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert make(f"--storage={tmp_path / 'again'}") == 0
    assert hashes(tmp_path / "again") == hashes(folder)


def test_leftovers_of_killed_workers_go_and_files_of_others_stay(make: Make, folder: Path) -> None:
    assert make() == 0
    before = hashes(folder)
    ours = [".train-00001.h5.123.tmp", ".index.json.9.tmp"]
    others = ["notes.txt", ".hidden", ".train-00001.tmp", ".other.txt.123.tmp", "more/file.h5"]
    for name in [*ours, *others]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("left")
    assert make() == 0
    assert [name for name in ours if (folder / name).exists()] == []
    assert [name for name in others if not (folder / name).exists()] == []
    assert before.items() <= hashes(folder).items()


def test_validation_and_sources_are_stored_where_they_are_asked_for(
    make: Make, folder: Path
) -> None:
    assert make("--with-sources", "dataset.validation=100", "dataset.batches.seed=3") == 0
    found = manifest.read_manifest(folder)
    assert found.content.splits == {"train": 2674, "validation": 100, "test": 720}
    assert "digits" in found.fields
    assert [shard.name for shard in found.shards_of("validation")] == ["validation-00000.h5"]
    with h5py.File(folder / "validation-00000.h5") as file:
        digits = np.asarray(file["digits"], dtype=int)
        assert np.array_equal(digits.sum(axis=1).clip(max=255), np.asarray(file["images"]))


def test_the_plan_is_printed_and_nothing_written(
    make: Make, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make("--dry-run") == 0
    assert list(tmp_path.iterdir()) == []
    said = capsys.readouterr().out
    fingerprint = shard_folders.job().content.fingerprint
    told = ["2,874 examples in 4 shards", "720 examples in 2 shards", fingerprint, "are free"]
    for text in [*told, "on 1 cores"]:
        assert text in said


def test_what_is_made_with_one_seed_differs_from_another(
    make: Make, folder: Path, tmp_path: Path
) -> None:
    assert make() == 0
    assert make("dataset.batches.seed=1", f"--storage={tmp_path / 'other'}") == 0
    one, other = manifest.read_manifest(folder), manifest.read_manifest(tmp_path / "other")
    assert one.content.fingerprint != other.content.fingerprint
    assert not {shard.sha256 for shard in one.shards} & {shard.sha256 for shard in other.shards}


def test_the_bytes_of_the_plan_are_about_those_on_the_disk(
    make: Make, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make("--json") == 0
    told = json.loads(capsys.readouterr().out)
    written = sum(path.stat().st_size for path in folder.glob("*.h5"))
    assert written == pytest.approx(told["plan"]["bytes_to_write"], rel=0.02)
    assert told["ended"]["made"] == sum(told["plan"]["shards"].values())
    assert told["ended"]["status"] == 0


@pytest.mark.mnist
def test_the_data_set_of_the_paper_is_the_one_that_is_declared(
    make: Make,
    folder: Path,
    data_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The disk has room for it."""
    usage = making_plan.shutil.disk_usage(data_folder)
    monkeypatch.setattr(making_plan.shutil, "disk_usage", lambda path: usage._replace(free=2**50))
    given = ["dataset.source=mnist", f"--data-dir={data_folder}", "--pairs=1000", "--shards=600"]
    assert make("--dry-run", *given) == 0
    said = capsys.readouterr().out
    declared = compose.cell(["dataset=multimnist_shards"]).config["dataset"]["shards"]
    assert f"fingerprint {declared['fingerprint']}" in said
    assert "60,000,000 examples in 600 shards" in said
    assert "10,000,000 examples in 100 shards" in said
    assert not folder.exists()
