"""Where decoded images are kept: the user's cache of this node, or nowhere, which is said."""

import os
import subprocess
import sys
from pathlib import Path

import official_files
import pytest
import torch

from capsweep.config import compose
from capsweep.data.decoded_images import Decoded, decoded_once
from capsweep.data.images import LabelledImages
from capsweep.storage.files import user_cache_folder
from capsweep.training import build

DECLARED = {"sha256": {"file": "00"}}
NOBODY = 65534  # without a home, and without the right to write into one

# Asks twice for a megabyte, and says how often it had to decode; files may not become large.
TRIAL = """
import resource, torch
from capsweep.data.decoded_images import decoded_once
from capsweep.data.images import LabelledImages

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
calls = []

def decode():
    calls.append(1)
    return {"test": LabelledImages(torch.ones(1000, 1, 32, 32).byte(), torch.arange(1000))}

for _ in range(2):
    decoded_once("many", {"sha256": {"file": "00"}}, decode)
print(len(calls))
"""


def decode() -> Decoded:
    """One image."""
    return {"test": LabelledImages(torch.ones(1, 1, 2, 2).byte(), torch.tensor([4]))}


def never() -> Decoded:
    """What is asked when there is nothing in the cache."""
    raise AssertionError("decoded although it is in the cache")


@pytest.mark.parametrize("given", [None, "", "relative/cache"])
def test_it_is_below_home_unless_another_place_is_given(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME")
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert user_cache_folder() == tmp_path / "home" / ".cache" / "capsweep"
    decoded_once("few", DECLARED, decode)
    assert len(list(user_cache_folder().glob("few-*.npz"))) == 1


def test_the_environment_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "yet"))
    decoded_once("few", DECLARED, decode)
    assert len(list((tmp_path / "not" / "yet" / "capsweep").glob("few-*.npz"))) == 1


def test_the_data_folder_is_left_alone_and_not_needed_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    overrides = official_files.write_cifar10(folder)
    reader = build.build_reader(compose.cell(["dataset=cifar10", *overrides]).config)
    before = sorted(folder.rglob("*"))
    first = reader.read(str(folder))
    assert sorted(folder.rglob("*")) == before
    folder.rename(tmp_path / "gone")
    reader.check(str(folder))
    assert torch.equal(reader.read(str(folder)).test.images_NCHW, first.test.images_NCHW)


def test_what_is_there_is_read_without_writing_anything() -> None:
    decoded_once("few", DECLARED, decode)
    [lock] = user_cache_folder().glob("*.lock")
    lock.unlink()
    decoded_once("few", DECLARED, never)
    assert not lock.exists()


@pytest.mark.parametrize("place", ["", "capsweep"])
def test_a_folder_that_cannot_be_made_is_said_once_and_is_no_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    (home / place).parent.mkdir(exist_ok=True)
    (home / place).write_text("not a folder")
    for _ in range(2):
        assert len(decoded_once("few", DECLARED, decode)["test"]) == 1
    said = capsys.readouterr().err
    assert said.count("no cache of decoded images (") == 1
    assert said.startswith(f"{home / 'capsweep'}: ")
    assert said.endswith("; decoding in every run\n")


def trial(**environment: str) -> tuple[str, str]:
    """What a real process says that asks for the same images twice."""
    command = [sys.executable, "-c", TRIAL]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_cache_that_cannot_be_filled_is_said_once_and_leaves_nothing() -> None:
    here = user_cache_folder()
    said = f"{here}: no cache of decoded images (File too large); decoding in every run\n"
    assert trial() == ("2\n", said)
    assert [path.suffix for path in user_cache_folder().glob("*.*")] == [".lock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_the_closed_home_of_another_user_is_said_once_and_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "closed"))
    (tmp_path / "closed").mkdir(mode=0o700)
    os.seteuid(NOBODY)
    try:
        decoded_once("few", DECLARED, decode)
        decoded_once("few", DECLARED, decode)
    finally:
        os.seteuid(0)
    assert capsys.readouterr().err.count("no cache of decoded images (Permission denied)") == 1


def test_a_user_without_a_home_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)  # as in a container: in no passwd
    for _ in range(2):
        assert len(decoded_once("few", DECLARED, decode)["test"]) == 1
    said = capsys.readouterr().err
    assert said.count("no cache of decoded images (no home; set HOME or XDG_CACHE_HOME)") == 1
