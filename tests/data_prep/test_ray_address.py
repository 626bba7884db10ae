"""An address at which no cluster of Ray is: of shards and of sweeps, which share its start."""

import socket

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
