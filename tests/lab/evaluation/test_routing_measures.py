"""What routing does for answers: measures of couplings by hand, and networks routed otherwise.

Shape letters: B images, M parent positions, L children below one, J parent types.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from trained_cells import load_digits, make_routed

from capsweep.lab.evaluation.children import Children
from capsweep.lab.evaluation.coupling_measures import LayerMeasures, divide_by_sum, measure_layers
from capsweep.lab.evaluation.routing_measures import (
    ITERATIONS,
    FrozenRouting,
    average_couplings,
    find_answers,
    freeze_couplings,
    measure_error,
    measure_frozen,
    vary_iterations,
)
from capsweep.lab.evaluation.traces import RoutedCell
from capsweep.model.routing import CouplingRule, ReceptiveFields, coupling_softmax

SMALL = ("model=capsnet_small",)
LINEAR = ("model.head=linear", "loss=cross_entropy", "loss.reconstruction.weight=0")
ATTENTION = (*SMALL, "routing=inverted_attention", *LINEAR)
MATRIX = ("model=matrix_capsnet_tiny", "routing=dynamic")
SOFTMAX = CouplingRule()
EQUAL, FIRST, SECOND = [0.5, 0.5], [1.0, 0.0], [0.0, 1.0]


def make_layer(rule: CouplingRule | None = SOFTMAX, **own: bool) -> SimpleNamespace:
    """A layer whose parents all stand at one position."""
    return SimpleNamespace(routing=SimpleNamespace(coupling_rule=rule, **own))


def measure_by_hand(
    images: list[list[list[float]]], layer: SimpleNamespace | None = None, active: float = 1.0
) -> dict[str, float | None]:
    """Of couplings [B, L, J] that are added an image at a time."""
    coupling_BMLJ = torch.tensor(images)[:, None]
    layer = make_layer() if layer is None else layer
    measures = LayerMeasures(layer, tuple(coupling_BMLJ.shape))
    for image_BMLJ in coupling_BMLJ.split(1):
        measures.add_images(image_BMLJ, torch.tensor([[0.0, active]]))
    return measures.summarise()


def make_network(*overrides: str, examples: int = 12) -> RoutedCell:
    """With first weights; its training images are those of the test, in another order."""
    routed = make_routed(overrides, examples)
    return replace(routed, cell=replace(routed.cell, train=load_digits()))


@pytest.mark.parametrize(
    ("images", "entropy", "polarisation", "variety", "trees"),
    [
        ([[EQUAL, EQUAL]] * 4, 1.0, 0.0, None, 0.25),
        ([[FIRST, SECOND]] * 4, 0.0, 1.0, 0.0, 0.25),
        ([[FIRST, FIRST], [SECOND, SECOND]] * 2, 0.0, 1.0, 1.0, 0.5),
        ([[FIRST, FIRST], [FIRST, SECOND]], 0.0, 1.0, 0.5, 1.0),
        ([[EQUAL, FIRST], [EQUAL, FIRST]], 0.5, 0.5, 0.0, 0.5),
    ],
)
def test_couplings_by_hand(
    images: list, entropy: float, polarisation: float, variety: float | None, trees: float
) -> None:
    found = measure_by_hand(images)
    assert found["entropy"] == pytest.approx(entropy)
    assert found["polarisation"] == pytest.approx(polarisation)
    assert found["variety"] == (None if variety is None else pytest.approx(variety))
    assert found["trees"] == trees
    assert found["dead"] == 0.5


def test_a_parent_is_dead_below_our_threshold_where_parents_have_activations() -> None:
    assert measure_by_hand([[EQUAL]], active=0.011)["dead"] == 0.5
    assert measure_by_hand([[EQUAL]], active=0.009)["dead"] == 1.0
    layer = make_layer(has_activations=False)
    assert measure_by_hand([[EQUAL]], layer)["dead"] is None


def test_a_child_without_a_choice_has_neither_entropy_nor_polarisation() -> None:
    found = measure_by_hand([[[1.0], [1.0]]])
    assert found["entropy"] is found["polarisation"] is found["variety"] is None


def test_couplings_without_a_sum_are_divided_by_it() -> None:
    coupling_BMLJ = torch.tensor([[3.0, 1.0], [-1.0, 2.0], [0.0, -1.0]])[None, None]
    expected = torch.tensor([[0.75, 0.25], [0.0, 1.0], [0.5, 0.5]])[None, None]
    torch.testing.assert_close(divide_by_sum(coupling_BMLJ), expected)
    found = measure_by_hand([[[3.0, 1.0]]], make_layer(rule=None))
    assert found["entropy"] == pytest.approx(
        -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(2)
    )
    assert found["polarisation"] == pytest.approx(0.5)


def test_what_no_parent_gets_is_a_choice() -> None:
    layer = make_layer(CouplingRule(none_of_the_above=True))
    assert measure_by_hand([[[1 / 3, 1 / 3]]], layer)["entropy"] == pytest.approx(1)
    assert measure_by_hand([[[0.0, 0.0]]], layer)["polarisation"] == pytest.approx(1)


@pytest.mark.parametrize("norm", ["all", "types", "positions"])
def test_the_strongest_parent_is_sought_where_a_child_divides_itself(norm: str) -> None:
    """Three child positions of two types, below two positions, of three types."""
    fields = ReceptiveFields(torch.tensor([[0, 1], [1, 2]]), 3)
    children = Children(CouplingRule(norm), fields, (2, 4, 3))
    logit_BMLJ = torch.randn(5, 2, 4, 3, generator=torch.Generator().manual_seed(0))
    largest_BMLJ = children.mark_largest(coupling_softmax(logit_BMLJ, fields, norm))
    # One for each distribution: of 3 positions and 2 types, at 4 places, or of 3 types of parents.
    distributions = {"all": 3 * 2, "types": 4 * 2, "positions": 3 * 2 * 3}[norm]
    assert largest_BMLJ.flatten(1).sum(dim=1).tolist() == [distributions] * 5
    middle_BKIJ = torch.stack([logit_BMLJ[:, 0, 2:], logit_BMLJ[:, 1, :2]], dim=1)
    marked_BKIJ = torch.stack([largest_BMLJ[:, 0, 2:], largest_BMLJ[:, 1, :2]], dim=1)
    over = {"all": (1, 3), "types": (3,), "positions": (1,)}[norm]
    torch.testing.assert_close(marked_BKIJ, middle_BKIJ == middle_BKIJ.amax(over, keepdim=True))
    polarisation = children.measure_polarisation(coupling_softmax(0 * logit_BMLJ, fields, norm))
    np.testing.assert_allclose(polarisation, 0, atol=1e-7)


@pytest.mark.parametrize("overrides", [("routing=uniform",), ("routing=static",)])
@pytest.mark.parametrize("model", ["capsnet_small", "matrix_capsnet_tiny"])
def test_frozen_couplings_change_nothing_where_no_image_changes_them(
    overrides: tuple[str, ...], model: str
) -> None:
    routed = make_network(f"model={model}", *overrides)
    for layer in routed.layers.values():
        if (prior := getattr(layer.routing, "prior_IJ", None)) is not None:
            nn.init.normal_(prior)
    before = routed.predict_scores()
    assert routed.cell.train is not None
    with freeze_couplings(routed, average_couplings(routed, routed.cell.train)):
        frozen = routed.predict_scores()
    np.testing.assert_allclose(frozen[0], before[0], atol=1e-6)
    assert measure_frozen(routed) == measure_error(before)
    for layer in measure_layers(routed).values():
        found = layer.summarise()
        assert found["variety"] is None or found["variety"] < 1e-9
        assert found["trees"] == 1 / 12


@pytest.mark.parametrize(
    "overrides", [SMALL, (*SMALL, "routing=k_means"), (*SMALL, "routing=self_attention"), ATTENTION]
)
def test_frozen_couplings_are_the_mean_of_those_of_images(overrides: tuple[str, ...]) -> None:
    routed = make_network(*overrides)
    (layer,) = routed.layers.values()
    images_BCHW = load_digits().evaluation_batch(slice(0, 12)).images_BCHW
    traces = routed.cell(images_BCHW, with_trace=True).traces
    mean_MLJ = traces["classes"][-1]["coupling"].mean(dim=0)
    found = average_couplings(routed, load_digits())
    torch.testing.assert_close(found["classes"], mean_MLJ)
    kept: list[tuple[Tensor, Tensor]] = []
    routing = layer.routing

    class Recorded(FrozenRouting):
        def forward(self, votes, with_trace=False):
            routed = super().forward(votes, with_trace)
            by_hand = routing.form_parents(votes, mean_MLJ.expand(12, -1, -1, -1))
            kept.append((routed.pose_BJD, by_hand.pose_BJD))
            return routed

    with freeze_couplings(routed, found):
        layer.routing = Recorded(layer.routing.routing, layer.routing.coupling_MLJ)
        routed.cell(images_BCHW)
    ((pose_BJD, by_hand_BJD),) = kept
    torch.testing.assert_close(pose_BJD, by_hand_BJD)
    assert layer.routing is routing


def test_one_image_is_its_own_mean() -> None:
    """Frozen to the couplings of the one image that is tested, a network gives the same scores."""
    for overrides in (SMALL, MATRIX, ("model=matrix_capsnet_tiny", "routing=em"), ATTENTION):
        routed = make_network(*overrides, examples=1)
        before = routed.predict_scores()[0]
        with freeze_couplings(routed, average_couplings(routed, load_digits())):
            frozen = routed.predict_scores()[0]
        np.testing.assert_allclose(frozen, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trained", [2, 3])
def test_the_iterations_of_training_change_nothing(trained: int) -> None:
    routed = make_network(*SMALL, f"routing.num_iters={trained}", examples=60)
    found = {each.iterations: each for each in vary_iterations(routed) or ()}
    assert list(found) == list(ITERATIONS)
    assert found[trained].changed == 0
    assert found[trained].error == measure_error(routed.predict_scores())
    (layer,) = routed.layers.values()
    assert layer.routing.num_iters == trained
    scores_MN, labels = routed.predict_scores()
    layer.routing.num_iters = 10
    others_MN, _ = routed.predict_scores()
    changed = (scores_MN.argmax(axis=1) != others_MN.argmax(axis=1)).mean()
    assert found[10].changed == pytest.approx(changed)
    assert found[10].error == pytest.approx((others_MN.argmax(axis=1) != labels).mean())


def test_the_answer_to_an_image_of_two_classes_is_a_set() -> None:
    scores_MN = np.array([[0.9, 0.1, 0.8], [0.8, 0.1, 0.9], [0.1, 0.9, 0.8]])
    assert find_answers(scores_MN, 2).tolist() == [[0, 2], [0, 2], [1, 2]]
    assert measure_error((np.full((2, 3), np.nan), np.array([0, 1]))) is None


def test_every_layer_of_every_variant_is_measured() -> None:
    for overrides, layers, dead in (
        (ATTENTION, ["classes"], False),
        ((*SMALL, "routing=self_attention"), ["classes"], True),
        ((*SMALL, "routing.normaliser=max_min"), ["classes"], True),
        (
            ("model=matrix_capsnet_tiny", "routing=variational_bayes"),
            ["capsules.0", "capsules.1", "classes"],
            True,
        ),
    ):
        found = measure_layers(make_network(*overrides, examples=5))
        assert list(found) == layers
        for layer in found.values():
            measures = layer.summarise()
            assert (measures.pop("dead") is not None) == dead
            assert all(value is not None and 0 <= value <= 1 for value in measures.values())
    assert found["classes"].largest_J.shape == (10,)  # activations: no trace has them
