"""`capsweep report`, and the end of every sweep: the answer on the screen and in files."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from capsweep import terminal
from capsweep.cli import sweep_options
from capsweep.cli.command import Commands, add_command
from capsweep.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from capsweep.config.places import Places
    from capsweep.ledger.ledger import Ledger
    from capsweep.report.formatted_table import FormattedTable
    from capsweep.report.table import ResultTable
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep

Faults = tuple[type[Exception], ...]
TEXT = "print the table of a sweep from finished cells, and write it in every form"
FIGURES = "reconstructions,couplings, or all"
# What drawing may end with on files that are not what a cell writes, or without matplotlib. A sweep
# that ran is not to fail for its picture; `capsweep report` shows where it did.
UNFIT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
NOT_DRAWN = (OSError, RuntimeError, ImportError, *UNFIT)


@dataclass(frozen=True)
class SweepReport:
    """The table of a sweep as numbers and as text, what it was made from, and where it goes."""

    table: "ResultTable"
    formatted: "FormattedTable"
    points: "Sequence[Point]"
    ledger: "Ledger"
    places: "Places"

    @property
    def folder(self) -> Path:
        """Where its files go."""
        return self.places.storage / "reports" / self.table.sweep.name


def add_parser(commands: Commands) -> None:
    """Add `report` to the parser."""
    report = add_command(commands, "report", report_sweep, TEXT)
    sweep_options.add_options(report)
    report.add_argument("--publish", action="store_true", help="renew NAME.md beside NAME.yaml")
    report.add_argument("--evals", metavar="NAMES", help=f"first draw missing figures: {FIGURES}")
    report.add_argument("--json", action="store_true", help="for programs")


def report_sweep(parsed: argparse.Namespace) -> int:
    """1 when a file could not be written, or a figure drawn; the table is on the screen then."""
    from capsweep.config import places
    from capsweep.sweep import expand

    sweep = sweep_options.load_sweep(parsed)
    if sweep.search is not None:
        _check_search(sweep, parsed)
        print_search(sweep, terminal.make_console())
        return 0
    points = expand.expand_sweep(sweep)
    places.prepare(places.resolve(points[0].cell.config["places"]))
    report = _make_report(sweep, points)
    console = terminal.make_console(stderr=parsed.json)
    is_complete = True
    if parsed.evals is not None:
        from capsweep.cli import figures

        is_complete = figures.draw_missing(
            report.table, report.ledger, report.places, parsed.evals, console
        )
    if parsed.json:
        from capsweep.report import render

        print(render.render_json(report.table, report.formatted))
    else:
        _print_report(report, console)
    is_complete &= _write_files(report, console, (OSError,))
    if parsed.publish:
        from capsweep.report import publish

        command = sweep_options.format_make_command(parsed, "report")
        page = publish.publish_answer(report.table, report.ledger, command)
        terminal.print_line(console, f"published: {page}")
    return 0 if is_complete else 1


def print_and_write(sweep: "Sweep", points: "Sequence[Point]", console: "Console") -> None:
    """The answer after a sweep ran. That a report could not be written is said, and no more: how
    the cells ended is what counts.
    """
    report = _make_report(sweep, points)
    _print_report(report, console)
    _write_files(report, console, NOT_DRAWN)


def write_report(sweep: "Sweep", points: "Sequence[Point]", console: "Console") -> None:
    """The files of the answer, after a job of a cluster has printed it."""
    _write_files(_make_report(sweep, points), console, NOT_DRAWN)


def print_search(sweep: "Sweep", console: "Console") -> None:
    """What a search chose, on the screen and in its file."""
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger
    from capsweep.report import evaluation_tables
    from capsweep.storage.files import write_text
    from capsweep.sweep import trials

    resolved = places.resolve(trials.check_search(sweep).cell.config["places"])
    summary = trials.summarize_trials(sweep, trials.read_trials(sweep, Ledger(resolved.ledger)))
    text = evaluation_tables.search_markdown(sweep, summary)
    path = resolved.storage / "reports" / sweep.name / "table.md"
    terminal.print_line(console, text)
    if _try_to_write(path, lambda: write_text(path, text), console, (OSError,)):
        terminal.print_line(console, f"report: {path}")


def _check_search(sweep: "Sweep", parsed: argparse.Namespace) -> None:
    for name in ("publish", "evals", "json"):
        if getattr(parsed, name):
            raise UserError(
                f"--{name}: {sweep.name} is a search, whose table supports no claim; run what it "
                "chose as an ablation, or leave the option out"
            )


def _make_report(sweep: "Sweep", points: "Sequence[Point]") -> SweepReport:
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger
    from capsweep.report import formatted_table, table
    from capsweep.sweep import expand, more_seeds

    resolved = places.resolve(points[0].cell.config["places"])
    ledger, added = Ledger(resolved.ledger), more_seeds.load(resolved, sweep)
    points = expand.set_accuracies(sweep, added.add_points(points))
    built = table.build_table(sweep, points, ledger, added.correction)
    return SweepReport(built, formatted_table.format_table(built), points, ledger, resolved)


def _print_report(report: SweepReport, console: "Console") -> None:
    from capsweep.report import render

    sweep = report.table.sweep
    terminal.print_paragraph(console, sweep.question)
    label = " · ".join(sweep.rows)
    for table in render.render_terminal(report.formatted, label, console.width):
        terminal.print_table(console, table)
    for note in report.formatted.notes:
        terminal.print_paragraph(console, note)


def _write_files(report: SweepReport, console: "Console", faults: Faults) -> bool:
    """Every file of the report; whether all could be written, and of those that could not why."""
    from capsweep.report import page, render
    from capsweep.report.formatted_table import format_table, shorten_cause
    from capsweep.storage.files import write_text

    table, stem = report.table, Path(report.table.sweep.table_file).stem
    # The page of another metric than the sweep's has a folder of its own.
    folder = report.folder / stem.removeprefix("table").removeprefix("-")
    texts = {
        ".md": lambda: render.render_markdown(table, report.formatted),
        ".tex": lambda: render.render_latex(table, format_table(table, cause=shorten_cause)),
        ".csv": lambda: render.render_csv(table, report.formatted),
    }
    writes: dict[Path, Callable[[], object]] = {}
    for ending, text in texts.items():
        path = report.folder / f"{stem}{ending}"
        writes[path] = lambda path=path, text=text: write_text(path, text())
    index = folder / "index.html"
    writes[index] = lambda: page.write_page(table, report.points, report.ledger, folder)
    is_written = [_try_to_write(path, write, console, faults) for path, write in writes.items()]
    if is_written[-1]:
        terminal.print_line(console, f"report: {index}")
    return all(is_written)


def _try_to_write(
    path: Path, write: Callable[[], object], console: "Console", faults: Faults
) -> bool:
    try:
        write()
    except faults as error:
        plain = error.strerror if isinstance(error, OSError) else None
        why = plain or f"{type(error).__name__}: {error}"
        text = f"report: {path} could not be written ({why}); make report writes it"
        terminal.print_line(console, text)
        return False
    return True
