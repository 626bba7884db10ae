"""Variational Bayes routing against its equations.

Shape letters: B batch, I children, J parents, D parent pose.
"""

import math
from functools import partial

import pytest
import routing_oracles as oracles
import torch
from routing_oracles import Image, RoutedImage, Shape, cast
from routing_variants import iterations, normal
from torch import Tensor

from capsweep.model.routing import Routed, em, variational_bayes
from capsweep.model.routing.em import EMProcedure
from capsweep.model.routing.variational_bayes import reference
from capsweep.model.votes import Votes


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
