"""`capsweep bench`: run the benchmarks, print every number beside its bar."""

from collections.abc import Callable, Sequence

from capsweep.bench import data, em, scale, scheduling
from capsweep.bench.measured import Measured
from capsweep.errors import UserError

BENCHES: dict[str, Callable[[], list[Measured]]] = {
    "scale": scale.growth,
    "fixed_cost": scheduling.fixed_cost,
    "makespan": scheduling.makespan,
    "em": em.routing,
    "data": data.batches,
}


def main(names: Sequence[str]) -> int:
    """Run some benchmarks, or all; returns 1 when a bar is not kept.

    Raises UserError for an unknown name.
    """
    for name in names:
        if name not in BENCHES:
            raise UserError(f"bench {name}: have {', '.join(BENCHES)}")
    holds = True
    for name in names or BENCHES:
        for measured in BENCHES[name]():
            print(measured, flush=True)
            holds = holds and measured.holds
    return 0 if holds else 1
