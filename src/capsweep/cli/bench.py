"""`capsweep bench`: measure, print every number beside its bar, and keep it as JSON."""

import argparse
import json
import os
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli.command import Commands, add_command
from capsweep.errors import UserError

if TYPE_CHECKING:
    from capsweep.bench.results import BenchReport

TEXT = "measure, and print every number beside its bar"
BENCHES = {  # name: its module
    **{name: name for name in ("start", "sweep", "routing", "step", "data")},
    **{"em": "step", "shards": "data"},
}
REPLACED = {"scale": "sweep", "fixed_cost": "sweep", "makespan": "sweep", "scaling": "routing"}


def add_parser(commands: Commands) -> None:
    """Add `bench` to the parser."""
    bench = add_command(commands, "bench", _bench, TEXT)
    bench.add_argument("names", nargs="*", help=f"{', '.join(BENCHES)}; default: all")
    bench.add_argument("--json", action="store_true", help="for programs")
    bench.add_argument("--publish", metavar="PAGE", help="renew their sections of this page")
    bench.add_argument("--storage", help="results go to STORAGE/bench; default: outputs")


def _bench(parsed: argparse.Namespace) -> int:
    """Returns 1 when a bar is missed, or when the parity gate of a benchmark is red: then nothing
    of it is reported.

    Writes STORAGE/bench/NAME.json and, where there is a page, the benchmark's section of it. Raises
    UserError for an unknown name, or a page without a place for it, before anything is measured.
    """
    for name in parsed.names:
        if name in REPLACED:
            raise UserError(f"bench {name} is no more: use capsweep bench {REPLACED[name]}")
        if name not in BENCHES:
            raise UserError(f"bench {name}: have {', '.join(BENCHES)}")
    from capsweep.bench import machine, results
    from capsweep.config.places import folder_of

    page = None if parsed.publish is None else Path(parsed.publish)
    names = parsed.names or list(BENCHES)
    if page is not None:
        for name in names:
            results.check_page(page, name)
    storage = folder_of(parsed.storage or os.environ.get("STORAGE", "outputs"))
    conditions = machine.read_conditions()
    verdicts = [_measure(name, conditions, storage, page, parsed.json) for name in names]
    return 0 if all(verdicts) else 1


def _measure(
    name: str, conditions: dict[str, Any], storage: Path, page: Path | None, as_json: bool
) -> bool:
    """Measure, keep and print; whether all bars are kept."""
    from capsweep.bench import results
    from capsweep.bench.comparison import ParityError
    from capsweep.storage.files import write_json

    try:
        report = pkgutil.resolve_name(f"capsweep.bench.{BENCHES[name]}:measure_{name}")()
    except ParityError as error:
        print(f"bench {name}: RED, nothing is reported: {error}", file=sys.stderr, flush=True)
        return False
    content = results.to_json(name, report, conditions)
    file = storage / "bench" / f"{name}.json"
    try:
        write_json(file, content)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); set STORAGE=...") from error
    if page is not None:
        results.publish_section(page, name, report, conditions)
    if as_json:
        print(json.dumps(content, indent=2), flush=True)
    else:
        _print_report(name, report, conditions)
    return all(measured.verdict != "missed" for measured in report.measured)


def _print_report(name: str, report: "BenchReport", conditions: dict[str, Any]) -> None:
    from capsweep.bench import machine, results
    from capsweep.report import grid

    console = terminal.make_console()
    for header, rows in results.make_tables(report):
        terminal.print_table(console, grid.grid_terminal(name, header, rows))
    terminal.print_paragraph(console, machine.describe_conditions(conditions))
