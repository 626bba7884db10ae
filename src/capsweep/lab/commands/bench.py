"""`capsweep bench`: measure, and print every number beside its bar."""

import argparse
import pkgutil
from pathlib import Path

from capsweep.cli.program import Command
from capsweep.errors import UserError
from capsweep.lab.commands import option

NAMED = "parity"  # runs where it is named
BENCHES = {  # name: its module
    "start": "sweep",
    "shards": "data",
    NAMED: "training",
    **{name: name for name in ("sweep", "routing", "convolution", "step", "data")},
}
OPTIONS = (
    option("names", f"of {', '.join(BENCHES)}; default: all but {NAMED}", nargs="*"),
    option("--quick", "tiny sizes, to see that it runs", action="store_true"),
    option("--publish", "renew their sections of this page", metavar="PAGE", type=Path),
)
COMMANDS: dict[str, Command] = {
    "bench": ("measure, and print every number beside its bar", OPTIONS)
}


def run_bench(parsed: argparse.Namespace) -> int:
    """Return 1 when a bar is missed. Quick ones have no bars, since they measure nothing.

    Where there is a page, the benchmark's section of it is renewed. Raises UserError for an unknown
    name, or a page without a place for it, before anything is measured.
    """
    from capsweep.lab import bench
    from capsweep.report import grid, publish
    from capsweep.runtime import terminal

    names = parsed.names or [name for name in BENCHES if name != NAMED]
    if unknown := [name for name in names if name not in BENCHES]:
        raise UserError(f"bench {', '.join(unknown)}: have {', '.join(BENCHES)}")
    suffix, where = "-quick" if parsed.quick else "", " on a GPU" if bench.is_gpu() else ""
    page: Path | None = parsed.publish
    for name in names:
        if page is not None:
            publish.renew_section(page, f"bench {name}{suffix}{where}", None)
    console, line, is_kept = terminal.make_console(), bench.describe_conditions(), True
    for name in names:
        measure = pkgutil.resolve_name(f"capsweep.lab.bench.{BENCHES[name]}:measure_{name}")
        report: bench.BenchReport = measure(parsed.quick)
        if page is not None:
            parts = [f"`capsweep bench {name}`, {line}."]
            tables = report.shorten().make_tables()
            parts += [grid.pipe_table(header, rows) for header, rows in tables]
            section = "\n\n".join(parts) + "\n"
            publish.renew_section(page, f"bench {name}{suffix}{where}", section)
        for header, rows in report.make_tables():
            terminal.print_table(console, grid.grid_terminal(name, header, rows))
        terminal.print_paragraph(console, line)
        is_kept &= all(measured.verdict != "MISSED" for measured in report.numbers)
    return 0 if is_kept or parsed.quick else 1
