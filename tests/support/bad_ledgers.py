"""Bad stored files: a ledger in which one file is damaged."""

import json
import os
import re
from pathlib import Path
from random import Random
from typing import Any

import yaml
from bad_inputs import CODES, LONG, STORED, Base, Case, Outcome, any_end, keep, mutated, paths_of

LOOKS = (
    ("ledger", "ls"), ("ledger", "ls", "--json"), ("ledger", "show", "FIRST"),
    ("ledger", "show", "FIRST", "--json"), ("ledger", "why", "FIRST"),
    ("ledger", "why", "SECOND", "--json"), ("ledger", "compare", "FIRST", "SECOND"),
    ("ledger", "failures", "small.yaml"), ("ledger", "gc", "--dry-run"), ("ledger", "gc"),
    ("ledger", "reproduce", "FIRST"), ("ledger", "reproduce", "FAILED"),
    ("ledger", "release", "FAILED"), ("ledger", "export", "x.tar"), ("ledger", "rm", "FIRST"),
    ("ledger", "verify"), ("ledger", "verify", "SECOND"),
    ("plan", "small.yaml"), ("plan", "small.yaml", "--json"), ("report", "small.yaml"),
    ("report", "small.yaml", "--json"), ("eval", "ensemble", "small.yaml"),
    ("eval", "reconstructions", "SECOND"), ("eval", "training-loss", "FIRST"),
    ("wandb", "sync"),
)  # fmt: skip
CELL_FILES = (
    "result.json", "result.json", "config.yaml", "config.yaml", "provenance.json",
    "provenance.json", "metrics.jsonl", "predictions.npz", "weights.ckpt", "error.txt", "CLAIM",
)  # fmt: skip
KINDS = (None, 3, -4, True, "", "x", [], {}, [1], {"a": 1}, 1e400, -1e400, 10**30, LONG, CODES)


def stored_file(chance: Random, base: Base) -> Case:
    """A file of a ledger with damage; a command that reads it, or should."""
    name = chance.choice(CELL_FILES)
    cell = base.failed if name in ("error.txt", "CLAIM") else chance.choice(base.signatures[:2])
    path = (
        f"out/ledger/claims/{cell}.000001"
        if name == "CLAIM"
        else f"out/ledger/{cell[:2]}/{cell}/{name}"
    )
    content = (base.folder / path).read_bytes()
    told, new = _damage(chance, name, content)
    # A cause may be any words; a claim decides a status, and no number.
    is_words = name == "CLAIM" or (new is not None and name == "error.txt")
    look = chance.choice(LOOKS)
    words = {"FIRST": base.signatures[0], "SECOND": base.signatures[1], "FAILED": base.failed}
    argv = [words.get(word, word) for word in look]
    argv += [*STORED, *(["logger=csv"] if "small.yaml" in argv else [])]

    def judge(outcome: Outcome, folder: Path) -> str | None:
        said = normal(outcome.said).splitlines()
        others = [line for line in said if line not in base.tell(tuple(argv))]
        if not others or any(cell in line or Path(path).name in line for line in others):
            return None  # the file was not read, or not what is damaged in it; or it is told
        return f"a silent use: no line names {name}, and this one is new: {others[0][:200]!a}"

    return Case(
        f"{path.removeprefix('out/ledger/')}: {told}",
        argv,
        any_end if is_words else judge,
        lambda folder: _replace(folder / path, told) if new is None else keep(folder / path, new),
    )


def normal(said: str) -> str:
    """What is said, without what differs from run to run."""
    return re.sub(r"[0-9]+\.[0-9]+ s\b|[0-9,]+ bytes", "TIME", said)


def _damage(chance: Random, name: str, content: bytes) -> tuple[str, bytes | None]:
    """In words, and what the file has then; None: it is no file any more."""
    what = chance.random()
    if what < 0.2:
        return chance.choice(["a folder", "a pipe", "a link to itself"]), None
    if what < 0.6 or name.endswith((".npz", ".ckpt", ".txt")):
        return mutated(chance, content)
    return _other_values(chance, name, content)


def _replace(path: Path, by: str) -> None:
    path.unlink()
    if by == "a folder":
        path.mkdir()
    elif by == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name)


def _other_values(chance: Random, name: str, content: bytes) -> tuple[str, bytes]:
    """A value of JSON, lines of JSON or YAML that has another type, or can never be."""
    read, write = (
        (yaml.safe_load, yaml.safe_dump) if name == "config.yaml" else (json.loads, json.dumps)
    )
    lines = content.decode().splitlines() if name == "metrics.jsonl" else [content.decode()]
    plain = {"": read(lines[0])}
    *above, last = chance.choice(paths_of(plain)[1:])
    section: Any = plain
    for key in above:
        section = section[key]
    new = chance.choice([value for value in KINDS if type(value) is not type(section[last])])
    section[last] = new
    where = ".".join(map(str, [*above[1:], last]))
    return f"{where or 'all'} is {ascii(new)[:40]}", write(plain[""]).encode()
