"""Every implementation is the reference of its variant: outputs and every gradient.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import importlib
import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from largest_tensor import LargestTensor
from laws import at_most_examples
from routing_layers import LAYERS, Layer, convolutional_layer, dense_layer

from capsweep.model import votes as votes_file
from capsweep.model.routing import dynamic, dynamic_fast, em
from capsweep.model.routing.dynamic import NORMALISERS
from capsweep.model.routing.em import EMProcedure

VARIANTS = {
    name: importlib.import_module(f"capsweep.model.routing.{name}").IMPLS
    for name in ("dynamic", "em", "heinsen", "k_means", "sda", "variational_bayes")
}


class Place(NamedTuple):
    """An implementation and a device."""

    variant: str
    impl: str
    device: str

    def __str__(self) -> str:
        """As in the ids of tests."""
        return "-".join(self)

    @property
    def mark(self) -> pytest.MarkDecorator:
        """What it needs. On a CPU kernels are interpreted, for which Triton must be told so."""
        if self.device == "cuda":
            return pytest.mark.gpu
        has_triton = importlib.util.find_spec("triton") is not None
        can_run = self.impl != "triton" or (has_triton and "TRITON_INTERPRET" in os.environ)
        return pytest.mark.skipif(not can_run, reason=f"{self} cannot run here")

    def draw_layer(self, kind: str = "dense", **options: Any) -> Layer:
        """For this variant on this device."""
        return LAYERS[kind](self.variant, device=self.device, **options)

    def route(self, layer: Layer, num_iters: int) -> Any:
        """By this implementation."""
        return layer.route(VARIANTS[self.variant][self.impl], num_iters)

    def assert_as_reference(
        self, layer: Layer, num_iters: int, tolerance: float = 1e-9, **options: Any
    ) -> None:
        """Outputs and gradients."""
        impls = VARIANTS[self.variant]
        results = layer.results(impls[self.impl], num_iters, **options)
        expected = layer.results(impls["reference"], num_iters, **options)
        torch.testing.assert_close(results, expected, rtol=tolerance, atol=tolerance)


PLACES = [
    Place(variant, impl, device)
    for variant, impls in VARIANTS.items()
    for impl, device in itertools.product(impls, ("cpu", "cuda"))
    if impl != "reference"
]


def _in_places(*impls: str) -> pytest.MarkDecorator:
    """A test for each place of some implementations."""
    params = [
        pytest.param(place, id=str(place), marks=place.mark)
        for place in PLACES
        if f"{place.variant}-{place.impl}" in impls
    ]
    return pytest.mark.parametrize("place", params)


fast_impls = [f"{variant}-fast" for variant in VARIANTS]
in_every_place = _in_places("dynamic-triton", *fast_impls)
of_linear_votes = _in_places("dynamic-fast", "dynamic-triton")
of_kernels = _in_places("dynamic-triton")
of_fast = _in_places(*fast_impls)


def combine(**options: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination of the values of options."""
    return [dict(zip(options, each, strict=True)) for each in itertools.product(*options.values())]


GRADIENTS = ["full", "last"]
LINEAR = combine(none_of_the_above=[False, True], gradient=GRADIENTS)
NORMS = combine(norm=["all", "types", "positions"], r0=["all", "types"])
ACTIVATIONS = [{}, {"mass_norm": "ratio"}, {"activation": "mixing"}]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dynamic": [*LINEAR, *combine(normaliser=[*NORMALISERS][1:], gradient=GRADIENTS)],
    "em": [
        {"procedure": EMProcedure(0.5, **norms, **activation)}
        for norms, activation in itertools.product(NORMS, ACTIVATIONS)
    ],
    "sda": [{"clip": True}, {"clip": False}],
    "variational_bayes": [{"kappa": 0.0}, {"kappa": 1.0}, {"psi": 0.1}],
}
OWNED = {
    "dynamic": ["", "bias_JD", "prior_LJ", "bias_JD prior_LJ"],
    "sda": ["", "bias_JD"],
}


@in_every_place
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("num_iters", [1, 2, 3])
def test_outputs_and_gradients_with_every_option(place: Place, num_iters: int, kind: str) -> None:
    if place.impl == "triton" and kind != "dense":
        pytest.skip("kernels route linear votes alone")
    layer = place.draw_layer(kind)
    for owned in OWNED.get(place.variant, [" ".join(layer.own)]):
        chosen = layer._replace(own={key: layer.own[key] for key in owned.split()})
        options = OPTIONS.get(place.variant, [{}])
        for each in LINEAR if place.impl == "triton" else options:
            place.assert_as_reference(chosen, num_iters, **each)


@of_linear_votes
@at_most_examples(40)
@given(
    size=st.tuples(*[st.integers(1, 6)] * 5), num_iters=st.integers(1, 4), most=st.integers(1, 200)
)
def test_linear_votes_of_any_size_however_many_children_are_routed_at_once(
    place: Place, size: Any, num_iters: int, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_fast, "NUMBERS_AT_ONCE", (most, most))
        place.assert_as_reference(dense_layer("dynamic", size, device=place.device), num_iters)


