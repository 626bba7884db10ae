"""The learning rates and first lengths of a comparison of routings are those that a search on
validation examples chose.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest

from capsweep.config import package_files
from capsweep.config.cell import get
from capsweep.sweep import expand, spec

SEARCHES = {  # by the sweep that takes its values
    "routing_zoo": "routing_rates",
    "routing_controls": "routing_rates",
    "routing_zoo_multimnist": "routing_scale",
    "routing_zoo_scale": "routing_scale",
    "routing_lengths": "routing_lengths_scale",
    "routing_controls_mnist": "routing_rates_mnist",
}
Place = tuple[str, str]  # arm and data set
Values = tuple[float, ...]  # of the keys that were searched


def read_best_values(search: str) -> tuple[list[str], Mapping[Place, Values]]:
    """The searched keys, and their values of the lowest validation loss in the published table."""
    page = (package_files.find_folder("sweeps") / f"{search}.md").read_text()
    text = page.partition("\ntrained:")[0]  # its first table
    header = re.findall(r"^\| arm \| (.+?) \| (?:\w+ )?to ", text, re.M)[0].split(" | ")
    keys = [name for name in header if "." in name]
    losses: dict[Place, dict[Values, float]] = defaultdict(dict)
    for arm, rest in re.findall(r"^\| (\w+) \| ([\d.]+ .+) \|$", text, re.M):
        fields = rest.split(" | ")
        for dataset, field in zip(header[len(keys) :], fields[len(keys) :], strict=False):
            if value := re.match(r"\**([\d.]+)", field):
                losses[arm, dataset][tuple(map(float, fields[: len(keys)]))] = float(value[1])
    best = {place: min(values, key=values.__getitem__) for place, values in losses.items()}
    return keys, best


@pytest.mark.parametrize("name", SEARCHES)
def test_an_arm_has_the_values_of_the_lowest_validation_loss(name: str) -> None:
    keys, best = read_best_values(SEARCHES[name])
    for point in expand.expand_sweep(spec.load(name)):
        config = point.cell.config
        place = point.arm, config["dataset"]["name"]
        assert tuple(get(config, key) for key in keys) == best[place], place


@pytest.mark.parametrize("search", sorted({*SEARCHES.values()}))
def test_a_search_tries_as_many_values_for_each_arm_or_a_third_more(search: str) -> None:
    points = expand.expand_sweep(spec.load(search))
    tried = Counter((point.arm, point.cell.config["dataset"]["name"]) for point in points)
    least = min(tried.values())
    assert set(tried.values()) <= {least, least * 4 // 3}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_seeds_of_the_search_are_in_no_table_of_results(name: str) -> None:
    assert not set(spec.load(SEARCHES[name]).seeds) & set(spec.load(name).seeds)
