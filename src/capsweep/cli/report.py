"""`capsweep report`, and the end of every sweep: the answer on the screen and in files."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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

TEXT = "print the table of a sweep from finished cells, and write it in every form"
Faults = type[Exception] | tuple[type[Exception], ...]
NAMES = "reconstructions,couplings, or all"
# What drawing may end with on files that are not what a cell writes, or without matplotlib. A sweep
# that ran is not to fail for its picture; `capsweep report` shows where it did.
UNFIT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
NOT_DRAWN = (OSError, RuntimeError, ImportError, *UNFIT)


@dataclass(frozen=True)
class Answer:
    """The table of a sweep in both forms, and what it was made from."""

    table: "ResultTable"
    written: "FormattedTable"
    points: "Sequence[Point]"
    ledger: "Ledger"
    here: "Places"

    @property
    def folder(self) -> Path:
        """Where its files go."""
        return self.here.storage / "reports" / self.table.sweep.name

    @property
    def page(self) -> Path:
        """The folder of the page: that of another metric than the sweep's has one of its own."""
        metric = Path(self.table.sweep.table_file).stem.removeprefix("table").removeprefix("-")
        return self.folder / metric


def add_parser(commands: Commands) -> None:
    """Add `report` to the parser."""
    report = add_command(commands, "report", _report, TEXT)
    sweep_options.add_options(report)
    report.add_argument("--publish", action="store_true", help="renew NAME.md beside NAME.yaml")
    report.add_argument("--evals", metavar="NAMES", help=f"first draw missing figures: {NAMES}")
    report.add_argument("--json", action="store_true", help="for programs")


def _report(parsed: argparse.Namespace) -> int:
    """1 when a file could not be written, or a figure drawn; the table is on the screen then."""
    from capsweep.config import places
    from capsweep.sweep import expand

    sweep = sweep_options.load_sweep(parsed)
    if sweep.search is not None:
        _check_search(sweep, parsed)
        print_search(sweep, terminal.console())
        return 0
    points = expand.expand_sweep(sweep)
    places.prepare(places.resolve(points[0].cell.config["places"]))
    answer = _answer(sweep, points)
    console = terminal.console(stderr=parsed.json)
    drawn = parsed.evals is None or _make_missing(answer, parsed.evals, console)
    if parsed.json:
        _print_json(answer)
    else:
        _show(answer, console)
    good = _write(answer, console, OSError)
    if parsed.publish:
        from capsweep.report import publish

        page = publish.publish_answer(
            answer.table, answer.ledger, sweep_options.format_make_command(parsed, "report")
        )
        terminal.line(console, f"published: {page}")
    return 0 if good and drawn else 1


def at_the_end(sweep: "Sweep", points: "Sequence[Point]", console: "Console") -> None:
    """The answer after a sweep ran. That a report could not be written is said, and no more: how
    the cells ended is what counts.
    """
    answer = _answer(sweep, points)
    _show(answer, console)
    _write(answer, console, NOT_DRAWN)


def write(sweep: "Sweep", points: "Sequence[Point]", console: "Console") -> None:
    """The files of the answer, after a job of a cluster has printed it."""
    _write(_answer(sweep, points), console, NOT_DRAWN)


def print_search(sweep: "Sweep", console: "Console") -> None:
    """What a search chose, on the screen and in its file."""
    from capsweep.config import places
    from capsweep.report import evaluation_tables
    from capsweep.storage.files import write_text
    from capsweep.sweep import search, study
    from capsweep.sweep.more_seeds import open_memory

    here = places.resolve(search.check(sweep).cell.config["places"])
    text = evaluation_tables.search_markdown(sweep, study.remembered(sweep, open_memory(here)))
    path = here.storage / "reports" / sweep.name / "table.md"
    terminal.line(console, text)
    if _written(path, lambda: write_text(path, text), console, OSError):
        terminal.line(console, f"report: {path}")


def _check_search(sweep: "Sweep", parsed: argparse.Namespace) -> None:
    for name in ("publish", "evals", "json"):
        if getattr(parsed, name):
            raise UserError(
                f"--{name}: {sweep.name} is a search, whose table supports no claim; run what it "
                "chose as an ablation, or leave the option out"
            )


def _answer(sweep: "Sweep", points: "Sequence[Point]") -> Answer:
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger
    from capsweep.report import formatted_table, table
    from capsweep.sweep import matched, more_seeds

    here = places.resolve(points[0].cell.config["places"])
    ledger, added = Ledger(here.ledger), more_seeds.load(here, sweep)
    every = matched.set_accuracies(sweep, added.add_points(points))
    found = table.build_table(sweep, every, ledger, added.correction)
    return Answer(found, formatted_table.format_table(found), every, ledger, here)


def _show(answer: Answer, console: "Console") -> None:
    from capsweep.report import render

    terminal.paragraph(console, answer.table.sweep.question)
    for shown in render.render_terminal(answer.table, answer.written, console.width):
        terminal.show(console, shown)
    for note in answer.written.notes:
        terminal.paragraph(console, note)


def _make_missing(answer: Answer, names: str, console: "Console") -> bool:
    from capsweep.evaluation_doors import missing

    return missing.make(answer.table, answer.ledger, answer.here, names, console)


def _print_json(answer: Answer) -> None:
    from capsweep.report import records

    print(records.as_json(answer.table, answer.written))


def _write(answer: Answer, console: "Console", faults: Faults) -> bool:
    """Every file of the report; whether all could be written, and of those that could not why."""
    from capsweep.report import formatted_table, latex, records, render

    table, written = answer.table, answer.written
    texts: dict[str, Callable[[], str]] = {
        ".md": lambda: render.render_markdown(table, written),
        ".tex": lambda: latex.latex_table(
            table, formatted_table.format_table(table, cause=formatted_table.shorten_cause)
        ),
        ".csv": lambda: records.as_csv(table, written),
    }
    good = True
    for ending, text in texts.items():
        path = (answer.folder / table.sweep.table_file).with_suffix(ending)
        good = _written(path, partial(_write_text, path, text), console, faults) and good
    page = answer.page / "index.html"
    if not _written(page, lambda: _draw(answer), console, faults):
        return False
    terminal.line(console, f"report: {page}")
    return good


def _write_text(path: Path, text: Callable[[], str]) -> None:
    from capsweep.storage.files import write_text

    write_text(path, text())


def _draw(answer: Answer) -> None:
    from capsweep.report import page

    page.write_page(answer.table, answer.points, answer.ledger, answer.page)


def _written(path: Path, write: Callable[[], object], console: "Console", faults: Faults) -> bool:
    try:
        write()
    except faults as error:
        plain = error.strerror if isinstance(error, OSError) else None
        why = plain or f"{type(error).__name__}: {error}"
        told = f"report: {path} could not be written ({why}); make report writes it"
        terminal.line(console, told)
        return False
    return True
