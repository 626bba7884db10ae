"""The words of a command line, such as `EPOCHS=5`, and the table that defines them.

A word is `NAME=value` with a name of this table, or `key=value` with any key of conf/. A word with
a list of values is an axis. The same words follow `make TARGET` and `capsweep COMMAND`. They are
also used in the command line of a cluster's job, in the name of a report's folder and in the tags
of W&B. To add a word, add its row below. A word that sets a key of conf/ needs no other code.
docs/words.md has the list that this module prints.

This module needs only Python itself, so that make can use it before there is an environment:

    python3 words.py help Makefile          prints the targets and the words
    python3 words.py check TARGET ...       reports words of MAKEFLAGS that no target takes
    python3 words.py list                   prints the list of docs/words.md
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

# Each row is a word: NAME=example | targets of make and commands of capsweep that take the word |
# key of conf/ that the word sets, if any | meaning. SEVERAL lists the targets behind SWEEPS, RUNS,
# CELLS and JOBS.
TABLE = """
SWEEP=ablation | SWEEPS attach status stop | | a file of sweeps/ (default: ablation) or a path
ROUTING=3,uniform | SWEEPS | | iterations (numbers) and routings (names), for networks that route
RECON=on,off | SWEEPS | | reconstruction on or off, or its weights
SEEDS=3 | SWEEPS | | a number of seeds, or a list: 0,1,7 or 7,
ARMS=capsnet | SWEEPS | | only these arms and the baseline
BASELINE=capsnet | SWEEPS | | the arm whose first row all other rows are compared with
ZIP=epochs,batch_size | SWEEPS | | axes that change together; several groups: 'a,b;c,d'
EXCLUDE='a=1 b=2' | SWEEPS | | leave out cells with all these values; several: 'a=1;b=2'
METRIC=test/loss | SWEEPS | | the metric of the table
MODEL=capsnet | RUNS | model | the network, for arms that route
EPOCHS=5 | RUNS | epochs | epochs of each cell
BATCH=64 | RUNS | batch_size | batch size of each cell
RERUN=stale | RUNS | rerun | repeat cells that other code made; RERUN=always: all cells
DATASET=mnist | RUNS shards | dataset | a file of conf/dataset; for shards a file of data_prep
DATA_DIR=path | CELLS shards data | places.data | the folder of data sets (default: STORAGE/data)
STORAGE=path | CELLS shards wandb-sync | places.storage | the folder of results (default: outputs)
LEDGER=path | CELLS wandb-sync | places.ledger | also s3://bucket/x (default: STORAGE/ledger)
EXECUTOR=local | sweep shards | | ray (default), local (in this process); for a sweep also array
SHARD=2/8 | sweep | | with EXECUTOR=array: run the second of eight parts of the cells here
BUDGET=9m | sweep | | start only cells that should end within this time: 90s, 9m, 2h
MAX_HOURS=8 | sweep | | stop cells at an epoch's end after these hours; type it again to continue
RETRY=failed | sweep | | also run cells that failed before with the same code
CLUSTER=slurm | JOBS | | a file of conf/cluster: local (default), address, slurm
RAY_ADDRESS=head:6379 | JOBS shards | | a running Ray; for jobs also http://head:8265
PAIRS=1000 | shards | | examples made from each digit of training and test
SHARDS=600 | shards | | files of the training split (default: one for 100,000 examples)
"""
TABLE_OF_MAKE = """
ARGS=--json | any | | options, and words that make cannot pass on
PYTHON=python3.12 | any | | makes the environment (default: the first Python 3.11 or 3.12)
VENV=.venv | any | | the folder of the environment
"""
SEVERAL = {
    "SWEEPS": "sweep plan report eval dashboard",
    "RUNS": "sweep plan report eval dashboard train",
    "CELLS": "sweep plan report eval dashboard train ledger doctor",
    "JOBS": "sweep plan attach status stop",
}


@dataclass(frozen=True)
class Word:
    """A word: a short name and what it stands for."""

    name: str  # such as EPOCHS
    example: str  # an example of a value
    targets: str  # targets of make that take the word, with blanks between them
    key: str  # key of conf/ that the word sets; empty if the word sets no key
    meaning: str  # for help and docs/words.md

    @property
    def is_place(self) -> bool:
        """Whether the word sets a key of `places`, so that its value is a path or a URL."""
        return self.key.startswith("places.")


def _read_row(row: str) -> Word:
    word, targets, key, meaning = (field.strip() for field in row.split("|"))
    name, _, example = word.partition("=")
    each = " ".join(SEVERAL.get(target, target) for target in targets.split())
    return Word(name, example, each, key, meaning)


WORDS = [*map(_read_row, TABLE.strip().splitlines())]
OF_MAKE = [*map(_read_row, TABLE_OF_MAKE.strip().splitlines())]
# Words that choose which cells a table has and what the table shows.
GRID = [word for word in WORDS if word.targets == SEVERAL["SWEEPS"] and not word.key]
BY_NAME = {word.name: word for word in WORDS}
NAMES_BY_KEY = {word.key: word.name for word in WORDS if word.key}

# Targets of make whose command has another name in capsweep.
COMMANDS = {"shards": "data make", "wandb-sync": "wandb sync", "dashboard": "wandb dashboard"}

NAME = re.compile(r"([A-Z][A-Z_]*)=(.*)", re.DOTALL)
# Variables of the environment that may be typed among the words of make; make exports them.
ENVIRONMENT = re.compile(
    r"(AWS|CAPSWEEP|CUDA|HTTPS?|OMP|RAY|WANDB|PYTHON)_\w+|COLUMNS|NO_COLOR|PYTHONPATH"
)


class WordError(ValueError):
    """An error in the words that a user typed; the message says what to type instead."""


def list_words(target: str) -> list[Word]:
    """List the words that a target or command takes, in the order of the table."""
    return [word for word in WORDS if target in word.targets.split()]


def split_words(target: str, typed: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of the typed words, by name, and a list of all other typed texts.

    A word with an empty value counts as not typed.

    Args:
        target: The target or command that the words follow.
        typed: The texts of the command line.

    Raises:
        WordError: If the target does not take a word, or if a word is typed twice.
    """
    values: dict[str, str] = {}
    rest = []
    for text in typed:
        match = NAME.fullmatch(text)
        if match is None:
            rest.append(text)
            continue
        name, value = match.groups()
        check_name(name, value, [target])
        if name in values:
            raise WordError(f"{name} is typed twice; keep one, with a list of values")
        values[name] = value
    return {name: value for name, value in values.items() if value.strip()}, rest


