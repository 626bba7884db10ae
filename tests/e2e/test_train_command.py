"""`capsweep train` is a Hydra application."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Capsweep = Callable[..., subprocess.CompletedProcess[str]]


def test_help_lists_groups_keys_and_examples(capsweep: Capsweep) -> None:
    said = capsweep("train", "--help").stdout
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
    capsweep: Capsweep, own_folder: Path
) -> None:
    ran = capsweep("train", "debug=fast", "logger=csv")
    assert ran.returncode == 0, ran.stderr
    assert [path.name for path in own_folder.iterdir()] == ["outputs"]
    result = json.loads(next(own_folder.rglob("result.json")).read_text())
    assert result["steps"] == 2
    assert "epoch 0:" in ran.stdout
    assert "test/error" in ran.stdout


def test_a_failing_cell_is_one_line_and_status_1(capsweep: Capsweep, tmp_path: Path) -> None:
    diverges = ["model=cnn_small", "optim.optimizer.lr=1e18", "debug=fast", "limit_batches=5"]
    ran = capsweep("train", *diverges, "logger=csv", f"places.storage={tmp_path}")
    assert ran.returncode == 1
    assert "error: NonFiniteLossError: the loss was not finite at step" in ran.stderr
    assert "Traceback" not in ran.stderr
