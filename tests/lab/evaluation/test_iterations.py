"""From traces to what routing does by iteration: entropies of couplings, and changes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_routings import UniformRouting
from trained_cells import make_routed

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.figures.coupling_maps import CouplingMaps
from capsweep.lab.evaluation.figures.iterations import (
    LOGITS,
    measure_changes,
    measure_shares,
    measure_trace,
    summarise_entropies,
)
from capsweep.lab.evaluation.traces import find_routed
from capsweep.model.routing import LayerSizes

MATRIX_LAYERS = {"capsules.0": None, "capsules.1": None, "classes": 10}


@pytest.mark.parametrize(
    ("overrides", "shares"),
    [
        (["model=capsnet_small"], {"classes": 10}),
        (["model=capsnet_small", "routing.none_of_the_above=true"], {"classes": 11}),
        (["model=capsnet_small", "routing=em"], {"classes": 10}),
        (["model=matrix_capsnet_tiny", "routing=em"], MATRIX_LAYERS),
        (["model=matrix_capsnet_tiny", "routing=dynamic"], MATRIX_LAYERS),
    ],
)
def test_the_first_iteration_of_every_layer_is_its_control(
    overrides: list[str], shares: dict[str, int | None]
) -> None:
    cell = make_routed(overrides, 3, 2)
    maps = CouplingMaps(cell, 1)
    assert cell.layers.keys() == shares.keys()
    for name, count in shares.items():
        layer = maps.layers[name]
        arrays = summarise_entropies(name, layer.children, layer.find_entropies())
        if count is not None:
            assert tuple(arrays[f"{name}.parents"]) == (count, count)
            assert arrays[f"{name}.control"] == pytest.approx(math.log(count))
        assert arrays[f"{name}.nats.mean"][0] == pytest.approx(arrays[f"{name}.control"])
        assert arrays[f"{name}.share.mean"][0] == pytest.approx(1)
        assert arrays[f"{name}.share.mean"][1] < 1
        assert arrays[f"{name}.share.quantiles"].shape == (5, 2)
        # The shares of a child add up to 1, in each average of them.
        total = 1.0 if count != 11 else pytest.approx(10 / 11, abs=0.01)
        by_type_IJ = layer.average(layer.links.mean_MLJ, layer.type_ML, layer.types)
        assert by_type_IJ.sum(axis=1) == pytest.approx(total)
        places_RCJ = maps.find_places(name)
        assert places_RCJ is not None
        sums_RC = places_RCJ.sum(axis=2)  # NaN at places without parents
        assert sums_RC[np.isfinite(sums_RC)] == pytest.approx(total)
        assert (np.diff(arrays[f"{name}.share.quantiles"], axis=0) >= 0).all()


def make_iteration(**values: list) -> dict[str, Tensor]:
    """An iteration of one image with two children below one position, of two parents."""
    return {key: torch.tensor(value)[None, None] for key, value in values.items()}


EQUAL = [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("key", "values", "changes"),
    [
        ("agreement", ([[0.1, -0.3], [0.0, 0.2]], [[-1.0, 1.0], [-1.0, 1.0]]), [0.15, 1.0]),
        ("coupling", (EQUAL, [[0.7, 0.3], [0.5, 0.5]], [[1.0, 0.0], [0.1, 0.9]]), [0.1, 0.35]),
    ],
)
def test_a_change_is_the_mean_size_of_what_is_added(
    key: str, values: tuple[list, ...], changes: list[float]
) -> None:
    quantity, change_BT = measure_trace([make_iteration(**{key: value}) for value in values])
    assert quantity == (LOGITS if key == "agreement" else "assignments")
    np.testing.assert_allclose(change_BT.numpy(), [changes], rtol=1e-6)


def test_the_share_of_a_change_is_of_all_that_was_added_so_far() -> None:
    back = [[-0.1, -0.3], [0.4, 0.2]]  # what is taken back counts as a change
    trace = [make_iteration(agreement=[[0.1, -0.3], [0.0, 0.2]]), make_iteration(agreement=back)]
    np.testing.assert_allclose(measure_shares(trace).numpy(), [[1.0, 0.25 / 0.35]], rtol=1e-6)
    nothing = [make_iteration(agreement=[[0.0, 0.0]])]
    np.testing.assert_array_equal(measure_shares(nothing).numpy(), [[0.0]])


def test_what_does_not_change_is_refused() -> None:
    with pytest.raises(NotApplicableError, match=r"has one iteration; if it has"):
        measure_trace([make_iteration(coupling=EQUAL)])
    with pytest.raises(NotApplicableError, match="neither agreement nor couplings"):
        measure_trace([make_iteration(pose=EQUAL)])


def test_the_change_is_that_of_the_logits_of_the_network() -> None:
    cell = make_routed(["model=capsnet_small", "routing.none_of_the_above=true"], 5, 3)
    quantity, changes = measure_changes(cell)
    assert quantity == LOGITS
    ((_, couplings),) = cell.trace_couplings()
    # A logit, the logit of none-of-the-above being 0, is log (c_ij / c_i,none).
    logits = [(c / (1 - c.sum(dim=3, keepdim=True))).log() for c in couplings]
    for t in range(2):
        change_B = (logits[t + 1] - logits[t]).abs().mean(dim=(1, 2, 3))
        np.testing.assert_allclose(changes["classes"][:, t], change_B, rtol=1e-3)


def test_a_routing_without_iterations_or_traces_is_told_apart() -> None:
    cell = make_routed(["model=capsnet_small"], 3, None).cell
    routing = {k: v for k, v in cell.config["routing"].items() if k != "num_iters"}
    cell = replace(cell, config={**cell.config, "routing": routing})
    alone = find_routed(cell, 1000, None)
    assert alone.describe_images() == "first 360 test images, 1 routing iteration (trained with 1)"
    with pytest.raises(NotApplicableError, match=r"no num_iters; leave out --iterations"):
        find_routed(cell, 3, 2)
    cell.network.classes.routing = UniformRouting(sizes=LayerSizes(1, 1, 1, 1))
    with pytest.raises(NotApplicableError, match="keeps no trace"):
        measure_changes(alone)
