"""Online only with a login and a host that answers, decided in one line."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from wandb_server import KEY

from capsweep.config.cell import Cell
from capsweep.errors import ConfigError, UserError
from capsweep.tracking import mode as modes

Settle = Callable[..., tuple[str, str]]


@pytest.fixture
def settle(small_cell: Callable[..., Cell]) -> Settle:
    """Decides for a cell with logger=wandb and further overrides."""
    return lambda *overrides: modes.decide_mode(small_cell("logger=wandb", *overrides).config)


def test_without_a_login_it_is_offline(settle: Settle) -> None:
    mode, reason = settle()
    assert mode == "offline"
    assert "nobody is logged in" in reason
    assert "make wandb-sync" in reason
    with pytest.raises(ConfigError, match="wandb login"):
        settle("logger.mode=online")


def test_with_a_login_it_is_online_where_the_host_answers(
    settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", f"http://someone:secret@{address}")
        assert settle()[0] == "online"
        assert settle("logger.mode=offline")[0] == "offline"
    mode, reason = settle()
    assert mode == "offline"
    assert f"http://{address} does not answer" in reason  # neither key nor password
    with pytest.raises(UserError, match=f"2 cells wait, but nobody answers at http://{address}"):
        modes.check_reachable(modes.server_url(), "2 cells wait")
    monkeypatch.setenv("HTTP_PROXY", f"http://{address}")  # nobody knows who is behind it
    assert settle()[0] == "online"


def test_a_login_in_netrc_counts_where_wandb_itself_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    machines = ("127.0.0.1:1", "api.wandb.ai")
    netrc.write_text("".join(f"machine {m} login user password of-netrc\n" for m in machines))
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for url in ("http://127.0.0.1:1", "https://api.wandb.ai", "https://api.forge.coreweave.com"):
        assert modes.has_login(url)
    assert not modes.has_login("http://localhost:1")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert modes.without_keys(f"{KEY} and of-netrc are wrong") == "(key) and (key) are wrong"
