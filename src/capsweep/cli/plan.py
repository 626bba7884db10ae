"""`capsweep plan`: print what a sweep would run, and run nothing."""

import argparse

from capsweep import terminal
from capsweep.cli import sweep_options
from capsweep.config import places
from capsweep.ledger.ledger import Ledger
from capsweep.sweep import expand, plan
from capsweep.sweep.estimates import Costs, describe_costs


def run_plan(parsed: argparse.Namespace) -> None:
    """Print the plan as a table, or for programs."""
    sweep, points = sweep_options.load_points(parsed)
    expand.check_distinct_fields(sweep, points)
    node_places = places.resolve(points[0].cell.config["places"])
    ledger = Ledger(node_places.ledger)
    planned = plan.make_plan(points, ledger)
    costs = Costs(ledger, node_places, planned.cells)
    console = terminal.make_console(stderr=parsed.json)
    if parsed.calibrate:
        costs.calibrate_cells([cell.cell for cell in planned.cells], console.out)
    if parsed.json:
        print(plan.as_json(sweep, planned, costs))
        return
    terminal.print_table(console, plan.make_table(planned, costs))
    described = plan.describe_plan(sweep, planned), *describe_costs(planned, costs)
    for line in (*sweep.notes, *described):
        terminal.print_paragraph(console, line)
