"""`capsweep info`: what the network of a configuration costs, layer by layer."""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli.command import Commands, add_command, add_json

if TYPE_CHECKING:
    from rich.table import Table

    from capsweep.training.size import Layer

COLUMNS = ("output", "parameters", "FLOPs", "votes")
NOTE = "FLOPs and votes per image. FLOPs: of matrix products and convolutions of the forward pass."


def add_parser(commands: Commands) -> None:
    """Add `info` to the parser."""
    text = "print what a network costs, layer by layer"
    command = add_command(commands, "info", _print_costs, text)
    command.add_argument("overrides", nargs="*", help="Hydra overrides, as of capsweep train")
    add_json(command)


def _print_costs(parsed: argparse.Namespace) -> int:
    from capsweep.config import compose
    from capsweep.training.size import measure_layers

    cell = compose.cell(parsed.overrides)
    layers = measure_layers(cell.config)
    if parsed.json:
        print(json.dumps(_describe_network(cell.signature, layers), indent=2))
        return 0
    console = terminal.make_console()
    terminal.print_line(console, f"cell {cell.signature}")
    terminal.print_table(console, _make_table(layers))
    for layer in layers:
        if layer.children_without_parent:
            lost = f"{layer.name}: {layer.children_without_parent} children have no parent"
            terminal.print_line(console, lost)
    terminal.print_paragraph(console, NOTE)
    return 0


def _describe_network(signature: str, layers: "Sequence[Layer]") -> dict[str, Any]:
    """The same for programs: totals, and the layers."""
    keys = ("name", "kind", "output_shape", "children_without_parent")
    rows = [{key: getattr(layer, key) for key in keys} | _sum_costs([layer]) for layer in layers]
    return {"signature": signature, **_sum_costs(layers), "layers": rows}


def _sum_costs(layers: "Sequence[Layer]") -> dict[str, int]:
    return {
        "parameters": sum(layer.parameters for layer in layers),
        "flops_per_image": sum(layer.flops for layer in layers),
        "votes_per_image": sum(layer.votes for layer in layers),
    }


def _make_table(layers: "Sequence[Layer]") -> "Table":
    """A line per layer, then the totals. In a narrow terminal names are folded, numbers are not."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for layer in layers:
        shape = "x".join(map(str, layer.output_shape or ()))
        table.add_row(layer.name, shape, *_format_costs([layer]), end_section=layer is layers[-1])
    table.add_row("total", "", *_format_costs(layers))
    return table


def _format_costs(layers: "Sequence[Layer]") -> list[str]:
    return [f"{cost:,}" if cost else "–" for cost in _sum_costs(layers).values()]
