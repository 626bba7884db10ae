"""`capsweep plan` prints what a sweep would run; `capsweep info` prints the cost of a network."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from capsweep.config import compose, places
from capsweep.ledger.ledger import Ledger
from capsweep.report import grid
from capsweep.runtime import terminal
from capsweep.sweep import choices, expand, plan, trials
from capsweep.sweep.estimates import calibrate_cells, read_estimates
from capsweep.training.size import Layer, measure_layers

COSTS = ("parameters", "flops", "votes")  # the attributes of a layer that are summed
COLUMNS = ("layer", "output", "parameters", "FLOPs", "votes")
NOTE = "FLOPs and votes are per image; FLOPs count matrix products and convolutions, forward only."


def run_plan(parsed: argparse.Namespace) -> None:
    """Print the plan of a sweep as a table, or as JSON."""
    sweep = choices.load_sweep(parsed.sweep, parsed.words, parsed.overrides)
    points = expand.set_accuracies(sweep, expand.list_points(sweep))
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
    costs = read_estimates(ledger, planned.entries, planned.begun)
    console = terminal.make_console(stderr=parsed.json)
    if parsed.calibrate:
        places.prepare(node_places)
        cells = [cell.cell for cell in planned.cells]
        calibrate_cells(costs, cells, ledger, node_places, console)
    if parsed.json:
        print(plan.as_json(sweep, planned, costs))
        return
    table = grid.grid_terminal(None, plan.COLUMNS, plan.list_rows(planned, costs))
    table.padding, table.show_edge = (0, 1, 0, 0), False  # so that the ablation fits 80 columns
    terminal.print_table(console, table)
    lines = plan.describe_costs(planned, costs)
    terminal.print_paragraphs(console, *sweep.notes, described, *lines)


def run_info(parsed: argparse.Namespace) -> None:
    """Print the layers of a network with their output shapes and costs."""
    cell = compose.cell(parsed.overrides)
    layers = measure_layers(cell.config)
    console = terminal.make_console()
    console.out(f"cell {cell.signature}")
    rows = [_make_row(layer.name, layer.output_shape, [layer]) for layer in layers]
    rows.append(_make_row("total", None, layers))
    terminal.print_table(console, grid.grid_terminal(None, COLUMNS, rows))
    terminal.print_paragraphs(console, NOTE)


def _make_row(name: str, shape: Sequence[int] | None, layers: Sequence[Layer]) -> list[str]:
    costs = [sum(getattr(layer, key) for layer in layers) for key in COSTS]
    sizes = [f"{cost:,}" if cost else "–" for cost in costs]
    return [name, "x".join(map(str, shape or ())), *sizes]