def check_name(name: str, value: str, targets: list[str]) -> None:
    """Raise WordError if none of the targets takes a word of this name."""
    taken = dict.fromkeys(word.name for target in targets for word in list_words(target))
    if name in taken:
        return
    commands = ", ".join(targets)
    if name in BY_NAME:
        have = f"its words are {', '.join(taken)}" if taken else "it takes none"
        raise WordError(f"{name} is no word of {commands}; {have}")
    near = difflib.get_close_matches(name.upper(), [*taken], 1)
    cure = f"did you mean {near[0]}?" if near else "to set a key of conf/, type the key itself"
    example = "" if near else f": optim.optimizer.lr={value or 0.1}"
    raise WordError(f"{name} is no word of {commands}; {cure}{example}")


def read_makeflags(flags: str) -> list[str]:
    """Read the words of make's command line, as they were typed, from the variable MAKEFLAGS.

    make writes the words in reverse order, with a backslash before blanks and backslashes, and
    with each dollar sign doubled.

    Raises:
        WordError: If `make -e` was typed, because MAKEFLAGS then does not have the words.
    """
    _, marker, text = f" {flags}".partition(" -- ")
    if "$(MAKEOVERRIDES)" in text:
        raise WordError("make -e hides the words that were typed; leave -e out")
    words = re.findall(r"(?:\\.|[^\\ \t])+", text, re.DOTALL) if marker else []
    plain = [re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL).replace("$$", "$") for word in words]
    return [re.sub(r"^([\w./]+)\s*:{1,3}=", r"\1=", word) for word in reversed(plain)]


def find_target(arguments: Sequence[str]) -> str:
    """Return the target of make that runs the command in `arguments`; empty without a command."""
    names = [w for w in arguments if not (w.startswith("-") or NAME.fullmatch(w))][:2]
    targets = {command: target for target, command in COMMANDS.items()}
    return targets.get(" ".join(names), names[0] if names else "")


def list_arguments(target: str, arguments: list[str], flags: str) -> list[str]:
    """List the arguments of `capsweep` for a target of make: command, ARGS, words of MAKEFLAGS.

    Args:
        target: The target, such as `sweep`.
        arguments: The words of ARGS.
        flags: The variable MAKEFLAGS.
    """
    return [*COMMANDS.get(target, target).split(), *arguments, *select_words(flags)]


def select_words(flags: str) -> list[str]:
    """List the words of MAKEFLAGS, except variables of make and of the environment."""
    own = [word.name for word in OF_MAKE]
    words = [(word.partition("=")[0], word) for word in read_makeflags(flags)]
    return [
        word
        for name, word in words
        if name in BY_NAME or not (name in own or ENVIRONMENT.fullmatch(name))
    ]


def check_makeflags(targets: list[str], flags: str) -> None:
    """Raise WordError if MAKEFLAGS has a word that none of the targets takes."""
    for word in select_words(flags):
        name, _, value = word.partition("=")
        if NAME.match(word):
            check_name(name, value, targets)
        elif not any(map(list_words, targets)):
            raise WordError(f"{name} is no word of {', '.join(targets)}; it takes none")


def describe_words(target: str = "") -> str:
    """Write a line of help for each word of a target; without a target, for all words."""
    lines, shown = [], ""
    for word in list_words(target) if target else (*WORDS, *OF_MAKE):
        if not target and word.targets != shown:
            lines.append(f" {word.targets.replace(' ', ', ')}:")
            shown = word.targets
        key = f" [{word.key}]" if word.key else ""
        lines.append(f"  {word.name + '=' + word.example:<22} {word.meaning}{key}")
    return "\n".join(lines)


def describe_make(makefile: str) -> str:
    """Write what `make help` prints: each target below its group, then each word."""
    found = re.findall(r"^(?:### (.*)|([a-z-]+):.*?## (.*))$", makefile, re.MULTILINE)
    lines = [f"{group}:" if group else f"  {name:<12} {text}" for group, name, text in found]
    lines.insert(0, "usage: make TARGET [NAME=value ...] [key=value ...]")
    lines.append("words, below the targets that take them, and any key of conf/:")
    return "\n".join([*lines, describe_words()])


def main(arguments: list[str]) -> int:
    """Print help or the list of words, or check the words of make.

    Returns:
        The exit status: 2 if a word is wrong, else 0.
    """
    command, *rest = arguments
    if command == "help":
        with open(rest[0], encoding="utf-8") as file:
            print(describe_make(file.read()))
    elif command == "list":
        print(describe_words())
    else:
        try:
            check_makeflags(rest or ["help"], os.environ.get("MAKEFLAGS", ""))
        except WordError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
