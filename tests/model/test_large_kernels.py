"""Convolutions with large kernels by the bilinear form: the numbers of direct convolution."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from trained_cells import find_folder, train

from capsweep.config import compose
from capsweep.data.batches import Batch
from capsweep.model import bilinear_form, convolution, large_kernels, transformed_convolution
from capsweep.model.bilinear_form import BilinearForm
from capsweep.model.convolution import Convolution, describe_methods, set_method
from capsweep.model.large_kernels import Tiling, choose_tiling
from capsweep.training import build
from capsweep.training.run_hooks import RunHooks

PRIMARY = 256, 256, 9, 2  # of CapsNet: channels, outputs, kernel, stride


def _normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype)


def _make_layers(*sizes: int, same: bool = False) -> tuple[Convolution, Convolution]:
    """Of the same weights: direct and transformed."""
    torch.manual_seed(0)
    channels, outputs, kernel, stride = sizes
    direct = Convolution(channels, outputs, kernel, stride, same)
    transformed = copy.deepcopy(direct)
    direct.method, transformed.method = "direct", "transformed"
    return direct, transformed


def _compute(layer: nn.Module, images_BCHW: Tensor) -> list[Tensor]:
    """Features, and the gradients by images, weights and bias."""
    images_BCHW = images_BCHW.detach().requires_grad_()
    features_BCHW = layer(images_BCHW)
    inputs = [images_BCHW, *layer.parameters()]
    gradient = _normal(*features_BCHW.shape).to(features_BCHW)
    return [features_BCHW, *torch.autograd.grad(features_BCHW, inputs, gradient)]


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected).abs().max() / expected.abs().max()).item()


@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 5),
    outputs=st.integers(1, 4),
    kernel=st.integers(4, 11),
    stride=st.integers(1, 2),
    further=st.tuples(st.integers(0, 17), st.integers(0, 17)),
    same=st.booleans(),
)
@pytest.mark.law
def test_outputs_and_gradients_are_those_of_direct_convolution(
    batch: int,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int,
    further: tuple[int, int],
    same: bool,
) -> None:
    direct, transformed = _make_layers(channels, outputs, kernel, stride, same=same)
    height, width = (1 + count if same else kernel + count for count in further)
    images_BCHW = _normal(batch, channels, height, width)
    expected, actual = (_compute(layer.double(), images_BCHW) for layer in (direct, transformed))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    assert next(iter(transformed.methods)).startswith("transformed")


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize(("kernel", "stride"), [(4, 1), (5, 1), (5, 2), (9, 2)])
def test_tiles_of_every_size_are_the_reference(kernel: int, stride: int, size: int) -> None:
    tiling = Tiling(kernel, stride, size + (size + -(-kernel // stride) - 1) % 2)
    images_BCHW, weight_OCKK = _normal(2, 3, 21, 18), _normal(2, 3, kernel, kernel)
    places = (21 - kernel) // stride + 1, (18 - kernel) // stride + 1
    expected = F.conv2d(images_BCHW, weight_OCKK, None, stride)
    form = bilinear_form.make_form(tiling, (21, 18), (0, 0), places, torch.float64)
    channels_last = images_BCHW.permute(0, 2, 3, 1), weight_OCKK.permute(0, 2, 3, 1)
    reference = form.convolve_reference(*map(Tensor.contiguous, channels_last))
    torch.testing.assert_close(reference.permute(0, 3, 1, 2), expected)
    arguments = images_BCHW, weight_OCKK, _normal(2).zero_(), tiling, (0, 0), places
    torch.testing.assert_close(transformed_convolution.convolve(*arguments), expected)


@pytest.mark.parametrize("name", ["CHANNELS_AT_ONCE", "NUMBERS_AT_ONCE", "CACHED", "MOST_KEPT"])
def test_what_is_computed_at_once_or_kept_changes_no_number(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _, layer = _make_layers(7, 4, 9, 2)
    images_BCHW = _normal(5, 7, 23, 20)
    at_once = _compute(layer.double(), images_BCHW)
    module = transformed_convolution if name == "MOST_KEPT" else bilinear_form
    # Blocks of 5 and 4 of the 14 channels of a row of phases; an image at a time; nothing kept.
    monkeypatch.setattr(module, name, 5)
    torch.testing.assert_close(_compute(layer, images_BCHW), at_once)


class LargestArray(TorchDispatchMode):
    """Numbers of the largest array that an operation gave."""

    numbers = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        result = operation(*arguments, **(named or {}))
        if isinstance(result, Tensor):
            size = result.untyped_storage().nbytes() // result.element_size()
            self.numbers = max(self.numbers, size)
        return result


def test_no_array_is_larger_than_the_images_or_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    _, layer = _make_layers(64, 64, 5, 1, same=True)
    images_BCHW = _normal(8, 64, 20, 20).float().requires_grad_()
    monkeypatch.setattr(bilinear_form, "NUMBERS_AT_ONCE", images_BCHW.numel())
    monkeypatch.setattr(transformed_convolution, "MOST_KEPT", 0)
    with LargestArray() as largest:
        layer(images_BCHW).sum().backward()
    assert layer.methods == {"transformed, tiles of 10x10"}
    assert largest.numbers == images_BCHW.numel()


def test_factors_are_kept_in_training_alone_and_within_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, layer = _make_layers(2, 3, 5, 1)
    images_BCHW = _normal(4, 2, 11, 13).float()
    monkeypatch.setattr(bilinear_form, "NUMBERS_AT_ONCE", 5)  # an image at a time

    def count_kept() -> int:
        node: Any = layer(images_BCHW).grad_fn
        return sum(array.numel() for array in node.saved_tensors[2:])

    kept = count_kept()
    assert kept > 0
    monkeypatch.setattr(transformed_convolution, "MOST_KEPT", kept)
    assert count_kept() == kept
    monkeypatch.setattr(transformed_convolution, "MOST_KEPT", kept - 1)
    assert count_kept() == 0
    monkeypatch.undo()
    given, add_outputs = [], BilinearForm.add_outputs

    def add_and_note(form: BilinearForm, *arguments: Any) -> None:
        given.append(arguments[-1])
        add_outputs(form, *arguments)

    monkeypatch.setattr(BilinearForm, "add_outputs", add_and_note)
    with torch.no_grad():
        layer(images_BCHW)
    assert given == [None]


def test_gradients_are_those_of_differences() -> None:
    _, layer = _make_layers(2, 2, 5, 2)
    layer.double()

    def convolve(images_BCHW: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, images_BCHW)

    inputs = [_normal(2, 2, 8, 7), _normal(2, 2, 5, 5), _normal(2)]
    assert torch.autograd.gradcheck(convolve, [value.requires_grad_() for value in inputs])


def test_it_is_not_less_exact_than_direct_convolution() -> None:
    direct, transformed = _make_layers(*PRIMARY)
    images_BCHW = _normal(4, 256, 20, 20)
    exact = _compute(copy.deepcopy(direct).double(), images_BCHW)
    laid_out = images_BCHW.float().to(memory_format=torch.channels_last)
    errors = [
        max(map(_relative_error, _compute(layer, laid_out), exact))
        for layer in (direct, transformed)
    ]
    assert errors[1] <= max(errors[0], 1e-6)


def test_a_graph_can_be_gone_back_through_twice_and_has_no_second_derivative() -> None:
    _, layer = _make_layers(2, 3, 5, 1)
    loss = layer(_normal(2, 2, 9, 9).float()).square().sum()
    first = torch.autograd.grad(loss, layer.weight, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, layer.weight), first)
    loss = layer(_normal(2, 2, 9, 9).float()).square().sum()
    (gradient,) = torch.autograd.grad(loss, layer.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


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
    ("sizes", "pixels"), [((2, 3, 3, 1), 9), ((2, 3, 9, 3), 20), ((2, 3, 5, 1), 0)]
)
def test_what_it_cannot_do_is_done_directly(sizes: tuple[int, ...], pixels: int) -> None:
    direct, transformed = _make_layers(*sizes, same=True)
    images_BCHW = _normal(2 if pixels else 0, 2, pixels or 9, pixels or 9).float()
    assert torch.equal(transformed(images_BCHW), direct(images_BCHW))
    assert describe_methods(nn.Sequential(transformed)) == {"0": "direct"}


def test_a_kernel_that_does_not_fit_is_torchs_error() -> None:
    _, transformed = _make_layers(2, 3, 9, 1)
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        transformed(_normal(2, 2, 5, 5).float())


@pytest.mark.parametrize("has_instructions", [True, False])
def test_in_mixed_precision_it_is_used_where_bfloat16_is_emulated(
    monkeypatch: pytest.MonkeyPatch, has_instructions: bool
) -> None:
    monkeypatch.setattr(convolution, "MULTIPLIES_BFLOAT16", has_instructions)
    direct, transformed = _make_layers(3, 4, 5, 1)
    images_BCHW = _normal(2, 3, 12, 12).float()
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
        error = _relative_error(results["transformed"][key], expected.double())
        assert error < 1e-4, key


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:The .grad attribute")
@pytest.mark.parametrize(("method", "graphs"), [("direct", 1), ("transformed", 2)])
def test_a_compiled_network_breaks_at_a_transformed_convolution_alone(
    monkeypatch: pytest.MonkeyPatch, method: str, graphs: int
) -> None:
    monkeypatch.setattr(convolution, "MULTIPLIES_BFLOAT16", True)

    class Network(nn.Module):
        """Something to compile before and after the convolution."""

        def __init__(self) -> None:
            super().__init__()
            direct, transformed = _make_layers(2, 3, 5, 1)
            self.layer = direct if method == "direct" else transformed

        def forward(self, images_BCHW: Tensor) -> Tensor:
            return self.layer(2 * images_BCHW).relu_()

    network, images_BCHW = Network(), _normal(2, 2, 9, 9).float()
    expected = _compute(network, images_BCHW)
    network.layer.methods.clear()
    counter = CompileCounter()
    network.compile(backend=counter, dynamic=False)
    for _ in range(2):
        torch.testing.assert_close(_compute(network, images_BCHW), expected)
        assert counter.frame_count == graphs
    (used,) = network.layer.methods
    assert used.startswith(method)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(images_BCHW)
    assert counter.frame_count - graphs == 1
    assert "direct" in network.layer.methods


def test_a_checkpoint_of_one_method_continues_with_the_other(tmp_path: Path) -> None:
    class CutError(Exception):
        """What ends a run early."""

    def cut(row: dict) -> None:
        if row["epoch"] == 1:
            raise CutError

    small = ["model.conv.channels=8", "model.primary.types=2", "batch_size=16", "limit_batches=3"]
    fixed = ["epochs=3", "trainer.accelerator=cpu", "trainer.checkpoint_interval=0", "logger=csv"]
    direct, transformed = (
        compose.cell(
            [*small, *fixed, f"places.storage={tmp_path}", f"trainer.convolution={method}"]
        )
        for method in ("direct", "transformed")
    )
    assert direct.signature == transformed.signature
    with pytest.raises(CutError):
        train(direct, RunHooks(on_epoch=cut))
    result = train(transformed)
    provenance = json.loads((find_folder(transformed) / "provenance.json").read_text())
    assert result["epochs"] == 3
    methods = [provenance, *provenance["earlier"]]
    assert [run["implementations"]["convolutions"] for run in methods] == [
        "transformed, channels last",
        "direct, channels last",
    ]
    assert provenance["convolutions"] == {
        "conv": "transformed, tiles of 10x10",
        "primary.conv": "transformed, tiles of 6x6",
    }
