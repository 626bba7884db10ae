"""What was trained: read from the configurations of the cells behind a table, never from what was
typed; and published numbers beside rows, each compared with what the cells of its row are: one of
another network, data set or length is marked, for it says nothing of the row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

from capsweep.config import compose
from capsweep.config.cell import flat, with_current_targets
from capsweep.report.grid import MISSING, describe_row, format_value
from capsweep.runtime.terminal import describe_seeds
from capsweep.statistics import metric_format
from capsweep.sweep import expand, spec
from capsweep.sweep.choices import SHOWN
from capsweep.sweep.expand import ACCURACY, Point, as_coordinate
from capsweep.sweep.spec import Sweep

FACTS = {
    **{"dataset": "data set", "model": "network", "epochs": "epochs"},
    **{"batch_size": "batch size", "seed": "seeds"},
}
# Said where rows differ in them; the name of an option tells what each of its keys is by itself.
OPTIONS = ("dataset.source", "routing", "loss", "optim", "recipe")
NAMES = {"dataset.source": "source", "optim": "optimiser", "optim.optimizer.lr": "learning rate"}
MOST_NAMES = 5  # beside a value; one of more rows stands last, as `else`
DIFFERS = "≠"
DECLARED = {"model": "network", "dataset": "data set", "epochs": "epochs"}
WORDS = {"model": "{}", "dataset": "{}", "epochs": "{} epochs", "members": "ensemble of {}"}
WHOLE = {"model": "unchanged {}", "dataset": "all of {}"}
MARKED = ("model", "epochs")  # coordinates that mark a number, and do not exclude it

Place = tuple[Any, ...]


def describe_trained(sweep: Sweep, points: Sequence[Point]) -> str:
    """Return `trained: data set digits; network cnn_small (cnn), capsnet_small (capsnet); ...`: the
    facts that every table has, then all of science in which its rows differ and that it does not
    show. Behind a value stand the arms, or the rows, that it is of.

    Of science, options of groups are said by name: routing, loss, optimiser, recipe. A key is said
    unless each row has the value that these names give it: rows of which the line says the same are
    trained by the same science.
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
    for key, values in _list_differences(places):
        if key not in shown:
            facts.append(f"{NAMES.get(key, key)} {', '.join(_name_places(values))}")
    return f"trained: {'; '.join(facts)}."


def _describe_fact(key: str, points: Sequence[Point]) -> str:
    """Describe the cells of one field, which differ in nothing but the seed: `0 to 4`, or `0, 2,
    3`.
    """
    if key == "seed":
        return describe_seeds(point.seed for point in points)
    stops = key == "epochs" and points[0].coordinate(ACCURACY) is not None
    return f"{'at most ' if stops else ''}{points[0].coordinate(key)}"


def _list_differences(
    places: Mapping[Place, Sequence[Point]],
) -> Iterator[tuple[str, dict[Place, str | None]]]:
    """Return options, and keys that some place has otherwise than its options, that differ over
    places; of each its text by place, None where a place has no such key.
    """
    values: dict[str, dict[Place, str | None]] = {key: {} for key in OPTIONS}
    others: set[str] = set()
    for place, points in places.items():
        first = points[0]
        recipe, by_options = compose.read_options(first.cell.overrides)
        options = {key: first.coordinate(key) for key in OPTIONS} | {"recipe": recipe}
        leaves = flat(with_current_targets(first.cell.science))
        others |= {key for key, value in leaves.items() if by_options.get(key) != value}
        leaves[ACCURACY] = _join_accuracies(points)
        for key, value in (leaves | options).items():
            is_absent = value is None and key in (*OPTIONS, ACCURACY)
            values.setdefault(key, {})[place] = None if is_absent else _format_exactly(value)
    for key, of in values.items():
        by_place = {place: of.get(place) for place in places}
        if key in {*OPTIONS, *others} and len(set(by_place.values())) > 1:
            yield key, by_place


def _join_accuracies(points: Sequence[Point]) -> str | None:
    """Return what the cells of a place stop at; those of a matched arm differ from seed to seed."""
    known = [point.coordinate(ACCURACY) for point in points if not point.waits]
    return ", ".join(dict.fromkeys(map(_format_exactly, known))) if any(known) else None


def _format_exactly(value: Any) -> str:
    """Return different texts of different values."""
    return repr(value) if isinstance(value, float) else format_value(as_coordinate(value))


