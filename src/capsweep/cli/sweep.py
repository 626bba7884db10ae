"""`capsweep sweep`: run what is missing of a sweep, here or on a cluster, then print its table."""

import argparse
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from capsweep import terminal
from capsweep.cli import submitting, sweep_options
from capsweep.cluster import driver
from capsweep.errors import UserError
from capsweep.sweep import drive, expand, limits, more_seeds, trials
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep


def run_sweep(parsed: argparse.Namespace) -> int:
    """Hand the sweep to its cluster, or run it here."""
    sweep, points, config = _load(parsed)
    if parsed.here and (on_node := driver.with_node_places(parsed, config)) is not None:
        parsed, (sweep, points, config) = on_node, _load(on_node)
    # What is wrong with these is said here, and not in the log of a job.
    limits.read_bounds(parsed.budget, parsed.max_hours, parsed.max_gpu_hours)
    if parsed.more_seeds is not None:
        more_seeds.plan_looks(sweep, parsed.more_seeds)  # known before the first cell is trained
    exit_status = submitting.submit_sweep(parsed, sweep, config)
    if exit_status is not None:
        return exit_status
    with driver.interrupted_by_sigterm() if parsed.here else nullcontext():
        return _run_here(sweep, points, parsed)


def _load(parsed: argparse.Namespace) -> tuple[Sweep, list[Point], Mapping[str, Any]]:
    """A sweep, its points (a search has none), and the configuration of its first cell, or of a
    search's check, which says where it runs.
    """
    sweep = sweep_options.load_sweep(parsed)
    if sweep.search is not None:
        return sweep, [], trials.check_search(sweep).cell.config
    points = expand.expand_sweep(sweep)
    return sweep, points, points[0].cell.config


def _run_here(sweep: Sweep, points: list[Point], parsed: argparse.Namespace) -> int:
    console = terminal.make_console()
    options = _read_options(parsed)  # one for both runs: its bounds are those of the command
    if sweep.search is not None:
        from capsweep.sweep import search

        ended = search.run(sweep, options, console)
    else:
        ended = drive.run_in_order(sweep, points, options, console)
        if parsed.more_seeds is not None and ended.status == drive.FINISHED:
            ended = drive.add_seeds(sweep, points, options, parsed.more_seeds, console)
    from capsweep.cli import report  # after training: its imports take time

    report.print_and_write(sweep, points, console)
    for line in ended.lines:
        terminal.print_line(console, line)
    return ended.status


def _read_options(parsed: argparse.Namespace) -> drive.RunOptions:
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
