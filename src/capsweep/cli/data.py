"""`capsweep data`: make data sets of shards, verify them, look at them."""

import argparse
import shlex
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from capsweep import terminal
from capsweep.cli import data_sets
from capsweep.cli.command import Commands, GoneOption, add_command, add_group, add_options
from capsweep.errors import ConfigError, UserError
from capsweep.storage.stores import is_url

if TYPE_CHECKING:
    from capsweep.shards.making import MakingResult, TaskRunner
    from capsweep.shards.making_plan import MakingPlan

MAKE = "write the shards of a data set, or what is missing of them"
VERIFY = "name every missing, truncated, altered or surplus file; status 1 when there is one"
INFO = "print what a data set of shards holds, and draw its first examples"
NAMED = 3  # files of one cause


def add_parser(commands: Commands) -> None:
    """Add `data` and its commands to the parser."""
    group = add_group(commands, "data", "data sets of shards: make, verify, look at them")
    make = add_command(group, "make", make_data_set, MAKE)
    make.add_argument("name", help="a file of data_prep: multimnist, affnist_like")
    make.add_argument(
        "overrides", nargs="*", help="Hydra overrides of dataset=NAME: dataset.source=digits"
    )
    make.add_argument("--pairs", type=int, metavar="N", help="per digit of training and test")
    make.add_argument("--shards", type=int, metavar="N", help="files of the training split")
    make.add_argument("--with-sources", action="store_true", help="also the two digits alone")
    make.add_argument("--storage", metavar="FOLDER", help="the data set's own; default: DATA/NAME")
    make.add_argument("--executor", default="ray", help="ray (default), or local: in this process")
    make.add_argument("--dry-run", action="store_true", help="print the plan, and write nothing")
    for option in ("--store", "--gzip"):
        make.add_argument(option, action=GoneOption, metavar="leave it out: shards hold pixels")
    add_options(make, {"--address": "a running Ray cluster; default: a local one"})
    verify = add_command(group, "verify", data_sets.verify_folder, VERIFY)
    verify.add_argument("--again", type=int, metavar="N", help="make N examples anew, and compare")
    info = add_command(group, "info", data_sets.describe_folder, INFO)
    picture = "a PNG; default: NAME-examples.png here"
    info.add_argument("--picture", type=Path, metavar="FILE", help=picture)
    for command in (verify, info):
        command.add_argument("path", type=Path, help="the data set's folder, with its index.json")
        command.add_argument("overrides", nargs="*", help="Hydra overrides, as of data make")
    for option in ("--deep", "--sample"):
        verify.add_argument(option, action=GoneOption, metavar="use --again N")
    for command in (make, verify, info):
        command.add_argument("--json", action=GoneOption, metavar="read index.json")
        add_options(command, {"--data-dir": "where source images, or all data sets, are"})


def make_data_set(parsed: argparse.Namespace) -> int:
    """`data make`."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # of a cluster's scheduler
    try:
        return _make_data_set(parsed)
    finally:
        signal.signal(signal.SIGTERM, before)


def _make_data_set(parsed: argparse.Namespace) -> int:
    from capsweep.shards import making, making_plan

    run_tasks, overrides = _choose_runner(parsed), data_sets.read_overrides(parsed)
    job = data_sets.prepare_job(parsed.name, overrides, parsed.pairs, parsed.with_sources)
    plan = making_plan.make_plan(job, _find_folder(parsed), parsed.shards)
    console = terminal.make_console()
    for line in _describe_plan(plan):
        terminal.print_line(console, line)
    if parsed.dry_run:
        return 0
    with data_sets.progress_bar(console, len(plan.parts)) as advance:
        result = making.run_plan(plan, run_tasks, lambda _: advance())
    for line in _describe_result(plan, result, overrides):
        terminal.print_line(console, line)
    return result.status


def _choose_runner(parsed: argparse.Namespace) -> "TaskRunner":
    from capsweep.shards.making import run_locally

    if parsed.executor == "local" and parsed.address is None:
        return run_locally
    if parsed.executor == "local":
        raise ConfigError("RAY_ADDRESS: --executor local uses no Ray; leave one of them out")
    if parsed.executor != "ray":
        raise ConfigError(f"EXECUTOR={parsed.executor}: have ray, local")
    try:
        from capsweep.shards.ray_tasks import run_on_ray
    except ImportError as error:
        cure = "install ray or set EXECUTOR=local"
        raise ConfigError(f"EXECUTOR=ray: {error}; {cure}") from error
    return partial(run_on_ray, address=parsed.address)


def _find_folder(parsed: argparse.Namespace) -> Path:
    """Absolute. Raises UserError for an object store: shards are written to a file system."""
    from capsweep.config import places

    folder = parsed.storage
    if folder is None:
        folder = f"{data_sets.find_data(data_sets.read_overrides(parsed))}/{parsed.name}"
    if is_url(folder) or not folder:
        raise UserError(
            f"STORAGE={folder}: must be a folder of a file system; copy the finished folder into "
            "the object store"
        )
    return Path(places.absolute(folder))


def _describe_plan(plan: "MakingPlan") -> Iterator[str]:
    content = plan.job.content
    settings = ", ".join(f"{key} {value}" for key, value in content.settings.items())
    yield f"data set:  {content.dataset} of {content.origin.name} ({settings})"
    yield f"folder:    {plan.folder}"
    yield f"identity:  fingerprint {content.fingerprint}"
    yield f"store:     pixels: {plan.identity['fields']}; Fletcher32"
    for split, examples in content.splits.items():
        shards = plan.identity[f"shards.{split}"]
        yield f"{f'{split}:':<10} {examples:,} examples in {shards:,} shards"
    yield f"disk:      about {plan.missing_bytes:,} bytes to be written, {plan.free:,} are free"
    if present := len(plan.parts) - len(plan.missing):
        yield f"there:     {present:,} shards were finished before; each is checked"


def _describe_result(
    plan: "MakingPlan", result: "MakingResult", overrides: Sequence[str]
) -> Iterator[str]:
    from capsweep.shards.making import FINISHED, INTERRUPTED

    whole = len(result.shards)
    counts = f"{result.made:,} shards made, {whole - result.made:,} kept, of {result.total:,}"
    yield f"{counts}, in {result.seconds:.1f} s"
    for cause, names in result.failures.items():
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        yield f"FAILED {len(names):,}: {', '.join(names[:NAMED])}{more}: {cause}"
    if result.status == FINISHED:
        yield f"whole: {plan.folder / 'index.json'}"
        yield f"look at it:  {shlex.join(['capsweep', 'data', 'info', str(plan.folder)])}"
        data = data_sets.find_data(overrides)
        if train := data_sets.train_command(plan.folder, plan.job.content, data):
            yield f"train on it: {train}"
        return
    ended = "interrupted" if result.status == INTERRUPTED else "not whole"
    missing = result.total - whole
    lack = f"{missing:,} shards are missing" if missing else "no index.json"
    yield f"{ended}: {plan.folder}: {lack}; run the same command again, which makes that alone"
