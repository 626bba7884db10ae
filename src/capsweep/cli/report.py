"""`capsweep report`: print the table of a sweep, and write it to files.

The command `capsweep sweep` does the same at its end.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from capsweep.config import places
from capsweep.config.places import Places
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.report import answer, formatted_table, live, page, publish, render, table
from capsweep.report.formatted_table import FormattedTable
from capsweep.report.table import ResultTable
from capsweep.runtime import terminal
from capsweep.storage.files import write_text
from capsweep.sweep import choices, expand, trials
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep


@dataclass(frozen=True)
class SweepReport:
    """The table of a sweep, the ledger of its cells, and the locations of its files."""

    table: ResultTable  # the table as numbers
    formatted: FormattedTable  # the table as text
    ledger: Ledger  # the cells from which the table was made
    places: Places  # the locations of a cell's files; reports are written below `places.storage`

    @property
    def is_empty(self) -> bool:
        """Whether the table is empty, because no cell has finished or failed."""
        return not any(g.by_seed or g.causes or g.unmeasured for g in self.table.groups)

    @property
    def path(self) -> Path:
        """The page of the report."""
        return live.locate_page(self.places, self.table.sweep)


def run_report(parsed: argparse.Namespace) -> int:
    """Print the table of a sweep, and write the files of its report.

    With --publish, also rewrite the answer beside the sweep file.

    Returns:
        1 if a file could not be written, else 0.
    """
    sweep = choices.load_sweep(parsed.sweep, parsed.words, parsed.overrides)
    console = terminal.make_console(stderr=parsed.json)
    if sweep.search is not None and parsed.publish:
        cure = "its table supports no claim; leave out --publish"
        raise UserError(f"{sweep.name} is a search: {cure}")
    points = expand.list_points(sweep)
    places.prepare(places.resolve(points[0].cell.config["places"]))
    report = make_report(sweep, points)
    if parsed.live:
        if not report.is_empty:
            _write_files(report, is_live=True)
        return 0
    is_written = write_and_print(report, console, parsed.json)
    if parsed.publish:
        published = publish.publish_answer(report.table, report.ledger)
        console.out(f"published: {published}")
    return 0 if is_written else 1


def make_report(sweep: Sweep, points: Sequence[Point]) -> SweepReport:
    """Make the report of a sweep from its finished cells, or of a search from its trials."""
    resolved = places.resolve(points[0].cell.config["places"])
    ledger = Ledger(resolved.ledger)
    if sweep.search is not None:
        tabled = trials.tabulate_trials(sweep, trials.read_trials(sweep, ledger))
        built = table.build_table(*tabled, ledger)
    else:
        built = table.build_table(sweep, expand.set_accuracies(sweep, points), ledger)
    return SweepReport(built, formatted_table.format_table(built), ledger, resolved)


def write_and_print(report: SweepReport, console: Console, as_json: bool = False) -> bool:
    """Write a report to files, then print it.

    Returns:
        Whether all files could be written. A fault is printed and not raised, because a finished
        sweep must not fail because of its report.
    """
    path, fault = report.path, None
    try:
        if not report.is_empty:
            _write_files(report)
    except Exception as error:  # no error may make a finished sweep fail
        why = f"{type(error).__name__}: {error}"
        fault = f"{path} could not be written ({why}); type make report to try again"
    if as_json:
        print(render.render_json(report.table, report.formatted))
    else:
        _print_report(report, console)
    if not report.is_empty:
        console.out(f"report: {fault or path}")
        runs = report.places.storage / "wandb"
        if any(runs.glob("offline-run-*")):
            command = shlex.join([f"{Path(sys.executable).parent}/wandb", "leet", str(runs)])
            console.out(f"W&B: the page has all curves; to look at the offline runs: {command}")
    return fault is None


def _write_files(report: SweepReport, is_live: bool = False) -> None:
    """Write the table of a report as Markdown, LaTeX, CSV and an HTML page.

    If `is_live`, the sweep runs, and the page reloads itself.
    """
    built, formatted, folder = report.table, report.formatted, report.path.parent
    short = formatted_table.format_table(built, cause=formatted_table.shorten_cause)
    write_text(folder / "table.md", render.render_markdown(built, formatted))
    write_text(folder / "table.tex", render.render_latex(built, short))
    write_text(folder / "table.csv", render.render_csv(built))
    page.write_page(built, report.ledger, folder, is_live)


def _print_report(report: SweepReport, console: Console) -> None:
    """Print the question, the warnings, the answer, the table, and the notes below the table."""
    sweep = report.table.sweep
    terminal.print_paragraphs(console, sweep.question, *report.formatted.warnings)
    if report.is_empty:
        cure = f"`make ledger ARGS='ls sweep={sweep.name}'` lists cells with other settings"
        console.out(f"{sweep.report_name}: no cell is finished; {cure}")
        return
    sentences = answer.shorten_sentences(answer.list_sentences(report.table))
    terminal.print_paragraphs(console, *sentences)
    terminal.print_table(console, render.render_terminal(report.formatted))
    terminal.print_paragraphs(console, *report.formatted.notes)
