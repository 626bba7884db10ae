"""Online only with a login and a host that answers, decided in one line."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from wandb_server import KEY

from capsweep.config.cell import Cell
from capsweep.errors import ConfigError
from capsweep.tracking import mode as modes


def settle(small_cell: Callable[..., Cell], *overrides: str) -> tuple[str, str]:
    return modes.settle(small_cell("logger=wandb", *overrides).config)


def test_without_a_login_it_is_offline(small_cell: Callable[..., Cell]) -> None:
    mode, reason = settle(small_cell)
    assert mode == "offline"
    assert "nobody is logged in" in reason
    assert "make wandb-sync" in reason


def test_with_a_login_and_a_host_that_does_not_answer_it_is_offline(
    small_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        mode, reason = settle(small_cell)
    assert mode == "offline"
    assert "does not answer" in reason
    assert KEY not in reason


def test_a_password_in_the_address_of_a_server_is_not_told(
    small_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://someone:secret@127.0.0.1:1")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    _, reason = settle(small_cell)
    assert "http://127.0.0.1:1 does not answer" in reason


def test_with_a_login_and_a_host_that_answers_it_is_online(
    small_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        assert settle(small_cell)[0] == "online"
        assert settle(small_cell, "logger.mode=offline")[0] == "offline"


def test_a_proxy_is_asked_where_the_environment_has_one(
    small_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.invalid")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"127.0.0.1:{proxy.getsockname()[1]}"
        for written in (address, f"http://{address}"):
            monkeypatch.setenv("HTTPS_PROXY", written)
            assert settle(small_cell)[0] == "online"
    assert settle(small_cell)[0] == "offline"


def test_a_login_in_netrc_counts_where_wandb_itself_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    machines = ("127.0.0.1:1", "api.wandb.ai")
    netrc.write_text("".join(f"machine {m} login user password {KEY}\n" for m in machines))
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert modes.has_login("http://127.0.0.1:1")
    assert modes.has_login("https://api.wandb.ai")
    assert modes.has_login("https://api.forge.coreweave.com")  # its new address
    assert not modes.has_login("http://127.0.0.1:2")
    assert not modes.has_login("http://localhost:1")


def test_online_without_a_login_is_an_error_with_the_cure(
    small_cell: Callable[..., Cell],
) -> None:
    with pytest.raises(ConfigError, match="wandb login"):
        settle(small_cell, "logger.mode=online")


def test_a_text_that_is_kept_names_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine w.example\n  login user\n  password of-netrc\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert modes.without_keys(f"{KEY} and of-netrc are wrong") == "(key) and (key) are wrong"
