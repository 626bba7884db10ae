"""One part of a sweep for one job of a job array: `--shard 2/8`."""

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass

from capsweep.errors import ConfigError
from capsweep.sweep.plan import PlannedCell


@dataclass(frozen=True)
class Shard:
    """Part `index` (1 is the first) of `count`."""

    index: int
    count: int

    def select(self, cells: Sequence[PlannedCell]) -> tuple[PlannedCell, ...]:
        """The cells of this part: a function of the grid alone, so that all jobs of the array agree
        whatever has finished meanwhile. Each cell goes where the least work is, the longest first.
        """
        loads = [(0.0, part) for part in range(1, self.count + 1)]
        order = sorted(range(len(cells)), key=lambda i: (-_work(cells[i]), i))
        mine = set()
        for i in order:
            load, part = loads[0]
            heapq.heapreplace(loads, (load + _work(cells[i]), part))
            if part == self.index:
                mine.add(i)
        return tuple(cell for i, cell in enumerate(cells) if i in mine)


def parse(text: str) -> Shard:
    """Read `2/8`. Raises ConfigError naming --shard."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"--shard {text}: must be i/n with 1 <= i <= n, such as 1/8")
    return Shard(int(match[1]), int(match[2]))


def _work(planned: PlannedCell) -> float:
    """Floating-point operations of the cell's training, up to a factor that all cells share."""
    config = planned.cell.config
    batches = config["limit_batches"]
    limited = 1.0 if batches is None else batches * config["batch_size"]
    return float(planned.size.flops) * config["epochs"] * limited
