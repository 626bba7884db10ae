"""The Makefile: it documents itself, and its variables reach the command as typed."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MAKEFILE = (REPOSITORY / "Makefile").read_text()
# Names of make's command line, each with the first target that takes it.
TARGETS = {
    name: targets.split()[0]
    for targets, name in re.findall(r"^#: ([a-z -]+) \| ([A-Z_]+)=", MAKEFILE, re.MULTILINE)
    if targets != "any"
}
NAMES = set(TARGETS) - {"ARGS"}
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
    words = [target, "STORAGE=typed"] if target in ("report", "shards") else [target]
    typed = command_of(*words)
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
        *["sweep", "ablation", "ROUTING=3", "DATASET=mnist", "SEEDS=0"],
        *["EPOCHS=2", "DATA_DIR=../shared/data"],
    ]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", sorted(NAMES - {"PUBLISH", "DETACH"}))
def test_odd_values_survive_make_and_the_shell(name: str, odd: str) -> None:
    assert odd in command_of(TARGETS[name], f"{name}={odd}")


def test_to_publish_is_said_by_one_and_by_nothing_else() -> None:
    assert command_of("report", "PUBLISH=1") == ["report", "ablation", "--publish"]
    ended = run_make("--assume-old=.venv/.ready", "report", "PUBLISH=docs/page.md")
    assert ended.returncode == 2
    assert "PUBLISH=1 renews sweeps/NAME.md; it takes no other value" in ended.stderr


def test_shards_are_told_what_to_make_and_where() -> None:
    places = [f"STORAGE={ODD[0]}", f"DATA_DIR={ODD[1]}", "RAY_ADDRESS=head:6379"]
    what = ["DATASET=multimnist", "PAIRS=1000", "SHARDS=600"]
    assert command_of("shards", *what, *places, "ARGS=--dry-run dataset.batches.seed=1") == [
        *["data", "make", "multimnist", "PAIRS=1000", "SHARDS=600"],
        *[f"STORAGE={ODD[0]}", f"DATA_DIR={ODD[1]}", "RAY_ADDRESS=head:6379"],
        *["--dry-run", "dataset.batches.seed=1"],
    ]


def test_a_cell_is_reproduced_with_data_from_where_make_says() -> None:
    words = ["ledger", "DATA_DIR=/data", "ARGS=reproduce 12ab --run"]
    shown = make("--assume-old=.venv/.ready", 'CAPSWEEP=echo "[$$DATA_DIR]"', *words)
    assert shown.split() == ["[/data]", "ledger", "reproduce", "12ab", "--run"]


@pytest.fixture
def make_tests(tmp_path: Path) -> Callable[..., str]:
    """What a target of tests prints, where Python shows its words, and whether it sees a GPU."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()

    def run(target: str, sees: bool) -> str:
        python.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo {sees}; else echo "$@"; fi\n')
        python.chmod(0o755)
        return make(f"--assume-old={tmp_path}/.ready", f"VENV={tmp_path}", target, "ARGS=-q")

    return run


@pytest.mark.parametrize("sees", [True, False])
def test_tests_that_need_a_gpu_are_left_out_in_one_line(
    sees: bool, make_tests: Callable[..., str]
) -> None:
    for target, left_out in (("test", "not slow and not gpu"), ("test-all", "not gpu")):
        said, command = make_tests(target, sees).splitlines()
        assert said.startswith("left out: ")
        assert "gpu (make test-gpu)" in said
        assert f"-m {left_out} " in command


def test_tests_that_need_a_gpu_run_where_there_is_one(make_tests: Callable[..., str]) -> None:
    assert make_tests("test-gpu", sees=False) == "no GPU here\n"
    words = make_tests("test-gpu", sees=True).split()
    assert words[:4] == ["-m", "pytest", "-m", "gpu"]
    assert words[-1] == "-q"
    marked = re.compile(r"^@pytest\.mark\.gpu|return pytest\.mark\.gpu", re.MULTILINE)
    files = [p for p in REPOSITORY.glob("tests/**/test_*.py") if marked.search(p.read_text())]
    assert len(files) >= 3
    assert {str(path.relative_to(REPOSITORY)) for path in files} <= set(words)