@of_linear_votes
@pytest.mark.parametrize(
    "size", [(1, 33, 11, 8, 16), (3, 2, 10, 17, 4), (33, 2, 3, 2, 2), (0, 2, 3, 2, 2)]
)
def test_linear_votes_of_larger_sizes_or_of_no_image(place: Place, size: Any) -> None:
    place.assert_as_reference(dense_layer("dynamic", size, device=place.device), num_iters=2)


@of_fast
@at_most_examples(25)
@given(
    sizes=st.tuples(*[st.integers(1, 3)] * 3),
    grid=st.integers(1, 7),
    pose=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    batch=st.integers(1, 3),
    images=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_convolutional_votes_of_any_size_however_many_images_are_routed_at_once(
    place: Place, sizes: Any, grid: int, pose: Any, batch: int, images: int, seed: int
) -> None:
    kernel, *types = sizes
    where = {"device": place.device, "seed": seed}
    square = max(grid, kernel), max(grid, kernel)
    layer = convolutional_layer(
        place.variant, square, kernel, (types[0], types[1]), pose, batch=batch, **where
    )
    with pytest.MonkeyPatch.context() as patch:
        most = images * layer.votes.numbers_per_image
        patch.setattr(votes_file, "NUMBERS_AT_ONCE", (most, most))
        place.assert_as_reference(layer, 3, tolerance=1e-7)


@in_every_place
def test_in_single_precision_the_difference_is_rounding(place: Place) -> None:
    exact = place.draw_layer().results(VARIANTS[place.variant]["reference"], 3)
    errors = []
    for name in (place.impl, "reference"):
        layer = place.draw_layer(dtype=torch.float32)
        pairs = zip(layer.results(VARIANTS[place.variant][name], 3), exact, strict=True)
        errors.append([torch.dist(one, other).item() for one, other in pairs])
    for error, of_reference, other in zip(*errors, exact, strict=True):
        assert error <= 2 * of_reference + 1e-6 * other.norm()


@in_every_place
@pytest.mark.parametrize("num_iters", [1, 3])
def test_each_output_alone_has_the_gradients_of_the_reference(place: Place, num_iters: int) -> None:
    layer, reference = place.draw_layer(), VARIANTS[place.variant]["reference"]
    routed, expected = place.route(layer, num_iters), layer.route(reference, num_iters)
    for name in ("pose_BJD", "act_BJ", "logit_BJ"):
        if getattr(expected, name) is not None:
            pair = [layer.gradients(getattr(one, name)) for one in (routed, expected)]
            torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-9)


@in_every_place
def test_a_second_derivative_is_refused(place: Place) -> None:
    layer = place.draw_layer()
    value = place.route(layer, 2).pose_BJD.square().sum()
    (gradient,) = torch.autograd.grad(value, layer.leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@in_every_place
def test_two_runs_have_the_same_bits_with_gradients_and_without(place: Place) -> None:
    layer = place.draw_layer(dtype=torch.float32)
    runs = [layer.results(VARIANTS[place.variant][place.impl], 3) for _ in range(2)]
    assert all(map(torch.equal, *runs))
    with torch.no_grad():
        without = place.route(layer, 3)
    assert not without.pose_BJD.requires_grad
    assert torch.equal(without.pose_BJD, runs[0][0])


@of_kernels
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TILE_BYTES", 8),
        ("TILE_BYTES", 2**12),
        ("MOST_WEIGHT_BYTES", 8),
        ("PROGRAMS", 1),
        ("PROGRAMS", 4),
        ("SHORTEST_PART", 1),
    ],
)
def test_the_sizes_of_tiles_and_parts_do_not_matter(
    place: Place, name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = importlib.import_module("capsweep.model.routing.dynamic_triton")
    monkeypatch.setattr(kernels, name, value)
    layer = dense_layer("dynamic", (3, 4, 3, 3, 2), device=place.device)
    place.assert_as_reference(layer, num_iters=2)


@of_linear_votes
def test_views_that_are_not_contiguous_are_routed_alike(place: Place) -> None:
    layer = place.draw_layer()
    leaves = [x.detach().mT.contiguous().mT.requires_grad_() for x in layer.leaves[:2]]
    own = {k: x.detach().mT.contiguous().mT.requires_grad_() for k, x in layer.own.items()}
    place.assert_as_reference(Layer(votes_file.Votes(*leaves), leaves, own), 3)


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
    layer = convolutional_layer("em", (5, 5), 3, (3, 5), (4, 4), batch=40)
    one_image = layer.votes.numbers_per_image
    monkeypatch.setattr(votes_file, "NUMBERS_AT_ONCE", (one_image, one_image))
    with torch.no_grad(), LargestTensor() as largest:
        layer.route(em.fast, 2)
    assert largest.numbers <= 2 * one_image  # the votes' differences and their squares
