"""Entropies of couplings, by hand and by law.

Shape letters: B images, M parent positions, L children below one, J parent types.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from torch import Tensor
from trained_cells import make_routed

from capsweep.lab.evaluation.children import Children
from capsweep.lab.evaluation.figures.couplings import describe_figure, measure
from capsweep.model import convolution
from capsweep.model.routing import CouplingRule, ReceptiveFields, coupling_softmax

GRID = convolution.PositionGrid(5, 6, first=0, step=1)
TYPES, PARENTS = 2, 3
NORMS = ("all", "types", "positions")


def below_kernels(stride: int) -> ReceptiveFields:
    """A 5x6 grid below kernels of 3x3; with stride 2 the last column has no parent."""
    return ReceptiveFields(
        torch.tensor(convolution.list_fields(GRID, 3, stride)), GRID.num_positions
    )


def convolutional(division: CouplingRule, stride: int = 1) -> Children:
    """Children of two types, parents of three."""
    fields = below_kernels(stride)
    return Children(division, fields, (len(fields.child_MK), 9 * TYPES, PARENTS))


def dense(division: CouplingRule) -> Children:
    """Four children of three parents."""
    return Children(division, None, (1, 4, PARENTS))


def shared(children: Children, logit_BMLJ: Tensor) -> Tensor:
    """As routing divides them."""
    rule = children.rule
    return coupling_softmax(logit_BMLJ, children.fields, rule.norm, rule.none_of_the_above)


@pytest.mark.parametrize(
    ("nowhere", "couplings", "expected"),
    [
        (
            False,
            [[1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]],
            [math.log(3), 0.0, math.log(2), 1.5 * math.log(2)],
        ),
        (  # none of the above is one more share
            True,
            [[0.25, 0.25, 0.25], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0], [1.0, 0.0, 0.0]],
            [math.log(4), 0.0, math.log(2), 0.0],
        ),
    ],
)
def test_by_hand_where_all_parents_stand_at_one_position(
    nowhere: bool, couplings: list, expected: list[float]
) -> None:
    children = dense(CouplingRule(none_of_the_above=nowhere))
    assert children.num_choices.tolist() == [PARENTS + nowhere] * 4
    entropies = children.measure_entropies(torch.tensor(couplings)[None, None])
    np.testing.assert_allclose(entropies, [expected], atol=1e-7)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("nowhere", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_equal_couplings_have_the_entropy_of_the_control(
    norm: str, nowhere: bool, stride: int
) -> None:
    for children in (
        dense(CouplingRule(norm, nowhere)),
        convolutional(CouplingRule(norm, nowhere), stride),
    ):
        equal = shared(children, torch.zeros(2, *children.shape, dtype=torch.float64))
        control_G = np.log(children.num_choices[children.has_choice])
        found = children.measure_entropies(equal)
        assert found.shape == (2, len(control_G))
        np.testing.assert_allclose(found, np.stack([control_G, control_G]), atol=1e-12)


@at_most_examples(40)
@given(
    seed=st.integers(0, 2**32 - 1),
    norm=st.sampled_from(NORMS),
    nowhere=st.booleans(),
    stride=st.sampled_from([1, 2]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]),
)
def test_an_entropy_is_between_none_and_that_of_equal_couplings(
    seed: int, norm: str, nowhere: bool, stride: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    for children in (
        dense(CouplingRule(norm, nowhere)),
        convolutional(CouplingRule(norm, nowhere), stride),
    ):
        logit_BMLJ = scale * torch.randn(2, *children.shape, generator=generator)
        found = children.measure_entropies(shared(children, logit_BMLJ))
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        assert (found <= np.log(children.num_choices[children.has_choice])).all()


@pytest.mark.parametrize(
    ("override", "shares"),
    [("seed=0", 10), ("routing.none_of_the_above=true", 11), ("routing=em", 10)],
)
def test_the_first_iteration_of_a_network_is_the_control(override: str, shares: int) -> None:
    cell = make_routed(["model=capsnet_small", override], 3, 2)
    layers = measure(cell)
    assert list(layers) == ["classes"]
    arrays = layers["classes"].collect_arrays()
    assert tuple(arrays["parents"]) == (shares, shares)
    assert arrays["nats.mean"][0] == pytest.approx(arrays["control"])
    assert arrays["share.mean"][0] == pytest.approx(1)
    assert arrays["share.mean"][1] < 1
    assert arrays["share.quantiles"].shape == (5, 2)
    assert (np.diff(arrays["share.quantiles"], axis=0) >= 0).all()
    assert f"{shares} to {shares} shares by place" in describe_figure(layers, cell)


@pytest.mark.parametrize("variant", ["em", "dynamic"])
def test_every_layer_of_a_matrix_network_has_its_own_control(variant: str) -> None:
    cell = make_routed(["model=matrix_capsnet_tiny", f"routing={variant}"], 2, 2)
    layers = measure(cell)
    assert list(layers) == ["capsules.0", "capsules.1", "classes"]
    for name, layer in layers.items():
        module = cell.layers[name]
        types = module.weight_KIJSS.shape[2]
        counts = torch.bincount(module.child_MK.flatten(), minlength=module.num_child_positions)
        expected = float((counts[counts > 0] * types).double().log().mean())
        if name == "classes":
            expected = math.log(10)
        spreads = layer.summarise()
        assert layer.control == pytest.approx(expected)
        assert spreads["nats"].mean[0] == pytest.approx(expected)
        assert spreads["share"].mean[0] == pytest.approx(1)
        assert spreads["share"].mean[1] < 1
