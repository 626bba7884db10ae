"""Recipes: of "Dynamic Routing Between Capsules" its text and the code of its authors; of "Matrix
capsules with EM routing" the code of its authors, and one that starts to learn at once.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from capsweep.config import compose, overrides, package_files
from capsweep.config.cell import flatten, get
from capsweep.errors import ConfigError

RECIPES = overrides.list_options("recipe")
OF_VECTORS = ("paper", "authors")
CAPSULES = ["model=capsnet", "loss=margin", "routing=dynamic"]
MATRICES = ["model=matrix_capsnet", "loss=spread", "routing=em"]
COMMON = {
    "optim.optimizer.lr",
    "optim.optimizer.betas",
    "optim.optimizer.eps",
    "optim.schedule.rate",
    "optim.schedule.steps",
    "optim.schedule.floor",
    "batch_size",
}

# Section 1 of the reference on the authors' code (Sarasra/models, commit 984fbc7).
AUTHORS = {
    "optim.name": "adam",
    "optim.optimizer._target_": "torch.optim.Adam",
    "optim.optimizer.lr": 0.001,
    "optim.optimizer.betas": [0.9, 0.999],
    "optim.optimizer.eps": 1e-8,
    "optim.optimizer.weight_decay": 0.0,
    "optim.schedule.rate": 0.96,
    "optim.schedule.steps": 2000,
    "optim.schedule.floor": 1e-6,
    "batch_size": 128,
    "model.primary.divided": True,
    "model.initial.weights": "truncated_normal",
    "model.initial.bias": 0.1,
    "model.padding": "valid",
    "routing.num_iters": 3,
    "routing.bias": True,
    "routing.none_of_the_above": False,
    "routing.learned_prior": False,
    "routing.gradient": "full",
    "loss.classification.present": 0.9,
    "loss.classification.absent": 0.1,
    "loss.classification.down_weight": 0.5,
    "loss.classification.reduction": "half_mean",
    "loss.reconstruction.weight": 0.0005,
}

# What the text has otherwise, or does not have.
PAPER = {
    **AUTHORS,
    "optim.schedule.floor": 0.0,
    "model.primary.divided": False,
    "model.initial.weights": "variance",
    "model.initial.bias": None,
    "routing.bias": False,
    "loss.classification.reduction": "sum",
}


def written(recipe: str) -> dict[str, Any]:
    """The keys of a recipe's file, dotted, with their values."""
    file = package_files.find_folder("conf") / "recipe" / f"{recipe}.yaml"
    return flatten(yaml.safe_load(file.read_text()))


def values(config: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration has at `keys`."""
    return {key: get(config, key) for key in keys}


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_key_of_a_recipe_reaches_the_cell(recipe: str) -> None:
    network = CAPSULES if recipe in OF_VECTORS else MATRICES
    config = compose.cell([*network, f"recipe={recipe}"]).config
    assert values(config, written(recipe)) == written(recipe)


@pytest.mark.parametrize(("recipe", "expected"), [("authors", AUTHORS), ("paper", PAPER)])
def test_a_recipe_is_what_its_source_says(recipe: str, expected: dict[str, Any]) -> None:
    assert values(compose.cell([*CAPSULES, f"recipe={recipe}"]).config, expected) == expected


def test_nothing_but_the_differences_tells_the_recipes_apart() -> None:
    one, other = (
        flatten(compose.cell([*CAPSULES, f"recipe={recipe}"]).config)
        for recipe in ("paper", "authors")
    )
    differences = {key for key in one | other if one.get(key) != other.get(key)}
    assert differences == {key for key in AUTHORS if PAPER[key] != AUTHORS[key]}


@pytest.mark.parametrize(
    "model", [name for name in overrides.list_options("model") if "cnn" in name]
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_network_without_capsules_takes_what_is_common(model: str, recipe: str) -> None:
    without = flatten(compose.cell([f"model={model}"]).config)
    config = flatten(compose.cell([f"model={model}", f"recipe={recipe}"]).config)
    assert set(config) == set(without)
    assert {key: config[key] for key in COMMON} == {key: written(recipe)[key] for key in COMMON}
    optimiser = {key for key in written(recipe) if key.startswith("optim.")}
    assert {key for key in config if config[key] != without[key]} <= COMMON | optimiser


@pytest.mark.parametrize("model", ["capsnet", "cnn_small"])
def test_a_misspelt_key_of_a_recipe_is_refused_and_not_left_out(
    model: str, conf_tree: Callable[[], Path]
) -> None:
    file = conf_tree() / "recipe" / "paper.yaml"
    file.write_text(file.read_text().replace("initial: {", "inital: {"))
    with pytest.raises(ConfigError, match=r"recipe/paper\.yaml: model\.inital\.weights: no such"):
        compose.cell([f"model={model}", "recipe=paper"])
