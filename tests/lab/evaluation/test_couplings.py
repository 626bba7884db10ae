"""Couplings of a layer: entropies and measures by hand and by law.

Shape letters: B images, M parent positions, L children below one, J parent types.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from torch import Tensor
from trained_cells import make_routed

from capsweep.lab.evaluation.couplings import (
    Children,
    LayerMeasures,
    divide_by_sum,
    measure_layers,
)
from capsweep.model import convolution
from capsweep.model.routing import CouplingRule, ReceptiveFields, coupling_softmax

GRID = convolution.PositionGrid(5, 6, first=0, step=1)
TYPES, PARENTS = 2, 3
NORMS = ("all", "types", "positions")
SOFTMAX = CouplingRule()
EQUAL, FIRST, SECOND = [0.5, 0.5], [1.0, 0.0], [0.0, 1.0]


def make_children(rule: CouplingRule, stride: int | None) -> Children:
    """Children of three parents. stride None: four at one position; else children of two types on a
    5x6 grid, below kernels of 3x3; with stride 2 the last column has no parent.
    """
    if stride is None:
        return Children(rule, None, (1, 4, PARENTS))
    positions = torch.tensor(convolution.list_fields(GRID, 3, stride))
    fields = ReceptiveFields(positions, GRID.num_positions)
    return Children(rule, fields, (len(positions), 9 * TYPES, PARENTS))


def share(rule: CouplingRule, children: Children, logit_BMLJ: Tensor) -> Tensor:
    """As routing divides them."""
    return coupling_softmax(logit_BMLJ, children.fields, rule.norm, rule.none_of_the_above)


def test_entropies_by_hand_where_none_of_the_above_is_one_more_share() -> None:
    children = make_children(CouplingRule(none_of_the_above=True), None)
    assert children.num_choices.tolist() == [PARENTS + 1] * 4
    couplings = [[0.25, 0.25, 0.25], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.5, 0.25, 0.25]]
    entropies, polarisation = children.measure(torch.tensor(couplings)[None, None])
    expected = [math.log(4), 0.0, math.log(2), 1.5 * math.log(2)]
    np.testing.assert_allclose(entropies, [expected], atol=1e-7)
    assert polarisation[0, 1] == pytest.approx(1)  # all of it goes to none


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("nowhere", [False, True])
@pytest.mark.parametrize("stride", [None, 1, 2])
def test_equal_couplings_have_the_entropy_of_the_control_and_no_polarisation(
    norm: str, nowhere: bool, stride: int | None
) -> None:
    rule = CouplingRule(norm, nowhere)
    children = make_children(rule, stride)
    equal = share(rule, children, torch.zeros(2, *children.shape, dtype=torch.float64))
    control_G = np.log(children.num_choices[children.has_choice])
    entropies, polarisation = children.measure(equal)
    np.testing.assert_allclose(entropies, np.stack([control_G, control_G]), atol=1e-12)
    np.testing.assert_allclose(polarisation, 0, atol=1e-12)


@at_most_examples(40)
@given(
    seed=st.integers(0, 2**32 - 1),
    norm=st.sampled_from(NORMS),
    nowhere=st.booleans(),
    stride=st.sampled_from([None, 1, 2]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]),
)
def test_an_entropy_is_between_none_and_that_of_equal_couplings(
    seed: int, norm: str, nowhere: bool, stride: int | None, scale: float
) -> None:
    rule, generator = CouplingRule(norm, nowhere), torch.Generator().manual_seed(seed)
    children = make_children(rule, stride)
    logit_BMLJ = scale * torch.randn(2, *children.shape, generator=generator)
    entropies, _ = children.measure(share(rule, children, logit_BMLJ))
    assert np.isfinite(entropies).all()
    assert (entropies >= 0).all()
    assert (entropies <= np.log(children.num_choices[children.has_choice])).all()


def measure_by_hand(
    images: list, rule: CouplingRule | None = SOFTMAX, active: float = 1.0, **own: bool
) -> dict[str, float | None]:
    """Of couplings [B, L, J] that are added an image at a time; all parents stand at one
    position.
    """
    coupling_BMLJ = torch.tensor(images)[:, None]
    layer = SimpleNamespace(routing=SimpleNamespace(coupling_rule=rule, **own))
    measures = LayerMeasures(layer, coupling_BMLJ.shape[1:])
    for image_BMLJ in coupling_BMLJ.split(1):
        measures.add_images(image_BMLJ, torch.tensor([[0.0, active]]))
    return measures.summarise()


@pytest.mark.parametrize(
    ("images", "entropy", "polarisation", "variety"),
    [
        ([[EQUAL, EQUAL]] * 4, 1.0, 0.0, None),
        ([[FIRST, SECOND]] * 4, 0.0, 1.0, 0.0),
        ([[FIRST, FIRST], [SECOND, SECOND]] * 2, 0.0, 1.0, 1.0),
        ([[FIRST, FIRST], [FIRST, SECOND]], 0.0, 1.0, 0.5),
        ([[EQUAL, FIRST], [EQUAL, FIRST]], 0.5, 0.5, 0.0),
        ([[[1.0], [1.0]]], None, None, None),  # no choice
    ],
)
def test_measures_by_hand(
    images: list, entropy: float | None, polarisation: float | None, variety: float | None
) -> None:
    found = measure_by_hand(images)
    expected = {"entropy": entropy, "polarisation": polarisation, "variety": variety}
    assert found == pytest.approx(expected | {"dead": 0.5})


def test_a_parent_is_dead_below_our_threshold_where_parents_have_activations() -> None:
    assert measure_by_hand([[EQUAL]], active=0.011)["dead"] == 0.5
    assert measure_by_hand([[EQUAL]], active=0.009)["dead"] == 1.0
    assert measure_by_hand([[EQUAL]], has_activations=False)["dead"] is None


def test_couplings_without_a_sum_are_divided_by_it() -> None:
    coupling_BMLJ = torch.tensor([[3.0, 1.0], [-1.0, 2.0], [0.0, -1.0]])[None, None]
    expected = torch.tensor([[0.75, 0.25], [0.0, 1.0], [0.5, 0.5]])[None, None]
    torch.testing.assert_close(divide_by_sum(coupling_BMLJ), expected)
    found = measure_by_hand([[[3.0, 1.0]]], rule=None)
    nats = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found["entropy"] == pytest.approx(nats / math.log(2))
    assert found["polarisation"] == pytest.approx(0.5)


SMALL = "model=capsnet_small"
LINEAR = ("model.head=linear", "loss=cross_entropy", "loss.reconstruction.weight=0")
MATRIX_LAYERS = ["capsules.0", "capsules.1", "classes"]


@pytest.mark.parametrize(
    ("overrides", "layers", "dead"),
    [
        ((SMALL, "routing=inverted_attention", *LINEAR), ["classes"], False),
        ((SMALL, "routing=self_attention"), ["classes"], True),
        ((SMALL, "routing.normaliser=max_min"), ["classes"], True),
        (("model=matrix_capsnet_tiny", "routing=variational_bayes"), MATRIX_LAYERS, True),
    ],
)
def test_every_layer_of_every_variant_is_measured(
    overrides: tuple[str, ...], layers: list[str], dead: bool
) -> None:
    found = measure_layers(make_routed(overrides, 5))
    assert list(found) == layers
    for layer in found.values():
        measures = layer.summarise()
        assert (measures.pop("dead") is not None) == dead
        assert all(value is not None and 0 <= value <= 1 for value in measures.values())
    assert found["classes"].largest_J.shape == (10,)  # activations: no trace has them
