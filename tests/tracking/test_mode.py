"""Online only with a login and a host that answers, decided in one line."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from wandb_server import KEY, WandbServer

from capsweep.config.cell import Cell
from capsweep.errors import ConfigError
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


def test_with_a_login_it_is_online_where_the_host_or_the_proxy_on_the_way_answers(
    settle: Settle, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.url.removeprefix("http://")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://someone:secret@{address}")
    assert settle()[0] == "online"
    assert settle("logger.mode=offline")[0] == "offline"
    monkeypatch.setenv("WANDB_BASE_URL", "http://someone:secret@wandb.invalid")
    mode, reason = settle()
    assert mode == "offline"
    assert "http://wandb.invalid does not answer" in reason  # neither key nor password
    monkeypatch.setenv("HTTP_PROXY", address)
    assert settle()[0] == "online"
    monkeypatch.setenv("NO_PROXY", "wandb.invalid")
    assert settle()[0] == "offline"
    server.requests.clear()
    server.faults.clear()  # it is no proxy, and refuses what a proxy is asked


def test_a_server_whose_name_is_looked_up_without_end_does_not_answer(
    settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.invalid")
    end = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: end.wait() and [])
    monkeypatch.setattr(modes, "PROBE_SECONDS", 0.1)
    assert settle()[0] == "offline"
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
    monkeypatch.setenv("WANDB_API_KEY", f"{KEY}\n")
    assert modes.without_keys(f"{KEY} and of-netrc are wrong") == "(key) and (key) are wrong"


@pytest.mark.parametrize(
    ("name", "value", "is_off"),
    [
        ("WANDB_MODE", "disabled", True),
        ("WANDB_DISABLED", "true", True),
        ("WANDB_DISABLED", "1", True),
        ("WANDB_DISABLED", "false", False),
        ("WANDB_MODE", "dryrun", False),  # W&B's old word for offline
    ],
)
def test_off_is_no_logger_and_nothing_to_upload(
    small_cell: Callable[..., Cell],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    is_off: bool,
) -> None:
    monkeypatch.setenv(name, value)
    cell = small_cell("logger=wandb")
    mode, reason = modes.decide_mode(cell.config)
    assert mode == ("none" if is_off else "offline")
    assert ("upload later" in reason) != is_off
    decided = modes.with_mode(cell, mode)
    assert decided.config["logger"]["name"] == ("csv" if is_off else "wandb")
    assert decided.signature == cell.signature


def test_what_wandbs_own_command_switched_off_is_off(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    (tmp_path / "settings").write_text("[default]\nmode = disabled\n")
    assert settle() == ("none", "W&B: off (wandb disabled); metrics are in the ledger")
    (tmp_path / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert "http://127.0.0.1:9 does not answer" in settle()[1]  # of `wandb login --host`


@pytest.mark.parametrize("url", ["foo", "http://", "http://host:x", "http://me:secret@"])
def test_an_address_that_is_no_host_is_one_line_that_names_the_variable(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", url)
    with pytest.raises(
        ConfigError, match=r"^W&B's settings: WANDB_BASE_URL: .*set logger=csv$"
    ) as e:
        settle()
    assert "secret" not in str(e.value)


def test_a_project_of_the_environment_is_not_read_and_that_is_said(
    settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "a/b")
    assert settle()[1].endswith("logger.project=capsweep, WANDB_PROJECT is not read")
    with pytest.raises(ConfigError, match=r"logger\.project must be a name .*, got a/b"):
        settle("logger.project=a/b")
