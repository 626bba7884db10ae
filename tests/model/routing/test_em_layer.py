"""The module of EM routing: its parameters, its temperatures, what it refuses, its precision."""

from functools import partial

import pytest
import torch
from em_procedure import Grid, layer
from hydra.utils import instantiate
from torch import nn

from capsweep.config import compose
from capsweep.model import convolution
from capsweep.model.matrix_capsules import CapsuleLayer, make_convolutional
from capsweep.model.routing.base import make_class_routing
from capsweep.model.routing.em import IMPLS, EMRouting, Procedure
from capsweep.model.votes import Votes

every_impl = pytest.mark.parametrize("impl", IMPLS)


def factory(*overrides: str, impl: str = "reference") -> partial[EMRouting]:
    """The routing as conf/ makes it, with the betas and temperatures of the authors."""
    section = dict(
        compose.cell(["model=matrix_capsnet", "recipe=em_authors", *overrides]).config["routing"]
    )
    del section["name"]
    return instantiate(section | {"impl": impl}, _convert_="all")


def parameters(module: nn.Module) -> dict[str, list[float]]:
    """By name."""
    return {name: parameter.tolist() for name, parameter in module.named_parameters()}


def test_the_inverse_temperature_grows_with_the_iterations() -> None:
    found = [Procedure(inverse_temperature=0.01).inverse_temperature_at(t) for t in range(3)]
    assert found == pytest.approx([0.0005, 0.000975, 0.00142625])


def test_a_layer_owns_a_pair_of_betas_for_each_parent_type() -> None:
    module = factory()(num_children=72, num_parents=2, parent_pose=16)
    assert parameters(module) == {
        "beta_u_J": pytest.approx([0.709, 0.709]),
        "beta_a_J": [-0.5, -0.5],  # in units of 2500: -1250
    }
    assert module.procedure.inverse_temperature_at(0) == pytest.approx(0.02 * 0.05)


def test_the_last_layer_begins_with_betas_and_a_temperature_of_its_own() -> None:
    module = make_class_routing(factory(), num_children=256, num_parents=2, parent_pose=16)
    assert isinstance(module, EMRouting)
    assert parameters(module) == {
        "beta_u_J": pytest.approx([2.838, 2.838]),
        "beta_a_J": [-1.0, -1.0],  # -2500
    }
    assert module.procedure.inverse_temperature_at(0) == pytest.approx(0.005 * 0.05)


@every_impl
def test_the_layer_routes_with_its_own_options_and_the_unit_of_its_betas(impl: str) -> None:
    given = layer(Grid(3, 3, 2, 1), child_types=2, parent_types=3)
    options = {"norm": "types", "r0": "types", "mass_norm": "ratio", "floor": 0.01}
    overrides = [f"routing.{key}={value}" for key, value in options.items()]
    make = factory(*overrides, "routing.num_iters=2", "routing.beta_a=-3.0", impl=impl)
    module = make(num_children=8, num_parents=3, parent_pose=4).double()
    routed = module(given.votes, with_trace=True)
    beta_u_J, beta_a_J = (torch.full((3,), beta, dtype=torch.float64) for beta in (0.709, -3.0))
    procedure = Procedure(0.02, norm="types", r0="types", mass_norm="ratio", floor=0.01)
    expected = IMPLS[impl](given.votes, 2, beta_u_J, beta_a_J, procedure=procedure)
    torch.testing.assert_close(routed.act_BJ, expected.act_BJ, rtol=1e-6, atol=0)
    torch.testing.assert_close(routed.pose_BJD, expected.pose_BJD, rtol=1e-6, atol=1e-9)
    assert len(routed.trace) == 2


@every_impl
def test_a_trace_says_what_entered_each_m_step_and_is_kept_on_request(impl: str) -> None:
    given = layer(Grid(3, 4, 2, 1), child_types=2, parent_types=3)
    module = factory(impl=impl)(num_children=8, num_parents=3, parent_pose=4).double()
    assert module(given.votes).trace is None
    for step in module(given.votes, with_trace=True).trace:
        shapes = {key: tuple(value.shape[1:]) for key, value in step.items()}
        assert shapes == {
            "coupling": (6, 8, 3),
            "pose": (6, 3, 4),
            "activation": (6, 3),
            "squared_distance": (6, 8, 3),
            "child_activation": (6, 8),
        }
        difference = given.votes.form_local() - step["pose"][:, :, None]
        squared = difference.square().sum(dim=4)
        torch.testing.assert_close(step["squared_distance"], squared)


@every_impl
def test_votes_without_child_activations_are_refused(impl: str) -> None:
    votes = Votes(torch.ones(1, 2, 3), torch.ones(2, 2, 4, 3))
    with pytest.raises(ValueError, match="no child activations, which this routing asks for"):
        IMPLS[impl](votes, 2, torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize("key", ["norm", "r0", "mass_norm", "activation"])
def test_an_unknown_option_is_refused_by_key(key: str) -> None:
    with pytest.raises(ValueError, match=rf"routing\.{key} must be one of .*, got other"):
        Procedure(**{key: "other"})


@every_impl
def test_autocast_does_not_reach_the_routing(impl: str) -> None:
    torch.manual_seed(0)
    grid = convolution.Grid(5, 5, first=0, step=1)
    made = make_convolutional(
        grid, 2, 3, kernel=3, stride=2, pose=(4, 4), routing=factory(impl=impl)
    )
    nn.init.normal_(made.weight_KIJSS, std=0.3)
    children = CapsuleLayer(torch.randn(2, 25, 2, 4, 4).bfloat16(), torch.rand(2, 25, 2).bfloat16())
    exact = made(CapsuleLayer(children.pose_BNIRS.float(), children.act_BNI.float()))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = made(children)
    for one, other in ((mixed.pose_BJD, exact.pose_BJD), (mixed.act_BJ, exact.act_BJ)):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)
