"""The baselines compute what the reference computes, gradients included.

Shape letters: B batch, I children, J parents, P child pose, D parent pose.
"""

import pytest
import torch
from procedure_1 import AWKWARD, Size, layer
from routing_variants import assert_same

from capsweep.bench import baselines
from capsweep.bench.baselines import Route
from capsweep.bench.routing_problem import Problem, Sizes
from capsweep.config import compose
from capsweep.model.routing import dynamic
from capsweep.model.votes import Routed
from capsweep.training import build

every_baseline = pytest.mark.parametrize("route", [baselines.textbook, baselines.bmm])


@every_baseline
@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
@pytest.mark.parametrize("size", AWKWARD)
def test_outputs_are_those_of_the_reference(route: Route, num_iters: int, size: Size) -> None:
    chosen = layer(size)
    for bias_JD in (None, chosen.bias_JD):
        expected = dynamic.reference(chosen.votes, num_iters, bias_JD)
        found = route(chosen.votes, num_iters, bias_JD)
        assert_same(found.pose_BJD, expected.pose_BJD)
        assert_same(found.act_BJ, expected.act_BJ)
        assert_same(found.coupling_BIJ, expected.coupling_BIJ)


@every_baseline
@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
def test_gradients_are_those_of_the_reference(route: Route, num_iters: int) -> None:
    problem = Problem(Sizes(3, 11, 5, 4, 7, num_iters), torch.float64)
    expected, found = problem.results(dynamic.reference), problem.results(route)
    assert [name for name in found if name.startswith("gradient of")] == [
        "gradient of pose_BIP",
        "gradient of weight_IJDP",
        "gradient of bias_JD",
    ]
    for name, tensor in expected.items():
        assert_same(found[name], tensor)


@every_baseline
@pytest.mark.parametrize(
    "unknown",
    [
        {"with_trace": True},
        {"none_of_the_above": True},
        {"gradient": "last"},
        {"prior_LJ": torch.zeros(5, 3)},
    ],
)
def test_options_that_a_baseline_does_not_know_are_refused(route: Route, unknown: dict) -> None:
    with pytest.raises(ValueError, match="baselines know neither"):
        route(layer((2, 5, 3, 4, 2)).votes, 2, **unknown)


@every_baseline
def test_routing_needs_an_iteration(route: Route) -> None:
    with pytest.raises(ValueError, match=r"routing.num_iters must be >= 1"):
        route(layer((2, 5, 3, 4, 2)).votes, 0)


@every_baseline
def test_a_network_takes_a_baseline_in_place_of_its_routing(route: Route) -> None:
    config = compose.cell(["model=capsnet_tiny", "routing.impl=reference"]).config
    images_BCHW = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    network = build.network(config)
    called: list[int] = []

    def noted(*arguments: object, **options: object) -> Routed:
        called.append(1)
        return route(*arguments, **options)

    expected = network(images_BCHW).scores_BN
    found = baselines.routed_by(network, noted)(images_BCHW).scores_BN
    torch.testing.assert_close(found, expected)
    assert called


def test_a_network_that_does_not_route_is_refused() -> None:
    network = build.network(compose.cell(["model=cnn_small"]).config)
    with pytest.raises(ValueError, match="no routing to replace"):
        baselines.routed_by(network, baselines.bmm)
