"""Pages that people write and commands renew: between two markers, and nowhere else. So is
`sweeps/NAME.md`: the answer beside its question, with a verdict by hand. The cells behind its table
are kept in `sweeps/ledgers/NAME.tar.xz`, from which it can be printed again.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capsweep.errors import UserError
from capsweep.ledger import upkeep
from capsweep.ledger.ledger import Ledger
from capsweep.report import costs, formatted_table, grid, render
from capsweep.report.cells import read_hardware
from capsweep.report.table import ResultTable
from capsweep.statistics.seeds import LEVEL
from capsweep.storage.files import write_text
from capsweep.terminal import count_of

NAME = "report"
ARCHIVES = "ledgers"  # the folder of the cells behind published tables, beside the sweeps
COMMAND = "(?m)^`(make report [^`]+)` printed this"  # above the verdict
VERDICT = "Not written yet. All that is outside the two markers is written by hand, and stays."


def section_markers(name: str) -> tuple[str, str]:
    """The lines between which a command writes; comments, which no reader sees."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def renew_section(page: Path, name: str, section: str | None, new: str | None = None) -> str:
    """Replace what stands between the markers by a section of whole lines; every other byte stays.
    The page as it was. section: None only checks it. new: the page, where none is there.

    Raises UserError unless there is one pair of markers, and for a page that cannot be read or
    written.
    """
    begin, end = section_markers(name)
    try:
        text = page.read_bytes().decode() if new is None or page.exists() else new
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise UserError(f"{page}: needs the lines {begin} and {end}, once each, in this order")
        if section is not None:
            rest = text.partition(end)[2]
            write_text(page, f"{text.partition(begin)[0]}{begin}\n{section}{end}{rest}")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{page} cannot be renewed: {error}") from error
    return text


def publish_answer(table: ResultTable, ledger: Ledger) -> tuple[Path, str | None]:
    """Renew the part between the markers of the page beside the sweep's file, or make the page, and
    the export of its cells; where it is, and the command that had printed what stood there, if it
    was another one.

    Nothing of the machine enters it: of failures only their kind is told. Raises UserError for a
    table that is no answer, for one of other choices where another command's stands, and for a page
    without a place for the table, or that cannot be written.
    """
    path, command = table.sweep.path.with_suffix(".md"), table.sweep.command
    markers = "\n".join(section_markers(NAME))
    formatted = formatted_table.format_table(table, cause=formatted_table.shorten_cause)
    refused = f"{table.sweep.report_name} is not published"
    if not any(group.by_seed for group in table.groups):
        raise UserError(f"{refused}: no cell is finished; run the sweep first")
    if formatted.warnings:
        raise UserError(f"{refused}: {' '.join(formatted.warnings)} Leave limit_batches out")
    training = describe_training(table, ledger)
    parts = render.list_paragraphs(formatted)
    beside = costs.list_costs(table, ledger)
    decisions = describe_decisions(table)
    paragraphs = [table.sweep.question, *parts, *decisions, *beside, f"`{command}` {training}."]
    new = f"# {table.sweep.name}\n\n{markers}\n\n## Verdict\n\n{VERDICT}\n"
    before = re.search(COMMAND, renew_section(path, NAME, None, new))
    instead = None if before is None or before[1] == command else before[1]
    if instead and table.sweep.variation:
        cure = "to replace it, remove what stands between the markers of that page"
        raise UserError(f"{refused}: {path} has the table of `{instead}`; {cure}")
    renew_section(path, NAME, "\n" + "\n\n".join(paragraphs) + "\n\n", new)
    archive = path.parent / ARCHIVES / f"{path.stem}.tar{upkeep.PACKED}"
    archive.unlink(missing_ok=True)
    upkeep.export_cells(ledger, list_counted(table), archive, upkeep.is_result)
    return path, instead


def describe_decisions(table: ResultTable) -> list[str]:
    """For each column with differences of three seeds or more: which are decided, and how large the
    others can be by their intervals.
    """
    sentences = []
    for number, column in enumerate(table.columns):
        tested = [
            (grid.describe_row(row.coordinates), group.difference, group.p)
            for row in table.rows
            if (group := row.values[number]) and group.difference and group.p is not None
        ]
        ranges = {name: d.interval for name, d, p in tested if d.interval and p >= LEVEL}
        decided = [f"{name} ({_format(table, d.mean)})" for name, d, p in tested if p < LEVEL]
        if decided or ranges:
            where = f"{grid.describe_row(column)}: " if len(table.columns) > 1 else ""
            sentences.append(f"{where}decided at {LEVEL:g}: {', '.join(decided) or 'none'}.")
        if ranges:
            low, high = (
                min(ranges, key=lambda n: ranges[n][0]),
                max(ranges, key=lambda n: ranges[n][1]),
            )
            sentences[-1] += (
                f" The {count_of(len(ranges), 'other difference')} can be from "
                f"{_format(table, ranges[low][0])} ({low}) to {_format(table, ranges[high][1])} "
                f"({high}){table.measure.points}."
            )
    return sentences


def _format(table: ResultTable, difference: float) -> str:
    return table.measure.format_number(difference, "+")


def list_counted(table: ResultTable) -> list[str]:
    """Signatures of the finished cells that count in the table."""
    groups = table.groups
    return list(dict.fromkeys(group.cells[seed] for group in groups for seed in group.by_seed))


def describe_training(table: ResultTable, ledger: Ledger) -> str:
    """`printed this, from 9 cells of 2 epochs, trained 2026-11-01 in 4 min 10 s of cells on ...`,
    as far as the cells that count in the table wrote it down. The time is that of the cells one
    after another; some may have run side by side.

    Raises DamageError for a cell whose file of that is damaged.
    """
    cells = list_counted(table)
    if not cells:
        return "printed this; no cell was finished"
    provenances = [ledger.read_provenance(signature) for signature in cells]
    by_cell = [ledger.read_rows(signature) for signature in cells]
    days = sorted({each["started"][:10] for each in provenances if each.get("started")})
    hardware = sorted({name for each in provenances if (name := read_hardware(each))})
    seconds = sum(row.get("seconds", 0.0) for rows in by_cell for row in rows)
    epochs = sorted({len(rows) for rows in by_cell if rows})
    parts = [f"printed this, from {count_of(len(cells), 'cell')}"]
    if epochs:
        span = " to ".join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))
        parts[0] += f" of {span} epoch{'' if epochs[-1] == 1 else 's'}"
    if days:
        parts.append(f"trained {' to '.join(dict.fromkeys((days[0], days[-1])))}")
    if seconds:
        on = f" on {', '.join(hardware)}" if hardware else ""
        parts[-1] += f" in {grid.format_duration(seconds)} of cells{on}"
    commits = "; ".join(sorted(set(map(_describe_code, provenances))))
    return ", ".join([*parts, f"by {commits}"])


def _describe_code(provenance: Mapping[str, Any]) -> str:
    code = provenance.get("code", {})
    version = f"capsweep {code.get('capsweep', 'of unknown version')}, no checkout"
    commit = f"commit {code['commit'][:12]}" if code.get("commit") else version
    return f"{commit} with uncommitted changes" if code.get("dirty") else commit
