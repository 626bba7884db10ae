"""The Makefile: it documents itself, and its variables reach the command as typed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from capsweep.cli.parser import parse_arguments
from capsweep.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]
MAKEFILE = (REPOSITORY / "Makefile").read_text()
OF_SHARDS = {"PAIRS", "SHARDS"}
NAMES = set(re.findall(r"^#: ([A-Z_]+)=", MAKEFILE, re.MULTILINE)) - {"ARGS"}
ODD = ["/tmp/it's a; place", "$HOME $(HOME) ${HOME} $$ `id`", r'\ "x" # | & > * ~ %', ", ("]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run_make(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """make, without what the make that may run these tests was told."""
    told = {"MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL"}
    environment = {name: value for name, value in os.environ.items() if name not in told}
    command = ["make", "--no-print-directory", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def make(*arguments: str) -> str:
    """What make prints; it must succeed."""
    done = run_make(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command_of(*arguments: str) -> list[str]:
    """The words that the shell gives to capsweep in `make ARGUMENTS`."""
    instead = r"CAPSWEEP=printf '%s\n'"
    return make("--assume-old=.venv/.ready", instead, *arguments).splitlines()


@pytest.mark.parametrize("target", ["sweep", "plan", "report", "shards", "train", "attach"])
def test_what_the_environment_names_changes_nothing(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [target, "CLUSTER=slurm"]
    typed = command_of(*words)
    assert "slurm" in typed or target in ("report", "shards", "train")
    for name in (*NAMES, "ARGS", "PYTHON"):
        monkeypatch.setenv(name, "niagara")
    assert command_of(*words) == typed


@pytest.mark.parametrize("typed", [["STORAGE=/typed"], []])
def test_a_name_of_the_command_line_reaches_commands_that_read_it_as_a_variable(
    typed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE", "/exported")
    shown = make("--assume-old=.venv/.ready", 'CAPSWEEP=echo "[$$STORAGE]"', "train", *typed)
    assert shown.split()[0] == ("[/typed]" if typed else "[]")


def test_make_alone_is_help_and_lists_every_target() -> None:
    text = make()
    assert text == make("help")
    for target in ("setup", "sweep", "plan", "report", "train", "shards", "test", "check"):
        assert f"  {target} " in text
    assert "ROUTING=1,3" in text


def test_variables_become_flags() -> None:
    choices = ["ROUTING=3", "SEEDS=0", "DATASET=mnist", "DATA_DIR=../shared/data", "EPOCHS=2"]
    assert command_of("sweep", *choices) == [
        *["sweep", "ablation", "--routing", "3", "--dataset", "mnist", "--seeds", "0"],
        *["--epochs", "2", "--data-dir", "../shared/data"],
    ]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", sorted(NAMES - {"PUBLISH", "DETACH"}))
def test_odd_values_survive_make_and_the_shell(name: str, odd: str) -> None:
    target = "shards" if name in OF_SHARDS else "report" if name == "EVALS" else "sweep"
    assert odd in command_of(target, f"{name}={odd}")


def test_to_publish_is_said_by_one_and_by_nothing_else() -> None:
    assert command_of("report", "PUBLISH=1") == ["report", "ablation", "--publish"]
    ended = run_make("--assume-old=.venv/.ready", "report", "PUBLISH=docs/page.md")
    assert ended.returncode == 2
    assert "PUBLISH=1 renews sweeps/NAME.md; it takes no other value" in ended.stderr


def test_shards_are_told_what_to_make_and_where() -> None:
    places = [f"STORAGE={ODD[0]}", f"DATA_DIR={ODD[1]}", "RAY_ADDRESS=head:6379"]
    what = ["DATASET=multimnist", "PAIRS=1000", "SHARDS=600"]
    assert command_of("shards", *what, *places, "ARGS=--dry-run dataset.batches.seed=1") == [
        *["data", "make", "multimnist", "--pairs", "1000", "--shards", "600"],
        *["--storage", ODD[0], "--data-dir", ODD[1], "--address", "head:6379"],
        *["--dry-run", "dataset.batches.seed=1"],
    ]


def test_a_store_that_is_no_more_is_refused() -> None:
    with pytest.raises(UserError, match="--store is no more: leave it out"):
        parse_arguments(command_of("shards", "STORE=virtual"))


def test_a_sweep_on_a_cluster_is_detached_watched_and_stopped() -> None:
    assert command_of("sweep", "CLUSTER=aws", "DETACH=1") == [
        *["sweep", "ablation", "--cluster", "aws", "--detach"]
    ]
    assert run_make("--assume-old=.venv/.ready", "sweep", "DETACH=no").returncode == 2
    for target in ("attach", "stop"):
        words = command_of(target, f"SWEEP={ODD[0]}", "CLUSTER=aws")
        assert words == [target, ODD[0], "--cluster", "aws"]


def test_arguments_are_words_of_the_shell() -> None:
    words = command_of("train", "ARGS='limit_batches=${epochs}' seed=1")
    assert words == ["train", "limit_batches=${epochs}", "seed=1"]
