"""Methods and layouts of convolutions in a network: where they are used, and that it trains as
before.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from convolutions import PRIMARY, draw_normal, find_relative_error, make_layers
from torch import nn
from trained_cells import finish, read_provenance, train

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.model import convolution, large_kernels
from capsweep.model.convolution import Convolution, describe_methods, set_method, set_weight_layout
from capsweep.model.large_kernels import Tiling, choose_tiling
from capsweep.training import build


@pytest.mark.parametrize(
    ("vectors", "cpu_name", "avx_vnni", "cost"),
    [
        ("AVX512", "AMD EPYC", True, 0.9),
        ("AVX512", "AMD EPYC", False, 1.8),
        ("AVX2", "AMD EPYC", True, 1.8),
        ("AVX512", "Intel(R) Xeon(R)", True, 1.8),
    ],
)
def test_direct_convolution_is_cheap_where_it_alone_has_longer_vectors(
    monkeypatch: pytest.MonkeyPatch, vectors: str, cpu_name: str, avx_vnni: bool, cost: float
) -> None:
    capabilities = {"cpu_name": cpu_name, "avx_vnni": avx_vnni}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    assert large_kernels.find_direct_cost() == cost


@pytest.mark.parametrize("direct_cost", [0.9, 1.8])
def test_the_rule_takes_what_was_measured_to_be_faster(
    monkeypatch: pytest.MonkeyPatch, direct_cost: float
) -> None:
    monkeypatch.setattr(large_kernels, "DIRECT_COST", direct_cost)

    def choose(*sizes: int, batch: int, places: int) -> Tiling | None:
        channels, outputs, kernel, stride = sizes
        places_HW = places, places
        return choose_tiling(kernel, stride, (channels, outputs), batch, places_HW)

    assert choose(*PRIMARY, batch=128, places=6) == Tiling(9, 2, 6)
    small = Tiling(9, 2, 6) if direct_cost > 1 else None
    assert choose(64, 64, 9, 2, batch=128, places=6) == small, "capsnet_small"
    assert choose(256, 256, 5, 1, batch=128, places=28) == Tiling(5, 1, 14)
    assert choose(1, 256, 9, 1, batch=128, places=20) is None, "the first layer"
    assert choose(64, 64, 5, 2, batch=128, places=5) is None, "capsnet_tiny"
    assert choose(*PRIMARY, batch=1, places=6) is None, "transformed weights serve one image"


@pytest.mark.parametrize(
    ("sizes", "pixels", "bias"),
    [
        ((2, 3, 3, 1), 9, True),
        ((2, 3, 9, 3), 20, True),
        ((2, 3, 5, 1), 0, True),
        ((2, 3, 9, 2), 20, False),
    ],
)
def test_what_it_cannot_do_is_done_directly(
    sizes: tuple[int, ...], pixels: int, bias: bool
) -> None:
    direct, transformed = make_layers(*sizes, same=True)
    if not bias:
        direct.bias = transformed.bias = None
    images_BCHW = draw_normal(2 if pixels else 0, 2, pixels or 9, pixels or 9).float()
    assert torch.equal(transformed(images_BCHW), direct(images_BCHW))
    assert describe_methods(nn.Sequential(transformed)) == {"0": "direct"}


@pytest.mark.parametrize("has_instructions", [True, False])
def test_in_mixed_precision_it_is_used_where_bfloat16_is_emulated(
    monkeypatch: pytest.MonkeyPatch, has_instructions: bool
) -> None:
    monkeypatch.setattr(convolution, "MULTIPLIES_BFLOAT16", has_instructions)
    direct, transformed = make_layers(3, 4, 5, 1)
    images_BCHW = draw_normal(2, 3, 12, 12).float()
    expected = direct(images_BCHW)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features_BCHW = transformed(images_BCHW.bfloat16())
    assert features_BCHW.dtype == torch.bfloat16
    torch.testing.assert_close(features_BCHW.float(), expected, rtol=0.05, atol=0.05)
    features_BCHW.float().square().sum().backward()
    assert transformed.weight.grad is not None
    assert transformed.weight.grad.isfinite().all()
    assert ("direct" in transformed.methods) == has_instructions


@pytest.mark.parametrize(
    "model", [("capsnet", "model.conv.channels=32", "model.primary.types=4"), ("cnn_small",)]
)
def test_a_networks_loss_and_gradients_are_those_of_direct_convolution(
    model: tuple[str, ...],
) -> None:
    name, *sizes = model
    config = compose.cell([f"model={name}", *sizes]).config
    batch = Batch(torch.rand(6, *config["dataset"]["image_shape"]), torch.arange(6))
    results = {}
    for method in ("direct", "transformed"):
        torch.manual_seed(0)
        network = build.build_network(config)
        set_method(network, method)
        torch.manual_seed(1)  # of dropout
        loss = build.build_objective(config)(network, batch).total
        loss.backward()
        gradients = {name: p.grad for name, p in network.named_parameters()}
        results[method] = {"loss": loss.detach(), **gradients}
        assert any(method in used for used in describe_methods(network).values())
    for key, expected in results["direct"].items():
        error = find_relative_error(results["transformed"][key], expected.double())
        assert error < 1e-4, key


@pytest.mark.parametrize(
    ("precision", "device", "is_last"),
    [
        ("32", "cpu", True),
        ("32", "cuda", False),
        ("tf32", "cuda", True),
        ("bf16-mixed", "cuda", True),
    ],
)
def test_only_exact_float32_on_a_gpu_convolves_with_channels_first(
    precision: str, device: str, is_last: bool
) -> None:
    config = compose.cell(["model=capsnet_tiny", f"precision={precision}"]).config
    network = build.build_network(config, device)
    weight = network.primary.conv.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) is is_last
    assert weight.is_contiguous() is not is_last


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "layout"), [("32", "first"), ("tf32", "last"), ("bf16-mixed", "last")]
)
def test_on_a_gpu_a_cell_says_its_layout_and_is_tested_on_a_processor_too(
    precision: str, layout: str, small_cell: Callable[..., Cell]
) -> None:
    cell = small_cell(f"precision={precision}", "trainer.accelerator=gpu")
    train(cell)
    used = read_provenance(cell)["implementations"]
    assert used["convolutions"] == f"auto, channels {layout}"
    for device in ("cuda", "cpu"):
        trained = finish(cell, device).load(cell.signature)
        strides = trained.network.primary.conv.weight.stride()
        is_last = layout == "last" or device == "cpu"
        assert (strides[1] == 1) is is_last
        if device == "cuda" or precision == "32":
            trained.verify()


@pytest.mark.parametrize("is_channels_last", [True, False])
@pytest.mark.parametrize(
    ("channels", "options"),  # options: kernel, stride, same, divisor, bias
    [(1, (9, 1, False, 1, True)), (2, (5, 2, True, 1, True)), (3, (4, 3, True, 255, False))],
)
def test_a_product_of_what_a_kernel_sees_is_the_direct_convolution(
    channels: int, options: tuple[Any, ...], is_channels_last: bool
) -> None:
    torch.manual_seed(0)
    layer = Convolution(channels, 96, *options).double()
    if is_channels_last:
        set_weight_layout(layer, torch.channels_last)
    input = torch.rand(3, channels, 13, 17, dtype=torch.float64, requires_grad=True)
    sources, results = [input, *layer.parameters()], []
    for convolve in (layer._convolve_directly, layer._multiply_gathered):
        features = convolve(input, layer.weight / layer.divisor)
        features.square().sum().backward()
        results.append([features, *(source.grad for source in sources)])
        for source in sources:
            source.grad = None
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
    assert results[1][0].is_contiguous(memory_format=memory_format)


@pytest.mark.gpu
def test_a_gpu_multiplies_where_a_kernel_sees_few_numbers() -> None:
    config = compose.cell(["model=capsnet", "trainer.accelerator=gpu"]).config
    network = build.build_network(config).cuda()
    network(torch.rand(2, 1, 28, 28, device="cuda"))
    assert describe_methods(network) == {"conv": "gathered", "primary.conv": "direct"}


def test_a_cell_says_how_each_of_its_convolutions_was_computed(tmp_path: Path) -> None:
    small = ["model.conv.channels=8", "model.primary.types=2", "batch_size=16", "limit_batches=3"]
    fixed = ["epochs=1", "trainer.accelerator=cpu", "logger=csv", f"places.storage={tmp_path}"]
    cell = compose.cell([*small, *fixed, "trainer.convolution=transformed"])
    assert cell.signature == compose.cell([*small, *fixed]).signature
    train(cell)
    provenance = read_provenance(cell)
    assert provenance["implementations"]["convolutions"] == "transformed, channels last"
    assert provenance["convolutions"] == {
        "conv": "transformed, tiles of 10x10",
        "primary.conv": "transformed, tiles of 6x6",
    }
