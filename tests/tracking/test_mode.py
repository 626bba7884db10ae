"""Online only with a login and a host that answers, decided in one line."""

import socket
import threading
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


def test_behind_a_proxy_it_is_online_where_the_proxy_answers(
    settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.invalid")
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{proxy.getsockname()[1]}")
        assert settle()[0] == "online"
        monkeypatch.setenv("NO_PROXY", "wandb.invalid")
        assert settle()[0] == "offline"
        monkeypatch.delenv("NO_PROXY")
    assert settle()[0] == "offline"


def test_a_server_whose_name_is_looked_up_without_end_does_not_answer(
    settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.invalid")
    end, has_ended = threading.Event(), threading.Event()

    def look_up(*_: object, **__: object) -> None:
        end.wait()
        has_ended.set()
        raise OSError

    monkeypatch.setattr(socket, "create_connection", look_up)
    monkeypatch.setattr(modes, "PROBE_SECONDS", 0.1)
    assert settle()[0] == "offline"
    assert not has_ended.is_set()
    end.set()


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
