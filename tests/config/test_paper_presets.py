"""Every row of the papers is a preset, which says what it asks, costs and is compared to."""

from pathlib import Path

import pytest

from capsweep.config import compose, package_files
from capsweep.config.cell import Cell, count_steps

EXPERIMENTS = package_files.find_folder("conf") / "experiment"
# "Dynamic Routing Between Capsules", whose authors' code is a recipe, and "Matrix capsules with EM
# routing".
ROUTING, EM = (
    sorted(f"{paper}/{path.stem}" for path in (EXPERIMENTS / paper).glob("*.yaml"))
    for paper in ("paper", "em")
)
RECIPES = ("paper", "authors")
HEADER = ("question", "command", "expected", "published")
every_preset_of_dynamic_routing = pytest.mark.parametrize("preset", ROUTING)


def composed(preset: str, *overrides: str) -> Cell:
    """The cell of a preset."""
    return compose.cell([f"experiment={preset}", *overrides])


def header(path: Path) -> dict[str, str]:
    """What the first lines of a preset say, by their first word."""
    lines = path.read_text().splitlines()
    assert lines[0] == "# @package _global_"
    said: dict[str, str] = {}
    for line in lines[1:]:
        if not line.startswith("# "):
            break
        word, _, text = line.removeprefix("# ").partition(":")
        said[word] = f"{said[word]} {text.strip()}" if word in said else text.strip()
    return said


@pytest.mark.parametrize("preset", [*ROUTING, *EM])
def test_the_first_lines_say_question_command_cost_and_published_number(preset: str) -> None:
    said = header(EXPERIMENTS / f"{preset}.yaml")
    assert tuple(said)[:4] == HEADER
    assert all(said.values())
    assert said["question"].endswith("?")
    program, command, *overrides = said["command"].split()
    assert (program, command) == ("capsweep", "train")
    assert compose.cell(overrides).signature == composed(preset).signature


@every_preset_of_dynamic_routing
@pytest.mark.parametrize("recipe", RECIPES)
def test_it_takes_either_recipe(preset: str, recipe: str) -> None:
    cell = composed(preset, f"recipe={recipe}")
    is_authors = recipe == "authors"
    assert cell.config["optim"]["schedule"]["floor"] == (1e-6 if is_authors else 0.0)
    if cell.config["routing"] is not None:
        assert cell.config["routing"]["bias"] is is_authors
        assert cell.config["model"]["primary"]["divided"] is is_authors


@pytest.mark.parametrize(
    "preset", [name for name in EM if "cnn" not in name and "digits" not in name]
)
def test_matrix_capsules_start_with_betas_that_feel_agreement(preset: str) -> None:
    batch = f"batch_size={composed(preset).config['batch_size']}"
    stabilised = composed(preset, "recipe=em_stabilised", batch)
    assert composed(preset).signature == stabilised.signature
    authors = composed(preset, "recipe=em_authors")
    assert authors.signature != stabilised.signature
    assert authors.config["routing"]["beta_a"] == -1250.0


@every_preset_of_dynamic_routing
def test_it_trains_on_all_training_images_and_chooses_nothing(preset: str) -> None:
    config = composed(preset).config
    if config["stop_accuracy"] is None:
        assert config["dataset"]["validation"] == 0
    else:  # expanded MNIST of section 5.2, which ends the training and chooses nothing else
        assert (config["stop_accuracy"], config["dataset"]["validation"]) == (0.9923, 5000)


STEPS = {
    "paper/mnist": 300_000,
    "paper/mnist_baseline": 300_000,
    "paper/mnist_cnn_matched": 300_000,
    "paper/smallnorb": 300_000,
    "paper/svhn": 300_000,
    "paper/cifar10": 600_000,
}


@pytest.mark.parametrize(("preset", "authors"), STEPS.items(), ids=STEPS)
def test_it_takes_the_authors_number_of_steps(preset: str, authors: int) -> None:
    cell = composed(preset)
    taken = count_steps(cell)
    assert authors <= taken <= 1.001 * authors


def test_multimnist_shows_each_of_60_million_examples_once_and_decays_ten_times_slower() -> None:
    config = composed("paper/multimnist").config
    assert config["epochs"] * config["dataset"]["examples"]["train"] == 60_000_000
    assert config["epochs"] == config["dataset"]["batches"]["pairs"]
    schedule = composed("paper/mnist").config["optim"]["schedule"]
    assert config["optim"]["schedule"] == {**schedule, "steps": 10 * schedule["steps"]}
