"""What a network costs, layer by layer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.errors import ConfigError
from capsweep.training import build
from capsweep.training.layers import OBJECTIVE, Layer, RoutedLayer, measure_layers, sum_layers
from capsweep.training.size import Size, network_size


def by_name(found: list[Layer]) -> dict[str, Layer]:
    return {layer.name: layer for layer in found}


def measured_bytes(config: dict[str, Any], batch_size: int) -> int:
    """What a real training step on the CPU keeps for its backward pass, parameters not counted."""
    network = build.build_network(config).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    saved: dict[int, Tensor] = {}  # the tensors are kept, so that no memory is used twice

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    images = torch.rand(batch_size, *config["dataset"]["image_shape"])
    batch = Batch(images, torch.arange(batch_size) % config["dataset"]["num_classes"])
    mixed = config["precision"] == "bf16-mixed"
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed),
    ):
        build.build_objective(config)(network, batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


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
    told = sum_layers(measure_layers(config))
    assert Size(told.parameters, told.flops) == network_size(config)


def test_the_full_capsnet_on_mnist_has_the_papers_numbers() -> None:
    found = measure_layers(compose.cell(["model=capsnet", "dataset=mnist"]).config)
    assert sum_layers(found).parameters == 8_215_728
    assert sum_layers(found).votes == 11_520  # 1,152 children, 10 parents
    layer = by_name(found)
    assert layer["conv"].output_shape == (256, 20, 20)
    assert layer["conv"].flops == 2 * 256 * 81 * 20 * 20
    assert layer["primary"].output_shape == (1152, 8)
    assert layer["primary.conv"].parameters == 256 * 256 * 81 + 256
    assert layer["classes"].output_shape == (10, 16)
    assert layer["classes"].parameters == 1152 * 10 * 16 * 8
    assert layer["classes"].votes == 11_520
    assert layer["classes.routing"].parameters == 160
    assert layer["decoder.layers.4"].output_shape == (784,)


def test_a_network_without_routing_has_no_votes() -> None:
    assert sum_layers(measure_layers(compose.cell(["model=cnn_small"]).config)).votes == 0


def test_a_container_that_has_nothing_of_its_own_is_left_out() -> None:
    names = list(by_name(measure_layers(compose.cell(["model=cnn_small"]).config)))
    assert names[:3] == ["features.0", "features.1", "features.2"]
    assert names[-1] == OBJECTIVE
    assert "features" not in names


@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
@pytest.mark.parametrize(
    "overrides",
    [
        ["model=capsnet_small"],
        ["model=capsnet_small", "routing.num_iters=1", "loss.reconstruction.weight=0"],
        ["model=cnn_small"],
    ],
)
def test_activation_memory_is_what_a_real_training_step_saves(
    overrides: list[str], precision: str
) -> None:
    config = dict(compose.cell([*overrides, f"precision={precision}"]).config)
    told = sum_layers(measure_layers(config)).activation_bytes
    less, more = measured_bytes(config, 4), measured_bytes(config, 12)
    assert told == (more - less) / 8
    if precision == "32":  # of what does not grow with the batch, no more than the weights again
        assert 0 <= more - 12 * told <= 4 * sum_layers(measure_layers(config)).parameters


def test_memory_belongs_to_the_layer_that_saved_it_first() -> None:
    layer = by_name(measure_layers(compose.cell(["model=cnn_small"]).config))
    image, features = 28 * 28 * 4, 32 * 28 * 28 * 4
    assert layer["features.0"].activation_bytes == image
    assert layer["features.1"].activation_bytes == features  # the ReLU's result,
    assert layer["features.2"].activation_bytes == 32 * 14 * 14 * 8  # which pooling saves again


def test_more_routing_iterations_need_more_memory_and_no_more_votes() -> None:
    def routed(count: int) -> Layer:
        found = measure_layers(
            compose.cell(["model=capsnet_small", f"routing.num_iters={count}"]).config
        )
        return sum_layers(found)

    assert routed(3).activation_bytes > routed(1).activation_bytes
    assert routed(3).votes == routed(1).votes == 2_880


def test_a_layer_routes_when_it_says_how_many_votes_it_has() -> None:
    class Routing(nn.Module):
        votes_per_image = 7

    assert isinstance(Routing(), RoutedLayer)
    assert not isinstance(nn.Linear(1, 1), RoutedLayer)


def test_nothing_is_left_behind(small_cell: Callable[..., Cell]) -> None:
    state = torch.get_rng_state()
    measure_layers(small_cell().config)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.empty(1).device.type == "cpu"


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.conv\.kernel and model\.primary\.kernel"):
        measure_layers(compose.cell(["model=capsnet", "model.conv.kernel=25"]).config)
