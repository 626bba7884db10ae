"""Every implementation is the reference of its variant: outputs and every gradient.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import copy
import importlib
import itertools
import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from routing_layers import LAYERS, Layer, convolutional_layer, dense_layer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from capsweep.config import compose
from capsweep.model import votes as votes_file
from capsweep.model.routing import dynamic, dynamic_fast, em, em_fast
from capsweep.model.routing.em_procedure import EMProcedure
from capsweep.training import build

HAS_GPU = torch.cuda.is_available()
HAS_TRITON = importlib.util.find_spec("triton") is not None
VARIANTS = {"dynamic": dynamic.IMPLS, "em": em.IMPLS}
IMPLEMENTATIONS = [("dynamic", "fast"), ("dynamic", "triton"), ("em", "fast")]


def _places() -> list[Any]:
    """Every implementation on every device; kernels are interpreted on a CPU."""
    params = []
    for (variant, impl), device in itertools.product(IMPLEMENTATIONS, ("cpu", "cuda")):
        is_interpreted = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
        can_run = HAS_GPU if device == "cuda" else impl != "triton" or is_interpreted
        skip = pytest.mark.skipif(not can_run, reason=f"{impl} does not run on {device} here")
        params.append(
            pytest.param(variant, impl, device, marks=skip, id=f"{variant}-{impl}-{device}")
        )
    return params


every_implementation = pytest.mark.parametrize(("variant", "impl", "device"), _places())
of_dynamic = pytest.mark.parametrize(
    ("variant", "impl", "device"), [place for place in _places() if place.values[0] == "dynamic"]
)
of_triton = pytest.mark.parametrize(
    "device", [pytest.param(p.values[2], marks=p.marks) for p in _places() if "triton" in p.values]
)


def assert_as_reference(
    layer: Layer, variant: str, impl: str, num_iters: int, tolerance: float = 1e-9, **options: Any
) -> None:
    """Outputs and gradients."""
    expected = layer.results(VARIANTS[variant]["reference"], num_iters, **options)
    found = layer.results(VARIANTS[variant][impl], num_iters, **options)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@of_dynamic
@pytest.mark.parametrize("gradient", ["full", "last"])
@pytest.mark.parametrize("none_of_the_above", [False, True])
@pytest.mark.parametrize("owned", ["", "bias_JD", "prior_LJ", "bias_JD prior_LJ"])
@pytest.mark.parametrize("num_iters", [1, 2, 3])
def test_dynamic_routing_with_every_option(
    variant: str,
    impl: str,
    device: str,
    owned: str,
    num_iters: int,
    none_of_the_above: bool,
    gradient: str,
) -> None:
    options = {"none_of_the_above": none_of_the_above, "gradient": gradient}
    for kind in ("dense",) if impl == "triton" else LAYERS:
        layer = LAYERS[kind](variant, device=device)
        layer = layer._replace(own={key: layer.own[key] for key in owned.split()})
        assert_as_reference(layer, variant, impl, num_iters, **options)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("norm", ["all", "types", "positions"])
@pytest.mark.parametrize("r0", ["all", "types"])
@pytest.mark.parametrize(
    ("activation", "mass_norm"), [("cost", "sum"), ("cost", "ratio"), ("mixing", "sum")]
)
@pytest.mark.parametrize("num_iters", [1, 2, 4])
def test_em_routing_with_every_option(
    kind: str, norm: str, r0: str, activation: str, mass_norm: str, num_iters: int
) -> None:
    procedure = EMProcedure(0.5, norm=norm, r0=r0, mass_norm=mass_norm, activation=activation)
    assert_as_reference(LAYERS[kind]("em"), "em", "fast", num_iters, procedure=procedure)


sizes = st.integers(1, 6)


@of_dynamic
@at_most_examples(40)
@given(size=st.tuples(*[sizes] * 5), num_iters=st.integers(1, 4), at_once=st.integers(1, 200))
def test_linear_votes_of_any_size_however_many_children_are_routed_at_once(
    variant: str, impl: str, device: str, size: Any, num_iters: int, at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_fast, "NUMBERS_AT_ONCE", (at_once, at_once))
        assert_as_reference(dense_layer(variant, size, device=device), variant, impl, num_iters)


@of_dynamic
@pytest.mark.parametrize("size", [(1, 33, 11, 8, 16), (3, 2, 10, 17, 4), (33, 2, 3, 2, 2)])
def test_linear_votes_of_larger_sizes(variant: str, impl: str, device: str, size: Any) -> None:
    assert_as_reference(dense_layer(variant, size, device=device), variant, impl, num_iters=2)


@pytest.mark.parametrize("variant", VARIANTS)
@at_most_examples(25)
@given(
    grid=st.integers(1, 7),
    kernel=st.integers(1, 3),
    types=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pose=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    batch=st.integers(1, 3),
    images=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_convolutional_votes_of_any_size_however_many_images_are_routed_at_once(
    variant: str, grid: int, kernel: int, types: Any, pose: Any, batch: int, images: int, seed: int
) -> None:
    layer = convolutional_layer(variant, max(grid, kernel), kernel, types, pose, batch, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        at_once = images * layer.votes.numbers_per_image
        patch.setattr(votes_file, "NUMBERS_AT_ONCE", (at_once, at_once))
        assert_as_reference(layer, variant, "fast", 3, tolerance=1e-7)


@every_implementation
def test_in_single_precision_the_difference_is_rounding(
    variant: str, impl: str, device: str
) -> None:
    layers = [
        LAYERS["dense"](variant, device=device, dtype=dtype)
        for dtype in (torch.float64, torch.float32)
    ]
    exact = layers[0].results(VARIANTS[variant]["reference"], 3)
    errors = []
    for name in (impl, "reference"):
        single = layers[1].results(VARIANTS[variant][name], 3)
        errors.append(
            [torch.dist(one, other).item() for one, other in zip(single, exact, strict=True)]
        )
    for error, of_reference, other in zip(*errors, exact, strict=True):
        assert error <= 2 * of_reference + 1e-6 * other.norm()


@every_implementation
@pytest.mark.parametrize("output", ["pose_BJD", "act_BJ", "logit_BJ"])
@pytest.mark.parametrize("num_iters", [1, 3])
def test_each_output_alone_has_the_gradients_of_the_reference(
    variant: str, impl: str, device: str, num_iters: int, output: str
) -> None:
    if output == "logit_BJ" and variant == "dynamic":
        return
    layer = LAYERS["dense"](variant, device=device)
    gradients = []
    for name in ("reference", impl):
        routed = layer.route(VARIANTS[variant][name], num_iters)
        gradients.append(layer.gradients(getattr(routed, output)))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-9)


@every_implementation
def test_a_second_derivative_is_refused(variant: str, impl: str, device: str) -> None:
    layer = LAYERS["dense"](variant, device=device)
    value = layer.route(VARIANTS[variant][impl], 2).pose_BJD.square().sum()
    (gradient,) = torch.autograd.grad(value, layer.leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@every_implementation
def test_without_gradients_the_numbers_are_the_same(variant: str, impl: str, device: str) -> None:
    layer = LAYERS["dense"](variant, device=device)
    with_gradients = layer.route(VARIANTS[variant][impl], 3)
    with torch.no_grad():
        without = layer.route(VARIANTS[variant][impl], 3)
    assert not without.pose_BJD.requires_grad
    assert torch.equal(without.pose_BJD, with_gradients.pose_BJD)
    assert torch.equal(without.act_BJ, with_gradients.act_BJ)


@of_triton
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TILE_BYTES", 8),
        ("TILE_BYTES", 2**14),
        ("MOST_WEIGHT_BYTES", 8),
        ("PROGRAMS", 1),
        ("PROGRAMS", 4),
        ("SHORTEST_PART", 1),
    ],
)
def test_the_sizes_of_tiles_and_parts_do_not_matter(
    device: str, name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = importlib.import_module("capsweep.model.routing.dynamic_kernels")
    monkeypatch.setattr(kernels, name, value)
    layer = dense_layer("dynamic", (3, 4, 3, 3, 2), device=device)
    assert_as_reference(layer, "dynamic", "triton", num_iters=2)


@of_triton
def test_two_runs_of_the_kernels_have_the_same_bits(device: str) -> None:
    layer = dense_layer("dynamic", (3, 4, 5, 4, 6), device=device, dtype=torch.float32)
    runs = [layer.results(dynamic.triton_route, 3) for _ in range(2)]
    assert all(map(torch.equal, *runs))


@of_dynamic
def test_views_that_are_not_contiguous_are_routed_alike(
    variant: str, impl: str, device: str
) -> None:
    layer = LAYERS["dense"](variant, device=device)
    pose_BIP, weight_IJDP = (
        x.detach().mT.contiguous().mT.requires_grad_() for x in layer.leaves[:2]
    )
    own = {k: x.detach().mT.contiguous().mT.requires_grad_() for k, x in layer.own.items()}
    votes = votes_file.Votes(pose_BIP, weight_IJDP)
    turned = Layer(votes, [pose_BIP, weight_IJDP], own)
    assert_as_reference(turned, variant, impl, 3)


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchDispatchMode."""
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.numbers = max(self.numbers, made.untyped_storage().nbytes() // made.itemsize)
        return made


@pytest.mark.parametrize("options", [{}, {"none_of_the_above": True}, {"gradient": "last"}])
def test_nothing_of_the_size_of_linear_votes_is_ever_made(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = dense_layer("dynamic", (128, 40, 10, 8, 16))
    votes = 128 * layer.votes.numbers_per_image
    monkeypatch.setattr(dynamic_fast, "NUMBERS_AT_ONCE", (votes // 10, votes // 10))
    with LargestTensor() as largest:
        layer.results(dynamic.fast, 3, **options)
    assert largest.numbers <= votes / 8


def test_many_images_without_gradients_never_have_their_votes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    largest = 0

    class Spied(em_fast.VoteMoments):
        """Q, its size noted."""

        def __init__(self, votes_BMJDL: Tensor) -> None:
            nonlocal largest
            largest = max(largest, votes_BMJDL.numel())
            super().__init__(votes_BMJDL)

    layer = convolutional_layer("em", 5, 3, (3, 5), (4, 4), batch=40)
    one_image = layer.votes.numbers_per_image
    monkeypatch.setattr(em_fast, "VoteMoments", Spied)
    monkeypatch.setattr(votes_file, "NUMBERS_AT_ONCE", (one_image, one_image))
    with torch.no_grad():
        layer.route(em.fast, 2)
    assert largest == one_image


def _step(network: nn.Module, images_BCHW: Tensor) -> list[Tensor]:
    network(images_BCHW).scores_BN.square().sum().backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    return [gradient for gradient in gradients if gradient is not None]


# Dynamo looks at whether what enters an uncompiled part has a gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("model", ["capsnet_tiny", "matrix_capsnet_tiny"])
def test_the_rest_of_the_network_can_be_compiled(model: str) -> None:
    torch.manual_seed(0)
    config = compose.cell([f"model={model}"]).config
    network, images_BCHW = build.build_network(config), torch.rand(4, 1, 28, 28)
    compiled = copy.deepcopy(network)
    compiled.compile(backend="aot_eager")
    torch.testing.assert_close(_step(compiled, images_BCHW), _step(network, images_BCHW))
