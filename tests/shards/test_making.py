"""`capsweep data make`: missing shards are made, the others stay, the same examples are the same
bytes, whatever happens to the command; impossible settings are refused before anything is written.
"""

import signal
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
import shard_folders
from commands import read_to_end
from hypothesis import given
from hypothesis import strategies as st
from shard_folders import hashes, run_make, run_until, start_making, times

from capsweep import cli
from capsweep.config import compose
from capsweep.errors import ConfigError
from capsweep.shards import making, manifest
from capsweep.shards.layout import ShardJob, divide_into_parts
from capsweep.shards.manifest import DataSetContent, Origin

Capture = pytest.CaptureFixture[str]


def count_job(**splits: int) -> ShardJob:
    """A job of so many examples of one byte, which are never made."""
    content = DataSetContent("counted", 1, {}, Origin("none", "0" * 64), splits)
    return ShardJob(content, {"images": ("uint8", (1,))}, pytest.fail)


@given(st.integers(1, 5000), st.integers(0, 5000), st.data())
def test_every_example_is_in_one_shard(train: int, test: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, train))
    splits = {"train": train, "test": test} if test else {"train": train}
    parts = divide_into_parts(count_job(**splits), shards)
    assert len({part.name for part in parts}) == len(parts)
    assert sum(part.split == "train" for part in parts) == shards
    for split, examples in splits.items():
        mine = [part for part in parts if part.split == split]
        places = [k for part in mine for k in range(part.first, part.first + part.examples)]
        assert places == list(range(examples))
        sizes = {part.examples for part in mine}
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= -(-train // shards)


def test_a_shard_that_does_not_fit_into_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^SHARDS=1: must be \d+ or more, so that a shard fits"):
        divide_into_parts(count_job(train=10**9), 1)


def test_a_folder_is_filled_and_its_manifest_says_with_what(folder: Path, capsys: Capture) -> None:
    assert run_make(folder) == 0
    assert "6 shards made, 0 kept, of 6" in capsys.readouterr().out
    whole = manifest.read_manifest(folder)
    assert whole.content == shard_folders.job().content
    names = [shard.name for shard in whole.shards]
    assert names == [f"train-{n:05d}.h5" for n in range(4)] + [f"test-{n:05d}.h5" for n in range(2)]
    for shard in whole.shards:
        assert hashes(folder)[shard.name] == shard.sha256
        assert (folder / shard.name).stat().st_size == shard.bytes


def test_a_folder_is_made_below_data_dir(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["dataset.source=digits", "PAIRS=1", "EXECUTOR=local", f"DATA_DIR={tmp_path}"]
    assert cli.main(["data", "make", *words]) == 0
    printed = capfd.readouterr()
    assert f"folder:      {tmp_path / 'multimnist'}\n" in printed.out
    for text in ("1,437 examples in 1 shard\n", "2 shards made, 0 kept, of 2", "train on it:"):
        assert text in printed.out
    assert "\x1b" not in printed.out + printed.err


def flip_pixel(path: Path) -> None:
    shard_folders.flip_bit(path, shard_folders.pixel_place(path))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def append_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")  # which HDF5 does not look at


def declare_any_size(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name in ("images", "labels"):
            file.create_dataset(name, (2**40, 2**10), "uint8", chunks=(1, 1))


@pytest.mark.parametrize(
    "damage", [Path.unlink, flip_pixel, truncate, append_byte, declare_any_size]
)
def test_a_shard_that_is_not_whole_is_made_again(
    folder: Path, damage: Callable[[Path], None], capsys: Capture
) -> None:
    assert run_make(folder) == 0
    before, written = hashes(folder), times(folder)
    damage(folder / "train-00002.h5")
    assert run_make(folder) == 0
    assert hashes(folder) == before
    kept = before.keys() - {"train-00002.h5", "index.json"}
    assert all(times(folder)[name] == written[name] for name in kept)
    assert "1 shard made, 5 kept, of 6" in capsys.readouterr().out


def test_leftovers_of_killed_workers_go_and_files_of_others_stay(folder: Path) -> None:
    assert run_make(folder) == 0
    ours = [".train-00001.h5.123.tmp", ".index.json.9.tmp"]
    others = ["notes.txt", ".hidden", ".train-00001.tmp", ".other.txt.123.tmp", "more/file.h5"]
    for name in [*ours, *others]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("left")
    assert run_make(folder) == 0
    assert [name for name in ours if (folder / name).exists()] == []
    assert [name for name in others if not (folder / name).exists()] == []


def test_the_plan_is_printed_and_nothing_written(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert run_make(folder, "--dry-run") == 0
    assert list(tmp_path.iterdir()) == []
    text = capsys.readouterr().out
    fingerprint = shard_folders.job().content.fingerprint
    for part in ("2,874 examples in 4 shards", "720 examples in 2 shards", fingerprint, "are free"):
        assert part in text


@pytest.mark.mnist
def test_the_data_set_of_the_paper_is_the_one_that_is_declared(
    folder: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The disk has room for it."""
    usage = making.shutil.disk_usage(data_folder)
    monkeypatch.setattr(making.shutil, "disk_usage", lambda path: usage._replace(free=2**50))
    given = ["dataset.source=mnist", f"DATA_DIR={data_folder}", "PAIRS=1000", "SHARDS=600"]
    assert run_make(folder, "--dry-run", *given) == 0
    text = capsys.readouterr().out
    declared = compose.cell(["dataset=multimnist_shards"]).config["dataset"]["shards"]
    assert f"fingerprint: {declared['fingerprint']}" in text
    assert "60,000,000 examples in 600 shards" in text
    assert "10,000,000 examples in 100 shards" in text
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SHARDS=9999"], "SHARDS=9999: must be 1 to 2,874 (the train examples)"),
        (["EXECUTOR=slurm"], "EXECUTOR=slurm: must be ray, or local"),
        (["STORAGE=s3://bucket/pairs"], "STORAGE=s3://bucket/pairs: must be a folder on a disk"),
        (["dataset.source=mnist", "DATA_DIR=/nowhere"], "places.data: /nowhere does not exist"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    folder: Path, tmp_path: Path, arguments: list[str], message: str, capsys: Capture
) -> None:
    assert run_make(folder, *arguments) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["dataset.batches.seed=1"], None, '(changed: "settings.seed": 1; see '),
        (["PAIRS=3"], None, '(changed: "splits.train": 4311, "splits.test": 1080; see '),
        (["SHARDS=5"], None, '(changed: "shards.train": 5; see '),
        *(([], damaged, "") for damaged in ("", '{"identity": 5}', '{"dataset": "\\u001b[2J"}')),
    ],
)
def test_a_folder_of_another_data_set_or_layout_is_refused(
    folder: Path, arguments: list[str], text: str | None, message: str, capsys: Capture
) -> None:
    """The file that says what the folder is to hold may be damaged too."""
    assert run_make(folder) == 0
    (folder / "index.json").unlink()  # as it was interrupted
    wanted, before = folder / ".making" / "wanted.json", hashes(folder)
    if text is not None:
        wanted.write_text(text)
    capsys.readouterr()
    assert run_make(folder, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: STORAGE={folder}: it was begun for other data or other shards")
    assert message in line
    assert str(wanted) in line
    assert line.isprintable()
    assert hashes(folder) == before


def test_a_folder_with_files_of_others_is_refused(folder: Path, capsys: Capture) -> None:
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("mine")
    (folder / "train-00000.h5").write_text("mine too")
    before = hashes(folder)
    assert run_make(folder) == 2
    assert f"STORAGE={folder}: holds other files (thesis.tex, train" in capsys.readouterr().err
    for place in (folder / "thesis.tex", folder / "thesis.tex" / "below"):
        assert run_make(folder, f"STORAGE={place}") == 2
        message = f"error: STORAGE={place}: {folder / 'thesis.tex'} is not a folder; choose another"
        assert message in capsys.readouterr().err
    assert hashes(folder) == before


def test_shards_and_manifest_of_another_seed_copied_into_a_begun_folder_are_made_again(
    folder: Path, tmp_path: Path
) -> None:
    """Their hashes are right; only what they say of themselves tells that they are wrong."""
    other = tmp_path / "other"
    assert run_make(folder, "dataset.batches.seed=1", f"STORAGE={other}") == 0
    assert run_make(folder) == 0
    before = hashes(folder)
    for path in other.glob("[!.]*"):
        (folder / path.name).write_bytes(path.read_bytes())
    assert run_make(folder) == 0
    assert hashes(folder) == before


@pytest.mark.slow
def test_two_drivers_at_once(folder: Path) -> None:
    first = start_making(folder)
    run_until(first, (folder / "train-00000.h5").exists)
    first.send_signal(signal.SIGSTOP)  # it still has the folder when the second comes
    refusal = read_to_end(start_making(folder), status=2)
    first.send_signal(signal.SIGCONT)
    read_to_end(first)
    assert f"STORAGE={folder}: another process writes to it" in refusal
    shards = {shard.name: shard.sha256 for shard in manifest.read_manifest(folder).shards}
    assert shards.items() <= hashes(folder).items()
