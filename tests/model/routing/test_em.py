"""EM routing against procedure 1, written out. Other implementations than the reference are held to
it by test_parity.

Shape letters: B batch, M parent positions, K kernel offsets, L = K I children below one, J parent
types, D parent pose, T iterations.
"""

from functools import partial

import pytest
import torch
from em_procedure import em_procedure, list_pairs
from hydra.utils import instantiate
from routing_layers import Layer, convolutional_layer
from torch import Tensor, nn

from capsweep.config import compose
from capsweep.model.routing import LayerSizes
from capsweep.model.routing.em import IMPLS, EMProcedure, EMRouting, reference
from capsweep.model.votes import Votes

GRIDS = {"stride-1": ((3, 4), 2, 1), "stride-2": ((5, 6), 3, 2), "one-position": ((3, 3), 3, 1)}

approx = partial(pytest.approx, abs=1e-10, rel=0)
every_impl = pytest.mark.parametrize("impl", IMPLS)
iterations = pytest.mark.parametrize("num_iters", [1, 2, 3])


def draw_layer(name: str = "stride-1") -> Layer:
    """Children of two types on a grid, parents of three above them, poses of 2x2."""
    grid, kernel, stride = GRIDS[name]
    return convolutional_layer("em", grid, kernel, (2, 3), (2, 2), stride=stride, batch=2)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("norm", ["all", "types", "positions"])
@pytest.mark.parametrize("r0", ["all", "types"])
@pytest.mark.parametrize(
    ("activation", "mass_norm"), [("cost", "sum"), ("cost", "ratio"), ("mixing", "sum")]
)
def test_every_iteration_is_that_of_procedure_1(
    grid: str, norm: str, r0: str, activation: str, mass_norm: str
) -> None:
    procedure = EMProcedure(1.0, norm=norm, r0=r0, mass_norm=mass_norm, activation=activation)
    given = draw_layer(grid)
    with torch.no_grad():
        routed = given.route(reference, 3, with_trace=True, procedure=procedure)
    pairs = list_pairs(given.votes)
    assert routed.trace is not None
    for item in range(2):
        expected = em_procedure(item, given, procedure, num_iters=3)
        for step, iteration in zip(routed.trace, expected, strict=True):
            coupling_MLJ = step["coupling"].expand(2, -1, -1, -1)[item]
            for place, pair in pairs.items():
                assert coupling_MLJ[place].item() == approx(iteration.assigned[pair])
            for parent, activation_of in iteration.activation.items():
                assert step["activation"][item][parent].item() == approx(activation_of)
                assert step["pose"][item][parent].tolist() == approx(iteration.mean[parent])
    torch.testing.assert_close(routed.pose_BJD, routed.trace[-1]["pose"].flatten(1, 2))
    torch.testing.assert_close(routed.act_BJ, routed.trace[-1]["activation"].flatten(1))
    if activation == "cost":
        torch.testing.assert_close(routed.logit_BJ.sigmoid(), routed.act_BJ)


ODD = {
    "equal-votes": (torch.full((6, 3, 16), 0.7), torch.ones(1, 6)),
    "one-child": (torch.linspace(-1, 1, 48).reshape(1, 3, 16), torch.ones(1, 1)),
    "nobody-present": (torch.linspace(-1, 1, 288).reshape(6, 3, 16), torch.zeros(1, 6)),
}


@every_impl
@iterations
@pytest.mark.parametrize("activation", ["cost", "mixing"])
@pytest.mark.parametrize("betas", [(0.0, 0.0), (0.709, -1250.0)], ids=["zero", "the-authors"])
@pytest.mark.parametrize("case", ODD)
def test_odd_votes_give_finite_values_and_gradients(
    impl: str, case: str, betas: tuple[float, float], activation: str, num_iters: int
) -> None:
    votes_IJD, activation_BI = (x.clone().requires_grad_() for x in ODD[case])
    betas_J = [torch.full((3,), beta).requires_grad_() for beta in betas]
    votes = Votes(torch.ones(*activation_BI.shape, 1), votes_IJD[..., None], activation_BI)
    procedure = EMProcedure(0.02, activation=activation)
    routed = IMPLS[impl](votes, num_iters, *betas_J, procedure=procedure)
    (routed.pose_BJD.sum() + routed.act_BJ.sum()).backward()
    leaves = [votes_IJD, activation_BI, *(betas_J if activation == "cost" else [])]
    for tensor in (routed.pose_BJD, routed.act_BJ, *(leaf.grad for leaf in leaves)):
        assert tensor.dtype == torch.float32
        assert tensor.isfinite().all()


def factory(*overrides: str, impl: str = "reference") -> partial[EMRouting]:
    """The routing as conf/ makes it, with the betas and temperatures of the authors."""
    line = ["model=matrix_capsnet", "recipe=em_authors", *overrides]
    section = dict(compose.cell(line).config["routing"])
    del section["name"]
    return instantiate(section | {"impl": impl}, _convert_="all")


def parameters(module: nn.Module) -> dict[str, list[float]]:
    """By name."""
    return {name: parameter.tolist() for name, parameter in module.named_parameters()}


def test_a_layer_owns_a_pair_of_betas_for_each_parent_type_and_that_of_classes_others() -> None:
    module = factory()(sizes=LayerSizes(72, 2, 16, 16))
    # In units of 2500: -1250, and -2500.
    expected = {"beta_u_J": pytest.approx([0.709, 0.709]), "beta_a_J": [-0.5, -0.5]}
    assert parameters(module) == expected
    assert module.procedure.inverse_temperature == 0.02
    module = factory()(sizes=LayerSizes(256, 2, 16, 16, of_classes=True))
    expected = {"beta_u_J": pytest.approx([2.838, 2.838]), "beta_a_J": [-1.0, -1.0]}
    assert parameters(module) == expected
    assert module.procedure.inverse_temperature == pytest.approx(0.005)


@every_impl
def test_the_layer_routes_with_its_own_options_and_the_unit_of_its_betas(impl: str) -> None:
    given = draw_layer()
    options = {"norm": "types", "r0": "types", "mass_norm": "ratio", "floor": 0.01}
    overrides = [f"routing.{key}={value}" for key, value in options.items()]
    make = factory(*overrides, "routing.num_iters=2", "routing.beta_a=-3.0", impl=impl)
    module = make(sizes=LayerSizes(8, 3, 4, 4)).double()
    routed = module(given.votes)
    betas: list[Tensor] = [torch.full((3,), beta, dtype=torch.float64) for beta in (0.709, -3.0)]
    procedure = EMProcedure(0.02, norm="types", r0="types", mass_norm="ratio", floor=0.01)
    expected = IMPLS[impl](given.votes, 2, *betas, procedure=procedure)
    torch.testing.assert_close(routed.act_BJ, expected.act_BJ, rtol=1e-6, atol=0)
    torch.testing.assert_close(routed.pose_BJD, expected.pose_BJD, rtol=1e-6, atol=1e-9)


def test_a_trace_says_what_entered_each_m_step_and_is_kept_on_request() -> None:
    given = draw_layer()
    module = factory(impl="fast")(sizes=LayerSizes(8, 3, 4, 4)).double()
    assert module(given.votes).trace is None
    routed = module(given.votes, with_trace=True)
    torch.testing.assert_close(routed.pose_BJD, module(given.votes).pose_BJD)
    for step in routed.trace:
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
    with pytest.raises(ValueError, match="no child activations, since the module of"):
        IMPLS[impl](votes, 2, torch.zeros(2), torch.zeros(2))