def _name_places(values: Mapping[Place, str | None]) -> list[str]:
    """Return `12 (cnn)`, `20 (em, control)`: by the first of the fewest coordinates that decide the
    value, and of these by as many as it takes. Where every place has one, the value of many stands
    last: `0.03 (em)`, `else 0.01`. A value that is called as its row is stands alone.
    """
    several = [index for index, each in enumerate(zip(*values, strict=True)) if len(set(each)) > 1]
    names: dict[Place, str | None] = {}
    subsets = (s for size in range(1, len(several) + 1) for s in combinations(several, size))
    for indices in subsets:
        names = {tuple(place[i] for i in indices): value for place, value in values.items()}
        if all(names[tuple(place[i] for i in indices)] == v for place, v in values.items()):
            break
    found: dict[Place, set[str | None]] = {}
    for name, value in names.items():
        for end in range(1, len(name) + 1):
            found.setdefault(name[:end], set()).add(value)
    texts: dict[str, dict[str, None]] = {}
    for name, value in names.items():
        if value is not None:
            ends = range(1, len(name) + 1)
            shortest = next((name[:end] for end in ends if len(found[name[:end]]) == 1), name)
            texts.setdefault(value, {})[describe_row(shortest)] = None
    most = max(texts, key=lambda value: len(texts[value]))
    has_rest = len(texts[most]) > MOST_NAMES and None not in names.values()
    parts = [
        value if [*of] == [value] else f"{value} ({', '.join(of)})"
        for value, of in texts.items()
        if not (has_rest and value == most)
    ]
    return [*parts, f"else {most}"] if has_rest else parts


def warn_of_cuts(points: Sequence[Point]) -> list[str]:
    """Return a line, in capitals, for each number of batches that cut the data of cells; debug
    settings cut them too.
    """
    limits = {point.coordinate("limit_batches") for point in points} - {None}
    told = "NO RESULT: TRAINED AND TESTED ON {0} BATCHES AN EPOCH (limit_batches={0})."
    return [told.format(limit) for limit in sorted(limits)]


@dataclass(frozen=True)
class PublishedNumber:
    """of: what it was measured on, by key; place: its column, where a table has several; differs:
    what of that the row has otherwise, by key, in words; unknown: what the sweep's file leaves out.
    """

    value: float
    of: Mapping[str, Any]
    place: Sequence[str]
    differs: Mapping[str, str]
    unknown: Sequence[str]


def format_published(sweep: Sweep, numbers: Sequence[PublishedNumber]) -> str:
    """Return `0.25 % ≠ capsnet, 640 epochs (mnist)`: after the sign, of what it is that the row is
    not.
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
    """Whose published numbers are, and what the mark beside them means."""
    text = "the published number is of what is named after the sign, and its row is not"
    marks = (
        [f"{DIFFERS}: not comparable, because {text}."] if any(n.differs for n in numbers) else []
    )
    return [*marks, f"published: {sweep.published.source}."] if numbers else []


def find_published(
    sweep: Sweep, points: Sequence[Point], members: int = 1
) -> tuple[PublishedNumber, ...]:
    """Return the numbers that do not contradict a row's coordinates, network and epochs aside.

    points: one of each of its columns; members: of an ensemble.
    """
    row = {key: points[0].coordinate(key) for key in sweep.rows if key not in MARKED}
    numbers = []
    for number in sweep.published.values:
        if any(v is not None and as_coordinate(number.get(k, v)) != v for k, v in row.items()):
            continue
        own = {key: as_coordinate(number[key]) for key in sweep.columns if key in number}
        in_column = [p for p in points if all(p.coordinate(k) == v for k, v in own.items())]
        place = list(map(str, own.values())) if in_column and len(points) > 1 else []
        of = {key: number[key] for key in (*DECLARED, *own) if key in number}
        unknown = [word for key, word in DECLARED.items() if key not in number]
        differs = _list_contradictions(sweep, number, (in_column or points)[0], members)
        numbers.append(PublishedNumber(number["value"], of, place, differs, unknown))
    return tuple(numbers)


@lru_cache(maxsize=1)
def _compose_file(path: str) -> list[Point]:
    """Return the places of a sweep file as it is, whatever was typed beside its name."""
    sweep = spec.load(path)
    return expand.expand_sweep(replace(sweep, seeds=sweep.seeds[:1]))


def _list_contradictions(
    sweep: Sweep, number: Mapping[str, Any], point: Point, members: int
) -> dict[str, str]:
    """Return what a number is of and a cell is not, in words; a typed key is of the cell alone.

    A cell that has no such setting does not differ, one that trains for longer neither. First
    weights are no part of a network.
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
