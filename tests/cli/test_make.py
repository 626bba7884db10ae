"""The Makefile: its words reach the command as they were typed, and unknown ones are refused."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.config import words
from capsweep.config.words import WORDS

REPOSITORY = Path(__file__).resolve().parents[2]
ODD = ["/tmp/it's a; place", "$HOME $(HOME) ${HOME} $$ `id`", r'\ "x" # | & > * ~ %', ", ("]
# Stands for Python of the environment: it prints what stands after `capsweep`, a line a word.
SHOW = """\
import os, sys
from capsweep.config.words import list_arguments
if sys.argv[1:4] == ["-m", "capsweep", "--make"]:
    shown = list_arguments(sys.argv[4], sys.argv[5:], os.environ.get("MAKEFLAGS", ""))
    print(*shown, os.environ.get("WANDB_MODE", ""), sep="\\n")
elif sys.argv[1] == "-c":
    print(os.environ["SEES_A_GPU"])
else:
    print(*sys.argv[1:])
"""
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run_make(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """make, without what the make that may run these tests was told."""
    told = {"MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS"}
    kept = {name: value for name, value in os.environ.items() if name not in told}
    command = ["make", "--no-print-directory", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=kept | environment
    )


@pytest.fixture
def show(tmp_path: Path) -> Callable[..., list[str]]:
    """The words after `capsweep` that a command line of make gives."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    (tmp_path / "show.py").write_text(SHOW)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/show.py "$@"\n')
    python.chmod(0o755)

    def run(*arguments: str, **environment: str) -> list[str]:
        ready = [f"--assume-old={tmp_path}/.ready{added}" for added in ("", "-test")]
        done = run_make(*ready, f"VENV={tmp_path}", *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_make_alone_is_help_and_lists_targets_and_words() -> None:
    text = run_make().stdout
    assert text == run_make("help").stdout
    for target in ("setup", "sweep", "plan", "report", "train", "shards", "test", "check"):
        assert f"  {target} " in text
    assert all(f"  {word.name}={word.example} " in text for word in WORDS)
    groups = ("\nuse:", "\n  sweep ", "\ncluster:", "\n  stop ", "\ndevelop:", "\n  test ")
    assert [*groups] == sorted(groups, key=text.index)


def test_words_are_those_of_the_command(tmp_path: Path) -> None:
    typed = ["ROUTING=3", "SEEDS=5", "optim.optimizer.lr=0.01,0.003", f"STORAGE={tmp_path}"]
    # An environment that is older than pyproject.toml would be set up again first, and say so.
    made = run_make("--assume-old=.venv/.ready", "plan", *typed, "ARGS=--json")
    command = [sys.executable, "-m", "capsweep", "plan", "ablation", *typed, "--json"]
    by_itself = subprocess.run(command, capture_output=True, text=True, check=True)
    assert made.stdout == by_itself.stdout


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["STORAGE", "optim.optimizer.lr"])
def test_odd_values_survive_make_and_the_shell(
    name: str, odd: str, show: Callable[..., list[str]]
) -> None:
    assert f"{name}={odd}" in show("train", f"{name}={odd}")


def test_words_keep_the_order_in_which_they_were_typed(show: Callable[..., list[str]]) -> None:
    typed = ["SEEDS=1", "a.b=1,2", "ROUTING=3", "c=x"]
    assert show("sweep", *typed, "ARGS=mine --dry-run")[:-1] == [
        *("sweep", "mine", "--dry-run"), *typed,
    ]  # fmt: skip
    assert show("shards", "PAIRS=2")[:-1] == ["data", "make", "PAIRS=2"]
    assert show("wandb-sync")[:-1] == ["wandb", "sync"]


def test_variables_of_the_environment_are_no_words(show: Callable[..., list[str]]) -> None:
    assert show("sweep", ROUTING="3", SEEDS="1")[:-1] == ["sweep"]
    assert show("status", "WANDB_MODE=offline", "NO_COLOR=1") == ["status", "offline"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("sweep ROUTNG=3", "ROUTNG is no word of sweep; did you mean ROUTING?"),
        ("sweep HOURS=8", "did you mean MAX_HOURS?"),
        ("sweep ADDRESS=x", "did you mean RAY_ADDRESS?"),
        ("sweep LR=0.1", "to set a key of conf/, type the key itself: optim.optimizer.lr=0.1"),
        ("plan EXECUTOR=local", "EXECUTOR is no word of plan; its words are SWEEP, ROUTING, "),
        ("train plan SHARD=1/2", "SHARD is no word of train, plan; its words are "),
        ("check ROUTING=3", "ROUTING is no word of check; it takes none"),
        ("check epochs=3", "epochs is no word of check; it takes none"),
        ("-e plan SEEDS=3", "make -e hides the words that were typed; leave -e out"),
    ],
)
def test_a_word_that_no_target_takes_is_refused_before_anything_runs(
    typed: str, message: str
) -> None:
    ended = run_make("VENV=/nowhere", *typed.split())
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ")
    assert message in ended.stderr


def test_tests_that_need_a_gpu_run_where_there_is_one(show: Callable[..., list[str]]) -> None:
    assert show("test-gpu", SEES_A_GPU="False") == ["no GPU here"]
    (line,) = show("test-gpu", "ARGS=-q", SEES_A_GPU="True")
    typed = line.split()
    assert typed[:4] == ["-m", "pytest", "-m", "gpu"]
    assert typed[-1] == "-q"
    marked = re.compile(r"^@pytest\.mark\.gpu|return pytest\.mark\.gpu", re.MULTILINE)
    files = [p for p in REPOSITORY.glob("tests/**/test_*.py") if marked.search(p.read_text())]
    assert len(files) >= 3
    assert {str(path.relative_to(REPOSITORY)) for path in files} <= set(typed)


def test_every_command_of_the_documentation_is_accepted() -> None:
    pages = [
        path for kind in ("*.md", "docs/**/*.md", "sweeps/*.*") for path in REPOSITORY.glob(kind)
    ]
    texts = [page.read_text().replace("\\\n", " ") for page in pages if page.name != "CHANGELOG.md"]
    patterns = r"^make (.*?)(?:  .*)?$", r"`make ([^`]*)`"
    found = (re.findall(p, text, re.MULTILINE) for text in texts for p in patterns)
    commands = {line for lines in found for line in lines}
    assert len(commands) > 80
    for command in commands:
        typed = [word for word in shlex.split(command) if word != "..."]
        targets = [word for word in typed if "=" not in word]
        flags = " -- " + " ".join(word.replace(" ", "\\ ") for word in typed if "=" in word)
        words.check_makeflags(targets, flags)


def test_the_list_of_words_in_the_docs_is_that_of_the_code() -> None:
    page = (REPOSITORY / "docs" / "words.md").read_text()
    assert words.describe_words() in page, "python3 src/capsweep/config/words.py list prints it"


LISTED = """\
:env:.find-links='/a /b'
global.extra-index-url='file:///x http://y'
global.find-links='/never'
list.format='columns'
"""


def test_uv_is_told_what_pip_is_told() -> None:
    read = runpy.run_path(str(REPOSITORY / ".ci" / "install.py"))["read_pip_settings"]
    indexes = {"UV_INDEX": "file:///x http://y", "UV_INDEX_STRATEGY": "unsafe-best-match"}
    assert read(LISTED) == {"UV_FIND_LINKS": "/a,/b", **indexes}
