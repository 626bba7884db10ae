"""What a person is told before a data set is made, and afterwards."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from capsweep.data.shards import manifest
from capsweep.data_prep import work
from capsweep.data_prep.drive import FINISHED, INTERRUPTED, Ended
from capsweep.data_prep.plan import Plan
from capsweep.data_prep.progress import duration

NAMED = 3  # files of one cause


def of_plan(plan: Plan) -> Iterator[str]:
    """What is to be done, and what it takes."""
    content = plan.wanted.content
    settings = ", ".join(f"{key} {value}" for key, value in content.settings.items())
    yield f"data set:  {content.dataset} of {content.origin.name} ({settings})"
    yield f"folder:    {plan.place}"
    yield f"identity:  fingerprint {content.fingerprint}"
    fields = ", ".join(field.name for field in plan.wanted.fields)
    how = "not compressed" if plan.wanted.gzip is None else f"gzip {plan.wanted.gzip}"
    pixels = f"pixels: {fields}; {how}, Fletcher32"
    yield f"store:     {pixels if plan.wanted.parts else 'virtual: composed when they are read'}"
    counts = plan.shards()
    for split, examples in content.splits.items():
        yield f"{f'{split}:':<10} {examples:,} examples in {counts[split]:,} shards"
    if not plan.wanted.parts:
        return
    about = "" if plan.wanted.gzip is None else "about "
    yield f"disk:      {about}{plan.bytes:,} bytes, of which {plan.needed:,} are to be written"
    yield f"           {plan.free:,} bytes are free"
    if plan.recorded:
        yield f"there:     {plan.recorded:,} shards were finished before; each is checked"
    yield f"memory:    {work.MEMORY:,} bytes at most for each worker"
    if plan.rate:
        yield (
            f"time:      about {duration(plan.seconds)} on {plan.cores} "
            f"core{'' if plan.cores == 1 else 's'} ({plan.rate:,.0f} examples/s a core, measured)"
        )


def of_end(plan: Plan, ended: Ended) -> Iterator[str]:
    """What is there, what is not and why, and what to do."""
    if ended.total:
        yield f"{ended.made:,} shards made, {ended.kept:,} kept, of {ended.total:,}"
    for cause, names in ended.failures.items():
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        yield f"FAILED {len(names):,}: {', '.join(names[:NAMED])}{more}: {cause}"
    if ended.status == FINISHED:
        yield f"whole: {plan.place / manifest.INDEX}"
        return
    what = "interrupted" if ended.status == INTERRUPTED else "not whole"
    lack = f"{ended.missing:,} shards are missing" if ended.missing else f"no {manifest.INDEX}"
    yield f"{what}: {plan.place}: {lack}; run the same command again, which makes that alone"


def how_to_read(plan: Plan, declared: Mapping[str, Any]) -> str:
    """The command that trains on it. declared: overrides that name this folder and content."""
    overrides = [f"{key}={value}" for key, value in declared.items()]
    return shlex.join(["capsweep", "train", "dataset=multimnist_shards", *overrides])
