"""`capsweep data info`: the manifest as a person and a program see it, and the first examples."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import shard_folders
from PIL import Image

from capsweep import cli
from capsweep.cli import data_info
from capsweep.shards import manifest
from capsweep.shards.manifest import INDEX

Info = Callable[..., int]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards a split. To be read only."""
    folder = tmp_path_factory.mktemp("whole") / "pairs"
    shard_folders.make(folder)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def info(*arguments: object) -> int:
    return cli.main(["data", "info", *map(str, arguments)])


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


def test_the_manifest_is_told_and_the_picture_lies_here(
    whole: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert info(whole) == 0
    said = capsys.readouterr().out
    found = manifest.read_manifest(whole)
    for text in (
        "multimnist of digits",
        found.content.fingerprint,
        found.content.origin.sha256,
        "seed 0, margin 4, shift 4, validation 0; generator version 1",
        "2,874",
        "1x36x36",
        "1,296",
        f"{here / 'pairs-examples.png'}",
    ):
        assert text in said
    assert pixels(here / "pairs-examples.png").std() > 20
    assert [path.name for path in here.iterdir()] == ["pairs-examples.png"]


def test_json_is_for_programs_and_draws_only_what_is_asked_for(
    whole: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert info(whole, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    found = manifest.read_manifest(whole)
    assert told["fingerprint"] == found.content.fingerprint
    assert told["splits"]["train"]["examples"] == 2874
    assert told["splits"]["train"]["shards"] == 3
    assert told["fields"]["images"] == {"dtype": "uint8", "shape": [1, 36, 36], "bytes": 1296}
    assert told["bytes"] == sum(path.stat().st_size for path in whole.glob("*.h5"))
    assert told["picture"] is None
    assert list(here.iterdir()) == []
    assert info(whole, "--json", "--picture", "mine.png") == 0
    assert json.loads(capsys.readouterr().out)["picture"] == "mine.png"
    assert (here / "mine.png").is_file()


@pytest.mark.parametrize("with_sources", [False, True])
def test_the_line_that_trains_on_it_is_accepted(
    tmp_path: Path, here: Path, capsys: pytest.CaptureFixture[str], with_sources: bool
) -> None:
    from capsweep.config import compose, places
    from capsweep.training import build

    folder = tmp_path / "pairs, and more"
    shard_folders.make(folder, shard_folders.job(with_sources=with_sources), shards=1)
    assert info(folder, "--json") == 0
    words = shlex.split(json.loads(capsys.readouterr().out)["train"])
    assert words[:2] == ["capsweep", "train"]
    config = compose.cell(words[2:]).config
    build.build_reader(config).check(str(places.resolve(config["places"]).data))


def test_a_picture_shows_the_stored_images_and_the_digits_alone(tmp_path: Path, here: Path) -> None:
    shard_folders.make(tmp_path / "pairs", shard_folders.job(with_sources=True))
    assert info(tmp_path / "pairs") == 0
    picture = pixels(here / "pairs-examples.png")[..., 0]
    job = shard_folders.job(with_sources=True)
    for split in ("train", "test"):
        made = job.maker(split)(0, data_info.EXAMPLES)
        for images in (made["images"][3, 0], made["digits"][3, 0, 0], made["digits"][3, 1, 0]):
            large = images.repeat(3, axis=0).repeat(3, axis=1)
            assert _holds(picture, large)


def _holds(picture: np.ndarray, part: np.ndarray) -> bool:
    """Whether a part is somewhere in the picture, exactly."""
    height, width = part.shape
    for y in range(len(picture) - height + 1):
        strip = picture[y : y + height]
        row = np.flatnonzero(part.max(axis=1))[0]
        windows = np.lib.stride_tricks.sliding_window_view(strip[row], width)
        for x in np.flatnonzero((windows == part[row]).all(axis=1)):
            if (strip[:, x : x + width] == part).all():
                return True
    return False


def test_nothing_is_written_into_the_data_set(
    whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(path.name for path in whole.iterdir())
    monkeypatch.chdir(whole)
    assert info(".") == 2
    assert "--picture pairs-examples.png: lies in the data set's folder" in capsys.readouterr().err
    assert sorted(path.name for path in whole.iterdir()) == before


def test_a_damaged_folder_is_an_error(
    tmp_path: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pairs"
    shard_folders.make(folder)
    (folder / "train-00000.h5").write_bytes(b"no HDF5")
    assert info(folder) == 2
    assert "train-00000.h5: truncated or altered" in capsys.readouterr().err
    (folder / INDEX).write_text("{}")
    assert info(folder) == 2
    assert "index.json: altered" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["info", "verify"])
def test_an_unfinished_folder_says_how_it_goes_on(
    tmp_path: Path, here: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pairs"
    words = ["data", "make", "multimnist", "--executor", "local", "--storage", str(folder)]
    more = ["--pairs", "1", "--shards", "3", "dataset.batches.seed=4", "dataset.source=digits"]
    assert cli.main([*words, *more]) == 0
    (folder / INDEX).unlink()
    (folder / "train-00001.h5").write_bytes(b"")
    capsys.readouterr()
    assert cli.main(["data", command, str(folder)]) == 2
    again = capsys.readouterr().err.partition("unfinished; this goes on: capsweep ")[2]
    assert cli.main([*shlex.split(again), "--executor", "local"]) == 0
    assert "1 shards made, 3 kept, of 4" in capsys.readouterr().out
