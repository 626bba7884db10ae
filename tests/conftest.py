"""What all tests share: no silent garbage, real data where it is, a small cell to run."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import laws as laws  # chooses how many examples laws are tried with
import pytest
import s3_server
import torch
from browsers import browser as browser  # a fixture
from fake_programs import Programs
from filled_overrides import fill_overrides
from s3_server import S3Server

from capsweep.config import compose
from capsweep.config.cell import Cell

REPOSITORY = Path(__file__).resolve().parents[1]
# Variables that would decide what a command does, or make its warnings errors.
HIDDEN = (
    *("WANDB_API_KEY", "WANDB_MODE", "STORAGE", "DATA_DIR", "RAY_ADDRESS", "PYTHONWARNINGS"),
    "COLUMNS",  # which xdist sets
)

# Where there is no GPU, Triton's kernels are interpreted. Triton decides that when it is imported,
# which torch's compiler does too: so before any test is.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Products of matrices on a GPU have a fixed order, as these tests ask for, with such a workspace.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Ray reads once, when it is imported, whether a token is asked for: before any test imports it. Its
# workers have a low priority by default (15): beside other tests, their cells would starve.
os.environ.update(RAY_AUTH_MODE="token", RAY_worker_niceness="0")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the laws, skip what needs a GPU where there is none, and spread the files of slow tests
    over the first three quarters of the run: they mostly wait for other processes, which leaves the
    processors to others, and none is last.
    """
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.law)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no GPU"))
    slow = dict.fromkeys(item.path for item in items if item.get_closest_marker("slow"))
    others = dict.fromkeys(item.path for item in items if item.path not in slow)
    place = {path: number / len(others) for number, path in enumerate(others)}
    place |= {path: 0.75 * number / len(slow) for number, path in enumerate(slow)}
    items.sort(key=lambda item: place[item.path])


@pytest.fixture(autouse=True)
def nan_filled_empty() -> Iterator[None]:
    """`torch.empty` is filled with NaN, so that reading unwritten memory shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def computed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests of all processes keep what follows from code and configuration alone."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "computed-once"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def make_cache(tmp_path_factory: pytest.TempPathFactory, computed_once: Path) -> Callable[[], str]:
    """Makes a new folder for XDG_CACHE_HOME, in which is only what is computed once."""
    caches = tmp_path_factory.mktemp("caches")

    def make() -> str:
        folder = Path(tempfile.mkdtemp(dir=caches))
        (folder / "capsweep").mkdir()
        (folder / "capsweep" / "computed").symlink_to(computed_once)
        return str(folder)

    return make


@pytest.fixture(autouse=True)
def no_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_cache: Callable[[], str]
) -> None:
    """Nobody is logged in to W&B, nothing of the developer's environment decides a test, and no
    test reads or writes the developer's cache: each has its own, but for what is computed once."""
    for name in (*HIDDEN, "COMP_LINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("XDG_CACHE_HOME", make_cache())


@pytest.fixture(scope="session")
def clean_environment(
    tmp_path_factory: pytest.TempPathFactory, make_cache: Callable[[], str]
) -> dict[str, str]:
    """The environment of a user without accounts, for commands of tests."""
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    home = tmp_path_factory.mktemp("home")
    own = {"NETRC": str(home / "no-netrc"), "COLUMNS": "200"}
    return {**kept, **own, "XDG_CACHE_HOME": make_cache()}


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Where results of this test go."""
    return tmp_path / "outputs"


@pytest.fixture
def small_cell(storage: Path) -> Callable[..., Cell]:
    """A cell that trains in about a second; further overrides as arguments."""

    def make_cell(*overrides: str) -> Cell:
        capsules = ["model.conv.channels=8", "model.primary.types=2", "model.decoder.hidden=[16]"]
        network = [] if "model=cnn_small" in overrides else capsules
        short = ["logger=csv", "epochs=2", "limit_batches=2", "trainer.accelerator=cpu"]
        small = [f"places.storage={storage}", *short, *network]
        return compose.cell(fill_overrides(overrides, *small))

    return make_cell


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An empty object store on this machine; credentials are in the environment."""
    for name, value in s3_server.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server.serving_store() as server:
        yield server


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data, which may be absent."""
    return Path(os.environ.get("CAPSWEEP_TEST_DATA", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def data_folder(shared_data: Path) -> Path:
    """The folder with the official MNIST files; skips visibly where it is absent."""
    if not (shared_data / "mnist").is_dir():
        pytest.skip(f"no real MNIST in {shared_data}; set CAPSWEEP_TEST_DATA")
    return shared_data


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A folder in front of PATH."""
    return Programs(tmp_path / "programs", monkeypatch)