def test_a_sweep_on_a_cluster_is_detached_watched_and_stopped() -> None:
    assert command_of("sweep", "CLUSTER=aws", "DETACH=1") == [
        *["sweep", "ablation", "CLUSTER=aws", "--detach"]
    ]
    assert run_make("--assume-old=.venv/.ready", "sweep", "DETACH=no").returncode == 2
    for target in ("attach", "status", "stop"):
        words = command_of(target, f"SWEEP={ODD[0]}", "CLUSTER=aws", "RAY_ADDRESS=http://head")
        assert words == [target, ODD[0], "CLUSTER=aws", "RAY_ADDRESS=http://head"]
    assert command_of("status") == ["status"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sweep ROUTNG=3", "ROUTNG is no name that make sweep takes; did you mean ROUTING?"),
        ("sweep routing=3", "routing is no name that make sweep takes; did you mean ROUTING?"),
        ("sweep LR=0.1", 'a run go into ARGS="optim.optimizer.lr=0.1", variables of the'),
        ("sweep loss=margin", 'a run go into ARGS="loss=margin"'),
        ("sweep HOURS=8", "did you mean MAX_HOURS?"),
        ("sweep DATA=mnist", "did you mean DATASET?"),
        ("sweep ADDRESS=x", "did you mean RAY_ADDRESS?"),
        ("shards STORE=virtual", "it is no more: leave it out, shards hold pixels"),
        ("train ROUTING=3", "ROUTING is not a name of make train; its names are ARGS, DATA_DIR, "),
        ("plan EXECUTOR=local", "EXECUTOR is not a name of make plan; its names are ARGS, ARMS, "),
        ("train plan EXECUTOR=local", "EXECUTOR is not a name of make train, plan; its names are"),
        ("check ARGS=src", "ARGS is not a name of make check; it takes none"),
        ("sweep WANDB_MOD=offline -n", "did you mean WANDB_MODE?"),
    ],
)
def test_a_name_that_its_targets_do_not_take_is_refused(words: str, message: str) -> None:
    ended = run_make("CAPSWEEP=echo", "PYTHON=/nowhere", *words.split())
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ")
    assert message in ended.stderr


@pytest.mark.parametrize("words", ["nosuch ROUTING=3", "cluster-up CLUSTER=aws", "nosuch A=1"])
def test_a_target_that_is_none_is_named(words: str) -> None:
    assert "No rule to make target" in run_make(*words.split()).stderr


def test_variables_of_the_environment_may_stand_beside_names() -> None:
    words = ["RAY_AUTH_MODE=token", "AWS_PROFILE=me", "CAPSWEEP_ROUNDS=3", "NO_COLOR=1"]
    assert command_of("status", *words) == ["status"]


def test_the_ledger_is_named_to_the_command_and_not_to_what_reads_its_lines() -> None:
    words = command_of("ledger", "LEDGER=a b", "ARGS=ls --json | sed s/^/read:/")
    assert words == ["read:ledger", "read:ls", "read:--ledger", "read:a b", "read:--json"]


def test_a_make_within_a_make_has_names_of_the_outer_one(tmp_path: Path) -> None:
    outer = tmp_path / "Makefile"
    inner = f"--no-print-directory --assume-old=.venv/.ready -C {REPOSITORY} sweep ARMS=cnn"
    outer.write_text(f"all: ; @$(MAKE) {inner} $(MORE)")
    words = ["-f", str(outer), "CAPSWEEP=echo", "FOO=1", "PAIRS=9"]
    assert make(*words) == "sweep ablation ARMS=cnn\n"
    ended = run_make(*words, "MORE=ROUTNG=3")
    assert ended.returncode == 2
    assert "did you mean ROUTING?" in ended.stderr


def list_commands() -> set[str]:
    """Every make command of the documentation."""
    pages = [
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("docs/**/*.md"),
        *REPOSITORY.glob("sweeps/*.*"),
    ]
    texts = [page.read_text().replace("\\\n", " ") for page in pages if page.name != "CHANGELOG.md"]
    patterns = r"^make (.*?)(?:  .*)?$", r"`make ([^`]*)`"
    return {line for text in texts for p in patterns for line in re.findall(p, text, re.MULTILINE)}


def test_every_command_of_the_documentation_is_accepted() -> None:
    commands = list_commands()
    assert len(commands) > 80
    for command in commands:
        ended = run_make("-n", "--assume-old=.venv/.ready", *shlex.split(command))
        assert "nothing was run" not in ended.stderr, command


def test_arguments_are_words_of_the_shell() -> None:
    words = command_of("train", "ARGS='limit_batches=${epochs}' seed=1")
    assert words == ["train", "limit_batches=${epochs}", "seed=1"]
