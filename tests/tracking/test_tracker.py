"""W&B can neither stop nor lose training; online only with a login and a host that answers."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.config import compose, places
from capsweep.config.cell import Cell, flat
from capsweep.errors import ConfigError
from capsweep.tracking import mode as modes
from capsweep.tracking import tracker as trackers
from capsweep.tracking.tracker import Tracker
from capsweep.training.run import run

KEY = "local" + "0" * 35


class Breaking:
    """A logger whose every call fails, as W&B's may."""

    def log(self, row: dict) -> None:
        raise ConnectionError("the server went away")


def test_a_fault_is_said_once_and_ends_tracking(capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Tracker(Breaking)
    for epoch in range(3):
        tracker.log({"epoch": epoch})
    tracker.close(0)
    assert tracker.fault == "ConnectionError: the server went away"
    assert capsys.readouterr().err.count("this cell goes on without it") == 1


def test_training_finishes_without_wandb_and_the_result_says_so(
    small_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise ConnectionError("no W&B today")

    monkeypatch.setattr(trackers, "_open", refuse)
    cell = small_cell("logger=wandb", "logger.mode=offline")
    result = run(cell, places.resolve(cell.config["places"]))
    assert result["status"] == "finished"
    assert result["tracking_fault"] == "ConnectionError: no W&B today"


def test_flat_configuration_has_dotted_columns() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": [2]}, "e": None}) == {"a.b.c": 1, "a.d": [2], "e": None}


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


def test_with_a_login_and_a_host_that_answers_it_is_online(
    small_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        assert settle(small_cell)[0] == "online"
        assert settle(small_cell, "logger.mode=offline")[0] == "offline"


def test_a_login_in_netrc_counts(
    small_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login user password {KEY}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert modes.has_login("http://127.0.0.1:1")
    assert not modes.has_login("http://localhost:1")


def test_online_without_a_login_is_an_error_with_the_cure(
    small_cell: Callable[..., Cell],
) -> None:
    with pytest.raises(ConfigError, match="wandb login"):
        settle(small_cell, "logger.mode=online")


def test_the_digits_of_a_composed_data_set_are_a_column() -> None:
    settings = [
        trackers.columns(compose.cell(["dataset=multimnist", f"dataset.source={source}"]))
        for source in ("mnist", "digits")
    ]
    assert [one["dataset.source"] for one in settings] == ["mnist", "digits"]
    assert [one["dataset.name"] for one in settings] == ["multimnist", "multidigits"]
