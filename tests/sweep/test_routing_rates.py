"""The learning rates of a comparison of routings are those that a search on validation examples
chose, with the same budget for all.
"""

import re
from collections import defaultdict
from collections.abc import Mapping

import pytest

from capsweep.config import package_files
from capsweep.sweep import expand, spec


def read_best_rates() -> Mapping[str, float]:
    """By arm, the rate of the lowest validation loss in the published table of the search."""
    text = (package_files.find_folder("sweeps") / "routing_rates.md").read_text()
    losses: dict[str, dict[float, float]] = defaultdict(dict)
    for arm, rate, loss in re.findall(r"^\| (\w+) \| ([\d.]+) \| \**([\d.]+)", text, re.MULTILINE):
        losses[arm][float(rate)] = float(loss)
    assert len({len(rates) for rates in losses.values()}) == 1
    return {arm: min(rates, key=rates.__getitem__) for arm, rates in losses.items()}


@pytest.mark.parametrize("name", ["routing_zoo", "routing_controls"])
def test_an_arm_has_the_rate_of_the_lowest_validation_loss(name: str) -> None:
    best = read_best_rates()
    for point in expand.expand_sweep(spec.load(name)):
        assert point.cell.config["optim"]["optimizer"]["lr"] == best[point.arm], point.arm


def test_the_seeds_of_the_search_are_in_no_table_of_results() -> None:
    searched = set(spec.load("routing_rates").seeds)
    for name in ("routing_zoo", "routing_controls"):
        assert not searched & set(spec.load(name).seeds)
