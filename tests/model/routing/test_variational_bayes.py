"""Variational Bayes routing against its equations, and its laws.

Shape letters: B batch, I children, J parents, D parent pose.
"""

import math
from functools import partial

import pytest
import routing_oracles as oracles
import torch
from hypothesis import given
from laws import at_most_examples
from routing_oracles import Image, RoutedImage, Shape, any_seed, any_size, cast
from routing_variants import iterations, normal
from torch import Tensor

from capsweep.model.routing import Routed, em, variational_bayes
from capsweep.model.routing.em import EMProcedure
from capsweep.model.routing.variational_bayes import reference
from capsweep.model.votes import Votes

law = at_most_examples(25)


def infer(
    image: Image, scale_J: Tensor, shift_J: Tensor, num_iters: int, kappa: float, psi: float
) -> RoutedImage:
    logit, assigned, mean, active = oracles.zeros(image), {}, {}, {}
    for _ in range(num_iters):
        assigned = oracles.divide(logit, "all")
        r = {link: share * image.activation[link.child] for link, share in assigned.items()}
        mass = oracles.add_up(r)
        mu = {parent: s / mass[parent] for parent, s in oracles.add_votes(image, r).items()}
        spread = oracles.add_up(
            {link: r[link] * (u - mu[link.parent]) ** 2 for link, u in image.vote.items()}
        )
        inverse, expected_pi, log_det = {}, {}, {}
        for parent, m in mass.items():
            d = len(mu[parent])
            everyone = sum(1 + mass[other] for other in mass if other[0] == parent[0])
            expected_pi[parent] = torch.digamma(1 + m) - torch.digamma(everyone)
            mean[parent] = m * mu[parent] / (kappa + m)
            inverse[parent] = psi + spread[parent] + kappa * m / (kappa + m) * mu[parent] ** 2
            log_det[parent] = d * math.log(2) - inverse[parent].log().sum()
            for k in range(d):
                log_det[parent] = log_det[parent] + torch.digamma((d + 1 + m - k) / 2)
            entropy = d * math.log(2 * math.pi * math.e) / 2 - log_det[parent] / 2
            weighed = scale_J[parent[1]] * expected_pi[parent].exp() * entropy / d
            active[parent] = (shift_J[parent[1]] - weighed).sigmoid()
        for link, u in image.vote.items():
            p, d = link.parent, len(u)
            distance = ((u - mean[p]) ** 2 / inverse[p]).sum()
            quadratic = d / (kappa + mass[p]) + (d + 1 + mass[p]) * distance
            log_likelihood = log_det[p] / 2 - d * math.log(2 * math.pi) / 2 - quadratic / 2
            logit[link] = expected_pi[p] + log_likelihood
    return RoutedImage(assigned, mean, active)


def route(votes: Votes, num_iters: int, **priors: float) -> Routed:
    own = normal(1)(2, oracles.sizes_of(votes).parents)
    return reference(votes, num_iters, *own, with_trace=True, **priors)


@oracles.every_shape
@iterations
@pytest.mark.parametrize(("kappa", "psi"), [(1.0, 1.0), (0.2, 0.5)])
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, num_iters: int, kappa: float, psi: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variational_bayes, "SMALLEST_MASS", 0.0)
    oracle = partial(infer, num_iters=num_iters, kappa=kappa, psi=psi)
    votes = oracles.draw_votes(shape)
    layer = variational_bayes.VariationalBayesRouting(
        num_iters, kappa, psi, "reference", sizes=oracles.sizes_of(votes)
    )
    oracles.assert_layer_follows(layer, oracle, votes)


@law
@given(any_size, any_seed)
def test_the_first_mean_is_the_mean_vote_drawn_to_zero(size: tuple[int, ...], seed: int) -> None:
    batch, children, parents, _, numbers = size
    u_BIJD, mass = normal(seed)(batch, children, parents, numbers), children / parents
    expected_BJD = mass / (1 + mass) * u_BIJD.mean(dim=1)
    torch.testing.assert_close(route(cast(u_BIJD), 1).pose_BJD, expected_BJD, rtol=0, atol=1e-5)


@iterations
def test_parents_move_with_the_votes_unless_a_prior_draws_them_to_zero(num_iters: int) -> None:
    u_BIJD, shift_JD = normal(0)(2, 9, 3, 4), normal(2)(3, 4)
    both = [cast(u_BIJD), cast(u_BIJD + shift_JD)]
    one, moved = (route(votes, num_iters, kappa=0.0) for votes in both)
    torch.testing.assert_close(moved.pose_BJD, one.pose_BJD + shift_JD, rtol=0, atol=1e-5)
    torch.testing.assert_close(moved.act_BJ, one.act_BJ, rtol=0, atol=1e-5)
    one, moved = (route(votes, num_iters, kappa=1.0) for votes in both)
    assert (moved.pose_BJD - one.pose_BJD - shift_JD).abs().max() > 0.1


def test_priors_keep_the_entropy_of_a_parent_of_one_child_finite() -> None:
    u_BIJD, one_J = normal(0)(3, 1, 1, 2), torch.ones(1, dtype=torch.float64)
    logit_BJ = reference(cast(u_BIJD), 3, one_J, 0 * one_J).logit_BJ
    # One vote u and one of 0: psi = 1 + u^2 / 2, nu = 4, ln pi = 0.
    log_psi_BJ = (1 + u_BIJD[:, 0].square() / 2).log().sum(dim=2)
    digammas = sum(torch.digamma(torch.tensor(x, dtype=torch.float64)) for x in (2.0, 1.5))
    precision_BJ = digammas + 2 * math.log(2) - log_psi_BJ
    expected_BJ = (precision_BJ / 2 - math.log(2 * math.pi * math.e)) / 2
    torch.testing.assert_close(logit_BJ, expected_BJ, rtol=1e-5, atol=0)


@iterations
def test_of_many_children_without_priors_means_are_those_of_em_routing(num_iters: int) -> None:
    draw = normal(0)
    u_BIJD = draw(1, 20_000, 3, 2) + 0.5 * draw(3, 2)
    zero_J = torch.zeros(3, dtype=torch.float64)
    mixing = EMProcedure(1.0, floor=1e-9, activation="mixing")
    expected = em.reference(cast(u_BIJD), num_iters, zero_J, zero_J, procedure=mixing)
    found = route(cast(u_BIJD), num_iters, kappa=1e-9, psi=1e-9)
    torch.testing.assert_close(found.pose_BJD, expected.pose_BJD, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.coupling_BIJ, expected.coupling_BIJ, rtol=0, atol=2e-3)
