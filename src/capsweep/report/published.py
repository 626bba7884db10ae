"""Published numbers beside rows, each compared with what the cells of its row are: a number of
another network, data set or length is marked, for it says nothing of the row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsweep.report.grid import MISSING
from capsweep.statistics import metric_format
from capsweep.sweep.expand import Point, as_coordinate
from capsweep.sweep.spec import Sweep

DIFFERS = "≠"
DECLARED = {"model": "network", "dataset": "data", "epochs": "length"}
INITIAL = "model.initial"  # first weights are no part of a network


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
    """`0.25 % ≠ capsnet, 640 epochs (mnist)`: after the sign, of what it is that the row is not."""
    measure = metric_format.measure_of(sweep.metric)
    texts = []
    for number in numbers:
        mark = f" {DIFFERS} {', '.join(number.differs.values())}" if number.differs else ""
        aside = ", ".join([*number.place, *(f"{word} unknown" for word in number.unknown)])
        value = f"{measure.format_number(number.value)}{measure.unit}"
        texts.append(f"{value}{mark}{f' ({aside})' if aside else ''}")
    return "; ".join(texts) or MISSING


def note_published(sweep: Sweep, numbers: Sequence[PublishedNumber]) -> list[str]:
    """Whose published numbers are, and what the marks beside them mean."""
    notes = []
    if any(number.differs for number in numbers):
        text = "of what is named after the sign (network, data set, length), and its row is not"
        notes.append(f"{DIFFERS}: not comparable, because the published number is {text}.")
    if any("length" in number.unknown for number in numbers):
        notes.append("length unknown: no source says for how long that network was trained.")
    return [*notes, f"published: {sweep.published.source}."] if numbers else []


def find_published(
    sweep: Sweep, points: Sequence[Point], members: int = 1
) -> tuple[PublishedNumber, ...]:
    """The numbers that do not contradict a row's coordinates, epochs aside.

    points: one of each of its columns; members: of an ensemble.
    """
    row = {key: points[0].coordinate(key) for key in sweep.rows if key != "epochs"}
    columns = {point.coordinate(key) for point in points for key in sweep.columns}
    numbers = []
    for number in sweep.published.values:
        if any(v is not None and as_coordinate(number.get(k, v)) != v for k, v in row.items()):
            continue
        own = {key: as_coordinate(number[key]) for key in sweep.columns if key in number}
        in_column = (p for p in points if all(p.coordinate(k) == v for k, v in own.items()))
        point = next(in_column, points[0])
        place = [str(v) for v in own.values() if len(points) > 1 and v in columns]
        known = {key for key in number if point.coordinate(key) is not None} | {"members"}
        of = {key: value for key, value in number.items() if key in known - {"arm"}}
        unknown = [word for key, word in DECLARED.items() if key not in number]
        differs = _list_differences(number, point, members)
        numbers.append(PublishedNumber(number["value"], of, place, differs, unknown))
    return tuple(numbers)


def _list_differences(number: Mapping[str, Any], point: Point, members: int) -> dict[str, str]:
    """What a number is of and a cell is not. A cell that has no such setting does not differ, one
    that trains for longer neither.
    """
    keys = {text.partition("=")[0] for text in point.cell.overrides}
    changed = {k for k in keys - number.keys() if k.startswith("model.") and INITIAL not in k}
    differs = {}
    for key, theirs in number.items():
        ours = point.coordinate(key)
        is_same = ours is None or ours == as_coordinate(theirs)
        if key == "epochs" and ours < theirs:
            differs[key] = f"{theirs} epochs"
        elif key == "members" and theirs != members:
            differs[key] = f"ensemble of {theirs}"
        elif key in ("model", "dataset"):
            is_part = changed if key == "model" else point.coordinate("limit_batches") is not None
            if not is_same or is_part:
                differs[key] = f"unchanged {theirs}" if is_same else str(theirs)
        elif key not in ("arm", "value", "epochs") and not is_same:
            differs[key] = f"{key} {theirs}"
    return differs
