"""Dynamic routing by Triton kernels is the reference: interpreted on a CPU, compiled on a GPU.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import importlib
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from procedure_1 import AWKWARD, Layer, Size, layer
from triton_layers import SMALL, assert_as_reference, gradients_of, outputs_of, placed, routed_by

from capsweep.model.routing import dynamic
from capsweep.model.routing.dynamic_triton import triton_route

pytest.importorskip("triton", reason="triton is not installed (it is on Linux, in the dev extra)")

COMBINATIONS = [*itertools.product([False, True], repeat=3)]


@pytest.mark.parametrize("gradient", dynamic.GRADIENTS)
@pytest.mark.parametrize("num_iters", [1, 3])
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_every_combination_of_options_is_the_reference(
    device: str, combination: tuple[bool, bool, bool], num_iters: int, gradient: str
) -> None:
    assert_as_reference(placed(layer(SMALL), device), num_iters, combination, gradient)


@pytest.mark.parametrize(
    "size", [*AWKWARD, (1, 33, 11, 8, 16), (3, 2, 10, 17, 4), (2, 7, 3, 4, 5)], ids=str
)
def test_awkward_sizes_are_the_reference(device: str, size: Size) -> None:
    assert_as_reference(placed(layer(size), device), num_iters=2)


@at_most_examples(6)
@given(
    sizes=st.tuples(*[st.integers(1, 6)] * 5),
    num_iters=st.integers(1, 3),
    combination=st.tuples(*[st.booleans()] * 3),
    gradient=st.sampled_from(dynamic.GRADIENTS),
    seed=st.integers(0, 2**32),
)
def test_any_layer_is_the_reference(
    sizes: Size, num_iters: int, combination: tuple[bool, bool, bool], gradient: str, seed: int
) -> None:
    where = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = placed(layer(sizes, seed), where)
    assert_as_reference(chosen, num_iters, combination, gradient)


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
    launches = importlib.import_module("capsweep.model.routing.dynamic_kernels")
    monkeypatch.setattr(launches, name, value)
    assert_as_reference(placed(layer((3, 4, 3, 3, 2)), device), num_iters=2)


def test_in_single_precision_the_difference_is_rounding(device: str) -> None:
    chosen = placed(layer((3, 4, 5, 4, 6)), device, torch.float32)
    assert_as_reference(chosen, tolerance=2e-4)


def test_two_runs_have_the_same_bits(device: str) -> None:
    chosen = placed(layer((3, 4, 5, 4, 6)), device, torch.float32)
    runs = []
    for _ in range(2):
        routed = routed_by(triton_route, chosen, 3, (True, True, False))
        runs.append([*outputs_of(routed), *gradients_of(routed, chosen)])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_views_that_are_not_contiguous_are_routed_alike(device: str) -> None:
    chosen = placed(layer(SMALL), device)
    turned = [x.detach().mT.contiguous().mT.requires_grad_() for x in chosen]
    assert_as_reference(Layer(*turned))


@pytest.mark.parametrize("gradient", dynamic.GRADIENTS)
@pytest.mark.parametrize("scale", [0.0, 1e8], ids=["zero-votes", "huge-votes"])
def test_extreme_votes_give_finite_values_and_gradients(
    device: str, scale: float, gradient: str
) -> None:
    chosen = layer(SMALL)
    chosen = placed(chosen._replace(pose_BIP=scale * chosen.pose_BIP), device, torch.float32)
    routed = routed_by(triton_route, chosen, 3, (True, True, True), gradient=gradient)
    for tensor in (*outputs_of(routed), *gradients_of(routed, chosen)):
        assert tensor.isfinite().all()
