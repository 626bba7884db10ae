"""The cost of an example by how many there are, and what it would be of 70 million."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from capsweep.bench import device
from capsweep.bench import shards_problem as problem
from capsweep.bench.measured import Measured
from capsweep.bench.shards_problem import SHARD
from capsweep.data.shards import manifest
from capsweep.data.shards.manifest import Shard
from capsweep.data_prep.making.local import Local
from capsweep.data_prep.making.work import Outcome, Work
from capsweep.data_prep.multimnist import MultiMnist

SHARDS = 100
FULL = 70_000_000  # examples: those of training and of the test digits
CORES = (1, 64)


@dataclass(frozen=True)
class Growth:
    """Seconds of each shard of the many, and of data sets of one shard made in between.

    examples: of a shard.
    """

    examples: int
    many: Sequence[float]
    single: Sequence[float]
    index: float  # seconds to write the index of the many

    @property
    def ratio(self) -> float:
        """What an example of the many costs, over one of a single shard."""
        return self.of_one * self.examples / median(self.single)

    @property
    def of_one(self) -> float:
        """Seconds of one example, as the many take them."""
        return (sum(self.many) + self.index) / (self.examples * len(self.many))

    def measured(self) -> Measured:
        """Beside its bar."""
        few, many = self.examples, self.examples * len(self.many)
        what = f"cost of an example of {many:,} over one of {few:,}, in shards of {few:,}"
        return Measured(what, self.ratio, "x", 1.2)

    def rows(self) -> list[dict[str, Any]]:
        """By number of examples."""
        shards = len(self.many)
        some = max(shards // 10, 1)
        return [
            _row("measured", self.examples, 1, median(self.single)),
            _row("measured, the first", some * self.examples, 1, sum(self.many[:some])),
            _row("measured", shards * self.examples, 1, sum(self.many) + self.index),
        ]


def take(folder: Path, shards: int = SHARDS, examples: int = SHARD) -> Growth:
    """Make so many, each removed once it is made, so that they need the room of one."""
    whole = problem.job(shards * examples)
    problem.made(folder, whole, problem.part(0, examples))  # what a worker prepares once
    many: list[float] = []
    single: list[float] = []
    made: list[Shard] = []
    step = max(shards // 10, 1)
    for first in range(0, shards, step):
        single += _seconds(folder, whole, range(1), examples)[0]
        taken, found = _seconds(folder, whole, range(first, min(first + step, shards)), examples)
        many, made = many + taken, made + found
    of_all = problem.manifest(whole, tuple(made))
    return Growth(examples, many, single, device.seconds(lambda: manifest.write(folder, of_all)))


def extrapolated(seconds: float, size: float) -> list[dict[str, Any]]:
    """The full data set. seconds: one core's, of one example; size: its bytes on the disk."""
    return [
        _row("extrapolated", FULL, cores, FULL * seconds / cores, FULL * size) for cores in CORES
    ]


def _seconds(
    folder: Path, whole: MultiMnist, numbers: range, examples: int
) -> tuple[list[float], list[Shard]]:
    works = [Work(folder, problem.part(number, examples)) for number in numbers]
    outcomes = Local().run(whole, works, lambda: False)
    taken, made = [], []
    for _ in works:
        found: list[Outcome] = []
        taken.append(device.seconds(lambda found=found: found.append(next(outcomes))))
        shard = found[0].shard
        if shard is None:
            raise OSError(found[0].cause)
        made.append(shard)
        (folder / shard.name).unlink()
    return taken, made


def _row(
    how: str, examples: int, cores: int, seconds: float, size: float | None = None
) -> dict[str, Any]:
    return {
        "how": how,
        "examples": examples,
        "cores": cores,
        "seconds": seconds,
        "examples/s": examples / seconds,
        "GB": None if size is None else size / 1e9,
        "GB/s": None if size is None else size / 1e9 / seconds,
    }
