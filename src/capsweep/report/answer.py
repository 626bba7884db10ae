"""The answer of a table in sentences: for each axis, what its values change, and how surely.

Two values of an axis are compared with all else equal. For each seed, the metric is averaged over
all settings of the other axes that have both values, and the two averages are subtracted. The
differences of the seeds give a mean, a t interval and a paired t test with n - 1 degrees of
freedom, because cells of one seed share data order and initial weights and are not independent
repetitions. The mean is the main effect of the axis: it can hide that settings differ in sign.

A direction is claimed only if p, adjusted by Holm's method, is below LEVEL. Holm's method adjusts
over all comparisons of axes in a column. A comparison with the baseline keeps the p of the table,
which is adjusted over the rows of a column. Intervals are not adjusted, as in the table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

from capsweep.report.formatted_table import format_interval
from capsweep.report.grid import describe_row, format_value
from capsweep.report.table import CellGroup, ResultTable
from capsweep.report.trained import FACTS, NAMES, warn_of_cuts
from capsweep.runtime.terminal import count_of
from capsweep.statistics import seeds
from capsweep.statistics.metric_format import measure_of
from capsweep.statistics.seeds import LEVEL, PairedDifference
from capsweep.sweep.choices import ITERATIONS, RECONSTRUCTION

MOST_NAMED = 3  # comparisons that a sentence describes one by one
MOST_PRINTED = 6  # sentences that the terminal prints
# Names of axes at the start of a sentence; other axes have the name of their key, and a key that is
# one word, such as `loss`, begins with a capital letter.
AXES = {key: name.capitalize() for key, name in (FACTS | NAMES).items()}
AXES |= {ITERATIONS: "Routing iterations", RECONSTRUCTION: "Reconstruction"}
UNTOLD = "cannot be told"
ONE_SEED = "One seed cannot tell a difference from chance: type SEEDS=3 for three seeds."


@dataclass(frozen=True)
class Comparison:
    """A comparison of two values of an axis, or of a row with the baseline, in one column.

    Attributes:
        column: The index of the column in `ResultTable.columns`.
        axis: The key of the axis; empty for a comparison with the baseline.
        name: The compared value or row.
        reference: The value or row with which it is compared.
        settings: The number of settings of the other axes over which the metric is averaged.
        difference: The paired difference of the metric over seeds.
        p: The adjusted p value of the paired t test; None if there is no test.
    """

    column: int
    axis: str
    name: str
    reference: str
    settings: int
    difference: PairedDifference
    p: float | None

    @property
    def outcome(self) -> str:
        """The claim that the seeds support: `lower`, `higher` or `cannot be told`."""
        if self.difference.interval is None or self.p is None or self.p >= LEVEL:
            return UNTOLD
        return "lower" if self.difference.mean < 0 else "higher"


def list_sentences(table: ResultTable) -> list[str]:
    """Write the answer of a table: for each column, a sentence for each axis and the baseline.

    There are no sentences for a search or for shortened data, which support no claim, or for a
    metric of which it is unknown whether larger values are better.
    """
    supports_no_claim = table.sweep.search is not None or bool(warn_of_cuts(table.points))
    if supports_no_claim or not table.measure.has_direction:
        return []
    if len(table.sweep.seeds) == 1:
        return [ONE_SEED] if len(table.rows) > 1 else []
    sentences: dict[tuple[int, str, str], list[Comparison]] = {}
    for comparison in list_comparisons(table):
        key = comparison.column, comparison.axis, comparison.reference
        sentences.setdefault(key, []).append(comparison)
    return [_write_sentence(table, each) for each in sentences.values()]


def shorten_sentences(sentences: Sequence[str]) -> list[str]:
    """Return the first MOST_PRINTED sentences, and a sentence that says where the others are."""
    more = len(sentences) - MOST_PRINTED
    rest = [f"{count_of(more, 'more sentence')}: on the page of the report."] if more > 0 else []
    return [*sentences[:MOST_PRINTED], *rest]


def list_comparisons(table: ResultTable) -> list[Comparison]:
    """List the comparisons of a table, column by column: first of axes, then with the baseline."""
    comparisons, baseline = [], table.sweep.baseline
    rows_of_arm = {group.row for group in table.groups if group.point.arm == baseline}
    if table.baseline is not None and len(rows_of_arm) > 1:
        baseline = describe_row(table.rows[table.baseline].coordinates)
    for column in range(len(table.columns)):
        groups = [group for group in table.groups if group.column == column]
        complete = [group for group in groups if group.full_summary]
        # Arms differ in many keys, and errors on different data are not comparable.
        places = [n for n, key in enumerate(table.sweep.rows) if key not in ("arm", "dataset")]
        found = [each for place in places for each in _compare_values(table, complete, place)]
        p_values = seeds.adjust_holm([each.difference.t_test for each in found])
        comparisons += [replace(each, p=p) for each, p in zip(found, p_values, strict=True)]
        comparisons += [
            Comparison(column, "", group.name, baseline, 1, group.difference, group.p)
            for group in groups
            if group.difference is not None
        ]
    return comparisons


def _compare_values(
    table: ResultTable, groups: Sequence[CellGroup], place: int
) -> Iterator[Comparison]:
    """Compare each value of an axis with the first value that can be paired; p is not set yet.

    The first value of an axis may have no pairs with other values, because only one arm has it.

    Args:
        table: The table.
        groups: The complete fields of one column.
        place: The index of the axis among the keys of the rows.
    """
    key, most = table.sweep.rows[place], table.measure.high - table.measure.low
    every = dict.fromkeys(group.coordinates[place] for group in groups)
    values = [value for value in every if value is not None]
    names = {value: _name_value(key, value, values) for value in values}
    for n, value in enumerate(values):
        for first in values[:n]:
            pairs = list(_pair_fields(table.sweep.rows, groups, place, (value, first)))
            ours, theirs = (_average_by_seed([pair[side] for pair in pairs]) for side in (0, 1))
            if (difference := seeds.paired_difference(ours, theirs, most)) is not None:
                at = groups[0].column, key, names[value], names[first], len(pairs)
                yield Comparison(*at, difference, None)
                break


def _pair_fields(
    keys: Sequence[str], groups: Sequence[CellGroup], place: int, values: tuple[Any, Any]
) -> Iterator[tuple[CellGroup, CellGroup]]:
    """Yield pairs of fields of one arm that differ, of all keys of the rows, only in the axis.

    A key of the axis' own group, such as routing.num_iters for the axis routing, may be absent on
    one side of a pair, because only some options have the key.
    """
    axis = keys[place]
    sides = ([group for group in groups if group.coordinates[place] == value] for value in values)
    for ours, theirs in product(*sides):
        ends = zip(keys, ours.coordinates, theirs.coordinates, strict=False)  # keys of rows only
        is_pair = ours.point.arm == theirs.point.arm and all(
            key == axis or one == other or (key.startswith(f"{axis}.") and None in (one, other))
            for key, one, other in ends
        )
        if is_pair:
            yield ours, theirs


def _average_by_seed(groups: Sequence[CellGroup]) -> dict[int, float]:
    """Average the metric over fields, for each seed that all of these fields have."""
    common = seeds.list_common_keys([group.by_seed for group in groups])
    return {seed: fmean(group.by_seed[seed] for group in groups) for seed in common}


def _name_value(key: str, value: Any, values: Sequence[Any]) -> str:
    """Write a value of an axis; of two reconstruction weights with 0, the names are off and on."""
    is_switch = key == RECONSTRUCTION and len(values) == 2 and 0 in values
    return ("on" if value else "off") if is_switch else format_value(value)


def _write_sentence(table: ResultTable, comparisons: Sequence[Comparison]) -> str:
    """Write the comparisons of one axis, or with the baseline, in one sentence.

    Up to MOST_NAMED comparisons are described one by one. More comparisons are grouped by outcome.
    """
    first, metric = comparisons[0], table.sweep.metric
    where = f" ({title})" if (title := table.titles[first.column]) else ""
    axis = first.axis.capitalize() if first.axis.isalpha() else first.axis
    axis = AXES.get(first.axis, axis)
    reference = f"{first.reference}{where} with {_describe_seeds(comparisons)}"
    if len(comparisons) == 1 and axis:
        text = _describe_comparison(first, metric)
        return f"{axis} {first.name} against {reference}: {text}."
    if len(comparisons) > MOST_NAMED:
        text = _list_outcomes(comparisons, metric)
    else:
        text = "; ".join(f"{c.name}: {_describe_comparison(c, metric)}" for c in comparisons)
    return f"{axis} against {reference}: {text}." if axis else f"Against {reference}: {text}."


def _describe_comparison(comparison: Comparison, metric: str) -> str:
    """Write a comparison, such as `-0.09 points [-1.40, 1.20], cannot be told`."""
    text = _format_difference(comparison, metric)
    text += f", mean over {comparison.settings} settings" if comparison.settings > 1 else ""
    if comparison.difference.is_constant:
        return f"{text}, equal for all seeds, so that no test is possible"
    is_told = comparison.outcome != UNTOLD
    return f"{text}, {comparison.outcome} {metric}" if is_told else f"{text}, {UNTOLD}"


def _describe_seeds(comparisons: Sequence[Comparison]) -> str:
    """Return the numbers of seeds, with the assumption of the t test if a claim depends on it.

    A claim depends on the assumption if a sign-flip test of the seeds could never reach LEVEL.
    """
    counts = sorted({each.difference.n for each in comparisons})
    lowest = f"{counts[0]} to " if len(counts) > 1 else ""
    claimed = [each.difference.n for each in comparisons if each.outcome != UNTOLD]
    is_bold = bool(claimed) and seeds.smallest_p(min(claimed)) > LEVEL
    condition = ", if differences are normally distributed" if is_bold else ""
    return f"{lowest}{count_of(counts[-1], 'seed')}{condition}"


def _list_outcomes(comparisons: Sequence[Comparison], metric: str) -> str:
    """List the comparisons with a claim or without an interval; count the others.

    Comparisons without an interval are counted too if there are no others. Of those that are
    counted, the text says where their intervals end.
    """
    measure, parts = measure_of(metric), []

    def format_number(number: float) -> str:
        return measure.format_number(number, "+")

    constant = [each for each in comparisons if each.difference.is_constant]
    untold = [each for each in comparisons if each.outcome == UNTOLD and each not in constant]
    unbounded = [each for each in untold if each.difference.interval is None]
    unbounded = unbounded if len(unbounded) < len(comparisons) else []
    named = {
        f"{metric} is lower for": [each for each in comparisons if each.outcome == "lower"],
        f"{metric} is higher for": [each for each in comparisons if each.outcome == "higher"],
        "equal for all seeds, so that no test is possible:": constant,
        "too few seeds for an interval:": unbounded,
    }
    for text, those in named.items():
        names = [f"{each.name} ({format_number(each.difference.mean)})" for each in those]
        parts += [f"{text} {', '.join(names)}"] if names else []
    listed = [each for those in named.values() for each in those]
    others = [each for each in comparisons if each not in listed]
    reach = sorted((end, c.name) for c in others for end in c.difference.interval or ())
    has_numbers = bool(parts or reach)
    if others:
        ends = [f"{format_number(end)} ({name})" for end, name in (*reach[:1], *reach[-1:])]
        intervals = f"; their intervals reach from {' to '.join(ends)}" if reach else ""
        parts.append(f"differences {UNTOLD} for {len(others)} of {len(comparisons)}{intervals}")
    return f"{'; '.join(parts)}{measure.diff_unit if has_numbers else ''}"


def _format_difference(comparison: Comparison, metric: str) -> str:
    """Write a difference, such as `-0.09 points [-1.40, 1.20]`.

    If the interval does not contain 0, the adjusted p follows, because p decides the outcome.
    """
    measure, interval = measure_of(metric), comparison.difference.interval
    text = measure.format_number(comparison.difference.mean, "+")
    text += f"{' points' if measure.unit else ''}{format_interval(interval, measure)}"
    excludes_zero = interval is not None and not interval[0] <= 0 <= interval[1]
    return f"{text} p {comparison.p:.2g}" if excludes_zero else text
