"""A folder that `data make` has begun and not ended: what is there, and how it goes on."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsweep.data.shards import manifest, plain
from capsweep.data.shards.manifest import INDEX, Content, Shard
from capsweep.data.shards.regular import regular
from capsweep.data_prep.checking import again
from capsweep.data_prep.making.folder import MADE, WANTED
from capsweep.data_prep.making.leftovers import STATE
from capsweep.errors import DataError
from capsweep.files import sha256_of


@dataclass(frozen=True)
class Unfinished:
    """shards: that are recorded as finished; wanted: how many there should be."""

    content: Content
    store: str
    shards: tuple[Shard, ...]
    wanted: int
    command: str


def find(folder: Path) -> Unfinished | None:
    """What is recorded of a folder without `index.json`; None where that is there, or no record is.

    Raises DataError for records that are altered.
    """
    if (folder / INDEX).is_symlink() or (folder / INDEX).exists():
        return None
    path = folder / STATE / WANTED
    try:
        regular(folder / STATE, WANTED)
        wanted = plain.mapping(plain.loads(path.read_text(encoding="utf-8")), WANTED)
        content = manifest.content_of(_content(wanted))
        shards = _made(folder, sha256_of(json.dumps(wanted, sort_keys=True).encode()))
        counts = {
            split: plain.count(wanted.get(f"shards.{split}"), f"shards of {split}")
            for split in content.splits
        }
        command = _command(folder, content, wanted, counts)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: altered ({error}); delete it, it is written anew") from error
    return Unfinished(content, str(wanted.get("store")), shards, sum(counts.values()), command)


def _content(wanted: dict[str, Any]) -> dict[str, Any]:
    """As in `index.json`, where it is not flat."""
    made: dict[str, Any] = {"dataset": wanted.get("dataset"), "version": wanted.get("version")}
    for section in ("settings", "origin", "splits"):
        begin = f"{section}."
        inner = {key: value for key, value in wanted.items() if key.startswith(begin)}
        made[section] = {key.removeprefix(begin): value for key, value in inner.items()}
    return made


def _made(folder: Path, identity: str) -> tuple[Shard, ...]:
    """Finished shards of what is wanted now, by the last record of each."""
    try:
        regular(folder / STATE, MADE)
        lines = (folder / STATE / MADE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    shards: dict[str, Shard] = {}
    for line in filter(None, lines):
        try:
            of, value = plain.items(plain.loads(line), MADE, 2)
            shard = manifest.shard_of(value)
        except (ValueError, RecursionError):  # a driver was killed while it wrote this line
            continue
        if of == identity:
            shards[shard.name] = shard
    return tuple(sorted(shards.values(), key=lambda shard: (shard.split, shard.first)))


def _command(folder: Path, content: Content, wanted: dict[str, Any], counts: dict[str, int]) -> str:
    words = ["capsweep", "data", "make", content.dataset, "--storage", str(folder.absolute())]
    if wanted.get("store") == "virtual":
        words += ["--store", "virtual"]
    elif "train" in counts:
        words += ["--shards", str(counts["train"])]
    if again.DIGITS in str(wanted.get("fields")).split(", "):
        words.append("--with-sources")
    if wanted.get("gzip") is not None:
        words += ["--gzip", str(plain.count(wanted["gzip"], "gzip"))]
    return shlex.join([*words, *again.asked(content)])
