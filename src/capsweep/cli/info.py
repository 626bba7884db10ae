"""`capsweep info`: what the network of a configuration costs, layer by layer."""

import argparse
from collections.abc import Sequence

from capsweep.config import compose
from capsweep.report import grid
from capsweep.runtime import terminal
from capsweep.training.size import Layer, measure_layers

COSTS = ("parameters", "flops", "votes")  # of a layer
COLUMNS = ("layer", "output", "parameters", "FLOPs", "votes")
NOTE = "FLOPs and votes per image. FLOPs: of matrix products and convolutions of the forward pass."


def run_info(parsed: argparse.Namespace) -> None:
    """Print a table of the layers."""
    cell = compose.cell(parsed.overrides)
    layers = measure_layers(cell.config)
    console = terminal.make_console()
    terminal.print_line(console, f"cell {cell.signature}")
    rows = [_make_row(layer.name, layer.output_shape, [layer]) for layer in layers]
    rows.append(_make_row("total", None, layers))
    terminal.print_table(console, grid.grid_terminal(None, COLUMNS, rows))
    for layer in layers:
        if layer.children_without_parent:
            text = f"{layer.name}: {layer.children_without_parent} children have no parent"
            terminal.print_line(console, text)
    terminal.print_paragraph(console, NOTE)


def _make_row(name: str, shape: Sequence[int] | None, layers: Sequence[Layer]) -> list[str]:
    costs = [sum(getattr(layer, key) for layer in layers) for key in COSTS]
    sizes = [f"{cost:,}" if cost else "–" for cost in costs]
    return [name, "x".join(map(str, shape or ())), *sizes]
