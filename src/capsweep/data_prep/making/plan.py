"""What making a data set takes, before it is begun: examples, bytes, memory, time."""

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from capsweep.data.shards.layout import BLOCK
from capsweep.data.shards.manifest import Shard
from capsweep.data_prep.job import Job
from capsweep.data_prep.making import cut, folder, leftovers, shard, worker
from capsweep.data_prep.making.folder import Wanted
from capsweep.data_prep.making.shard import Part
from capsweep.errors import UserError

SECONDS = 1.0  # of a calibration
TRIAL = 20_000  # examples of its shards: 40 chunks, one node of the index


@dataclass(frozen=True)
class Calibration:
    """Shards of the job that were made and written, on this machine and this disk.

    rate: examples a second of one core. examples, bytes: of one of the shards.
    """

    rate: float
    examples: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    recorded: shards that were finished before; they are checked, and made again where they are not
    whole. bytes: of all shards, needed: of those to be made. free: where they go. memory: bytes
    that a process takes at most that makes them. rate: of one core; None where nothing is written.
    """

    wanted: Wanted
    place: Path
    recorded: int
    bytes: int
    needed: int
    free: int
    cores: int
    memory: int
    rate: float | None

    @property
    def examples(self) -> int:
        """Of all splits."""
        return sum(self.wanted.content.splits.values())

    @property
    def seconds(self) -> float:
        """That it takes, by the calibration, if every core is as fast and the disk keeps up."""
        share = self.needed / self.bytes if self.bytes else 0.0
        return share * self.examples / (self.rate * self.cores) if self.rate else 0.0

    def as_plain(self) -> dict[str, Any]:
        """For programs."""
        content = self.wanted.content
        return {
            "folder": str(self.place),
            "fingerprint": content.fingerprint,
            "content": asdict(content),
            "store": self.wanted.store,
            "fields": self.wanted.names(),
            "shards": self.shards(),
            "recorded": self.recorded,
            "bytes": self.bytes,
            "bytes_to_write": self.needed,
            "bytes_free": self.free,
            "worker_memory": self.memory,
            "cores": self.cores,
            "examples_per_second": self.rate,
            "seconds": self.seconds,
        }

    def shards(self) -> dict[str, int]:
        """By split."""
        splits = self.wanted.content.splits
        return {s: sum(part.split == s for part in self.wanted.parts) for s in splits}


def make(job: Job, wanted: Wanted, place: Path, cores: int, memory: int) -> Plan:
    """Measure for a second, and count. cores, memory: of the engine.

    Raises DataError when the folder holds something else, UserError when it cannot be written.
    """
    folder.check(place, wanted)
    above = folder.existing(place)
    known = folder.Held(place, wanted).known()
    free = shutil.disk_usage(above).free + leftovers.size(place)
    missing = [part for part in wanted.parts if not _is_there(place, known.get(part.name))]
    if not missing:  # nothing to measure for
        total = sum(shard.bytes for shard in known.values())
        return Plan(wanted, place, len(known), total, 0, free, cores, memory, None)
    measured = calibrate(job, wanted, above)
    sizes = _sizes(wanted, measured)
    needed = sum(sizes[part.name] for part in missing)
    total = sum(sizes.values())
    return Plan(wanted, place, len(known), total, needed, free, cores, memory, measured.rate)


def check_space(plan: Plan) -> None:
    """Refuse what will not fit. Raises UserError with both numbers."""
    if plan.needed > plan.free:
        raise UserError(
            f"STORAGE={plan.place}: {plan.needed:,} bytes are to be written and {plan.free:,} are "
            "free there; free space, set STORAGE to a larger disk, or ask for fewer (PAIRS), for "
            "compressed ones (--gzip 4) or for none (STORE=virtual)"
        )


def calibrate(job: Job, wanted: Wanted, above: Path) -> Calibration:
    """Make and write the first examples for a second, in a folder of its own that is removed.

    Raises UserError when nothing can be written there.
    """
    first = wanted.parts[0]
    part = Part(first.name, first.split, 0, min(first.examples, TRIAL))
    make = worker.maker(job, part)
    few = replace(part, examples=min(part.examples, BLOCK))
    try:
        with tempfile.TemporaryDirectory(prefix=leftovers.CALIBRATION, dir=above) as scratch:
            # What the first call of everything takes is not counted.
            shard.write(Path(scratch), job, few, make, wanted.gzip)
            begun = time.monotonic()
            written, made = shard.write(Path(scratch), job, part, make, wanted.gzip), 1
            while time.monotonic() - begun < SECONDS:
                shard.write(Path(scratch), job, part, make, wanted.gzip)
                made += 1
            seconds = time.monotonic() - begun
    except OSError as error:
        raise folder.unwritable(above, error) from error
    return Calibration(made * part.examples / seconds, part.examples, written.bytes)


def _sizes(wanted: Wanted, measured: Calibration) -> Mapping[str, int]:
    """Bytes of every shard: exact without compression, else by those of the calibration."""
    sizes: dict[int, int] = {}
    for examples in {part.examples for part in wanted.parts}:
        if wanted.gzip is None:
            overhead = cut.overhead_of(wanted.fields, measured.examples, measured.bytes)
            sizes[examples] = cut.nbytes(wanted.fields, examples, overhead)
        else:
            sizes[examples] = -(-measured.bytes * examples // measured.examples)
    return {part.name: sizes[part.examples] for part in wanted.parts}


def _is_there(place: Path, known: Shard | None) -> bool:
    """Whether the shard takes its room already."""
    if known is None:
        return False
    try:
        return (place / known.name).stat().st_size == known.bytes
    except OSError:
        return False
