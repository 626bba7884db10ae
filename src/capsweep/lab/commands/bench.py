"""`capsweep bench`: measure, print every number beside its bar, and keep it as JSON."""

import argparse
import pkgutil
import sys
from pathlib import Path
from typing import Any

from capsweep.cli.program import Command
from capsweep.errors import UserError
from capsweep.lab.commands import option

NAMED = "parity"  # runs where it is named
BENCHES = {  # name: its module
    "start": "sweep",
    "shards": "data",
    **{name: name for name in ("sweep", "routing", "convolution", "step", "data", NAMED)},
}
OPTIONS = (
    option("names", f"of {', '.join(BENCHES)}; default: all but {NAMED}", nargs="*"),
    option("--quick", "tiny sizes, to see that it runs", action="store_true"),
    option("--publish", "renew their sections of this page", metavar="PAGE"),
)
COMMANDS: dict[str, Command] = {
    "bench": ("measure, and print every number beside its bar", OPTIONS)
}


def run_bench(parsed: argparse.Namespace) -> int:
    """Return 1 when a bar is missed, or when candidates of a whole benchmark do not agree: then
    nothing of it is reported. Quick ones have no bars, since they measure nothing.

    Writes STORAGE/bench/NAME.json (NAME-quick.json) and, where there is a page, the benchmark's
    section of it. Raises UserError for an unknown name, or a page without a place for it, before
    anything is measured.
    """
    from capsweep.cli.ledger import find_storage
    from capsweep.config.places import folder_of
    from capsweep.lab import bench

    names = parsed.names or [name for name in BENCHES if name != NAMED]
    if unknown := [name for name in names if name not in BENCHES]:
        raise UserError(f"bench {', '.join(unknown)}: have {', '.join(BENCHES)}")
    if parsed.quick and parsed.publish is not None:
        raise UserError("bench --quick measures nothing that could be published; leave one out")
    page, conditions = None, bench.read_conditions()
    if parsed.publish is not None:
        page = Path(parsed.publish)
        for name in names:
            bench.check_page(page, name)
    storage = folder_of(find_storage(parsed))
    verdicts = [_measure(name, parsed.quick, conditions, storage, page) for name in names]
    return 0 if all(verdicts) else 1


def _measure(
    name: str, is_quick: bool, conditions: dict[str, Any], storage: Path, page: Path | None
) -> bool:
    """Measure, keep and print; return whether all bars are kept."""
    from capsweep.lab import bench
    from capsweep.lab.bench.comparison import CandidateError
    from capsweep.report import grid
    from capsweep.runtime import terminal
    from capsweep.storage.files import write_json

    module = f"capsweep.lab.bench.{BENCHES[name]}"
    options = pkgutil.resolve_name(f"{module}:QUICK")[name] if is_quick else {}
    try:
        report = pkgutil.resolve_name(f"{module}:measure_{name}")(**options)
    except CandidateError as error:
        print(f"bench {name}: RED, nothing is reported: {error}", file=sys.stderr, flush=True)
        return False
    content = report.as_json(name, conditions)
    write_json(storage / "bench" / f"{name}{'-quick' if is_quick else ''}.json", content)
    if page is not None:
        report.publish(page, name, conditions)
    console = terminal.make_console()
    for header, rows in report.make_tables():
        terminal.print_table(console, grid.grid_terminal(name, header, rows))
    terminal.print_paragraph(console, bench.describe_conditions(conditions))
    return is_quick or all(measured.verdict != "missed" for measured in report.bars)
