"""`capsweep train` is a Hydra application."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep import cli

Capture = pytest.CaptureFixture[str]
Capsweep = Callable[..., subprocess.CompletedProcess[str]]


def test_help_lists_groups_keys_and_examples(capfd: Capture) -> None:
    with pytest.raises(SystemExit, match="0"):  # Hydra ends the process
        cli.main(["train", "--help"])
    said = capfd.readouterr().out
    for text in ("digits, fashion_mnist, mnist, multimnist", "num_iters: 3", "debug=fast"):
        assert text in said


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("capsweep train routing=", "routing=dynamic"),
        ("capsweep train dataset=m", "dataset=mnist"),
        ("capsweep train routing.num", "routing.num_iters="),
    ],
)
def test_the_shell_completes_groups_options_and_keys(
    capsweep: Capsweep, typed: str, offered: str
) -> None:
    said = capsweep("-sc", "query=bash", COMP_LINE=typed, COMP_POINT=str(len(typed)))
    assert offered in said.stdout.split()


def test_debug_fast_is_a_run_of_two_steps_that_writes_into_its_storage_alone(
    own_folder: Path, capfd: Capture
) -> None:
    assert cli.main(["train", "debug=fast", "logger=csv"]) == 0
    assert [path.name for path in own_folder.iterdir()] == ["outputs"]
    result = json.loads(next(own_folder.rglob("result.json")).read_text())
    assert result["steps"] == 2
    said = capfd.readouterr().out
    assert "epoch 0:" in said
    assert "test/error" in said


def test_a_failing_cell_is_one_line_and_status_1(tmp_path: Path, capfd: Capture) -> None:
    diverges = ["model=cnn_small", "optim.optimizer.lr=1e18", "debug=fast", "limit_batches=5"]
    assert cli.main(["train", *diverges, "logger=csv", f"places.storage={tmp_path}"]) == 1
    error = capfd.readouterr().err
    assert "error: NonFiniteLossError: the loss was not finite at step" in error
    assert "Traceback" not in error
