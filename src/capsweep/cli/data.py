"""`capsweep data make`: write the shards of a data set, or what is missing of them."""

import argparse
import json
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli import data_info, data_verify
from capsweep.cli.command import Commands, add_command, add_group
from capsweep.cli.data_jobs import prepare_job, read_overrides
from capsweep.errors import ConfigError, UserError
from capsweep.storage.stores import is_url

if TYPE_CHECKING:
    from capsweep.shards.making import Engine, MakingResult
    from capsweep.shards.making_plan import MakingPlan

MAKE = "write the shards of a data set, or what is missing of them"
EXECUTORS = ("ray", "local")
NAMED = 3  # files of one cause


def add_parser(commands: Commands) -> None:
    """Add `data` and its commands to the parser."""
    group = add_group(commands, "data", "data sets of shards: make, verify, look at them")
    make = add_command(group, "make", _make, MAKE)
    make.add_argument("name", help="a file of data_prep: multimnist, affnist_like")
    make.add_argument(
        "overrides", nargs="*", help="Hydra overrides of dataset=NAME: dataset.source=digits"
    )
    make.add_argument("--pairs", type=int, metavar="N", help="per digit of training and test")
    make.add_argument("--shards", type=int, metavar="N", help="files of the training split")
    make.add_argument("--with-sources", action="store_true", help="also the two digits alone")
    make.add_argument("--storage", metavar="FOLDER", help="the data set's own; default: DATA/NAME")
    make.add_argument("--data-dir", help="where the source images are")
    make.add_argument("--executor", default="ray", help="ray (default), or local: in this process")
    make.add_argument("--address", help="a running Ray cluster; default: a local one")
    make.add_argument("--dry-run", action="store_true", help="print the plan, and write nothing")
    make.add_argument("--json", action="store_true", help="for programs")
    make.add_argument("--store", default="pixels", help=argparse.SUPPRESS)
    make.add_argument("--gzip", help=argparse.SUPPRESS)
    data_verify.add_parser(group)
    data_info.add_parser(group)


def _make(parsed: argparse.Namespace) -> int:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # of a cluster's scheduler
    try:
        return _make_data_set(parsed)
    finally:
        signal.signal(signal.SIGTERM, before)


def _make_data_set(parsed: argparse.Namespace) -> int:
    from capsweep.shards import making, making_plan, progress
    from capsweep.shards.write import divide_into_parts

    if parsed.gzip is not None:
        raise UserError("--gzip: shards are not compressed; leave it out")
    if parsed.store != "pixels":
        raise ConfigError(
            f"STORE={parsed.store}: shards hold pixels; dataset={parsed.name} composes examples "
            "without shards"
        )
    engine = _choose_engine(parsed)
    job = prepare_job(parsed.name, read_overrides(parsed), parsed.pairs, parsed.with_sources)
    folder, parts = _folder_of(parsed), divide_into_parts(job, parsed.shards)
    command = _command_of(parsed, folder)
    plan = making_plan.make_plan(job, folder, parts, command, engine.count_cores())
    console = terminal.make_console(stderr=parsed.json)
    for line in _describe_plan(plan):
        terminal.print_line(console, line)
    result = None
    if not parsed.dry_run:
        with progress.CountProgress(console, len(parts), "shards") as counted:
            result = making.run_plan(plan, engine, lambda outcome: counted.advance(1))
        for line in _describe_result(plan, result, read_overrides(parsed)):
            terminal.print_line(console, line)
    if parsed.json:
        ended = None if result is None else asdict(result)
        print(json.dumps({"plan": _plan_as_json(plan), "ended": ended}, indent=1))
    return 0 if result is None else result.status


def _choose_engine(parsed: argparse.Namespace) -> "Engine":
    from capsweep.shards.making import LocalEngine

    if parsed.executor not in EXECUTORS:
        raise ConfigError(f"EXECUTOR={parsed.executor}: have {', '.join(EXECUTORS)}")
    if parsed.executor == "local":
        if parsed.address is not None:
            raise ConfigError("RAY_ADDRESS: --executor local uses no Ray; leave one of them out")
        return LocalEngine()
    try:
        from capsweep.shards.ray_tasks import RayEngine
    except ImportError as error:
        cure = "install ray or set EXECUTOR=local"
        raise ConfigError(f"EXECUTOR=ray: {error}; {cure}") from error
    return RayEngine(parsed.address)


