"""`capsweep data make`: write the shards of a data set, or what is missing of them."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from capsweep import terminal
from capsweep.cli.command import Commands, add_command
from capsweep.errors import ConfigError, UserError
from capsweep.object_store import is_url

if TYPE_CHECKING:
    from capsweep.data_prep.job import Job
    from capsweep.data_prep.making.drive import Ended
    from capsweep.data_prep.making.folder import Wanted
    from capsweep.data_prep.making.plan import Plan
    from capsweep.data_prep.making.work import Engine

TEXT = "write the shards of a data set, or what is missing of them"
EXECUTORS = ("ray", "local")
STORES = ("pixels", "virtual")
LEVELS = range(1, 10)  # of gzip


def add(commands: Commands) -> None:
    """Add `make` to the parser."""
    make = add_command(commands, "make", _make, TEXT)
    make.add_argument("name", help="of the data set: multimnist, smallnorb, affnist, affnist_like")
    make.add_argument(
        "overrides", nargs="*", help="Hydra overrides of dataset=NAME: dataset.source=digits"
    )
    make.add_argument("--pairs", type=int, metavar="N", help="per digit of training and test")
    make.add_argument("--shards", type=int, metavar="N", help="files of the training split")
    make.add_argument("--store", default="pixels", help="pixels (default), or virtual: no shards")
    make.add_argument("--with-sources", action="store_true", help="also the two digits alone")
    make.add_argument("--gzip", type=int, metavar="LEVEL", help="compress, 1 to 9; default: not")
    make.add_argument("--storage", metavar="FOLDER", help="the data set's own; default: DATA/NAME")
    make.add_argument("--data-dir", help="where the source images are")
    make.add_argument("--executor", default="ray", help="ray (default), or local: in this process")
    make.add_argument("--address", help="a running Ray cluster; default: a local one")
    make.add_argument("--dry-run", action="store_true", help="print the plan, and write nothing")
    make.add_argument("--json", action="store_true", help="for programs")


def _make(parsed: argparse.Namespace) -> int:
    from capsweep.data_prep.making import drive

    with drive.terminated_like_ctrl_c():
        return _planned_and_made(parsed)


def _planned_and_made(parsed: argparse.Namespace) -> int:
    from capsweep.data_prep import train_command
    from capsweep.data_prep.making import drive, lines, local, plan, work

    _check(parsed)
    job = _job(parsed)
    engine = _engine(parsed)
    memory = local.MEMORY if parsed.executor == "local" else work.MEMORY
    planned = plan.make(job, _wanted(parsed, job), _folder(parsed), engine.cores(), memory)
    console = terminal.console(stderr=parsed.json)
    for line in lines.of_plan(planned):
        terminal.line(console, line)
    plan.check_space(planned)
    if parsed.dry_run:
        return _end(parsed, planned, None, 0)
    ended = drive.run(job, planned, engine, console)
    for line in lines.of_end(planned, ended):
        terminal.line(console, line)
    if ended.status == drive.FINISHED:
        for line in lines.how_to_read(planned, train_command.data_place(_overrides(parsed))):
            terminal.line(console, line)
    return _end(parsed, planned, ended, ended.status)


def _end(parsed: argparse.Namespace, planned: "Plan", ended: "Ended | None", status: int) -> int:
    if parsed.json:
        told = None if ended is None else asdict(ended)
        print(json.dumps({"plan": planned.as_plain(), "ended": told}, indent=1))
    return status


def _check(parsed: argparse.Namespace) -> None:
    """What can be seen before anything is read. Raises ConfigError."""
    from capsweep.data_prep import jobs

    kind = jobs.kind(parsed.name)
    if parsed.store not in STORES:
        raise ConfigError(f"STORE={parsed.store}: have {', '.join(STORES)}")
    if parsed.executor not in EXECUTORS:
        raise ConfigError(f"EXECUTOR={parsed.executor}: have {', '.join(EXECUTORS)}")
    if parsed.executor == "local" and parsed.address is not None:
        raise ConfigError("RAY_ADDRESS: --executor local uses no Ray; leave one of them out")
    if parsed.gzip is not None and parsed.gzip not in LEVELS:
        raise ConfigError(f"--gzip {parsed.gzip}: must be 1 to 9; leave it out for no compression")
    if kind.with_sources is None:
        asked = {"PAIRS": parsed.pairs is not None and kind.copies is None}
        asked["--with-sources"] = parsed.with_sources
        asked["STORE=virtual"] = parsed.store == "virtual"
        for option in [option for option, is_asked in asked.items() if is_asked]:
            raise ConfigError(f"{option}: {parsed.name} is not composed of others; leave it out")
    elif parsed.store == "virtual":
        asked = {"SHARDS": parsed.shards is not None, "--with-sources": parsed.with_sources}
        asked["--gzip"] = parsed.gzip is not None
        for option in [option for option, is_asked in asked.items() if is_asked]:
            raise ConfigError(f"{option}: a virtual data set has no shards; leave it out")


def _overrides(parsed: argparse.Namespace) -> list[str]:
    """As typed, and --data-dir as one."""
    from capsweep.config.overrides import render

    data = [] if parsed.data_dir is None else [render("places.data", parsed.data_dir)]
    return [*parsed.overrides, *data]


def _job(parsed: argparse.Namespace) -> "Job":
    from capsweep.data_prep import jobs

    kind = jobs.kind(parsed.name)
    prepare = kind.with_sources if parsed.with_sources and kind.with_sources else kind.prepare
    overrides = _overrides(parsed)
    if parsed.pairs is not None and kind.copies:
        return kind.copies(overrides, parsed.pairs)
    if parsed.pairs is not None:
        overrides.append(f"dataset.batches.pairs={parsed.pairs}")
    return prepare(overrides)


def _wanted(parsed: argparse.Namespace, job: "Job") -> "Wanted":
    from capsweep.data_prep import jobs
    from capsweep.data_prep.making import cut
    from capsweep.data_prep.making.folder import Wanted

    if parsed.store == "virtual":
        return Wanted(job.content, "virtual", (), ())
    kind = jobs.kind(parsed.name)
    parts = cut.parts(job.content.splits, parsed.shards, kind.usual, kind.most)
    return Wanted(job.content, "pixels", tuple(job.fields()), parts, parsed.gzip)


def _folder(parsed: argparse.Namespace) -> Path:
    """Absolute. Raises UserError for an object store: HDF5 is written to a file system."""
    from capsweep.config import places
    from capsweep.data_prep import jobs, train_command

    if parsed.storage is None:
        return train_command.data_folder(_overrides(parsed)) / (
            jobs.kind(parsed.name).folder or parsed.name
        )
    if is_url(parsed.storage) or not parsed.storage:
        raise UserError(f"STORAGE={parsed.storage}: must be a folder of a file system")
    return Path(places.absolute(parsed.storage))


def _engine(parsed: argparse.Namespace) -> "Engine":
    if parsed.executor == "local":
        from capsweep.data_prep.making.local import Local

        return Local()
    try:
        from capsweep.data_prep.making.ray_tasks import RayTasks
    except ImportError as error:
        cure = "install ray or set EXECUTOR=local"
        raise ConfigError(f"EXECUTOR=ray: {error}; {cure}") from error
    return RayTasks(parsed.address)
