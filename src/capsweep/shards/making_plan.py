"""What making a data set takes, and what its folder holds already.

All of ours in the folder that is neither a shard nor `index.json` is in STATE: the lock, and what
the folder is to hold.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue, TypeAdapter

from capsweep.config.cell import flat
from capsweep.errors import ConfigError, DataError, UserError
from capsweep.shards import manifest
from capsweep.shards.layout import BLOCK, ShardJob
from capsweep.shards.manifest import INDEX, STATE, WANTED, DataSetContent, ShardPart
from capsweep.storage import stores
from capsweep.storage.files import read_plain_file
from capsweep.storage.typed_json import parse_json

USUAL = 100_000  # examples of a shard, where the number of shards is not given
LARGEST = 2**29  # bytes of a shard, which is made in memory
STORED = TypeAdapter(dict[Literal["identity"], dict[str, JsonValue]])  # what is in WANTED


@dataclass(frozen=True)
class MakingPlan:
    """What is to be done, and what it takes; free: bytes on the disk."""

    job: ShardJob
    folder: Path
    parts: Sequence[ShardPart]
    free: int

    @cached_property
    def missing(self) -> list[ShardPart]:
        """Parts of which no shard is there."""
        return [part for part in self.parts if not (self.folder / part.name).exists()]

    @property
    def missing_bytes(self) -> int:
        """About as many bytes are to be written; the last chunk of a shard is stored in full."""
        one = sum(field.nbytes for field in self.job.list_fields())
        chunks = [(part.examples, min(BLOCK, part.examples)) for part in self.missing]
        return sum(-(-examples // chunk) * chunk * one for examples, chunk in chunks)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that must be equal in two commands that fill one folder, by dotted key."""
        names = [field.name for field in self.job.list_fields()]
        return _identify(self.job.content, names, self.parts)


def _identify(
    content: DataSetContent, fields: Iterable[str], parts: Sequence[ShardPart]
) -> dict[str, Any]:
    shards = {split: sum(part.split == split for part in parts) for split in content.splits}
    values = {**asdict(content), "fields": ", ".join(fields), "shards": shards}
    return json.loads(json.dumps(flat(values)))  # as it is read again


def make_plan(job: ShardJob, folder: Path, shards: int | None) -> MakingPlan:
    """Divide the examples, and see what is in the folder. shards: as of `divide_into_parts`.

    Raises DataError when the folder holds something else, UserError when the disk is too small or
    the folder is none.
    """
    stores.check_folder(str(folder), "STORAGE")
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    plan = MakingPlan(job, folder, divide_into_parts(job, shards), free)
    check_folder(plan)
    if plan.missing_bytes > free:
        raise UserError(
            f"STORAGE={folder}: {plan.missing_bytes:,} bytes are to be written and {free:,} are "
            "free there; free space, or set STORAGE to a larger disk"
        )
    return plan


def divide_into_parts(job: ShardJob, shards: int | None) -> tuple[ShardPart, ...]:
    """Return the shards of all splits; their sizes within a split differ by one example at most.

    shards: those of "train", or of the first split where there is no such; None: of USUAL examples.
    Other splits have as many examples in each. Raises ConfigError for too few or too many.
    """
    splits = job.content.splits
    first = "train" if "train" in splits else next(iter(splits))
    count = splits[first]
    shards = -(-count // USUAL) if shards is None else shards
    if not 1 <= shards <= count:
        raise ConfigError(f"SHARDS={shards}: must be 1 to {count:,}, the {first} examples")
    room = LARGEST // sum(field.nbytes for field in job.list_fields())
    if (usual := -(-count // shards)) > room:
        raise ConfigError(
            f"SHARDS={shards}: must be {-(-count // room)} or more, since a shard is made in memory"
        )
    numbers = {split: -(-examples // usual) for split, examples in splits.items()} | {first: shards}
    parts: list[ShardPart] = []
    for split, examples in splits.items():
        number = numbers[split]
        bounds = [place * examples // number for place in range(number + 1)]
        for place, (start, stop) in enumerate(pairwise(bounds)):
            parts.append(ShardPart(f"{split}-{place:05d}.h5", split, start, stop - start))
    return tuple(parts)


def check_folder(plan: MakingPlan) -> None:
    """Refuse a folder that holds something else. Raises DataError naming what differs."""
    folder = plan.folder
    stored = _read_identity(folder)
    if stored is None:
        names = os.listdir(folder) if folder.is_dir() and not (folder / STATE).is_dir() else []
        if foreign := sorted(name for name in names if name[0] != "." and name != "lost+found"):
            some = ", ".join(foreign[:3])
            raise DataError(f"STORAGE={folder}: holds other files ({some}); name an empty folder")
        return
    differences = [
        f"{key}: {stored.get(key)} there, {plan.identity.get(key)} asked for"
        for key in {**stored, **plan.identity}
        if stored.get(key) != plan.identity.get(key)
    ]
    if differences:
        raise DataError(
            f"STORAGE={folder}: another data set, or another layout of it, is there "
            f"({'; '.join(differences)}); name another folder, or ask for what is there"
        )


def _read_identity(folder: Path) -> Mapping[str, Any] | None:
    """Return what the folder is to hold by an earlier command, or holds; None where nothing is
    known.
    """
    path = folder / STATE / WANTED
    try:
        return parse_json(read_plain_file(path), STORED)["identity"]
    except FileNotFoundError:
        if not (folder / INDEX).exists():
            return None
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); delete it, and it is written anew"
        ) from error
    whole = manifest.read_manifest(folder)
    return _identify(whole.content, whole.fields, whole.shards)
