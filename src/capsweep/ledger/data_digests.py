"""Refuses to compare results of one data set whose data were not the same.

A result carries the sha256 of the data that it used, by split, under DATA; results of earlier code
have none.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from capsweep.errors import UserError

DATA = "data"  # key of a result
READ_BY = ("reader", "test", "shards")  # sections of a data set that decide what is read
SHARDS_DIFFER = "; shards made with another SHARDS or ARGS are other files, and cannot be compared"
NAMED = 3  # cells of a digest


class DataUse(NamedTuple):
    """A finished cell and the data that it used.

    signature: of the cell. dataset: the section of its configuration. result: as it was stored.
    """

    signature: str
    dataset: Mapping[str, Any]
    result: Mapping[str, Any]


def check_same_data(uses: Iterable[DataUse]) -> str | None:
    """Compare the digests of cells that declare the same data.

    Returns a sentence on those that have no digest; None where all have one. Raises UserError
    naming the data set, both digests and cells of each.
    """
    uses = list(uses)
    cells: dict[tuple[str, str], dict[str, list[DataUse]]] = {}
    for use in uses:
        declared = json.dumps([use.dataset.get(key) for key in READ_BY], sort_keys=True)
        for split, digest in use.result.get(DATA, {}).items():
            cells.setdefault((declared, split), {}).setdefault(digest, []).append(use)
    for (_, split), by_digest in cells.items():
        if len(by_digest) > 1:
            raise _refuse_mixture(split, by_digest)
    total = len({use.signature for use in uses})
    lacking = len({use.signature for use in uses if not use.result.get(DATA)})
    if not lacking:
        return None
    return f"{lacking} of {total} results have no digest of their data and were not compared"


def _refuse_mixture(split: str, by_digest: Mapping[str, Sequence[DataUse]]) -> UserError:
    texts = []
    for digest, uses in by_digest.items():
        names = list(dict.fromkeys(use.signature for use in uses))
        texts.append(f"{digest} ({', '.join(names[:NAMED])}{', ...' * (len(names) > NAMED)})")
    dataset = next(iter(by_digest.values()))[0].dataset
    layout = SHARDS_DIFFER if "shards" in dataset else ""
    return UserError(
        f"dataset={dataset['name']}: the {split} data were not the same in all cells: sha256 "
        f"{', '.join(texts)}{layout}; restore the data that are meant, remove the cells that used "
        "others (capsweep ledger rm) and run them again"
    )
