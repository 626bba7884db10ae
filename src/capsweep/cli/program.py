"""The `capsweep` command. Every door imports what it needs, so that `--help` is instant."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from capsweep import (
    __version__,
    evaluation_doors,
    terminal,
    unexpected,
)
from capsweep.cli import (
    attach,
    bench,
    choosing,
    cluster,
    data,
    info,
    ledger,
    report,
    status,
    stop,
    submitting,
    wandb,
)
from capsweep.cli.command import add_command
from capsweep.cluster import driver, remote_command
from capsweep.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from capsweep.sweep.drive import How
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep

BAD_INPUT = 2
PLACES = ("STORAGE", "DATA_DIR")  # variables that conf/ reads


@terminal.escaped_streams()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns 0, 1 (a cell failed), 2 (bad input), 130 (Ctrl-C), 70 (a fault of
    ours) or 74 (a disk, or who reads the output, refuses).
    """
    try:
        status = _run_command(list(sys.argv[1:] if argv is None else argv))
        unexpected.flush_output()
        return status
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # whatever it is, it is one line for the person
        return unexpected.report(error)


def _run_command(arguments: list[str]) -> int:
    _check_system()
    _unset_empty_variables()
    if arguments[:1] == ["train"]:
        return _train(arguments[1:])
    if "-sc" in arguments or "--shell-completion" in arguments:
        return _train(arguments)  # the shell asks the program, without the word `train`
    parsed = _parse(arguments)
    return parsed.door(parsed)


def _unset_empty_variables() -> None:
    """A variable that is set to nothing, as scripts do, is one that is not set."""
    for name in [name for name, value in os.environ.items() if not value]:
        if name.startswith(("WANDB_", "RAY_", "CAPSWEEP_", "AWS_")) or name in PLACES:
            del os.environ[name]


def _check_system() -> None:
    """Claims are judged by /proc: without it, a cell that runs would be taken for a dead one's."""
    if sys.platform != "linux":
        raise UserError(f"capsweep runs on Linux only, this is {sys.platform}; use WSL or Docker")


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Overrides may stand anywhere among the options, which argparse alone does not allow."""
    parser = _parser()
    parsed, rest = parser.parse_known_args(arguments)
    if unknown := [
        word for word in rest if word.startswith("-") or not hasattr(parsed, "overrides")
    ]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        parsed.overrides = [*parsed.overrides, *rest]
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "capsweep", description="Experiment sweeps for capsule networks."
    )
    parser.add_argument("--version", action="version", version=f"capsweep {__version__}")
    doors = parser.add_subparsers(metavar="COMMAND", required=True)
    doors.add_parser("train", help="run one cell: a Hydra application", add_help=False)
    sweep = add_command(
        doors, "sweep", _sweep, "run what is missing of a sweep, then print its table"
    )
    plan = add_command(doors, "plan", _plan, "print what a sweep would run, and run nothing")
    for door in (sweep, plan):
        choosing.add(door)
        door.add_argument("--cluster", help="a file of conf/cluster: local (default), aws, slurm")
    report.add(doors)
    _add_running(sweep)
    plan.add_argument("--calibrate", action="store_true", help="time 20 steps of unknown shapes")
    plan.add_argument("--json", action="store_true", help="for programs")
    info.add(doors)
    evaluation_doors.add(doors)
    ledger.add(doors)
    data.add(doors)
    cluster.add(doors)
    attach.add(doors, report.write)
    status.add(doors)
    stop.add(doors)
    bench.add(doors)
    text = "print versions and places, and what to do about each fault"
    doctor = add_command(doors, "doctor", _doctor, text)
    doctor.add_argument("--json", action="store_true", help="for programs")
    wandb.add(doors)
    return parser


def _add_running(sweep: argparse.ArgumentParser) -> None:
    sweep.add_argument("--executor", default="ray", help="ray (default), local or array")
    sweep.add_argument("--address", help="a running Ray cluster; default: a local one")
    submitting.add_detach(sweep)
    remote_command.add_here(sweep)
    cluster.add_dry_run(sweep)
    sweep.add_argument("--shard", help="with --executor array: this job's part, such as 2/8")
    sweep.add_argument("--budget", help="start only cells that end within it: 90s, 9m, 2h")
    sweep.add_argument("--max-hours", help="of this command: then what runs leaves, 8 or 0.5")
    sweep.add_argument("--max-gpu-hours", help="as --max-hours, of GPU time that cells have taken")
    sweep.add_argument("--more-seeds", help="up to so many, where an order is undecided")
    sweep.add_argument(
        "--retry", choices=["failed"], help="failed: also cells that the same code failed before"
    )


def _train(arguments: list[str]) -> int:
    from capsweep.cli import train

    return train.main(arguments)


def _sweep(parsed: argparse.Namespace) -> int:
    from capsweep.sweep import more_seeds

    sweep, points, config = _chosen(parsed)
    if parsed.here and (seen := remote_command.as_seen_here(parsed, config)) is not parsed:
        parsed, (sweep, points, config) = seen, _chosen(seen)
    if parsed.more_seeds is not None:
        more_seeds.plan_looks(sweep, parsed.more_seeds)  # known before the first cell is trained
    console = terminal.console()
    exit_status = cluster.submit_to_slurm(parsed, config)
    if exit_status is not None:
        return exit_status
    if submitting.is_wanted(parsed, config):
        _how(parsed)  # what is wrong with it is said here, and not in a log
        return submitting.run(parsed, (sweep, points), config, console, report.write)
    with driver.interrupted_by_sigterm() if parsed.here else nullcontext():
        if sweep.search is not None:
            return _run_search(sweep, parsed, console)
        return _run(sweep, points, parsed, console)


def _chosen(parsed: argparse.Namespace) -> "tuple[Sweep, list[Point], Mapping[str, Any]]":
    """A sweep, its points (a search has none) and the configuration that says where it runs."""
    from capsweep.sweep import expand

    sweep, variants = choosing.loaded(parsed)
    points = [] if sweep.search is not None else expand.points(sweep, variants)
    return sweep, points, read_first_config(sweep, points)


def read_first_config(sweep: "Sweep", points: "list[Point]") -> Mapping[str, Any]:
    """The configuration that says where a sweep runs: of its first cell, or of a search's check."""
    if sweep.search is None:
        return points[0].cell.config
    from capsweep.sweep import search

    return search.check(sweep).cell.config


