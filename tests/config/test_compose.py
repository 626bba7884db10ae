"""A cell is what Hydra itself composes, and leaves no trace in the next."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from capsweep.config import compose, package_files, validation
from capsweep.errors import ConfigError

LINES = [
    "seed=3",
    "experiment=digits",
    "experiment=digits epochs=3 optim.schedule.steps=7",
    "experiment=digits model=cnn_small",
    "model=cnn_small experiment=digits",
    "experiment=digits model=capsnet dataset=mnist",
    "debug=fast",
    "debug=fast experiment=digits epochs=2 logger=wandb",
    "model=cnn_small model.conv.channels=[8,8,8] model.dropout=0.25",
    "routing.num_iters=1 loss.reconstruction.weight=0.5 model.decoder.hidden=[16]",
    "loss=cross_entropy optim.optimizer.betas=[0.5,0.9]",
    "dataset.validation=5 resources.cpu=2 limit_batches=4",
    "cluster=address cluster.address=10.0.0.1:6379 logger.project=a-b",
]


def hydra_says(overrides: list[str]) -> dict[str, Any]:
    """The configuration by Hydra alone, in canonical form."""
    with initialize_config_dir(str(package_files.find_folder("conf")), version_base="1.3"):
        config = hydra_compose("train", overrides=overrides)
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return validation.make_canonical({str(key): value for key, value in plain.items()})


@pytest.mark.parametrize("line", LINES)
def test_a_cell_is_what_hydra_composes(line: str) -> None:
    overrides = [*line.split(), "places.storage=/nowhere"]
    assert compose.cell(overrides).config == hydra_says(overrides)


def test_a_preset_that_is_no_yaml_is_named(conf_tree: Callable[[], Path]) -> None:
    (conf_tree() / "experiment" / "mine.yaml").write_text("epochs: [1\n")
    with pytest.raises(ConfigError, match=r"^conf/: .*experiment/mine\.yaml") as caught:
        compose.cell(["experiment=mine"])
    assert "\n" not in str(caught.value)


def test_a_cell_shares_nothing_with_the_next() -> None:
    first = compose.cell(["seed=1"])
    first.config["dataset"]["image_shape"].append(9)  # pyright: ignore
    assert compose.cell(["seed=2"]).config["dataset"]["image_shape"] == [1, 28, 28]
