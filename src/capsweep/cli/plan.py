"""`capsweep plan`: print what a sweep would run, and run nothing."""

import argparse
from dataclasses import replace

from capsweep.cli import sweep_options
from capsweep.config import places
from capsweep.ledger.ledger import Ledger
from capsweep.runtime import terminal
from capsweep.sweep import expand, plan, trials
from capsweep.sweep.estimates import calibrate_cells, read_estimates


def run_plan(parsed: argparse.Namespace) -> None:
    """Print the plan as a table, or for programs."""
    sweep = sweep_options.load_sweep(parsed)
    points = expand.set_accuracies(sweep, sweep_options.list_points(sweep))
    node_places = places.resolve(points[0].cell.config["places"])
    ledger = Ledger(node_places.ledger)
    planned = plan.make_plan(points, ledger)
    if sweep.search is None:
        expand.check_distinct_fields(sweep, points)
        described = plan.describe_plan(sweep, planned)
    else:
        known = trials.read_trials(sweep, ledger)
        planned = replace(planned, trials=trials.count_left(sweep, known))
        described = trials.describe_search(sweep, known)
    costs = read_estimates(ledger, planned.entries)
    console = terminal.make_console(stderr=parsed.json)
    if parsed.calibrate:
        cells = [cell.cell for cell in planned.cells]
        calibrate_cells(costs, cells, ledger, node_places, console.out)
    if parsed.json:
        print(plan.as_json(sweep, planned, costs))
        return
    terminal.print_table(console, plan.make_table(planned, costs))
    for line in (*sweep.notes, described, *plan.describe_costs(planned, costs)):
        terminal.print_paragraph(console, line)
