"""What a person is told before a data set is made, and afterwards."""

import shlex
from collections.abc import Iterator, Mapping

from capsweep.data.shards import manifest
from capsweep.data_prep import train_command
from capsweep.data_prep.making.drive import FINISHED, INTERRUPTED, Ended
from capsweep.data_prep.making.plan import Plan
from capsweep.data_prep.making.progress import duration

NAMED = 3  # files of one cause


def of_plan(plan: Plan) -> Iterator[str]:
    """What is to be done, and what it takes."""
    content = plan.wanted.content
    settings = ", ".join(_setting(key, value) for key, value in content.settings.items())
    yield f"data set:  {content.dataset} of {content.origin.name} ({settings})"
    yield f"folder:    {plan.place}"
    yield f"identity:  fingerprint {content.fingerprint}"
    fields = ", ".join(plan.wanted.names())
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
    yield f"memory:    {plan.memory:,} bytes at most for each process that makes shards"
    if plan.rate:
        yield (
            f"time:      about {duration(plan.seconds)} on {plan.cores} "
            f"core{'' if plan.cores == 1 else 's'} ({plan.rate:,.0f} examples/s a core, measured)"
        )


def _setting(key: str, value: object) -> str:
    return f"{key} of {len(value)} files" if isinstance(value, Mapping) else f"{key} {value}"


def of_end(plan: Plan, ended: Ended) -> Iterator[str]:
    """What is there, what is not and why, and what to do."""
    if ended.total:
        speed = f" ({ended.examples / ended.seconds:,.0f} examples/s)" if ended.examples else ""
        counts = f"{ended.made:,} shards made, {ended.kept:,} kept, of {ended.total:,}"
        yield f"{counts}, in {ended.seconds:.1f} s{speed}"
    for cause, names in ended.failures.items():
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        yield f"FAILED {len(names):,}: {', '.join(names[:NAMED])}{more}: {cause}"
    if ended.status == FINISHED:
        yield f"whole: {plan.place / manifest.INDEX}"
        return
    what = "interrupted" if ended.status == INTERRUPTED else "not whole"
    lack = f"{ended.missing:,} shards are missing" if ended.missing else f"no {manifest.INDEX}"
    yield f"{what}: {plan.place}: {lack}; run the same command again, which makes that alone"


def how_to_read(plan: Plan, data: str) -> Iterator[str]:
    """The commands that look at it and train on it. data: the folder of all data sets."""
    yield f"look at it:  {shlex.join(['capsweep', 'data', 'info', str(plan.place)])}"
    if train := train_command.command(plan.place, plan.wanted.manifest([]), data):
        yield f"train on it: {train}"
