"""A table of results as text: the common source of Markdown, terminal, LaTeX and web page."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from capsweep.config.cell import name_classes
from capsweep.ledger import causes
from capsweep.ledger.causes import CauseKind
from capsweep.report import trained
from capsweep.report.grid import MISSING, describe_row, format_value, note_stale
from capsweep.report.table import CellGroup, ResultTable, TableRow
from capsweep.report.trained import DIFFERS
from capsweep.runtime.terminal import count_of
from capsweep.statistics.metric_format import Measure, measure_of
from capsweep.statistics.seeds import LEAST_SEEDS, LEVEL, Summary, smallest_p, summarise_values
from capsweep.sweep.expand import MATCHED_METRIC

NEVER_PREDICTS = "†"  # mark of cells that predict some class for no test image
MOST_CLASSES = 10  # classes that a note names
CONSTANT = "all equal"  # text for a difference that is the same for every seed


@dataclass(frozen=True)
class FormattedField:
    """One field of a table as text."""

    text: str  # such as `1.23 ± 0.10 % (3)`
    kind: Literal["coordinate", "value", "matched", "difference", "published"]  # what is in it
    best: bool = False  # whether the field has the best mean of its column
    column: int | None = None  # index in `ResultTable.columns`; only for values and differences

    @property
    def halves(self) -> tuple[str, str]:
        """The number, and the details that may be printed smaller: interval, p value or source."""
        if self.kind == "coordinate" or (self.kind == "published" and ";" in self.text):
            return self.text, ""
        bracket = "[" if self.kind != "published" else DIFFERS if DIFFERS in self.text else "("
        number, separator, beside = self.text.partition(f" {bracket}")
        return number, separator.strip() + beside


@dataclass(frozen=True)
class FormattedTable:
    """A table of results as text, with its notes."""

    header: Sequence[str]  # names of the columns
    rows: Sequence[Sequence[FormattedField]]  # rows of the table, fields by column
    notes: Sequence[str]  # below the table: training, meaning of numbers, failures, sources
    warnings: Sequence[str] = ()  # printed above the table

    @property
    def has_published(self) -> bool:
        """Whether the last column has published numbers."""
        return self.rows[0][-1].kind == "published"


def format_table(table: ResultTable, cause: Callable[[str], str] = str) -> FormattedTable:
    """Write a table of results as text: coordinates, values, differences, published numbers.

    Args:
        table: The table of results.
        cause: A function that rewrites the cause of a failure for the notes. The default does not
            change the cause.
    """
    rows = [_format_row(table, row) for row in table.rows]
    notes = _list_notes(table, cause)
    return FormattedTable(_table_header(table), rows, notes, trained.warn_of_cuts(table.points))


def _list_notes(table: ResultTable, cause: Callable[[str], str]) -> list[str]:
    """List the notes below a table: training, meaning of the numbers, failures and sources."""
    sweep, points = table.sweep, table.points
    # A search may have no trial yet.
    notes = [trained.describe_trained(sweep, points)] if points else []
    if sweep.words:
        notes.append(f"{sweep.path.name} with {', '.join(sweep.words)}.")
    notes += [f"{note}." for note in sweep.notes]
    notes += [f"{name}: {footnote}." for name, footnote in table.footnotes.items()]
    notes += [*_notes_on_numbers(table), *_note_never_predicted(table)]
    for row in table.rows:
        causes_of_row = [cause(why) for group in row.values for why in group.causes]
        name = describe_row(row.coordinates)
        notes += [f"failed: {name}: {why}" for why in dict.fromkeys(causes_of_row)]
    if any(group.unmeasured for group in table.groups):
        notes.append(f"{MISSING}: {table.sweep.metric} is not measured there.")
    stale = {row.coordinates: sum(g.stale for g in row.values) for row in table.rows}
    notes += note_stale(stale, sum(len(group.by_seed) for group in table.groups))
    numbers = [number for row in table.rows for number in row.published]
    return notes + trained.note_published(table.sweep, numbers)


def _notes_on_numbers(table: ResultTable) -> list[str]:
    """Return notes that explain the means, intervals, differences and matched errors of a table."""
    summaries = [group.full_summary for group in table.groups if group.full_summary]
    number = f"{table.sweep.metric} of the last epoch: mean over (n) seeds"
    if any(summary.std is not None for summary in summaries):
        number += "; ± is their standard deviation; [a, b] is the 95 % interval of the mean, given "
        number += f"from {LEAST_SEEDS} seeds on that are not all equal"
    notes = [f"{number}."]
    notes += _notes_on_differences(table)
    if table.is_matched:
        arms = ", ".join(arm.name for arm in table.sweep.arms if arm.matched)
        notes.append(
            f"{MATCHED_METRIC} is that of the last epoch; {arms} trained until it was at most "
            f"that of {table.sweep.baseline}'s cell of the same data and seed."
        )
    return notes


def _note_never_predicted(table: ResultTable) -> list[str]:
    """Return a note on the cells that never predict some class; empty without such cells.

    Cells of earlier versions do not have the counts, and get no mark.
    """
    cells = [cell for cell in table.cells if cell.class_counts]
    several = len({cell.point.cell.config["dataset"]["name"] for cell in cells}) > 1
    never = Counter[str]()
    for cell in cells:
        config = cell.point.cell.config
        where = f" of {config['dataset']['name']}" if several else ""
        names = name_classes(config)
        never.update(f"{names[index]}{where}" for index in cell.never_predicted)
    if not never:
        return []
    marked = sum(bool(cell.never_predicted) for cell in cells)
    texts = [f"{name} ({count_of(n, 'cell')})" for name, n in never.most_common(MOST_CLASSES)]
    texts += [f"and {len(never) - MOST_CLASSES} more"] * (len(never) > MOST_CLASSES)
    return [
        f"{NEVER_PREDICTS}: {marked} of {count_of(len(cells), 'cell')} "
        f"{'predicts' if marked == 1 else 'predict'} some class for no test image: "
        f"class {', '.join(texts)}."
    ]


def _notes_on_differences(table: ResultTable) -> list[str]:
    """Return notes that explain the differences to the baseline and their statistical tests.

    The list is empty if the table has no differences.
    """
    differences = [group.difference for group in table.groups if group.difference]
    if not differences or table.baseline is None:
        return []
    baseline = describe_row(table.rows[table.baseline].coordinates)
    parts = [f"mean difference to the row {baseline} over the same seeds{table.measure.diff_unit}"]
    # The number of rows with a p value, by column; Holm's method adjusts over these rows.
    tested = Counter(group.column for group in table.groups if group.p is not None)
    families = sorted({*tested.values()})
    if any(difference.interval is not None for difference in differences):
        adjusted = ", not adjusted for the number of rows" if max(families) > 1 else ""
        parts.append(f"[a, b] is its 95 % interval{adjusted}")
    if families:
        over = f"{' or '.join(map(str, families))} rows{' of a column' * (len(table.columns) > 1)}"
        alone = " of one row, so that nothing is adjusted"
        holm = f", Holm-adjusted over {over}" if max(families) > 1 else alone
        parts.append(f"p is of the paired t test{holm}")
    notes = [f"to {table.sweep.baseline}: {'; '.join(parts)}."]
    if constant := [difference for difference in differences if difference.is_constant]:
        sizes = sorted({difference.n for difference in constant if difference.mean})
        signs = ", ".join(f"p = {smallest_p(n):.2g} for n = {n}" for n in sizes)
        notes.append(
            f"{CONSTANT}: the difference is the same for each of these seeds, so that there is "
            f"neither an interval nor a t test{signs and f'; its signs alone give {signs}'}."
        )
    fewest = min(difference.n for difference in differences)
    if smallest_p(fewest) > LEVEL:
        unless = f" unless differences are normally distributed: else p >= {smallest_p(fewest):g}"
        notes.append(f"n = {fewest} cannot show a difference{unless if fewest > 1 else ''}.")
    return notes


def shorten_cause(cause: str) -> str:
    """Shorten the cause of a failure to its kind, or to the name of the Python error.

    The name is used if the kind is CODE or UNKNOWN and the cause begins with such a name.
    """
    kind = causes.classify_cause(cause)
    name = cause.partition(":")[0]
    is_named = kind in (CauseKind.CODE, CauseKind.UNKNOWN) and name.isidentifier()
    return name if is_named else str(kind)


def _table_header(table: ResultTable) -> list[str]:
    columns = [table.name_column(c) or table.sweep.metric for c in range(len(table.columns))]
    prefixes = [f"{title} " if title else "" for title in table.titles]
    matched = [f"{prefix}{MATCHED_METRIC}" for prefix in prefixes if table.is_matched]
    is_compared = table.baseline is not None
    differences = [f"{prefix}to {table.sweep.baseline}" for prefix in prefixes if is_compared]
    published = ["published"] if table.has_published else []
    return [*table.sweep.rows, *columns, *matched, *differences, *published]


def _format_row(table: ResultTable, row: TableRow) -> list[FormattedField]:
    fields = [FormattedField(format_value(value), "coordinate") for value in row.coordinates]
    for group in row.values:
        text = _format_mean(group, table.measure)
        fields.append(FormattedField(text, "value", group.is_best, group.column))
    if table.is_matched:
        fields += [FormattedField(_format_matched(group), "matched") for group in row.values]
    if table.baseline is not None:
        for group in row.values:
            text = _format_difference(group, table.measure)
            fields.append(FormattedField(text, "difference", column=group.column))
    if table.has_published:
        text = trained.format_published(table.sweep, row.published)
        fields.append(FormattedField(text, "published"))
    return fields


def _format_mean(group: CellGroup, measure: Measure) -> str:
    """Write the mean of a field, such as `1.23 ± 0.10 % (3) [0.98, 1.48]`.

    If seeds are missing, the text gives the number of seeds that have the metric, and the causes of
    failures: `2/3 seeds; failed: out of memory`.
    """
    if not group.cells or group.unmeasured:
        return MISSING
    mark = NEVER_PREDICTS if any(cell.never_predicted for cell in group.finished.values()) else ""
    if group.full_summary is None:
        kinds = ", ".join(dict.fromkeys(map(shorten_cause, group.causes)))
        seeds = f"{len(group.by_seed)}/{count_of(len(group.cells), 'seed')}{mark}"
        return f"{seeds}; failed: {kinds}" if kinds else seeds
    interval = format_interval(group.full_summary.interval, measure)
    return f"{_format_summary(group.full_summary, measure)}{mark}{interval}"


def _format_matched(group: CellGroup) -> str:
    """Write the validation error of the finished cells, such as `3.70 ± 0.02 % (3)`."""
    metrics = [cell.result["metrics"] for cell in group.finished.values()]
    errors = [each[MATCHED_METRIC] for each in metrics if MATCHED_METRIC in each]
    percent = measure_of(MATCHED_METRIC)
    return _format_summary(summarise_values(errors), percent) if errors else MISSING


def _format_difference(group: CellGroup, measure: Measure) -> str:
    """Write the difference to the baseline, such as `-0.93 [-2.10, 0.24] p 0.08 (3)`.

    If every seed has the same difference, the text is `-0.93 (3, all equal)`.
    """
    if (difference := group.difference) is None:
        return MISSING
    interval = format_interval(difference.interval, measure)
    p = "" if group.p is None else f" p {group.p:.2g}"
    seeds = f"{difference.n}, {CONSTANT}" if difference.is_constant else difference.n
    return f"{measure.format_number(difference.mean, '+')}{interval}{p} ({seeds})"


def _format_summary(summary: Summary, measure: Measure) -> str:
    return f"{format_spread(summary, measure)} ({summary.n})"


def format_spread(summary: Summary, measure: Measure) -> str:
    """Write a mean and its standard deviation, such as `1.23 ± 0.10 %`."""
    spread = "" if summary.std is None else f" ± {measure.format_number(summary.std)}"
    return f"{measure.format_number(summary.mean)}{spread}{measure.unit}"


def format_interval(interval: tuple[float, float] | None, measure: Measure) -> str:
    """Write an interval after a blank, such as ` [-1.40, 1.20]`; nothing if there is none."""
    if interval is None:
        return ""
    return f" [{measure.format_number(interval[0])}, {measure.format_number(interval[1])}]"
