"""`capsweep bench` runs benchmarks, and prints every number beside its limit."""

import argparse
import pkgutil
from pathlib import Path

from capsweep.cli.program import Command, option
from capsweep.errors import UserError

ON_REQUEST = "parity"  # runs only if the user names it
# The module of each benchmark, by name.
BENCHES = {ON_REQUEST: "training", "sweep": "sweep", "routing": "routing", "step": "training"}
OPTIONS = (
    option("names", f"some of {', '.join(BENCHES)}; default: all but {ON_REQUEST}", nargs="*"),
    option("--quick", "use tiny sizes, to test the benchmarks", action="store_true"),
    option("--publish", "write results to sections of a page", metavar="PAGE", type=Path),
)
COMMANDS: dict[str, Command] = {
    "bench": ("measure speed, and print every number beside its limit", OPTIONS)
}


def run_bench(parsed: argparse.Namespace) -> int:
    """Run the named benchmarks and print their tables; with `--publish`, write them to a page too.

    Returns:
        The exit status: 1 if a bar is missed, else 0. With `--quick` the exit status is always 0,
        because numbers of tiny sizes mean nothing.

    Raises:
        UserError: A name is unknown, or the page has no section for a benchmark. Names and sections
            are checked before the first benchmark runs.
    """
    from capsweep.lab import bench
    from capsweep.report import grid, publish
    from capsweep.runtime import terminal

    names = parsed.names or [name for name in BENCHES if name != ON_REQUEST]
    if unknown := [name for name in names if name not in BENCHES]:
        raise UserError(f"bench {', '.join(unknown)}: no such name; have {', '.join(BENCHES)}")
    suffix, where = "-quick" if parsed.quick else "", " on a GPU" if bench.is_gpu() else ""
    page: Path | None = parsed.publish
    for name in names:
        if page is not None:
            publish.renew_section(page, f"{name}{suffix}{where}", None)
    console, line, is_kept = terminal.make_console(), bench.describe_conditions(), True
    for name in names:
        measure = pkgutil.resolve_name(f"capsweep.lab.bench.{BENCHES[name]}:measure_{name}")
        report: bench.BenchReport = measure(parsed.quick)
        if page is not None:
            items = "\n".join(each.as_line() for each in report.numbers if each.bar is not None)
            section = f"`bench {name}`, {line}.\n\n{items}\n"
            publish.renew_section(page, f"{name}{suffix}{where}", section)
        for header, rows in report.make_tables():
            terminal.print_table(console, grid.grid_terminal(name, header, rows))
        terminal.print_paragraphs(console, line)
        is_kept &= all(measured.verdict != "MISSED" for measured in report.numbers)
    return 0 if is_kept or parsed.quick else 1
