"""A tracking process of its own for every test, a server, and cells that are tracked."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import wandb_server
from wandb_server import WandbServer

from capsweep.config.cell import Cell
from capsweep.runtime import terminal
from capsweep.tracking import tracker
from capsweep.tracking.content import Labels
from capsweep.tracking.tracker import WandbProcess
from capsweep.training import RunHooks
from capsweep.training.run import Job, run

NAME, TAGS = "capsnet · T=3 · seed 0", ("ablation", "digits")
ROW = {"row.ablation": "capsnet · routing.num_iters=3"}
LABELS = Labels("ablation", "capsnet", NAME, "Does it?", TAGS, ROW)


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[WandbProcess]]:
    """No test has the process of another; no proxy is between it and loopback."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    terminal.print_once.cache_clear()
    own: list[WandbProcess] = []
    monkeypatch.setattr(tracker, "IDLE_PROCESSES", own)
    monkeypatch.setattr(tracker.Tracker, "faults", 0)
    yield own
    for child in own:
        child.kill()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """What a process of W&B's was asked to do by one that waits, and the seconds it was given."""
    asked, ask = [], WandbProcess.ask

    def note_request(child: WandbProcess, do: str, seconds: float, **values: Any) -> Any:
        asked.append((do, seconds))
        return ask(child, do, seconds, **values)

    monkeypatch.setattr(WandbProcess, "ask", note_request)
    return asked


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A W&B server on loopback, and a login there."""
    with wandb_server.serving_wandb() as listening:
        for name, value in listening.environment.items():
            monkeypatch.setenv(name, value)
        yield listening
        assert listening.faults == []


@pytest.fixture
def train(small_cell: Callable[..., Cell]) -> Callable[..., dict[str, Any]]:
    """Runs a small cell, tracked by default; its result. patience: seconds for W&B, of a cell on a
    busy machine."""

    def train_cell(*overrides: str, patience: float = 60, **hooks: Any) -> dict[str, Any]:
        if not any(text.startswith("logger=") for text in overrides):
            overrides = ("logger=wandb", f"logger.max_seconds={patience}", *overrides)
        cell = small_cell(*overrides)
        return run(Job(cell, LABELS), RunHooks(**hooks))

    return train_cell
