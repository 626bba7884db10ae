"""What routing does for answers: networks with frozen couplings, and of other iterations.

Shape letters: B images, M parent positions, L children below one, J parent types.
"""

import numpy as np
import pytest
import torch
from torch import nn
from trained_cells import load_digits, make_routed

from capsweep.lab.evaluation.couplings import measure_layers
from capsweep.lab.evaluation.routing import (
    ITERATIONS,
    average_couplings,
    find_top_classes,
    freeze_couplings,
    measure_error,
    measure_frozen,
    vary_iterations,
)
from capsweep.lab.evaluation.traces import RoutedCell

SMALL = ("model=capsnet_small",)
LINEAR = ("model.head=linear", "loss=cross_entropy", "loss.reconstruction.weight=0")
ATTENTION = (*SMALL, "routing=inverted_attention", *LINEAR)
MATRIX = ("model=matrix_capsnet_tiny", "routing=dynamic")


def make_network(*overrides: str, examples: int = 12) -> RoutedCell:
    """With first weights; its training images are those of the test."""
    return make_routed(overrides, examples)


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
    with freeze_couplings(routed, average_couplings(routed)):
        frozen = routed.predict_scores()
    np.testing.assert_allclose(frozen[0], before[0], atol=1e-6)
    assert measure_frozen(routed) == measure_error(before)
    for layer in measure_layers(routed).values():
        found = layer.summarise()
        assert found["variety"] is None or found["variety"] < 1e-9


@pytest.mark.parametrize(
    "overrides", [SMALL, (*SMALL, "routing=k_means"), (*SMALL, "routing=self_attention"), ATTENTION]
)
def test_frozen_couplings_are_the_mean_of_those_of_images(overrides: tuple[str, ...]) -> None:
    routed = make_network(*overrides)
    images_BCHW = load_digits().evaluation_batch(slice(0, 12)).images_BCHW
    traces = routed.cell(images_BCHW, with_trace=True).traces
    mean_MLJ = traces["classes"][-1]["coupling"].mean(dim=0)
    found = average_couplings(routed)
    torch.testing.assert_close(found["classes"], mean_MLJ)


def test_one_image_is_its_own_mean() -> None:
    """Frozen to the couplings of the one image that is tested, a network gives the same scores."""
    for overrides in (SMALL, MATRIX, ("model=matrix_capsnet_tiny", "routing=em"), ATTENTION):
        routed = make_network(*overrides, examples=1)
        before = routed.predict_scores()[0]
        with freeze_couplings(routed, average_couplings(routed)):
            frozen = routed.predict_scores()[0]
        np.testing.assert_allclose(frozen, before, rtol=1e-4, atol=1e-5)


def test_the_iterations_of_training_change_nothing() -> None:
    routed = make_network(*SMALL, "routing.num_iters=2", examples=60)
    found = {each["iterations"]: each for each in vary_iterations(routed) or ()}
    assert list(found) == list(ITERATIONS)
    assert found[2]["changed"] == 0
    assert found[2]["error"] == measure_error(routed.predict_scores())
    (layer,) = routed.layers.values()
    assert layer.routing.num_iters == 2
    scores_MN, labels = routed.predict_scores()
    layer.routing.num_iters = 10
    others_MN, _ = routed.predict_scores()
    changed = (scores_MN.argmax(axis=1) != others_MN.argmax(axis=1)).mean()
    assert found[10]["changed"] == pytest.approx(changed)
    assert found[10]["error"] == pytest.approx((others_MN.argmax(axis=1) != labels).mean())


def test_the_answer_to_an_image_of_two_classes_is_a_set() -> None:
    scores_MN = np.array([[0.9, 0.1, 0.8], [0.8, 0.1, 0.9], [0.1, 0.9, 0.8]])
    assert find_top_classes(scores_MN, 2).tolist() == [[0, 2], [0, 2], [1, 2]]
    assert measure_error((np.full((2, 3), np.nan), np.array([0, 1]))) is None
