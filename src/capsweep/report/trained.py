"""What was trained: read from the configurations of the cells behind a table, never from what was
typed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from capsweep.report.grid import describe_row
from capsweep.sweep.expand import ACCURACY, Point
from capsweep.sweep.spec import Sweep

FACTS = {
    **{"dataset": "data set", "model": "network", "epochs": "epochs"},
    **{"batch_size": "batch size", "seed": "seeds"},
}


def describe_trained(sweep: Sweep, points: Sequence[Point]) -> str:
    """`trained: data set digits; network cnn_small (cnn), capsnet_small (capsnet); ...`: of what is
    not the same everywhere, which arms it is of, or which rows.
    """
    keys = ("arm", *sweep.rows, *sweep.columns)
    places: dict[tuple[Any, ...], list[Point]] = {}
    for point in points:
        places.setdefault(tuple(map(point.coordinate, keys)), []).append(point)
    facts = []
    for key, name in FACTS.items():
        values = {place: _describe_fact(key, each) for place, each in places.items()}
        is_plain = key in keys or len(set(values.values())) == 1
        texts = dict.fromkeys(values.values()) if is_plain else _name_places(values)
        noun = "seed" if key == "seed" and len(sweep.seeds) == 1 else name
        facts.append(f"{noun} {', '.join(texts)}")
    return f"trained: {'; '.join(facts)}."


def _describe_fact(key: str, points: Sequence[Point]) -> str:
    """Of the cells of one field, which differ in nothing but the seed: `0 to 4`, or `0, 2, 3`."""
    if key == "seed":
        seeds = sorted(point.seed for point in points)
        is_range = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1))
        return f"{seeds[0]} to {seeds[-1]}" if is_range else ", ".join(map(str, seeds))
    stops = key == "epochs" and points[0].coordinate(ACCURACY) is not None
    return f"{'at most ' if stops else ''}{points[0].coordinate(key)}"


def _name_places(values: Mapping[tuple[Any, ...], str]) -> list[str]:
    """`12 (cnn)`, `20 (em, control)`: by arm, or the first coordinate, that decides the value; else
    by all of those that are not the same everywhere.
    """
    several = [index for index, each in enumerate(zip(*values, strict=True)) if len(set(each)) > 1]
    names: dict[tuple[Any, ...], str] = {}
    for indices in (*([index] for index in several), several):
        names = {tuple(place[i] for i in indices): value for place, value in values.items()}
        if all(names[tuple(place[i] for i in indices)] == v for place, v in values.items()):
            break
    return [
        f"{value} ({', '.join(describe_row(name) for name, of in names.items() if of == value)})"
        for value in dict.fromkeys(names.values())
    ]


def warn_of_cuts(points: Sequence[Point]) -> list[str]:
    """A line, in letters that nobody overlooks, for each number of batches that cut the data of
    cells; of which arms, unless of all, or of an axis. Debug settings cut them too.
    """
    arms: dict[int | None, dict[str, None]] = {}
    for point in points:
        arms.setdefault(point.coordinate("limit_batches"), {})[point.arm] = None
    lines, is_axis = [], sum(map(len, arms.values())) > len({point.arm for point in points})
    for limit, of in arms.items():
        if limit is not None:
            batches = f"{limit} BATCH{'' if limit == 1 else 'ES'} AN EPOCH (limit_batches={limit})"
            names = f"limit_batches={limit}" if is_axis else ", ".join(of)
            cells = f" OF {names}" if len(arms) > 1 else ""
            lines.append(f"NO RESULT{cells}: TRAINED AND TESTED ON {batches}.")
    return lines
