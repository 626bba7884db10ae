"""A configuration file names code to call: only ours, and the field's libraries'."""

from collections.abc import Callable

import pytest

from capsweep.config.cell import Cell
from capsweep.errors import ConfigError
from capsweep.training.size import network_size


@pytest.mark.parametrize(
    "target",
    [
        "capsweep.data.official.downloads.os.system",
        "torch.nn.functional.warnings.warn",
        "torch.optim.nosuch",
    ],
)
def test_a_path_that_leads_out_of_the_allowed_libraries_is_refused_by_name(
    small_cell: Callable[..., Cell], target: str
) -> None:
    cell = small_cell(f"optim.optimizer._target_={target}")
    with pytest.raises(ConfigError, match=r"optim\.optimizer\._target_: "):
        network_size(cell.config)


@pytest.mark.parametrize(
    "target",
    ["torch.load", "torch.hub.load", "torch.os.system", "capsweep.storage.files.write_text"],
)
def test_only_what_makes_networks_losses_optimisers_and_data_is_allowed(
    small_cell: Callable[..., Cell], target: str
) -> None:
    with pytest.raises(ConfigError, match=r"optim\.optimizer\._target_: .* may not be called"):
        small_cell(f"optim.optimizer._target_={target}")


def test_every_target_of_the_repository_is_allowed(small_cell: Callable[..., Cell]) -> None:
    assert network_size(small_cell().config).parameters > 0
    assert network_size(small_cell("model=cnn_small").config).parameters > 0
