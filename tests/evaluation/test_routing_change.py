"""From traces to changes by iteration, and their figure."""

import numpy as np
import pytest
import torch
from torch import Tensor
from trained_cells import make_routed

from capsweep.errors import NotApplicableError
from capsweep.evaluation.figures.routing_change import (
    LOGITS,
    Changes,
    describe_figure,
    measure,
    measure_shares,
    measure_trace,
)


def one(**values: list) -> dict[str, Tensor]:
    """An iteration of one image with two children below one position, of two parents."""
    return {key: torch.tensor(value)[None, None] for key, value in values.items()}


def test_a_change_of_logits_is_the_mean_size_of_the_agreement() -> None:
    trace = [
        one(agreement=[[0.1, -0.3], [0.0, 0.2]], coupling=[[0.5, 0.5], [0.5, 0.5]]),
        one(agreement=[[-1.0, 1.0], [-1.0, 1.0]], coupling=[[0.6, 0.4], [0.5, 0.5]]),
    ]
    kind, change_BT = measure_trace(trace)
    assert kind == LOGITS
    np.testing.assert_allclose(change_BT.numpy(), [[0.15, 1.0]], rtol=1e-6)


def test_a_change_of_assignments_is_from_one_iteration_to_the_next() -> None:
    trace = [
        one(coupling=[[0.5, 0.5], [0.5, 0.5]]),
        one(coupling=[[0.7, 0.3], [0.5, 0.5]]),
        one(coupling=[[1.0, 0.0], [0.1, 0.9]]),
    ]
    kind, change_BT = measure_trace(trace)
    assert kind == "assignments"
    np.testing.assert_allclose(change_BT.numpy(), [[0.1, 0.35]], rtol=1e-6)


def test_what_does_not_change_is_refused() -> None:
    with pytest.raises(NotApplicableError, match=r"has one iteration; --iterations 3"):
        measure_trace([one(coupling=[[0.5, 0.5], [0.5, 0.5]])])
    with pytest.raises(NotApplicableError, match="neither agreement nor couplings"):
        measure_trace([one(pose=[[0.5, 0.5], [0.5, 0.5]])])


def test_the_change_is_that_of_the_logits_of_the_network() -> None:
    cell = make_routed(["model=capsnet_small", "routing.none_of_the_above=true"], 5, 3)
    found = measure(cell)
    assert found.quantity == LOGITS
    (trace,) = [trace for by_layer in cell.trace_batches() for trace in by_layer.values()]
    none = [1 - step["coupling"].sum(dim=3, keepdim=True) for step in trace]
    # A logit, the logit of none-of-the-above being 0, is log (c_ij / c_i,none).
    logits = [(step["coupling"] / n).log() for step, n in zip(trace, none, strict=True)]
    for t in range(2):
        change_B = (logits[t + 1] - logits[t]).abs().mean(dim=(1, 2, 3))
        np.testing.assert_allclose(found.by_layer["classes"][:, t], change_B, rtol=1e-3)


def test_the_share_of_a_change_is_of_all_that_was_added_so_far() -> None:
    trace = [
        one(agreement=[[0.1, -0.3], [0.0, 0.2]]),
        one(agreement=[[-0.1, -0.3], [0.4, 0.2]]),  # what is taken back counts as a change
    ]
    share_BT = measure_shares(trace)
    np.testing.assert_allclose(share_BT.numpy(), [[1.0, 0.25 / 0.35]], rtol=1e-6)
    nothing = [one(agreement=[[0.0, 0.0]])]
    np.testing.assert_array_equal(measure_shares(nothing).numpy(), [[0.0]])


def test_changes_rise_and_their_shares_fall() -> None:
    found = measure(make_routed(["model=capsnet_small"], 20, 10))
    changes, shares = (one["classes"].mean(axis=0) for one in (found.by_layer, found.shares))
    assert (np.diff(changes) > 0).all()
    assert (np.diff(shares) < 0).all()
    np.testing.assert_allclose(shares[0], 1.0)
    np.testing.assert_allclose(found.collect_arrays()["classes.shares.mean"], shares)


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_routed(["model=capsnet_small"], 7, 2)
    together = measure(cell).by_layer["classes"]
    votes = cell.layers["classes"].votes_per_image
    monkeypatch.setattr("capsweep.evaluation.traces.NUMBERS_AT_ONCE", 3 * 4 * votes)
    assert len(list(cell.trace_batches())) == 3
    apart = measure(cell).by_layer["classes"]
    assert apart.shape == (7, 2)
    np.testing.assert_allclose(apart, together, rtol=1e-5)


def test_every_layer_is_traced_with_the_iterations_that_are_asked_for() -> None:
    overrides = ["model=matrix_capsnet_tiny", "routing=em"]
    found = measure(make_routed(overrides, 2, 4))
    assert found.quantity == "assignments"
    assert not any("shares" in name for name in found.collect_arrays())
    assert {name: one.shape for name, one in found.by_layer.items()} == {
        "capsules.0": (2, 3),
        "capsules.1": (2, 3),
        "classes": (2, 3),
    }


def test_as_in_training_unless_asked_and_no_more_images_than_there_are() -> None:
    usual = make_routed(["model=capsnet_small", "routing.num_iters=2"], 1000, None)
    assert (usual.iterations, usual.examples) == (2, 360)
    assert usual.describe_images() == "first 360 test images, 2 routing iterations as in training"
    other = make_routed(["model=capsnet_small", "routing.num_iters=2"], 3, 10)
    assert other.describe_images() == "first 3 test images, 10 routing iterations (trained with 2)"


def test_a_network_that_does_not_route_has_no_traces() -> None:
    with pytest.raises(NotApplicableError, match="does not route"):
        make_routed(["model=cnn_small"], 3, None)


def test_the_numbers_beside_the_picture_are_over_images() -> None:
    change_BT = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 2.0]])
    arrays = Changes(LOGITS, {"classes": change_BT}).collect_arrays()
    assert str(arrays["of"]) == LOGITS
    np.testing.assert_allclose(arrays["classes.mean"], [3.0, 2.0])
    np.testing.assert_allclose(arrays["classes.std"], [np.sqrt(8 / 3), 0.0])
    assert arrays["classes.quantiles"].shape == (5, 2)
    np.testing.assert_allclose(arrays["classes.quantiles"][2], [3.0, 2.0])


def test_the_caption_says_every_choice() -> None:
    cell = make_routed(["model=capsnet_small"], 3, 5)
    changes = Changes(LOGITS, {"classes": np.ones((3, 5))})
    told = describe_figure(changes, cell)
    for choice in (
        "By that definition it rises, where the paper's curve falls; what falls is its share",
        "u_hat . v",
        "last iteration",
        "5% to 95%",
        "first 3 test images",
        "trained with 3",
    ):
        assert choice in told
    assert "assignments" in describe_figure(Changes("assignments", {}), cell)
