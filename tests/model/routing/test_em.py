"""EM routing against procedure 1, written out. Other implementations than the reference are held to
it by test_parity.

Shape letters: B batch, I children, J parent types, D parent pose.
"""

import math
from functools import partial

import pytest
import routing_oracles as oracles
import torch
from hydra.utils import instantiate
from routing_oracles import Image, RoutedImage, Shape
from routing_variants import iterations, normal
from torch import Tensor

from capsweep.config import compose
from capsweep.model.routing import LayerSizes
from capsweep.model.routing.em import IMPLS, EMProcedure, EMRouting, reference
from capsweep.model.votes import Votes

every_impl = pytest.mark.parametrize("impl", IMPLS)


def procedure_1(
    image: Image, beta_u_J: Tensor, beta_a_J: Tensor, num_iters: int, procedure: EMProcedure
) -> RoutedImage:
    last = first = assigned = oracles.divide(oracles.zeros(image), procedure.r0)
    usual = oracles.add_up(first)
    present = oracles.add_up({link: image.activation[link.child] for link in image.vote})
    mean, active, logit = {}, {}, {}
    for t in range(num_iters):
        r = {link: share * image.activation[link.child] for link, share in assigned.items()}
        mass = {parent: m + 1e-7 for parent, m in oracles.add_up(r).items()}
        mean = {parent: s / mass[parent] for parent, s in oracles.add_votes(image, r).items()}
        square = {link: (vote - mean[link.parent]) ** 2 for link, vote in image.vote.items()}
        spread = oracles.add_up({link: r[link] * square[link] for link in square})
        variance = {parent: s / mass[parent] + procedure.floor for parent, s in spread.items()}
        for parent, m in mass.items():
            kind, heavy = parent[1], m / usual[parent] if procedure.mass_norm == "ratio" else m
            cost = heavy * (beta_u_J[kind] + variance[parent].log() / 2).sum()
            temperature = procedure.inverse_temperature * (1 - procedure.rate ** (t + 1))
            active[parent] = (temperature * (beta_a_J[kind] - cost)).sigmoid()
            if procedure.activation == "mixing":
                active[parent] = m / (present[parent] + 1e-7 * len(beta_u_J))
        for link in image.vote:
            density = square[link] / variance[link.parent]
            density = density + (2 * math.pi * variance[link.parent]).log()
            logit[link] = active[link.parent].log() - density.sum() / 2
        last, assigned = assigned, oracles.divide(logit, procedure.norm)
    return RoutedImage(last, mean, active)


@pytest.mark.parametrize("shape", [(2, 5, 3, 4, 2), None], ids=str)
@iterations
@pytest.mark.parametrize("norm", ["all", "types", "positions"])
@pytest.mark.parametrize("r0", ["all", "types"])
@pytest.mark.parametrize(
    ("activation", "mass_norm"), [("cost", "sum"), ("cost", "ratio"), ("mixing", "sum")]
)
def test_parents_assignments_and_gradients_are_those_of_procedure_1(
    shape: Shape, num_iters: int, norm: str, r0: str, activation: str, mass_norm: str
) -> None:
    procedure = EMProcedure(1.0, norm=norm, r0=r0, mass_norm=mass_norm, activation=activation)
    votes, options = oracles.draw_votes(shape), {"num_iters": num_iters, "procedure": procedure}
    beta_u_J, beta_a_J = normal(1)(2, oracles.sizes_of(votes).parents).unbind()
    oracles.assert_follows(
        lambda votes, *own: reference(votes, num_iters, *own, procedure, with_trace=True),
        partial(procedure_1, **options),
        votes,
        beta_u_J,
        beta_a_J,
    )


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


@pytest.mark.parametrize(
    ("of_classes", "beta_u", "beta_a", "temperature"),
    [(False, 0.709, -0.5, 0.02), (True, 2.838, -1.0, 0.005)],
)
def test_a_layer_owns_a_pair_of_betas_for_each_parent_type_and_that_of_classes_others(
    of_classes: bool, beta_u: float, beta_a: float, temperature: float
) -> None:
    module = factory()(sizes=LayerSizes(72, 2, 16, 16, of_classes))
    owned = {name: parameter.tolist() for name, parameter in module.named_parameters()}
    # beta_a in units of 2500: -1250, and -2500.
    assert owned == {"beta_u_J": pytest.approx([beta_u] * 2), "beta_a_J": [beta_a] * 2}
    assert module.procedure.inverse_temperature == pytest.approx(temperature)


@every_impl
def test_the_layer_routes_with_its_own_options_and_the_unit_of_its_betas(impl: str) -> None:
    votes = oracles.draw_votes(None)
    options = {"norm": "types", "r0": "types", "mass_norm": "ratio", "floor": 0.01}
    overrides = [f"routing.{key}={value}" for key, value in options.items()]
    make = factory(*overrides, "routing.num_iters=2", "routing.beta_a=-3.0", impl=impl)
    module = make(sizes=oracles.sizes_of(votes)).double()
    betas = [torch.full((3,), beta, dtype=torch.float64) for beta in (0.709, -3.0)]
    expected = IMPLS[impl](votes, 2, *betas, procedure=EMProcedure(0.02, **options))
    routed = module(votes)
    torch.testing.assert_close(routed.act_BJ, expected.act_BJ, rtol=1e-6, atol=0)
    torch.testing.assert_close(routed.pose_BJD, expected.pose_BJD, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(routed.logit_BJ.sigmoid(), routed.act_BJ)


def test_a_trace_says_what_entered_each_m_step_and_is_kept_on_request() -> None:
    votes = oracles.draw_votes(None)
    module = factory(impl="fast")(sizes=oracles.sizes_of(votes)).double()
    assert module(votes).trace is None
    routed = module(votes, with_trace=True)
    torch.testing.assert_close(routed.pose_BJD, module(votes).pose_BJD)
    assert len(routed.trace) == 3
    for step in routed.trace:
        squared = (votes.form_local() - step["pose"][:, :, None]).square().sum(dim=4)
        torch.testing.assert_close(step["squared_distance"], squared)
        assert step["coupling"].shape == squared.shape
        assert torch.equal(step["child_activation"], votes.local_activation())


@every_impl
def test_votes_without_child_activations_are_refused(impl: str) -> None:
    votes = Votes(torch.ones(1, 2, 3), torch.ones(2, 2, 4, 3))
    with pytest.raises(ValueError, match="no child activations; set reads_act"):
        IMPLS[impl](votes, 2, torch.zeros(2), torch.zeros(2))
