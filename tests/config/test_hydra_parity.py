"""The fast composition gives what Hydra itself composes."""

from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from capsweep.config import compose, package_files, validation

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
    "cluster=address cluster.address=10.0.0.1 logger.project=a-b",
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


def test_composing_one_cell_leaves_no_trace_in_the_next() -> None:
    before = compose.cell(["seed=1"])
    compose.cell(["seed=1", "epochs=7", "model.conv.channels=8", "routing.num_iters=9"])
    assert compose.cell(["seed=1"]).config == before.config
