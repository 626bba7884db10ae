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
LOGIN = {"WANDB_API_KEY": KEY}


@pytest.fixture
def settle(
    small_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Settle:
    """Decides for a cell with logger=wandb, further overrides, variables, and what W&B's own
    commands have written."""
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))

    def decide(*overrides: str, settings: str = "", **variables: str) -> tuple[str, str]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "settings").write_text(f"[default]\n{settings}\n")
        return modes.decide_mode(small_cell("logger=wandb", *overrides).config)

    return decide


@pytest.mark.parametrize(
    ("given", "mode", "words"),
    [
        ({}, "offline", "nobody is logged in"),
        ({"WANDB_MODE": "dryrun"}, "offline", "upload later"),  # W&B's old word for offline
        ({"WANDB_MODE": "disabled"}, "none", "W&B: off (wandb disabled); metrics are in the"),
        ({"settings": "mode = disabled"}, "none", "W&B: off (wandb disabled); metrics are in the"),
        (
            {**LOGIN, "settings": "base_url = http://127.0.0.1:9"},  # of `wandb login --host`
            "offline",
            "http://127.0.0.1:9 does not answer",
        ),
    ],
)
def test_what_is_there_decides_and_is_said(
    given: dict[str, str], mode: str, words: str, settle: Settle, small_cell: Callable[..., Cell]
) -> None:
    found, reason = settle(**given)
    assert found == mode
    assert words in reason
    assert ("upload later" in reason) == (mode == "offline")
    cell = small_cell("logger=wandb")
    decided = cell.with_mode(mode)
    assert decided.config["logger"]["name"] == ("csv" if mode == "none" else "wandb")
    assert decided.signature == cell.signature


def test_with_a_login_it_is_online_where_the_host_or_the_proxy_on_the_way_answers(
    settle: Settle, server: WandbServer
) -> None:
    address = server.url.removeprefix("http://")
    assert settle(WANDB_BASE_URL=f"http://someone:secret@{address}")[0] == "online"
    assert settle("logger.mode=offline")[0] == "offline"
    mode, reason = settle(WANDB_BASE_URL="http://someone:secret@wandb.invalid")
    assert mode == "offline"
    assert "http://wandb.invalid does not answer" in reason  # neither key nor password
    assert settle(HTTP_PROXY=address)[0] == "online"
    assert settle(NO_PROXY="wandb.invalid")[0] == "offline"
    server.faults.clear()  # it is no proxy, and refuses what a proxy is asked


def test_a_server_whose_name_is_looked_up_without_end_does_not_answer(
    settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: end.wait() and [])
    monkeypatch.setattr(modes, "PROBE_SECONDS", 0.1)
    assert settle(**LOGIN, WANDB_BASE_URL="http://wandb.invalid")[0] == "offline"
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
    assert modes.remove_keys(f"{KEY} and of-netrc are wrong") == "(key) and (key) are wrong"


ADDRESS = r"^W&B's settings: WANDB_BASE_URL: .*set logger=csv$"


@pytest.mark.parametrize(
    ("override", "url", "message"),
    [
        ("logger.mode=online", None, "wandb login"),
        ("logger.project=a/b", None, r"logger\.project must be a name .*, got a/b"),
        *(("seed=0", url, ADDRESS) for url in ("foo", "http://host:x", "http://me:secret@")),
    ],
)
def test_what_cannot_be_is_one_line_with_the_cure(
    override: str, url: str | None, message: str, settle: Settle
) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        settle(override, **({} if url is None else {**LOGIN, "WANDB_BASE_URL": url}))
    assert "secret" not in str(refusal.value)