def _folder_of(parsed: argparse.Namespace) -> Path:
    """Absolute. Raises UserError for an object store: shards are written to a file system."""
    from capsweep.config import places

    if parsed.storage is not None:
        if is_url(parsed.storage) or not parsed.storage:
            raise UserError(f"STORAGE={parsed.storage}: must be a folder of a file system")
        return Path(places.absolute(parsed.storage))
    data = data_info.data_place(read_overrides(parsed))
    if is_url(data):
        raise ConfigError(
            f"places.data={data}: shards are made in a folder of a file system; set "
            "STORAGE=FOLDER, and copy the finished folder into the object store"
        )
    return Path(data) / parsed.name


def _command_of(parsed: argparse.Namespace, folder: Path) -> str:
    """The command that goes on after an interruption."""
    words = ["capsweep", "data", "make", parsed.name, "--storage", str(folder)]
    for option in ("pairs", "shards"):
        if (value := getattr(parsed, option)) is not None:
            words += [f"--{option}", str(value)]
    words += ["--with-sources"] if parsed.with_sources else []
    return shlex.join([*words, *read_overrides(parsed)])


def _describe_plan(plan: "MakingPlan") -> Sequence[str]:
    content = plan.job.content
    settings = ", ".join(f"{key} {value}" for key, value in content.settings.items())
    fields = ", ".join(field.name for field in plan.job.fields())
    lines = [
        f"data set:  {content.dataset} of {content.origin.name} ({settings})",
        f"folder:    {plan.folder}",
        f"identity:  fingerprint {content.fingerprint}",
        f"store:     pixels: {fields}; Fletcher32",
    ]
    for split, examples in content.splits.items():
        count = sum(part.split == split for part in plan.parts)
        lines.append(f"{f'{split}:':<10} {examples:,} examples in {count:,} shards")
    lines.append(f"disk:      about {plan.bytes:,} bytes to be written, {plan.free:,} are free")
    if plan.recorded:
        count = len(plan.recorded)
        lines.append(f"there:     {count:,} shards were finished before; each is checked")
    if plan.rate:
        speed = f"{plan.rate:,.0f} examples/s a core, measured"
        lines.append(f"time:      about {plan.seconds:,.0f} s on {plan.cores} cores ({speed})")
    return lines


def _describe_result(
    plan: "MakingPlan", result: "MakingResult", overrides: Sequence[str]
) -> Sequence[str]:
    from capsweep.shards.making import FINISHED, INTERRUPTED

    speed = f" ({result.examples / result.seconds:,.0f} examples/s)" if result.examples else ""
    counts = f"{result.made:,} shards made, {result.kept:,} kept, of {result.total:,}"
    lines = [f"{counts}, in {result.seconds:.1f} s{speed}"]
    for cause, names in result.failures.items():
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        lines.append(f"FAILED {len(names):,}: {', '.join(names[:NAMED])}{more}: {cause}")
    if result.status == FINISHED:
        lines.append(f"whole: {plan.folder / 'index.json'}")
        lines.append(f"look at it:  {shlex.join(['capsweep', 'data', 'info', str(plan.folder)])}")
        data = data_info.data_place(overrides)
        if train := data_info.train_command(plan.folder, plan.job.content, data):
            lines.append(f"train on it: {train}")
        return lines
    what = "interrupted" if result.status == INTERRUPTED else "not whole"
    missing = result.total - result.made - result.kept
    lack = f"{missing:,} shards are missing" if missing else "no index.json"
    again = "run the same command again, which makes that alone"
    return [*lines, f"{what}: {plan.folder}: {lack}; {again}"]


def _plan_as_json(plan: "MakingPlan") -> Mapping[str, Any]:
    content = plan.job.content
    return {
        "folder": str(plan.folder),
        "fingerprint": content.fingerprint,
        "content": asdict(content),
        "fields": [field.name for field in plan.job.fields()],
        "shards": {s: sum(part.split == s for part in plan.parts) for s in content.splits},
        "recorded": len(plan.recorded),
        "bytes_to_write": plan.bytes,
        "bytes_free": plan.free,
        "cores": plan.cores,
        "examples_per_second": plan.rate,
        "seconds": plan.seconds,
    }
