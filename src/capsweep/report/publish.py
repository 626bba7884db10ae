"""Published answers: the page `sweeps/NAME.md`, and an archive of the cells of its table.

A command renews the part of a page between two markers. People write the rest, such as the verdict.
The archive is `sweeps/ledgers/NAME.tar.xz`. The table can be printed again from the archive.
"""

import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from capsweep.errors import UserError
from capsweep.ledger import stored_files, transfer
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.ledger.records import Couplings
from capsweep.report import answer, figures, formatted_table, grid, render
from capsweep.report.cells import TableCell
from capsweep.report.formatted_table import format_spread
from capsweep.report.grid import MISSING, format_value
from capsweep.report.table import ResultTable
from capsweep.runtime.terminal import count_of
from capsweep.statistics import metric_format
from capsweep.statistics.seeds import summarise_values
from capsweep.storage.files import write_atomically, write_text

NAME = "report"  # name in the markers of a page
ARCHIVES = "ledgers"  # folder beside the sweep files, with the cells of published tables
COMMAND = "(?m)^`(make report [^`]+)` printed this"  # the line with the command of a page's table
CHARTS = "charts"  # folder beside the sweep files, with the figures of published tables
Content: TypeAlias = Mapping[str, Any]
ROUTING = "routing.json"  # file in the evals/ of a cell
SIZES = ("parameters", "images/s")
SIZES_NOTE = "parameters: with decoder. images/s: the median speed of training, as the cells ran."
MEASURES = ("entropy", "polarisation", "variety", "dead")  # measures of a routed layer
FEWEST, MOST = 1, 10  # numbers of iterations at test for which the table shows changed classes
# Columns of the table of routing: first the numbers of a layer, then those of the whole network.
COLUMNS = (*MEASURES, "error", "frozen", f"changed at T'={FEWEST}", f"changed at T'={MOST}")
ROUTING_NOTES = (
    "Of each layer, by couplings of the last iteration. entropy: that of the shares of a child, by "
    "that of equal shares. polarisation: how far a child's largest share is from an equal one; 0 "
    "where all are equal, 100 % where one parent has the child. Both are means over children and "
    "images. variety: the part of the variance of couplings that is between images, the rest being "
    "between links; none where all couplings are equal. dead: parents whose activation is below "
    "0.01 in all images; the threshold is ours.",
    "Of the whole network, the same beside each of its layers. error: as trained. frozen: with the "
    "couplings of all layers replaced by their mean over as many training images, not augmented. "
    f"changed at T'={FEWEST}, T'={MOST}: images whose predicted classes change when the same "
    "weights are routed with so many iterations.",
)
VERDICT = "Not written yet. All that is outside the two markers is written by hand, and stays."


def section_markers(name: str) -> tuple[str, str]:
    """Return the first and the last line of a section. Both are comments, invisible on the page."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def renew_section(page: Path, name: str, section: str | None, new: str | None = None) -> str:
    """Replace the text between two markers of a page, and return the whole old text of the page.

    Every other byte of the page stays the same.

    Args:
        page: The file of the page.
        name: The name in the markers.
        section: The new text between the markers, in whole lines. None: the page is only checked.
        new: The text to start from if the file does not exist yet. None: the file must exist.

    Raises:
        UserError: If the page does not have exactly one pair of markers, or if the page cannot be
            read or written.
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


