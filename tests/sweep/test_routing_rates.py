"""The learning rates of a comparison of routings are those that a search on validation examples
chose, with the same budget for all.
"""

import re
from collections import defaultdict
from collections.abc import Mapping

import pytest

from capsweep.config import package_files
from capsweep.sweep import expand, spec

SEARCHES = {  # by the sweep that takes its rates
    "routing_zoo": "routing_rates",
    "routing_controls": "routing_rates",
    "routing_zoo_multimnist": "routing_rates_mnist",
    "routing_controls_mnist": "routing_rates_mnist",
}
Place = tuple[str, str]  # arm and data set


def read_best_rates(search: str) -> Mapping[Place, float]:
    """The rate of the lowest validation loss in the published table of a search."""
    page = (package_files.find_folder("sweeps") / f"{search}.md").read_text()
    text = page.partition("\ntrained:")[0]  # its first table
    datasets = re.findall(r"^\| arm \| optim.optimizer.lr \| (.+?) \| (?:\w+ )?to ", text, re.M)
    losses: dict[Place, dict[float, float]] = defaultdict(dict)
    for arm, rate, fields in re.findall(r"^\| (\w+) \| ([\d.]+) \| (.+) \|$", text, re.M):
        for dataset, field in zip(datasets[0].split(" | "), fields.split(" | "), strict=False):
            if value := re.match(r"\**([\d.]+)", field):
                losses[arm, dataset][float(rate)] = float(value[1])
    assert len({tuple(rates) for rates in losses.values()}) == 1  # the same rates for all
    return {place: min(rates, key=rates.__getitem__) for place, rates in losses.items()}


@pytest.mark.parametrize("name", SEARCHES)
def test_an_arm_has_the_rate_of_the_lowest_validation_loss(name: str) -> None:
    best = read_best_rates(SEARCHES[name])
    for point in expand.expand_sweep(spec.load(name)):
        config = point.cell.config
        place = point.arm, config["dataset"]["name"]
        assert config["optim"]["optimizer"]["lr"] == best[place], place


@pytest.mark.parametrize("name", SEARCHES)
def test_the_seeds_of_the_search_are_in_no_table_of_results(name: str) -> None:
    assert not set(spec.load(SEARCHES[name]).seeds) & set(spec.load(name).seeds)