def _run(
    sweep: "Sweep", points: "list[Point]", parsed: argparse.Namespace, console: "Console"
) -> int:
    from capsweep.sweep import drive

    how = _how(parsed)  # one for both: its bounds are those of the whole command
    ended = drive.run_in_order(sweep, points, how, console)
    if parsed.more_seeds is not None and ended.status == drive.FINISHED:
        ended = drive.add_seeds(sweep, points, how, parsed.more_seeds, console)
    report.at_the_end(sweep, points, console)
    for line in ended.lines:
        terminal.line(console, line)
    return ended.status


def _run_search(sweep: "Sweep", parsed: argparse.Namespace, console: "Console") -> int:
    from capsweep.sweep import search_drive

    ended = search_drive.run(sweep, _how(parsed), console)
    report.print_search(sweep, console)
    for line in ended.lines:
        terminal.line(console, line)
    return ended.status


def _how(parsed: argparse.Namespace) -> "How":
    from capsweep.sweep import drive, limits, shard

    if (parsed.executor == "array") != (parsed.shard is not None):
        raise UserError("--executor array and --shard i/n belong together")
    if parsed.shard is not None and parsed.more_seeds is not None:
        raise UserError("--more-seeds looks at all cells; it cannot be one job of an array")
    return drive.How(
        parsed.executor,
        limits.Limits(limits.read(parsed.budget, parsed.max_hours, parsed.max_gpu_hours)),
        None if parsed.shard is None else shard.parse(parsed.shard),
        parsed.retry == "failed",
    )


def _plan(parsed: argparse.Namespace) -> int:
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger
    from capsweep.sweep import expand, plan, plan_table
    from capsweep.sweep.costs import Costs

    sweep, points = choosing.chosen(parsed)
    expand.check_told_apart(sweep, points)
    here = places.resolve(points[0].cell.config["places"])
    ledger = Ledger(here.ledger)
    planned = plan.make(points, ledger)
    costs = Costs(ledger, here, planned.cells)
    console = terminal.console(stderr=parsed.json)
    if parsed.calibrate:
        costs.calibrate([cell.cell for cell in planned.cells], console.out)
    if parsed.json:
        print(plan_table.as_json(sweep, planned, costs))
        return 0
    terminal.show(console, plan_table.terminal(planned, costs))
    for line in (plan.describe(sweep, planned), *plan_table.estimate(planned, costs)):
        terminal.paragraph(console, line)
    return 0


def _doctor(parsed: argparse.Namespace) -> int:
    from capsweep.cli import doctor

    return doctor.main(parsed.json)