def publish_answer(table: ResultTable, ledger: Ledger) -> Path:
    """Write a table into the page of its sweep, archive its cells, and return the page's path.

    The page is beside the sweep file. If there is no page yet, one is made. The page names no
    folder of this machine. For a failed cell the page gives only the kind of failure or the name of
    the Python error.

    Raises:
        UserError: If no cell is finished, or if limit_batches left out data. If the page has the
            table of another command, lacks the markers, or cannot be read or written. If a file of
            a cell names a folder of this machine.
        DataError: If a file of a cell is missing or damaged.
    """
    path, command = table.sweep.path.with_suffix(".md"), table.sweep.command
    markers = "\n".join(section_markers(NAME))
    formatted = formatted_table.format_table(table, cause=formatted_table.shorten_cause)
    refused = f"{table.sweep.report_name} is not published"
    if not any(group.by_seed for group in table.groups):
        raise UserError(f"{refused}: no cell is finished; run the sweep first")
    if formatted.warnings:
        raise UserError(f"{refused}: {' '.join(formatted.warnings)} Run it without limit_batches")
    training = describe_training(table)
    # A published page does not say that cells are stale: it names the commits that made them.
    parts = [text for text in render.list_paragraphs(formatted) if not text.startswith(grid.STALE)]
    beside, sentences = list_costs(table, ledger), answer.list_sentences(table)
    chart, drawn = figures.make_table_figure(table), []
    if (image := chart.image) is not None:
        file = path.parent / CHARTS / f"{path.stem}.png"
        write_atomically(file, lambda opened: opened.write(image))
        drawn = [f"![{chart.caption}]({CHARTS}/{file.name})"]
    paragraphs = [table.sweep.question, *sentences, parts[0], *drawn, *parts[1:], *beside]
    paragraphs.append(f"`{command}` {training}.")
    new = f"# {table.sweep.name}\n\n{markers}\n\n## Verdict\n\n{VERDICT}\n"
    before = re.search(COMMAND, renew_section(path, NAME, None, new))
    if before is not None and before[1] != command:
        cure = "to replace it, remove the text between the markers of that page"
        raise UserError(f"{refused}: {path} has the table of `{before[1]}`; {cure}")
    keep_cells(table, ledger, path.parent / ARCHIVES / f"{path.stem}.tar{transfer.PACKED}")
    renew_section(path, NAME, "\n" + "\n\n".join(paragraphs) + "\n\n", new)
    return path


def keep_cells(table: ResultTable, ledger: Ledger, file: Path) -> None:
    """Write an archive of those cells of a table that have a result or have failed.

    The new archive is verified before it replaces an older archive.

    Raises:
        DataError: If a cell lacks a file.
        UserError: If a file of a cell names a folder of this machine.
    """
    made = file.with_name(f"new-{file.name}")
    made.unlink(missing_ok=True)
    ended = transfer.list_ended_cells({cell.signature: cell.entry for cell in table.cells})
    transfer.export_cells(ledger, ended, made, transfer.is_needed_by_tables)
    try:
        transfer.verify_export(made)
        for name, content in transfer.read_members(made):
            if (folder := transfer.FOLDER.search(content)) is not None:
                raise UserError(
                    f"{table.sweep.report_name} is not published: {name} names a folder of this "
                    f"machine, {folder[0].decode(errors='replace')}; run that cell again elsewhere"
                )
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)


def describe_training(table: ResultTable) -> str:
    """Describe the training of a table's cells: number, epochs, days, time, hardware and code.

    The text begins `printed this, from 9 cells of 2 epochs, trained 2026-11-01 in 4 min 10 s`.
    The time is the sum over the cells, although some cells may have run at the same time.
    """
    cells = {cell.signature: cell for g in table.groups for cell in g.measured}.values()
    days = _describe_span({str(cell.provenance.get("started", "?"))[:10] for cell in cells})
    epochs = _describe_span({len(cell.rows) for cell in cells})
    noun = "epoch" if epochs == "1" else "epochs"
    seconds = sum(row.get("seconds", 0.0) for cell in cells for row in cell.rows)
    return (
        f"printed this, from {count_of(len(cells), 'cell')} of {epochs} {noun}, trained {days} in "
        f"{grid.format_duration(seconds)} of cells on "
        f"{', '.join(sorted({cell.hardware for cell in cells}))}, by "
        f"{'; '.join(sorted({_describe_code(cell.provenance) for cell in cells}))}"
    )


def _describe_span(values: Set[Any]) -> str:
    """Write the range of some values, such as `2` or `2 to 5`."""
    return " to ".join(map(str, dict.fromkeys((min(values), max(values)))))


def _describe_code(provenance: Mapping[str, Any]) -> str:
    code = provenance.get("code", {})
    version = f"capsweep {code.get('capsweep', 'of unknown version')}, no checkout"
    commit = f"commit {code['commit'][:12]}" if code.get("commit") else version
    return f"{commit} with uncommitted changes" if code.get("dirty") else commit


