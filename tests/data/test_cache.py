"""Decoded images: made once, whole or absent, and never in the way."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from capsweep.data import decoded_images
from capsweep.data.decoded_images import Decoded, decoded_once
from capsweep.data.images import LabelledImages
from capsweep.storage.files import user_cache_folder

DECLARED = {"sha256": {"file": "00"}}

# Decodes slowly, and writes down that it did.
TRIAL = """
import sys, time, torch
from capsweep.data.decoded_images import decoded_once
from capsweep.data.images import LabelledImages

log, seconds = sys.argv[1:]

def decode():
    with open(log, "a") as file:
        file.write("decoded\\n")
    time.sleep(float(seconds))
    images_NCHW = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2)
    return {"train": LabelledImages(images_NCHW, torch.tensor([1, 0]))}

train = decoded_once("few", {"sha256": {"file": "00"}}, decode)["train"]
print(train.images_NCHW.sum().item(), train.labels_N.tolist())
"""


class Decoding:
    """A decoder that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Decoded:
        self.calls += 1
        images_NCHW = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2)
        return {
            "train": LabelledImages(images_NCHW, torch.tensor([1, 0])),
            "test": LabelledImages(images_NCHW[:1], torch.tensor([4])),
        }


@pytest.fixture
def decode() -> Decoding:
    """A fresh decoder."""
    return Decoding()


def same(one: Decoded, other: Decoded) -> bool:
    """Whether all splits are equal, types included."""
    return set(one) == set(other) and all(
        torch.equal(one[split].images_NCHW, other[split].images_NCHW)
        and torch.equal(one[split].labels_N, other[split].labels_N)
        and one[split].images_NCHW.dtype == torch.uint8
        and one[split].labels_N.dtype == torch.int64
        for split in one
    )


def kept() -> Path:
    """The one cache file of this test."""
    [path] = user_cache_folder().glob("*.npz")
    return path


def test_what_was_decoded_is_kept(decode: Decoding) -> None:
    first = decoded_once("few", DECLARED, decode)
    again = decoded_once("few", DECLARED, decode)
    assert decode.calls == 1
    assert same(first, again)
    assert same(first, Decoding()())


@pytest.mark.parametrize(
    ("name", "declared"), [("more", DECLARED), ("few", {"sha256": {"file": "01"}})]
)
def test_other_names_and_other_hashes_are_other_data(
    name: str, declared: dict[str, object], decode: Decoding
) -> None:
    decoded_once("few", DECLARED, decode)
    decoded_once(name, declared, decode)
    assert decode.calls == 2


def test_a_new_format_is_decoded_anew(decode: Decoding, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_once("few", DECLARED, decode)
    monkeypatch.setattr(decoded_images, "FORMAT", decoded_images.FORMAT + 1)
    decoded_once("few", DECLARED, decode)
    assert decode.calls == 2


@pytest.mark.parametrize("place", [0.05, 0.3, 0.5, 0.7, 0.95])
@pytest.mark.parametrize("fault", ["truncated", "altered", "empty"])
def test_a_damaged_file_is_named_and_made_anew(
    fault: str,
    place: float,
    decode: Decoding,
    capsys: pytest.CaptureFixture[str],
) -> None:
    decoded_once("few", DECLARED, decode)
    path = kept()
    content = path.read_bytes()
    at = int(place * len(content))
    path.write_bytes(
        {
            "truncated": content[:at],
            "altered": content[:at] + bytes(255 - byte for byte in content[at : at + 64]),
            "empty": b"",
        }[fault]
    )
    assert same(decoded_once("few", DECLARED, decode), Decoding()())
    assert capsys.readouterr().err.count(f"{path}: damaged (") == 1
    assert same(decoded_once("few", DECLARED, decode), Decoding()())
    assert decode.calls == 2
    assert capsys.readouterr().err == ""


def test_every_altered_pixel_and_label_is_noticed(decode: Decoding) -> None:
    decoded_once("few", DECLARED, decode)
    path, pixels = kept(), bytes(range(24))
    content = path.read_bytes()
    assert content.count(pixels) == 1
    for at in range(content.index(pixels), content.index(pixels) + len(pixels)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert same(decoded_once("few", DECLARED, decode), Decoding()())
    assert decode.calls == 1 + len(pixels)


def test_a_file_of_other_data_under_this_name_is_not_read(decode: Decoding) -> None:
    decoded_once("few", {"sha256": {"file": "01"}}, decode)
    other = kept()
    decoded_once("few", DECLARED, decode)
    [path] = set(user_cache_folder().glob("*.npz")) - {other}
    path.write_bytes(other.read_bytes())
    decoded_once("few", DECLARED, decode)
    assert decode.calls == 3


def test_a_cache_that_cannot_be_put_in_its_place_is_said_and_is_no_error(
    decode: Decoding, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded_once("few", DECLARED, decode)
    path = kept()
    path.unlink()
    path.mkdir()  # so that the rename fails
    assert same(decoded_once("few", DECLARED, decode), Decoding()())
    assert "no cache of decoded images" in capsys.readouterr().err
    assert list(user_cache_folder().glob(".*.tmp")) == []


def start(log: Path, seconds: float) -> "subprocess.Popen[str]":
    """A real process that wants the same data, with the cache of this test."""
    command = [sys.executable, "-c", TRIAL, str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_of_processes_that_start_at_once_one_decodes_and_all_have_the_images(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    trials = [start(log, 1.0) for _ in range(4)]
    ended = [trial.communicate(timeout=120) for trial in trials]
    assert ended == [("276 [1, 0]\n", "")] * 4
    assert log.read_text() == "decoded\n"
    assert sorted(path.suffix for path in user_cache_folder().glob("*.*")) == [".lock", ".npz"]


def test_a_process_killed_while_it_decodes_is_in_nobodys_way(
    tmp_path: Path, decode: Decoding, wait_for: Callable[[Path], None]
) -> None:
    log = tmp_path / "log"
    killed = start(log, 600.0)
    wait_for(log)
    killed.kill()
    killed.communicate()
    decoded_once("few", DECLARED, decode)
    left = kept().with_name(f".{kept().name}.1.tmp")
    kept().unlink()
    left.write_bytes(b"a part")  # as of a process killed while it wrote
    decoded_once("few", DECLARED, decode)
    assert not left.exists()
    assert decode.calls == 2


@pytest.fixture
def wait_for() -> Callable[[Path], None]:
    """Waits until a file is there."""

    def wait(path: Path) -> None:
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    return wait
