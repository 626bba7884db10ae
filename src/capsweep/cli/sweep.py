"""`capsweep sweep`: run what is missing of a sweep, here or on a cluster, then print its table."""

import argparse
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli import report, submitting, sweep_options
from capsweep.cli.command import Commands, add_command, add_options
from capsweep.cluster import driver
from capsweep.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from capsweep.sweep.drive import RunOptions
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep

OPTIONS = {
    "--cluster": sweep_options.CLUSTER,
    "--address": "a running Ray cluster; default: a local one",
    "--shard": "with --executor array: this job's part, such as 2/8",
    "--budget": "start only cells that end within it: 90s, 9m, 2h",
    "--max-hours": "of this command: then what runs leaves, 8 or 0.5",
    "--max-gpu-hours": "as --max-hours, of GPU time that cells have taken",
    "--more-seeds": "up to so many, where an order is undecided",
}


def add_parser(commands: Commands) -> None:
    """Add `sweep` to the parser."""
    text = "run what is missing of a sweep, then print its table"
    sweep = add_command(commands, "sweep", _run_sweep, text)
    sweep_options.add_options(sweep)
    sweep.add_argument("--executor", default="ray", help="ray (default), local or array")
    add_options(sweep, OPTIONS)
    submitting.add_options(sweep)
    text = "failed: also cells that the same code failed before"
    sweep.add_argument("--retry", choices=["failed"], help=text)


def _run_sweep(parsed: argparse.Namespace) -> int:
    from capsweep.sweep import limits, more_seeds

    sweep, points, config = _load(parsed)
    if parsed.here and (on_node := driver.with_node_places(parsed, config)) is not None:
        parsed, (sweep, points, config) = on_node, _load(on_node)
    # What is wrong with these is said here, and not in the log of a job.
    limits.read_bounds(parsed.budget, parsed.max_hours, parsed.max_gpu_hours)
    if parsed.more_seeds is not None:
        more_seeds.plan_looks(sweep, parsed.more_seeds)  # known before the first cell is trained
    console = terminal.make_console()
    exit_status = submitting.submit_sweep(parsed, (sweep, points), config, console)
    if exit_status is not None:
        return exit_status
    with driver.interrupted_by_sigterm() if parsed.here else nullcontext():
        if sweep.search is not None:
            return _run_search(sweep, parsed, console)
        return _run_cells(sweep, points, parsed, console)


def _load(parsed: argparse.Namespace) -> "tuple[Sweep, list[Point], Mapping[str, Any]]":
    """A sweep, its points (a search has none) and the configuration that says where it runs."""
    from capsweep.sweep import expand

    sweep = sweep_options.load_sweep(parsed)
    points = [] if sweep.search is not None else expand.expand_sweep(sweep)
    return sweep, points, read_first_config(sweep, points)


def read_first_config(sweep: "Sweep", points: "list[Point]") -> Mapping[str, Any]:
    """The configuration that says where a sweep runs: of its first cell, or of a search's check."""
    if sweep.search is None:
        return points[0].cell.config
    from capsweep.sweep.trials import check_search

    return check_search(sweep).cell.config


def _run_cells(
    sweep: "Sweep", points: "list[Point]", parsed: argparse.Namespace, console: "Console"
) -> int:
    from capsweep.sweep import drive

    options = _read_options(parsed)  # one for both: its bounds are those of the whole command
    ended = drive.run_in_order(sweep, points, options, console)
    if parsed.more_seeds is not None and ended.status == drive.FINISHED:
        ended = drive.add_seeds(sweep, points, options, parsed.more_seeds, console)
    report.print_and_write(sweep, points, console)
    for line in ended.lines:
        terminal.print_line(console, line)
    return ended.status


def _run_search(sweep: "Sweep", parsed: argparse.Namespace, console: "Console") -> int:
    from capsweep.sweep import search

    ended = search.run(sweep, _read_options(parsed), console)
    report.print_search(sweep, console)
    for line in ended.lines:
        terminal.print_line(console, line)
    return ended.status


def _read_options(parsed: argparse.Namespace) -> "RunOptions":
    from capsweep.sweep import drive, limits

    if (parsed.executor == "array") != (parsed.shard is not None):
        raise UserError("--executor array and --shard i/n belong together")
    if parsed.shard is not None and parsed.more_seeds is not None:
        raise UserError("--more-seeds looks at all cells; it cannot be one job of an array")
    return drive.RunOptions(
        parsed.executor,
        limits.Limits(limits.read_bounds(parsed.budget, parsed.max_hours, parsed.max_gpu_hours)),
        None if parsed.shard is None else drive.ArrayPart.parse(parsed.shard),
        parsed.retry == "failed",
    )
