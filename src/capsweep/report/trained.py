"""The description of what was trained, and the published numbers beside the rows of a table.

Both depend on the configurations of the cells in a table, not on the words that the user typed. A
published number gets a mark if its network or data set differs from that of its row, or if it was
trained for more epochs than its row, because the number is then not comparable with the row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, combinations
from typing import Any

from capsweep.config import compose
from capsweep.config.cell import flatten, with_current_targets
from capsweep.report.grid import MISSING, describe_row, format_value
from capsweep.runtime.terminal import describe_seeds
from capsweep.statistics import metric_format
from capsweep.sweep import expand, spec
from capsweep.sweep.choices import ITERATIONS, SHOWN
from capsweep.sweep.expand import ACCURACY, Point, as_coordinate
from capsweep.sweep.spec import ROUTING, Sweep

FACTS = {  # keys that every table describes, and their names
    **{"dataset": "data set", "model": "network", "epochs": "epochs"},
    **{"batch_size": "batch size", "seed": "seeds"},
}
# Configuration groups that are described by the name of the chosen option, if rows differ in it.
OPTIONS = ("dataset.source", "routing", "loss", "optim", "recipe")
NAMES = {"dataset.source": "source", "optim": "optimiser", "optim.optimizer.lr": "learning rate"}
MOST_NAMES = 5  # if the most common value has more rows than this, it is written `else VALUE`
DIFFERS = "≠"  # mark of a published number that is not comparable with its row
# What a published number may declare, and the words for it.
DECLARED = {"model": "network", "dataset": "data set", "epochs": "epochs"}
WORDS = {"model": "{}", "dataset": "{}", "epochs": "{} epochs", "members": "ensemble of {}"}
WHOLE = {"model": "unchanged {}", "dataset": "all of {}"}
MARKED = ("model", "epochs")  # a number may differ from its row in these keys, and is then marked

Place = tuple[Any, ...]


def describe_trained(sweep: Sweep, points: Sequence[Point]) -> str:
    """Describe in one line what the cells of a table were trained on, and how.

    An example: `trained: data set digits; network cnn_small (cnn), capsnet_small (capsnet); ...`.
    The line begins with the keys of FACTS. Then come the science settings in which rows differ, if
    the table does not show these settings itself. The arms or rows that have a value are named in
    brackets behind the value.

    For the data source, routing, loss, optimiser and recipe, the line gives the name of the chosen
    option. Any other key is listed only if its value in some row is not the value that the chosen
    options give. Two rows with equal descriptions therefore have equal science.
    The numbers of iterations are also listed if the routing is an axis of the table.
    """
    keys = tuple(dict.fromkeys(("arm", *sweep.rows, *sweep.columns)))
    places: dict[Place, list[Point]] = {}
    for point in points:
        places.setdefault(tuple(map(point.coordinate, keys)), []).append(point)
    facts = []
    for key, name in FACTS.items():
        values = {place: _describe_fact(key, each) for place, each in places.items()}
        is_plain = key in keys or len(set(values.values())) == 1
        texts = dict.fromkeys(values.values()) if is_plain else _name_places(values)
        noun = "seed" if key == "seed" and len(sweep.seeds) == 1 else name
        facts.append(f"{noun} {', '.join(texts)}")
    shown = {*keys, *FACTS, *(f"{key}.name" for key in (*FACTS, *OPTIONS))}
    always = [ITERATIONS] if ROUTING in keys else []
    for key, values in _list_differences(places, always):
        if key not in shown:
            texts = _name_places(values) if len(set(values.values())) > 1 else values.values()
            facts.append(f"{NAMES.get(key, key)} {', '.join(map(str, dict.fromkeys(texts)))}")
    return f"trained: {'; '.join(facts)}."


def _describe_fact(key: str, points: Sequence[Point]) -> str:
    """Write the value of one key of FACTS for the cells of a table field.

    The cells differ only in the seed. Examples are `20` for the epochs and `0 to 4` for the seeds.
    """
    if key == "seed":
        return describe_seeds(point.seed for point in points)
    stops = key == "epochs" and points[0].coordinate(ACCURACY) is not None
    return f"{'at most ' if stops else ''}{points[0].coordinate(key)}"


def _list_differences(
    places: Mapping[Place, Sequence[Point]], always: Sequence[str]
) -> Iterator[tuple[str, dict[Place, str | None]]]:
    """Yield each option or key in which places differ, with the text of its value for each place.

    A place is a tuple of coordinates; its cells differ only in the seed. A key is yielded only if
    its value at some place differs from the value that the chosen options give, or if it is in
    `always`. The text is None for a place that does not have the key.
    """
    texts: dict[Place, dict[str, str]] = {}
    unusual = {*OPTIONS}
    for place, points in places.items():
        first = points[0]
        recipe, by_options = compose.read_options(first.cell.overrides)
        leaves = flatten(with_current_targets(first.cell.science))
        unusual |= {key for key, value in leaves.items() if by_options.get(key) != value}
        options = {key: first.coordinate(key) for key in OPTIONS}
        options |= {"recipe": recipe, ACCURACY: _join_accuracies(points)}
        present = {k: v for k, v in (leaves | options).items() if v is not None or k not in options}
        texts[place] = {key: _format_exactly(value) for key, value in present.items()}
    for key in dict.fromkeys((*OPTIONS, *chain.from_iterable(texts.values()))):
        by_place = {place: known.get(key) for place, known in texts.items()}
        differs = len(set(by_place.values())) > 1
        if (key in unusual and differs) or (key in always and any(by_place.values())):
            yield key, by_place


def _join_accuracies(points: Sequence[Point]) -> str | None:
    """Write, as one text, the accuracies at which cells stop training; None if none is known.

    In an arm that is matched to the baseline, each seed has its own accuracy.
    """
    known = [point.coordinate(ACCURACY) for point in points if not point.waits]
    return ", ".join(dict.fromkeys(map(_format_exactly, known))) if any(known) else None


def _format_exactly(value: Any) -> str:
    """Write a value as text, so that different values have different texts."""
    return repr(value) if isinstance(value, float) else format_value(as_coordinate(value))


def _name_places(values: Mapping[Place, str | None]) -> list[str]:
    """Write each value with the places that have it, such as `12 (cnn)` and `20 (em, control)`.

    - A place is named by the smallest set of coordinates that decides the value. Coordinates at the
      end of a name are left out if the first coordinates are enough.
    - The value that has the most names is written last and without names if it has more than
      MOST_NAMES names and if every place has a value: `0.03 (em)`, `else 0.01`.
    - If a value equals the name of its only place, the name is not repeated behind the value.

    Args:
        values: The value for each place, which is a tuple of coordinates; None for a place without
            a value.
    """
    several = [index for index, each in enumerate(zip(*values, strict=True)) if len(set(each)) > 1]
    names: dict[Place, str | None] = {}
    subsets = (s for size in range(1, len(several) + 1) for s in combinations(several, size))
    for indices in subsets:
        names = {tuple(place[i] for i in indices): value for place, value in values.items()}
        if all(names[tuple(place[i] for i in indices)] == v for place, v in values.items()):
            break
    by_prefix: dict[Place, set[str | None]] = {}
    for name, value in names.items():
        for end in range(1, len(name) + 1):
            by_prefix.setdefault(name[:end], set()).add(value)
    texts: dict[str, dict[str, None]] = {}
    for name, value in names.items():
        if value is not None:
            ends = range(1, len(name) + 1)
            shortest = next((name[:end] for end in ends if len(by_prefix[name[:end]]) == 1), name)
            texts.setdefault(value, {})[describe_row(shortest)] = None
    most = max(texts, key=lambda value: len(texts[value]))
    has_rest = len(texts[most]) > MOST_NAMES and None not in names.values()
    parts = [
        value if [*rows] == [value] else f"{value} ({', '.join(rows)})"
        for value, rows in texts.items()
        if not (has_rest and value == most)
    ]
    return [*parts, f"else {most}"] if has_rest else parts


def warn_of_cuts(points: Sequence[Point]) -> list[str]:
    """Return a warning in capitals for each value of limit_batches.

    limit_batches leaves out a part of the data. The settings of conf/debug set limit_batches too.
    """
    limits = {point.coordinate("limit_batches") for point in points} - {None}
    text = "NO RESULT: TRAINED AND TESTED ON {0} BATCHES AN EPOCH (limit_batches={0})."
    return [text.format(limit) for limit in sorted(limits)]


@dataclass(frozen=True)
class PublishedNumber:
    """A published number beside a row of a table."""

    value: float  # value of the sweep's metric, as a fraction, not in percent
    of: Mapping[str, Any]  # settings of the published experiment, by key
    place: Sequence[str]  # coordinates of the number's column; empty if the table has one column
    differs: Mapping[str, str]  # published settings that the row does not have, in words, by key
    unknown: Sequence[str]  # names of settings that the sweep file does not declare


def format_published(sweep: Sweep, numbers: Sequence[PublishedNumber]) -> str:
    """Write the published numbers of a row, such as `0.25 % ≠ capsnet, 640 epochs (mnist)`.

    Behind the sign ≠ are the published settings that differ from those of the row.
    """
    measure = metric_format.measure_of(sweep.metric)
    texts = []
    for number in numbers:
        mark = f" {DIFFERS} {', '.join(number.differs.values())}" if number.differs else ""
        aside = ", ".join([*number.place, *(f"{word} unknown" for word in number.unknown)])
        value = f"{measure.format_number(number.value)}{measure.unit}"
        texts.append(f"{value}{mark}{f' ({aside})' if aside else ''}")
    return "; ".join(texts) or MISSING


def note_published(sweep: Sweep, numbers: Sequence[PublishedNumber]) -> list[str]:
    """Return notes on the source of published numbers and on the meaning of the mark ≠."""
    text = "the published number is of what is named after the sign, and its row is not"
    marks = (
        [f"{DIFFERS}: not comparable, because {text}."] if any(n.differs for n in numbers) else []
    )
    return [*marks, f"published: {sweep.published.source}."] if numbers else []


def find_published(
    sweep: Sweep, points: Sequence[Point], members: int = 1
) -> tuple[PublishedNumber, ...]:
    """Find the published numbers to show beside a row.

    A published number is shown if it does not contradict the coordinates of the row. A number of
    another network, or of more epochs than the row has, is shown too, but gets a mark.

    Args:
        sweep: The sweep, whose file has the published numbers.
        points: One point of the row for each column in which the row has cells.
        members: The number of networks in an ensemble; 1 for single networks.
    """
    row = {key: points[0].coordinate(key) for key in sweep.rows if key not in MARKED}
    numbers = []
    for number in sweep.published.values:
        if any(v is not None and as_coordinate(number.get(k, v)) != v for k, v in row.items()):
            continue
        column = {key: as_coordinate(number[key]) for key in sweep.columns if key in number}
        in_column = [p for p in points if all(p.coordinate(k) == v for k, v in column.items())]
        place = list(map(str, column.values())) if in_column and len(points) > 1 else []
        of = {key: number[key] for key in (*DECLARED, *column) if key in number}
        unknown = [word for key, word in DECLARED.items() if key not in number]
        differs = _list_contradictions(sweep, number, (in_column or points)[0], members)
        numbers.append(PublishedNumber(number["value"], of, place, differs, unknown))
    return tuple(numbers)


@lru_cache(maxsize=1)
def _compose_file(path: str) -> list[Point]:
    """Return the points of a sweep file for its first seed, without the words of a command."""
    sweep = spec.load(path)
    return expand.expand_sweep(replace(sweep, seeds=sweep.seeds[:1]))


def _list_contradictions(
    sweep: Sweep, number: Mapping[str, Any], point: Point, members: int
) -> dict[str, str]:
    """Return, by key and in words, the published settings that differ from those of a cell.

    - Settings that the cell does not have are left out.
    - A cell that trains for more epochs does not count as different.
    - Initial weights do not count as part of the network.
    - A published number does not declare every key. If the user typed a key that it does not
      declare, the cell's value is compared with the value in the sweep file.
    """
    keys = {text.partition("=")[0] for text in point.cell.overrides} - number.keys()
    changed = {
        "model": any(k.startswith("model.") and not k.startswith("model.initial.") for k in keys),
        "dataset": point.coordinate("limit_batches") is not None,
    }
    differs = {}
    for key, theirs in number.items():
        ours = members if key == "members" else point.coordinate(key)
        is_same = ours in (None, as_coordinate(theirs)) or (key == "epochs" and ours > theirs)
        if key not in ("arm", "value") and (changed.get(key) or not is_same):
            form = WORDS.get(key, f"{key} {{}}")
            differs[key] = (WHOLE[key] if is_same else form).format(theirs)
    said = {*number, *SHOWN}
    unsaid = [k for k in sweep.typed_keys if k not in said and k.partition(".")[0] not in differs]
    in_file = [p for p in _compose_file(str(sweep.path)) if p.arm == point.arm] if unsaid else []
    same = [p for p in in_file if p.coordinate("model") == point.coordinate("model")]
    for key in unsaid:
        theirs, ours = {p.coordinate(key) for p in same or in_file}, point.coordinate(key)
        is_same = ours is None or ours in theirs or (key == "epochs" and ours > max(theirs))
        if not is_same:
            differs[key] = f"the file's {key}"
    return differs
