"""Devices of one cell: how many, and what cannot be had, said before anything runs."""

import pytest

from capsweep.config import compose
from capsweep.config.validation import count_requested_devices
from capsweep.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ([], 1),
        (["resources.gpu=0.25"], 1),
        (["resources.gpu=1"], 1),
        (["resources.gpu=4"], 4),
        (["resources.gpu=4", "trainer.devices=2"], 2),
        (["trainer.devices=3", "trainer.accelerator=cpu"], 3),
    ],
)
def test_auto_is_as_many_as_whole_gpus(overrides: list[str], count: int) -> None:
    assert count_requested_devices(compose.cell(overrides).config) == count


def test_how_many_devices_train_a_cell_is_no_part_of_its_signature() -> None:
    one, four = compose.cell([]), compose.cell(["resources.gpu=4", "trainer.devices=4"])
    assert one.signature == four.signature


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.devices=0"], r"trainer\.devices must be auto or a whole number >= 1, got 0"),
        (["trainer.devices=1.5"], r"trainer\.devices must be auto or a whole number >= 1"),
        (["trainer.devices=many"], r"trainer\.devices must be auto or a whole number >= 1"),
        (["trainer.devices=2", "resources.gpu=1"], r"trainer\.devices=2 needs as many GPUs, and"),
        (["trainer.devices=2", "resources.gpu=0.5"], r"resources\.gpu=0\.5; set resources\.gpu=2"),
        (["trainer.devices=2", "trainer.accelerator=gpu"], r"resources\.gpu=auto; set"),
        (["trainer.devices=9", "batch_size=8"], r"batch_size=8 is over all devices .*devices=8"),
        (["resources.gpu=9", "batch_size=8"], r"batch_size=8 is over all devices together, and 9"),
        (["resources.gpu=1.5"], r"resources\.gpu must be auto, a fraction or a whole number"),
    ],
)
def test_devices_that_cannot_be_had_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose.cell(overrides)
