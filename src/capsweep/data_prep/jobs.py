"""The data sets that can be made, by name; how each is prepared from overrides."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from capsweep.data_prep import multimnist
from capsweep.data_prep.job import Job
from capsweep.errors import UserError

# The job of overrides of `dataset=NAME`. Raises ConfigError naming the key, DataError a file.
Prepare: TypeAlias = Callable[[Sequence[str]], Job]


@dataclass(frozen=True)
class Kind:
    """One data set.

    with_sources: the same, what an example is composed of stored too; None: examples are not
    composed, but read, so that there is nothing to store beside them and no form without shards.
    """

    prepare: Prepare
    with_sources: Prepare | None = None


JOBS: Mapping[str, Kind] = {
    "multimnist": Kind(multimnist.prepare, partial(multimnist.prepare, with_sources=True)),
}


def kind(name: str) -> Kind:
    """The data set of that name. Raises UserError."""
    if name not in JOBS:
        raise UserError(f"DATASET={name}: cannot be made; have {', '.join(JOBS)}")
    return JOBS[name]
