"""The data sets that can be made, by name; how each is prepared from overrides."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from capsweep.data_prep import affnist, affnist_like, multimnist, smallnorb
from capsweep.data_prep.job import Job
from capsweep.data_prep.making import cut
from capsweep.errors import UserError

# The job of overrides of `dataset=NAME`. Raises ConfigError naming the key, DataError a file.
Prepare: TypeAlias = Callable[[Sequence[str]], Job]


@dataclass(frozen=True)
class Kind:
    """One data set.

    with_sources: the same, what an example is composed of stored too; None: examples are not
    composed, but read, so that there is nothing to store beside them and no form without shards.
    copies: the same, of so many copies of each digit, where PAIRS is no setting of the data set.
    folder: below the data folder, where the shards go if no other is named; None: its name.
    usual, most: examples of a shard, where their number is not given, and at most.
    """

    prepare: Prepare
    with_sources: Prepare | None = None
    copies: Callable[[Sequence[str], int], Job] | None = None
    folder: str | None = None
    usual: int = cut.USUAL
    most: int | None = None


JOBS: Mapping[str, Kind] = {
    "multimnist": Kind(multimnist.prepare, partial(multimnist.prepare, with_sources=True)),
    # Beside the official files, in a folder of their own, where the readers look for them.
    "smallnorb": Kind(smallnorb.prepare, folder="smallnorb/shards", usual=2_500, most=6_000),
    "affnist": Kind(affnist.prepare, folder="affnist/shards", usual=20_000, most=60_000),
    "affnist_like": Kind(affnist_like.prepare, copies=affnist_like.prepare),
}


def kind(name: str) -> Kind:
    """The data set of that name. Raises UserError."""
    if name not in JOBS:
        raise UserError(f"DATASET={name}: cannot be made; have {', '.join(JOBS)}")
    return JOBS[name]
