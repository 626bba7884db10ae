"""What making a data set takes, and what its folder holds already.

All of ours in the folder that is neither a shard nor `index.json` is in STATE: the lock, what the
folder is to hold, and a line for each finished shard.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsweep.errors import DataError, UserError
from capsweep.shards import manifest
from capsweep.shards.job import Job
from capsweep.shards.layout import BLOCK
from capsweep.shards.manifest import Manifest, Shard
from capsweep.shards.write import AT_ONCE, Part
from capsweep.storage.files import hash_bytes

STATE = ".making"
WANTED, MADE = "wanted.json", "made.jsonl"
TEMPORARY = re.compile(r"\.([a-z0-9][a-z0-9_-]*\.h5|index\.json|wanted\.json)\.\d+\.tmp")
SECONDS = 0.5  # of a calibration


@dataclass(frozen=True)
class MakingPlan:
    """What is to be done, and what it takes.

    command: that goes on after an interruption. bytes: of the shards to be made, about. free: on
    the disk. rate: examples a second of one core, measured; None where all shards are recorded.
    """

    job: Job
    folder: Path
    parts: Sequence[Part]
    command: str
    recorded: Mapping[str, Shard]
    free: int
    cores: int
    rate: float | None

    @property
    def missing(self) -> list[Part]:
        """The parts of which no shard is recorded."""
        return [part for part in self.parts if part.name not in self.recorded]

    @property
    def bytes(self) -> int:
        """About as many bytes are to be written; the last chunk of a shard is stored in full."""
        one = sum(stored.nbytes for stored in self.job.fields())
        chunks = [(min(BLOCK, part.examples), part.examples) for part in self.missing]
        return sum(-(-examples // chunk) * chunk * one for chunk, examples in chunks)

    @property
    def seconds(self) -> float:
        """About as long as it takes."""
        examples = sum(part.examples for part in self.missing)
        return examples / (self.rate * self.cores) if self.rate else 0.0

    def manifest(self, shards: Sequence[Shard]) -> Manifest:
        """The manifest of these shards."""
        fields = {stored.name: (stored.dtype, stored.shape) for stored in self.job.fields()}
        return Manifest(self.job.content, "pixels", fields, tuple(shards))

    def identity(self) -> dict[str, Any]:
        """All that must be equal in two commands that fill one folder, by dotted key."""
        return _identify(self.manifest([]), self.parts)


def _identify(manifest: Manifest, parts: Sequence[Part | Shard]) -> dict[str, Any]:
    content = manifest.content
    flat: dict[str, Any] = {"dataset": content.dataset, "version": content.version}
    for section, values in (
        ("settings", content.settings),
        ("origin", asdict(content.origin)),
        ("splits", content.splits),
    ):
        flat |= {f"{section}.{key}": value for key, value in values.items()}
    flat["fields"] = ", ".join(manifest.fields)
    for split in content.splits:
        flat[f"shards.{split}"] = sum(part.split == split for part in parts)
    return json.loads(json.dumps(flat))  # as it is read again


def make_plan(
    job: Job, folder: Path, parts: Sequence[Part], command: str, cores: int
) -> MakingPlan:
    """See what is there, measure for half a second, and count.

    Raises DataError when the folder holds something else, UserError when the disk is too small.
    """
    plan = MakingPlan(job, folder, parts, command, {}, 0, cores, None)
    check_folder(plan)
    there = _nearest_existing(folder)
    if not os.access(there, os.W_OK):
        raise UserError(
            f"STORAGE={folder}: {there} cannot be written; correct that, or set STORAGE to another "
            "folder"
        )
    free = shutil.disk_usage(there).free
    free += sum(path.stat().st_size for path in list_temporary_files(folder))  # removed beforehand
    recorded = read_recorded(plan)
    plan = MakingPlan(job, folder, parts, command, recorded, free, cores, None)
    if not plan.missing:
        return plan
    if plan.bytes > free:
        raise UserError(
            f"STORAGE={folder}: {plan.bytes:,} bytes are to be written and {free:,} are free there;"
            " free space, set STORAGE to a larger disk, or ask for fewer examples (PAIRS)"
        )
    rate = _measure_rate(job, plan.missing[0])
    return MakingPlan(job, folder, parts, command, recorded, free, cores, rate)


def _measure_rate(job: Job, part: Part) -> float:
    make, examples = job.maker(part.split), min(part.examples, AT_ONCE)
    make(part.first, part.first + examples)  # what the first call takes is not counted
    begun, made = time.monotonic(), 0
    while not made or time.monotonic() - begun < SECONDS:
        make(part.first, part.first + examples)
        made += examples
    return made / (time.monotonic() - begun)


def check_folder(plan: MakingPlan) -> None:
    """Refuse a folder that holds something else. Raises DataError naming what differs."""
    folder = plan.folder
    there = _nearest_existing(folder)
    if not there.is_dir():
        raise DataError(f"STORAGE={folder}: {there} is a file; name a folder of the data set's own")
    if there != folder:
        return
    stored = _read_identity(folder)
    if stored is None:
        foreign = sorted(n for n in os.listdir(folder) if n[0] != "." and n != "lost+found")
        if foreign and not (folder / STATE).is_dir():
            raise DataError(
                f"STORAGE={folder}: holds other files ({', '.join(foreign[:3])}"
                f"{', ...' if len(foreign) > 3 else ''}); name a folder of the data set's own"
            )
        return
    wanted = plan.identity()
    differing = [
        f"{key}: {_shorten(stored.get(key))} there, {_shorten(wanted.get(key))} asked for"
        for key in {**stored, **wanted}
        if stored.get(key) != wanted.get(key)
    ]
    if differing:
        raise DataError(
            f"STORAGE={folder}: another data set, or another layout of it, is there "
            f"({'; '.join(differing)}); name another folder, or ask for what is there"
        )


def _read_identity(folder: Path) -> Mapping[str, Any] | None:
    """What the folder is to hold by an earlier command, or holds; None where nothing is known."""
    if (state := read_state(folder)) is not None:
        return state["identity"]
    if not (folder / manifest.INDEX).exists():
        return None
    stored = manifest.read_manifest(folder)
    return _identify(stored, stored.shards)


def read_state(folder: Path) -> dict[str, Any] | None:
    """The identity and the command of what a folder is to hold; None where nothing is known.

    Raises DataError for a record that is damaged.
    """
    path = folder / STATE / WANTED
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {"identity": dict(state["identity"]), "command": str(state["command"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); delete it, and it is written anew"
        ) from error


def read_recorded(plan: MakingPlan) -> dict[str, Shard]:
    """Finished shards by name, as recorded. Whether they are still whole is not checked."""
    wanted = {part.name: part for part in plan.parts}
    shards = _read_indexed(plan) | _read_lines(plan)
    return {
        name: shard
        for name, shard in shards.items()
        if name in wanted and asdict(wanted[name]).items() <= asdict(shard).items()
    }


def _read_indexed(plan: MakingPlan) -> dict[str, Shard]:
    try:
        stored = manifest.read_manifest(plan.folder)
    except DataError:  # none yet, or altered: it is written anew at the end
        return {}
    # Of the shards of another data set, copied here since, the hashes would be right too.
    is_ours = stored.content == plan.job.content and stored.fields == plan.manifest([]).fields
    return {shard.name: shard for shard in stored.shards} if is_ours else {}


def _read_lines(plan: MakingPlan) -> dict[str, Shard]:
    try:
        lines = (plan.folder / STATE / MADE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    shards = {}
    for line in lines:
        try:
            identity, value = json.loads(line)
            shard = manifest.parse_shard(value)
        except (ValueError, TypeError):  # a driver was killed while it wrote this line
            continue
        if identity == hash_identity(plan):
            shards[shard.name] = shard
    return shards


def hash_identity(plan: MakingPlan) -> str:
    return hash_bytes(json.dumps(plan.identity(), sort_keys=True).encode())


def list_temporary_files(folder: Path) -> list[Path]:
    paths = [*folder.glob(".*.tmp"), *(folder / STATE).glob(".*.tmp")]
    return [path for path in paths if TEMPORARY.fullmatch(path.name) and not path.is_symlink()]


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _shorten(value: object) -> str:
    text = str(value).lower() if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
