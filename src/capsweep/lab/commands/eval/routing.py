"""`capsweep eval routing SWEEP` and `capsweep eval routing-cell CELL`: what routing does."""

import argparse

from capsweep.cli.program import DEVICE, SIGNATURE, SWEEP, Command
from capsweep.lab.commands.eval.figures import FIRST_IMAGES

COMMANDS: dict[str, Command] = {
    "routing": (
        "measure couplings, and what they do for answers",
        (*SWEEP, FIRST_IMAGES, DEVICE),
    ),
    "routing-cell": (
        "print the same of one cell",
        (SIGNATURE, FIRST_IMAGES, DEVICE),
    ),
}


def run_routing(parsed: argparse.Namespace) -> None:
    """Measure every cell that routes; a file in each one's evals/, and a table."""
    from capsweep.lab.evaluation.routing_report import publish_routing
    from capsweep.lab.evaluation.sweep_cells import load_cells

    publish_routing(load_cells(parsed), parsed.device, parsed.examples)


def run_routing_cell(parsed: argparse.Namespace) -> None:
    """Print the measures of one cell as JSON, which its evals/ keep."""
    import json
    import sys

    from capsweep.errors import NotApplicableError
    from capsweep.lab.evaluation.routing_measures import FILE, measure_routing
    from capsweep.lab.evaluation.sweep_cells import open_cell, write_content

    loader, signature = open_cell(parsed)
    try:
        content = measure_routing(*loader.load_tested(signature), parsed.examples)
    except NotApplicableError as error:
        raise NotApplicableError(f"{signature}: {error}") from error
    print(write_content(loader.ledger, signature, FILE, content), file=sys.stderr)
    print(json.dumps({"cell": signature, **content}, indent=1))
