"""Decoded images: made once, whole or absent, kept in the user's cache, and never in the way."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import commands
import numpy as np
import processes
import pytest
import torch
from commands import Process

from capsweep.data import official
from capsweep.data.images import LabelledImages
from capsweep.data.official import Decoded, decode_once
from capsweep.storage.files import user_cache_folder

DECLARED = {"sha256": {"file": "00"}}

# A process that decodes slowly, and writes down that it did.
DECODES = """
import sys, time, torch
from capsweep.data.images import LabelledImages
from capsweep.data.official import decode_once

log, seconds = sys.argv[1:]

def decode():
    with open(log, "a") as file:
        file.write("decoded\\n")
    time.sleep(float(seconds))
    images_NCHW = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2)
    return {"train": LabelledImages(images_NCHW, torch.tensor([1, 0]))}

train = decode_once("few", {"sha256": {"file": "00"}}, decode)["train"]
print(train.images_NCHW.sum().item(), train.labels_N.tolist())
"""


def make_decoded() -> Decoded:
    """What is decoded."""
    images_NCHW = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2)
    return {
        "train": LabelledImages(images_NCHW, torch.tensor([1, 0])),
        "test": LabelledImages(images_NCHW[:1], torch.tensor([4])),
    }


@pytest.fixture
def decode() -> Mock:
    """A decoder that counts its calls."""
    return Mock(side_effect=make_decoded)


def is_whole(decoded: Decoded) -> bool:
    """Whether all splits are what the decoder gives, types included."""

    def describe(given: Decoded) -> dict[str, tuple[object, ...]]:
        return {
            split: (examples.digest, examples.images_NCHW.dtype, examples.labels_N.dtype)
            for split, examples in given.items()
        }

    return describe(decoded) == describe(make_decoded())


def cache_file() -> Path:
    """The one cache file of this test."""
    [path] = user_cache_folder().glob("*.npz")
    return path


def test_what_was_decoded_is_kept_and_read_without_writing(decode: Mock) -> None:
    assert is_whole(decode_once("few", DECLARED, decode))
    [lock] = user_cache_folder().glob("*.lock")
    lock.unlink()
    assert is_whole(decode_once("few", DECLARED, decode))
    assert decode.call_count == 1
    assert not lock.exists()


@pytest.mark.parametrize(
    ("name", "declared", "format"),
    [("more", DECLARED, 2), ("few", {"sha256": {"file": "01"}}, 2), ("few", DECLARED, 3)],
)
def test_other_names_hashes_and_formats_are_other_data(
    name: str,
    declared: dict[str, object],
    format: int,
    decode: Mock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode_once("few", DECLARED, decode)
    monkeypatch.setattr(official, "FORMAT", format)
    decode_once(name, declared, decode)
    assert decode.call_count == 2


def roll_labels(path: Path) -> None:
    """Give the images the labels of others, in a file that is itself whole."""
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{**arrays, "train_labels": np.roll(arrays["train_labels"], 1)})


def put_other_data(path: Path) -> None:
    """Give the file the name of another."""
    decode_once("few", {"sha256": {"file": "01"}}, make_decoded)
    [other] = set(user_cache_folder().glob("*.npz")) - {path}
    path.write_bytes(other.read_bytes())


def damage(path: Path, place: float, is_cut: bool) -> None:
    content = path.read_bytes()
    at = int(place * len(content))
    altered = bytes(255 - byte for byte in content[at : at + 64]) + content[at + 64 :]
    path.write_bytes(content[:at] + (b"" if is_cut else altered))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        *((partial(damage, place=place, is_cut=True), "") for place in (0.0, 0.05, 0.5, 0.95)),
        *((partial(damage, place=place, is_cut=False), "") for place in (0.05, 0.5, 0.95)),
        (roll_labels, "its images or labels were altered"),
        (put_other_data, "it belongs to another data set"),
    ],
)
def test_a_file_that_is_damaged_or_of_other_data_is_made_anew_with_a_line(
    spoil: Callable[[Path], None], reason: str, decode: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    decode_once("few", DECLARED, decode)
    path = cache_file()
    spoil(path)
    for _ in range(2):
        assert is_whole(decode_once("few", DECLARED, decode))
    assert decode.call_count == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path}: not used ({reason}")
    assert line.endswith("); the official files are decoded again")


def start_decoding(log: Path, seconds: float) -> Process:
    """A real process that wants the same data, with the cache of this test."""
    return commands.start(str(log), str(seconds), program=("-c", DECODES))


@pytest.mark.slow
def test_of_processes_that_start_at_once_one_decodes_and_all_have_the_images(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    trials = [start_decoding(log, 1.0) for _ in range(4)]
    assert [commands.read_to_end(trial) for trial in trials] == ["276 [1, 0]\n"] * 4
    assert log.read_text() == "decoded\n"
    assert sorted(path.suffix for path in user_cache_folder().glob("*.*")) == [".lock", ".npz"]


def test_a_process_killed_while_it_decodes_is_in_nobodys_way(tmp_path: Path, decode: Mock) -> None:
    log = tmp_path / "log"
    killed = start_decoding(log, 600.0)
    processes.wait_until(log.exists, 60)
    killed.kill()
    killed.communicate()
    left = user_cache_folder() / f"{next(user_cache_folder().glob('*.lock')).stem}.1.tmp"
    left.write_text("half a file")
    decode_once("few", DECLARED, decode)
    assert decode.call_count == 1
    assert not left.exists()


@pytest.mark.parametrize("given", [None, "", "relative/cache"])
def test_it_is_below_home_unless_another_place_is_given(
    given: str | None, decode: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    decode_once("few", DECLARED, decode)
    assert len(list((tmp_path / ".cache" / "capsweep").glob("few-*.npz"))) == 1


@pytest.mark.parametrize("place", ["", "capsweep"])
def test_a_folder_that_cannot_be_made_is_told_once_and_no_error(
    place: str,
    decode: Mock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    (home / place).parent.mkdir(exist_ok=True)
    (home / place).write_text("not a folder")
    for _ in range(2):
        assert is_whole(decode_once("few", DECLARED, decode))
    assert capsys.readouterr().err.count("images are not cached") == 1
