"""`capsweep info`: what the network of a configuration costs, layer by layer."""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli.command import Commands, add_command

if TYPE_CHECKING:
    from rich.table import Table

    from capsweep.training.layers import Layer

COLUMNS = ("output", "parameters", "FLOPs", "votes", "activations")
NOTE = (
    "All but parameters per image. FLOPs: of matrix products and convolutions of the forward pass; "
    "activations: bytes that a training step saves for its backward pass."
)


def add_parser(commands: Commands) -> None:
    """Add `info` to the parser."""
    text = "print what a network costs, layer by layer"
    command = add_command(commands, "info", _info, text)
    command.add_argument("overrides", nargs="*", help="Hydra overrides, as of capsweep train")
    command.add_argument("--json", action="store_true", help="for programs")


def _info(parsed: argparse.Namespace) -> int:
    from capsweep.config import compose
    from capsweep.training.layers import measure_layers

    cell = compose.cell(parsed.overrides)
    found = measure_layers(cell.config)
    if parsed.json:
        print(json.dumps(content(cell.signature, found), indent=2))
        return 0
    console = terminal.console()
    terminal.line(console, f"cell {cell.signature}")
    terminal.show(console, table(found))
    for layer in found:
        if layer.children_without_parent:
            lost = f"{layer.name}: {layer.children_without_parent} children have no parent"
            terminal.line(console, lost)
    terminal.paragraph(console, NOTE)
    return 0


def content(signature: str, found: "Sequence[Layer]") -> dict[str, Any]:
    """The same for programs: totals, and the layers."""
    from capsweep.training.layers import sum_layers

    rows = [
        {
            "name": layer.name,
            "kind": layer.kind,
            "output_shape": layer.output_shape,
            "children_without_parent": layer.children_without_parent,
        }
        | _costs(layer)
        for layer in found
    ]
    return {"signature": signature, **_costs(sum_layers(found)), "layers": rows}


def _costs(layer: "Layer") -> dict[str, int]:
    return {
        "parameters": layer.parameters,
        "flops_per_image": layer.flops,
        "votes_per_image": layer.votes,
        "activation_bytes_per_image": layer.activation_bytes,
    }


def table(found: "Sequence[Layer]") -> "Table":
    """A line per layer, then the totals. In a narrow terminal names are folded, numbers are not."""
    from rich import box
    from rich.table import Table

    from capsweep.training.layers import sum_layers

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("layer", overflow="fold")
    for name in COLUMNS:
        made.add_column(name, justify="right", no_wrap=True)
    for layer in found:
        made.add_row(layer.name, *_fields(layer), end_section=layer is found[-1])
    made.add_row("total", *_fields(sum_layers(found)))
    return made


def _fields(layer: "Layer") -> list[str]:
    shape = "x".join(map(str, layer.output_shape)) if layer.output_shape else "–"
    return [shape, *(f"{cost:,}" if cost else "–" for cost in _costs(layer).values())]
