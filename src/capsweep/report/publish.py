"""Pages that people write and commands renew: between two markers, and nowhere else. So is
`sweeps/NAME.md`: the answer beside its question, with a verdict by hand.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.report import formatted_table, grid, render
from capsweep.report.cell_provenance import format_duration
from capsweep.report.cells import read_hardware
from capsweep.report.table import ResultTable
from capsweep.storage.files import write_text

NAME = "report"
VERDICT = "Not written yet. All that is outside the two markers is written by hand, and stays."


def section_markers(name: str) -> tuple[str, str]:
    """The lines between which a command writes; comments, which no reader sees."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def replace_section(page: str, name: str, section: str, where: Path) -> str:
    """`page` with what stands between the markers replaced; section: whole lines.

    Raises UserError unless there is one pair of them.
    """
    begin, end = section_markers(name)
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise UserError(f"{where}: needs the lines {begin} and {end}, once each, in this order")
    return f"{page.partition(begin)[0]}{begin}\n{section}{end}{page.partition(end)[2]}"


def read_page(where: Path) -> str | None:
    """The page, its line ends as they are; None when it is not there.

    Raises UserError for one that cannot be read.
    """
    try:
        return where.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{where} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text ({error}); save it as that") from error


def publish_answer(table: ResultTable, ledger: Ledger, command: str) -> Path:
    """Renew the part between the markers of the page beside the sweep's file, or make the page;
    where it is.

    Nothing of the machine enters it: of failures only their kind is told. Raises UserError for a
    page without a place for the table, or that cannot be written.
    """
    path = table.sweep.path.with_suffix(".md")
    page = read_page(path)
    if page is None:
        begin, end = section_markers(NAME)
        page = f"# {table.sweep.name}\n\n{begin}\n{end}\n\n## Verdict\n\n{VERDICT}\n"
    formatted = formatted_table.format_table(table, cause=formatted_table.shorten_cause)
    grid_text = grid.pipe_table(formatted.header, render.markdown_rows(formatted))
    training = describe_training(table, ledger)
    paragraphs = [table.sweep.question, grid_text, *formatted.notes, f"`{command}` {training}."]
    content = replace_section(page, NAME, "\n" + "\n\n".join(paragraphs) + "\n\n", path)
    try:
        write_text(path, content)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); copy {path.stem}.yaml into a folder of "
            f"yours and report that: SWEEP=path/to/{path.stem}.yaml"
        ) from error
    return path


def describe_training(table: ResultTable, ledger: Ledger) -> str:
    """`printed this, from 9 cells of 2 epochs, trained 2026-11-01 in 4 min 10 s of cells on ...`,
    as far as the cells that count in the table wrote it down. The time is that of the cells one
    after another; some may have run side by side.

    Raises DamageError for a cell whose file of that is damaged.
    """
    groups = [group for row in table.rows for group in row.values if group is not None]
    cells = list(dict.fromkeys(group.cells[seed] for group in groups for seed in group.by_seed))
    if not cells:
        return "printed this; no cell was finished"
    provenances = [ledger.read_provenance(signature) for signature in cells]
    epochs = [ledger.read_rows(signature) for signature in cells]
    days = sorted({made["started"][:10] for made in provenances if made.get("started")})
    hardware = sorted({name for made in provenances if (name := read_hardware(made))})
    seconds = sum(epoch.get("seconds", 0.0) for rows in epochs for epoch in rows)
    trained = f" {_describe_range(days)}" if days else ""
    if seconds:
        on = f" on {', '.join(hardware)}" if hardware else ""
        trained += f" in {format_duration(seconds)} of cells{on}"
    count = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
    lengths = sorted({len(rows) for rows in epochs if rows})
    if lengths:
        count += f" of {_describe_range(lengths)} epoch{'' if lengths[-1] == 1 else 's'}"
    commits = "; ".join(sorted(set(map(_describe_code, provenances))))
    parts = [f"printed this, from {count}", *([f"trained{trained}"] if trained else [])]
    return ", ".join([*parts, f"by {commits}"])


def _describe_range(rising: Sequence[Any]) -> str:
    return str(rising[0]) if len(rising) == 1 else f"{rising[0]} to {rising[-1]}"


def _describe_code(provenance: Mapping[str, Any]) -> str:
    code = provenance.get("code", {})
    version = f"capsweep {code.get('capsweep', 'of unknown version')}, no checkout"
    commit = f"commit {code['commit'][:12]}" if code.get("commit") else version
    return f"{commit} with uncommitted changes" if code.get("dirty") else commit
