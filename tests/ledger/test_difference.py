"""Why a cell runs: the keys in which it differs from another."""

from typing import Any

from capsweep.config import compose
from capsweep.config.cell import NEUTRAL, get, without
from capsweep.ledger.causes import find_differences, find_nearest


def older(science: dict[str, Any]) -> dict[str, Any]:
    """The same cell as it was recorded before there were options with neutral values."""
    for path, neutral in NEUTRAL.items():
        if get(science, path) == neutral:
            science = without(science, path.split("."))
    return science


def test_an_older_cell_differs_in_nothing_but_what_was_set() -> None:
    now = compose.cell(["model=capsnet", "seed=1"]).science
    before = older(compose.cell(["model=capsnet", "seed=2"]).science)
    assert "gradient" not in before["routing"]
    assert [str(one) for one in find_differences(now, before)] == ["seed: 1 here, 2 there"]
    assert [str(one) for one in find_differences(before, now)] == ["seed: 2 here, 1 there"]


def test_an_option_is_compared_to_its_neutral_value_where_its_group_stands() -> None:
    now = compose.cell(["model=capsnet", "routing.gradient=last"]).science
    before = older(compose.cell(["model=capsnet"]).science)
    assert [str(d) for d in find_differences(now, before)] == [
        'routing.gradient: "last" here, "full" there'
    ]
    without_routing = older(compose.cell(["model=cnn_small"]).science)
    found = {one.key: one for one in find_differences(now, without_routing)}
    assert found["routing.gradient"].there is None


def test_the_nearest_cell_is_not_farther_for_being_older() -> None:
    now = compose.cell(["model=capsnet"]).science
    old, young = older(compose.cell(["model=capsnet", "seed=1"]).science), dict(now)
    young |= {"seed": 1, "epochs": 3, "batch_size": 7}
    nearest = find_nearest(now, {"old": old, "young": young})
    assert nearest is not None
    assert nearest[0] == "old"
