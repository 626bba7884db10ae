"""Online only with a login and a host that answers, decided in one line."""

import socket
from collections.abc import Callable, Iterator
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


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API key in the environment."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)


@pytest.fixture
def closed() -> Iterator[str]:
    """An address at which nobody listens."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{port.getsockname()[1]}"


def test_without_a_login_it_is_offline(settle: Settle) -> None:
    mode, reason = settle()
    assert mode == "offline"
    assert "nobody is logged in" in reason
    assert "make wandb-sync" in reason
    with pytest.raises(ConfigError, match="wandb login"):
        settle("logger.mode=online")


@pytest.mark.usefixtures("login")
def test_with_a_login_and_a_host_that_does_not_answer_it_is_offline(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", f"http://someone:secret@{closed}")
    mode, reason = settle()
    assert mode == "offline"
    assert f"http://{closed} does not answer" in reason  # neither key nor password
    with pytest.raises(UserError, match=f"2 cells wait, but nobody answers at http://{closed}"):
        modes.check_reachable(modes.server_url(), "2 cells wait")


@pytest.mark.usefixtures("login")
def test_with_a_login_and_a_host_that_answers_it_is_online(
    settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", f"http://{address}")
        assert settle()[0] == "online"
        assert settle("logger.mode=offline")[0] == "offline"
    assert settle()[0] == "offline"
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
