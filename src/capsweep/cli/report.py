"""`capsweep report`, and the end of every sweep: the answer on the screen and in files."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from capsweep.cli import sweep_options
from capsweep.config import places
from capsweep.config.places import Places
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.report import formatted_table, page, publish, render, table
from capsweep.report.formatted_table import FormattedTable
from capsweep.report.table import ResultTable
from capsweep.runtime import terminal
from capsweep.storage.files import write_text
from capsweep.sweep import expand, more_seeds, trials
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep


@dataclass(frozen=True)
class SweepReport:
    """The table of a sweep as numbers and as text, what it was made from, and where it goes."""

    table: ResultTable
    formatted: FormattedTable
    ledger: Ledger
    places: Places

    @property
    def is_empty(self) -> bool:
        """Whether no cell has ended."""
        return not any(g.by_seed or g.causes or g.unmeasured for g in self.table.groups)


def run_report(parsed: argparse.Namespace) -> int:
    """Return 1 when a file could not be written; the table is on the screen then."""
    sweep, console = sweep_options.load_sweep(parsed), terminal.make_console(stderr=parsed.json)
    if sweep.search is not None and parsed.publish:
        cure = "its table supports no claim; leave out --publish"
        raise UserError(f"{sweep.name} is a search: {cure}")
    points = sweep_options.list_points(sweep)
    places.prepare(places.resolve(points[0].cell.config["places"]))
    report = _make_report(sweep, points)
    is_written = _write_and_print(report, console, parsed.json)
    if parsed.publish:
        answer = publish.publish_answer(report.table, report.ledger)
        terminal.print_line(console, f"published: {answer}")
    return 0 if is_written else 1


def print_and_write(sweep: Sweep, points: Sequence[Point], console: Console) -> bool:
    """Write the answer of a sweep, or what a search chose, into files, then print it.

    Returns whether all files could be written.
    """
    return _write_and_print(_make_report(sweep, points), console)


def _write_and_print(report: SweepReport, console: Console, as_json: bool = False) -> bool:
    is_written, lines = _write_files(report)
    if as_json:
        print(render.render_json(report.table, report.formatted))
    else:
        _print_report(report, console)
    for line in lines:
        terminal.print_line(console, line)
    return is_written


def _make_report(sweep: Sweep, points: Sequence[Point]) -> SweepReport:
    resolved = places.resolve(points[0].cell.config["places"])
    ledger = Ledger(resolved.ledger)
    if sweep.search is not None:
        tabled = trials.tabulate_trials(sweep, trials.read_trials(sweep, ledger))
        built = table.build_table(*tabled, ledger)
    else:
        added = more_seeds.load(resolved, sweep)
        points = expand.set_accuracies(sweep, added.add_points(points))
        built = table.build_table(sweep, points, ledger, added.correction)
    return SweepReport(built, formatted_table.format_table(built), ledger, resolved)


def _print_report(report: SweepReport, console: Console) -> None:
    sweep = report.table.sweep
    for text in (sweep.question, *report.formatted.warnings):
        terminal.print_paragraph(console, text)
    if report.is_empty:
        cure = f"`make ledger ARGS='ls sweep={sweep.name}'` lists those of other choices"
        terminal.print_line(console, f"{sweep.report_name}: no cell is finished; {cure}")
        return
    terminal.print_table(console, render.render_terminal(report.formatted))
    for note in report.formatted.notes:
        terminal.print_paragraph(console, note)


def _write_files(report: SweepReport) -> tuple[bool, list[str]]:
    """Write every file of the report, unless it is empty.

    Returns whether all could be written, and lines that say so: a sweep that ran does not fail for
    its report.
    """
    if report.is_empty:
        return True, []
    built, formatted = report.table, report.formatted
    short = formatted_table.format_table(built, cause=formatted_table.shorten_cause)
    folder = report.places.storage / "reports" / built.sweep.report_name
    path = folder / "index.html"
    try:
        write_text(folder / "table.md", render.render_markdown(built, formatted))
        write_text(folder / "table.tex", render.render_latex(built, short))
        write_text(folder / "table.csv", render.render_csv(built))
        page.write_page(built, report.ledger, folder)
    except Exception as error:  # whatever it is, the sweep itself ended well
        why = f"{type(error).__name__}: {error}"
        cure = "make report tries again"
        return False, [f"report: {path} could not be written ({why}); {cure}"]
    return True, [f"report: {path}"]
