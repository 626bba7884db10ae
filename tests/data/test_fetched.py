"""Data in an object store: real pyarrow against a server on this machine, and real processes."""

import signal
import threading
from pathlib import Path

import commands
import official_files
import pytest
from commands import Process
from s3_server import S3Server
from small_data import reader_of

from capsweep.data.images import Reader
from capsweep.errors import ConfigError, DataError
from capsweep.storage.files import user_cache_folder
from capsweep.storage.official_files import resolve_folders

BUCKET = "bucket/data"
IMAGES = "train-images-idx3-ubyte.gz"

# One process of a node: its arguments are a place, and names of files.
TRIAL = """
import sys
from capsweep.storage import official_files

place, *wanted = sys.argv[1:]
for name in wanted:
    print(official_files.fetch_file(place, name))
"""


@pytest.fixture
def mnist(store: S3Server, tmp_path: Path) -> Reader:
    """The reader of small files of MNIST's format, which are in the store."""
    overrides = official_files.write_idx(tmp_path / "made")
    store.upload(tmp_path / "made", BUCKET)
    return reader_of("dataset=mnist", *overrides)


def files_in_cache() -> list[str]:
    """What was fetched and stays, without locks and the note of where it is from."""
    paths = (user_cache_folder() / "fetched").rglob("*")
    return sorted(path.name for path in paths if path.is_file() and path.suffix != ".lock")


def trial(store: S3Server) -> Process:
    """A process that wants all files of mnist/."""
    wanted = [name.rpartition("/")[2] for name in store.objects]
    return commands.start(store.url(f"{BUCKET}/mnist"), *wanted, program=("-c", TRIAL))


@pytest.mark.slow
def test_four_processes_that_start_at_once_fetch_each_object_once(
    store: S3Server, mnist: Reader
) -> None:
    trials = [trial(store) for _ in range(4)]
    assert len({commands.read_to_end(process) for process in trials}) == 1
    assert store.count("GET") == 4
    mnist.read(store.url(BUCKET))
    assert store.count("GET") == 4


def test_a_fetcher_that_is_killed_leaves_neither_a_lock_nor_half_a_file(
    store: S3Server, mnist: Reader
) -> None:
    begun, killed = threading.Event(), threading.Event()

    def hang(name: str, part: bytes) -> bytes:
        begun.set()
        killed.wait(60)
        return part

    store.disturb = hang
    first = trial(store)
    assert begun.wait(60)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    killed.set()
    store.disturb = None
    assert IMAGES not in files_in_cache()
    assert len(mnist.read(store.url(BUCKET)).train) == 20
    assert not list((user_cache_folder() / "fetched").rglob("*.tmp"))


def test_what_is_not_the_declared_file_is_refused_and_does_not_stay(
    store: S3Server, mnist: Reader
) -> None:
    name = f"{BUCKET}/mnist/{IMAGES}"
    whole = store.objects[name]
    store.objects[name] = whole[:-1] + b"!"
    message = rf"{IMAGES}: truncated or altered .* is removed; the same command fetches it"
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            mnist.check(store.url(BUCKET))
    assert IMAGES not in files_in_cache()
    store.objects[name] = whole
    mnist.check(store.url(BUCKET))


@pytest.mark.parametrize("folder", ["../other", "a/../../b", "a%2e%2e", "x?endpoint_override=evil"])
def test_folders_of_the_configuration_cannot_lead_out_of_the_place(folder: str) -> None:
    assert resolve_folders(f"s3://{BUCKET}", ["/etc"]) == ["/etc"]  # a folder of the node
    with pytest.raises(ConfigError, match=r"^places\.data=s3://bucket/data: .*leads out"):
        resolve_folders(f"s3://{BUCKET}", [folder])


def test_a_url_with_credentials_is_refused_without_showing_them(mnist: Reader) -> None:
    with pytest.raises(ConfigError, match="a URL with credentials") as refused:
        mnist.check("s3://key:secret@bucket/data")
    assert "secret" not in str(refused.value).replace("AWS_SECRET", "")
