"""A Ray that cannot be had, for shards and for sweeps alike: one line with the cure."""

import socket
from pathlib import Path

import pytest

from capsweep import ray_start
from capsweep.errors import ConfigError


@pytest.fixture
def silent() -> str:
    """An address of this machine at which nobody listens."""
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        return "{}:{}".format(*used.getsockname())


def test_nobody_listens(silent: str) -> None:
    with (
        pytest.raises(ConfigError, match=f"^RAY_ADDRESS={silent}: no cluster .*correct the addr"),
        ray_start.connected(silent),
    ):
        pass


@pytest.mark.parametrize("address", ["head", "head:port", "127.0.0.1:70000"])
def test_what_is_no_address(address: str) -> None:
    with (
        pytest.raises(ConfigError, match=f"^RAY_ADDRESS={address}: no cluster"),
        ray_start.connected(address),
    ):
        pass


@pytest.mark.parametrize("folder", ["file/below", "long" * 25])
def test_a_folder_that_ray_cannot_use(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / folder))
    with (
        pytest.raises(ConfigError, match=r"^RAY_TMPDIR: Ray does not start \(.*short path"),
        ray_start.connected(None, cpus=1),
    ):
        pass
