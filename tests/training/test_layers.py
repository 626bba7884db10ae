"""What a network costs, layer by layer."""

from collections.abc import Callable

import pytest
import torch

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.errors import ConfigError
from capsweep.training import build
from capsweep.training.size import Layer, Size, measure_layers, network_size


def layers_of(*overrides: str) -> dict[str, Layer]:
    """The layers of a network by name, in its order."""
    return {layer.name: layer for layer in measure_layers(compose.cell(list(overrides)).config)}


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=capsnet", "dataset=mnist"],
        ["model=capsnet_small"],
        ["model=capsnet_small", "loss.reconstruction.weight=0"],
        ["model=cnn_small"],
    ],
)
def test_totals_are_the_size_of_the_network(overrides: list[str]) -> None:
    config = compose.cell(overrides).config
    layers = measure_layers(config)
    size = Size(sum(layer.parameters for layer in layers), sum(layer.flops for layer in layers))
    assert size == network_size(config)
    network = build.build_network(config)
    assert size.parameters == sum(parameter.numel() for parameter in network.parameters())


def test_the_full_capsnet_on_mnist_has_the_papers_numbers() -> None:
    layer = layers_of("model=capsnet", "dataset=mnist")
    assert sum(one.parameters for one in layer.values()) == 8_215_728
    assert layer["conv"].output_shape == (256, 20, 20)
    assert layer["conv"].flops == 2 * 256 * 81 * 20 * 20
    assert layer["primary"].output_shape == (1152, 8)
    assert layer["primary.conv"].parameters == 256 * 256 * 81 + 256
    assert layer["classes"].output_shape == (10, 16)
    assert layer["classes"].parameters == 1152 * 10 * 16 * 8
    assert layer["classes"].votes == 11_520  # 1,152 children, 10 parents
    assert sum(one.votes for one in layer.values()) == 11_520
    assert layer["classes.routing"].parameters == 160
    assert layer["decoder.layers.4"].output_shape == (784,)


def test_lists_of_layers_are_left_out() -> None:
    layers = layers_of("model=cnn_small")
    assert list(layers)[:3] == ["features.0", "features.1", "features.2"]
    assert not {"", "features"} & layers.keys()
    assert not any(layer.votes for layer in layers.values())


def test_more_routing_iterations_cast_no_more_votes() -> None:
    once, thrice = (layers_of("model=capsnet_small", f"routing.num_iters={n}") for n in (1, 3))
    assert once["classes"].votes == thrice["classes"].votes == 2_880
    assert once["classes.routing"].flops < thrice["classes.routing"].flops


def test_nothing_is_left_behind(small_cell: Callable[..., Cell]) -> None:
    state = torch.get_rng_state()
    measure_layers(small_cell().config)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.empty(1).device.type == "cpu"


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.conv\.kernel and model\.primary\.kernel"):
        layers_of("model=capsnet", "model.conv.kernel=25")


@pytest.mark.parametrize(
    "target",
    [
        "capsweep.data.cifar10.tarfile.open",
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
