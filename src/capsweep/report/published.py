"""Published numbers beside rows, each compared with what the cells of its row are: a number of
another network, data set or length is marked, for it says nothing of the row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from capsweep.report.grid import MISSING
from capsweep.statistics import metric_format
from capsweep.sweep import expand, spec
from capsweep.sweep.choices import SHOWN
from capsweep.sweep.expand import Point, as_coordinate
from capsweep.sweep.spec import Sweep

DIFFERS = "≠"
DECLARED = {"model": "network", "dataset": "data set", "epochs": "epochs"}
WORDS = {"model": "{}", "dataset": "{}", "epochs": "{} epochs", "members": "ensemble of {}"}
WHOLE = {"model": "unchanged {}", "dataset": "all of {}"}
MARKED = ("model", "epochs")  # coordinates that mark a number, and do not exclude it


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
        differs = _list_differences(sweep, number, (in_column or points)[0], members)
        numbers.append(PublishedNumber(number["value"], of, place, differs, unknown))
    return tuple(numbers)


@lru_cache(maxsize=1)
def _compose_file(path: str) -> list[Point]:
    """Return the places of a sweep file as it is, whatever was typed beside its name."""
    sweep = spec.load(path)
    return expand.expand_sweep(replace(sweep, seeds=sweep.seeds[:1]))


def _list_differences(
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
    unsaid = [key for key in sweep.typed_keys if key not in (*number, *SHOWN)]
    unsaid = [key for key in unsaid if key.partition(".")[0] not in differs]
    in_file = [p for p in _compose_file(str(sweep.path)) if p.arm == point.arm] if unsaid else []
    same = [p for p in in_file if p.coordinate("model") == point.coordinate("model")]
    for key in unsaid:
        theirs, ours = {p.coordinate(key) for p in same or in_file}, point.coordinate(key)
        is_same = ours is None or ours in theirs or (key == "epochs" and ours > max(theirs))
        if not is_same:
            differs[key] = f"the file's {key}"
    return differs