def collect_measures(contents: Sequence[Content]) -> dict[str, list[Sequence[float]]]:
    """Collect the routing measures of several cells: for each layer, a list for each of COLUMNS.

    Each list has one value for each cell that has this measure. If no cell was measured, there is
    one layer with the name MISSING and empty lists.
    """
    if not contents:
        return {MISSING: [()] * len(COLUMNS)}
    return {
        layer: [
            [value for value in column if value is not None]
            for column in zip(*(_read_measures(each, layer) for each in contents), strict=True)
        ]
        for layer in contents[0]["layers"]
    }


def _read_measures(content: Content, layer: str) -> list[float | None]:
    """Return the values of COLUMNS for a layer of a cell; None for a value that was not measured.

    The classes that other numbers of iterations predict are compared with those of the number in
    training.
    """
    measured = content["layers"][layer]
    changed = {each["iterations"]: each["changed"] for each in content["iterations"] or ()}
    of_network = [content["error"], content["frozen_error"], changed.get(FEWEST), changed.get(MOST)]
    return [*(measured[name] for name in MEASURES), *of_network]


def format_percent(values: Sequence[float]) -> str:
    """Write the mean and the standard deviation of fractions, such as `87.31 ± 1.20 %`.

    There is one fraction for each seed. If there are no values, the text is `–`.
    """
    percent = metric_format.measure_of("error")
    return format_spread(summarise_values(values), percent) if values else MISSING


def list_costs(table: ResultTable, ledger: Ledger) -> list[str]:
    """Write a Markdown table of parameters, speed and routing measures, and notes on this table.

    If routing was measured in at least one cell, each field of the table of results has a row for
    each routed layer. If routing was measured in no cell, fields that differ only in settings of
    the optimiser share a row.

    Returns:
        The paragraphs: the Markdown table, and then notes that explain its columns.

    Raises:
        DamageError: If a file of a cell is damaged.
    """
    keys = [*table.sweep.rows, *table.sweep.columns]
    groups = [group for group in table.groups if group.by_seed]
    contents = [_read_contents(group.measured, ledger) for group in groups]
    if any(contents):
        lines = []
        for group, of_group in zip(groups, contents, strict=True):
            start = [*map(format_value, group.coordinates), *_describe_sizes(group.measured)]
            for layer, columns in collect_measures(of_group).items():
                lines.append([*start, layer, f"({len(of_group)})", *map(format_percent, columns)])
        header = [*keys, *SIZES, "layer", "measured", *COLUMNS]
        return [grid.pipe_table(header, lines), SIZES_NOTE, *ROUTING_NOTES]
    shown = [number for number, key in enumerate(keys) if not key.startswith("optim")]
    cells: dict[tuple[Any, ...], list[TableCell]] = {}
    for group in groups:
        place = tuple(group.coordinates[number] for number in shown)
        cells.setdefault(place, []).extend(group.measured)
    lines = [[*map(format_value, place), *_describe_sizes(each)] for place, each in cells.items()]
    return [grid.pipe_table([*(keys[n] for n in shown), *SIZES], lines), SIZES_NOTE]


def _describe_sizes(cells: Sequence[TableCell]) -> list[str]:
    """Return two texts: the number of parameters, and the median images per second of training."""
    results = [cell.result for cell in cells]
    sizes = sorted({result["parameters"] for result in results if "parameters" in result})
    speeds = [speed for result in results if (speed := result.get("images_per_second"))]
    return [
        ", ".join(f"{size:,}" for size in sizes) or MISSING,
        f"{median(speeds):,.0f}" if speeds else MISSING,
    ]


def _read_contents(cells: Sequence[TableCell], ledger: Ledger) -> list[Content]:
    """Read the routing.json of each cell that has this file."""
    names = (cell.signature for cell in cells if ROUTING in cell.evaluations)
    return [
        stored_files.parse_json(content, ROUTING, "evaluate the cell again", Couplings)
        for name in names
        if (content := ledger.read(name, f"{EVALUATIONS}/{ROUTING}")) is not None
    ]
