"""Variants of routing against their equations, written out link by link.

Shape letters: B batch, I L children, J parents, P child pose, D parent pose.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import routing_oracles as oracles
import torch
from routing_oracles import Image, RoutedImage, Shape
from torch import Tensor, nn

from capsweep.model.routing import self_routing, variational_bayes
from capsweep.model.routing.heinsen import HeinsenRouting
from capsweep.model.routing.inverted_attention import InvertedAttentionRouting
from capsweep.model.routing.k_means import KMeansRouting
from capsweep.model.routing.sda import SDARouting
from capsweep.model.routing.self_attention import SelfAttentionRouting


def price(image: Image, use_LJ: Tensor, ignore_LJ: Tensor, num_iters: int) -> RoutedImage:
    logit, assigned, mean, score = oracles.zeros(image), {}, {}, {}
    for _ in range(num_iters):
        assigned = oracles.divide(logit, "types")
        benefit, used = {}, {}
        for link, share in assigned.items():
            place, active = (link.local, link.parent[1]), image.activation[link.child]
            used[link] = active * share
            benefit[link] = use_LJ[place] * used[link] - ignore_LJ[place] * (active - used[link])
        score = oracles.add_up(benefit)
        mass = {parent: m + 1e-5 for parent, m in oracles.add_up(used).items()}
        mean = {parent: s / mass[parent] for parent, s in oracles.add_votes(image, used).items()}
        square = {link: (vote - mean[link.parent]) ** 2 for link, vote in image.vote.items()}
        spread = oracles.add_up({link: used[link] * square[link] for link in square})
        variance = {parent: s / mass[parent] + 1e-5 for parent, s in spread.items()}
        for link in logit:
            deviations = variance[link.parent].sqrt()
            logit[link] = score[link.parent].sigmoid().log() - deviations.log().sum()
            logit[link] = logit[link] - (square[link] / (2 * variance[link.parent])).sum()
    return RoutedImage(assigned, mean, {parent: z.sigmoid() for parent, z in score.items()})


def attend(image: Image, gain_D: Tensor, shift_D: Tensor, num_iters: int) -> RoutedImage:
    numbers, logit = len(gain_D), oracles.zeros(image)
    coupling, pose = {}, {}
    for _ in range(num_iters):
        coupling, pose = oracles.divide(logit, "types"), {}
        for parent, s in oracles.add_votes(image, coupling).items():
            centred = s - s.sum() / numbers
            sd = ((centred * centred).sum() / numbers + 1e-5).sqrt()
            pose[parent] = s if numbers == 1 else gain_D * centred / sd + shift_D
        logit = {x: (u * pose[x.parent]).sum() / math.sqrt(numbers) for x, u in image.vote.items()}
    return RoutedImage(coupling, pose, {parent: v.new_ones(()) for parent, v in pose.items()})


def cluster(image: Image, num_iters: int) -> RoutedImage:
    num_parents = 1 + max(link.parent[1] for link in image.vote)
    equal = {link: torch.tensor(1 / num_parents, dtype=torch.float64) for link in image.vote}
    coupling, centre = equal, oracles.add_votes(image, equal)
    for _ in range(num_iters):
        unit = {parent: o / (o * o).sum().sqrt() for parent, o in centre.items()}
        logit = {link: (vote * unit[link.parent]).sum() for link, vote in image.vote.items()}
        coupling = oracles.divide(logit, "all")
        centre = oracles.add_votes(image, coupling)
    return oracles.shrink(image, coupling, None)


def measure(x: Tensor) -> Tensor:
    return (x * x).sum().sqrt()


def agree(image: Image, bias_JD: Tensor, num_iters: int, clip: bool) -> RoutedImage:
    votes = {}
    for link, vote in image.vote.items():
        longest, length = measure(image.pose[link.child]), measure(vote)
        votes[link] = vote * torch.minimum(length, longest) / length if clip else vote
    image, logit = image._replace(vote=votes), oracles.zeros(image)
    parents, found = len(bias_JD), RoutedImage({}, {}, {})
    for _ in range(num_iters):
        found = oracles.shrink(image, oracles.divide(logit, "all"), bias_JD)
        distance = {x: measure(found.pose[x.parent] - vote) for x, vote in votes.items()}
        mean = sum(distance.values()) / len(distance)
        scale = 0.0
        if parents > 1:
            scale = (math.log(0.9 * (parents - 1)) - math.log(0.1)) / (0.5 * mean - mean)
        logit = {link: scale * d for link, d in distance.items()}
    return found


def shrink_exponentially(s: Tensor) -> Tensor:
    length = (s * s).sum().sqrt()
    return (1 - (-length).exp()) * s / length


def attend_to_all(image: Image, beta_LJ: Tensor, scale: str) -> RoutedImage:
    logit = {}
    for link, vote in image.vote.items():
        row = [(vote * u).sum() for x, u in image.vote.items() if x.parent == link.parent]
        logit[link] = sum(row) / math.sqrt(len(vote)) / (len(row) if scale == "children" else 1)
    shares = oracles.divide(logit, "all")
    coupling = {x: c + beta_LJ[x.local, x.parent[1]] for x, c in shares.items()}
    pose = {
        parent: shrink_exponentially(s) for parent, s in oracles.add_votes(image, coupling).items()
    }
    return RoutedImage(coupling, pose, {parent: (v * v).sum().sqrt() for parent, v in pose.items()})


def gate(image: Image, gate_LJP: Tensor, bias_LJ: Tensor) -> RoutedImage:
    logit = {}
    for link in image.vote:
        place = link.local, link.parent[1]
        logit[link] = (gate_LJP[place] * image.pose[link.child]).sum() + bias_LJ[place]
    coupling = oracles.divide(logit, "types")
    weight = {link: image.activation[link.child] * c for link, c in coupling.items()}
    mass = oracles.add_up(weight)
    total = oracles.add_up({link: image.activation[link.child] for link in weight})
    pose = {parent: s / mass[parent] for parent, s in oracles.add_votes(image, weight).items()}
    return RoutedImage(coupling, pose, {parent: mass[parent] / total[parent] for parent in mass})


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


Case = tuple[Callable[..., nn.Module], Callable[..., RoutedImage], dict[str, Any]]


def list_cases() -> Iterator[Case]:
    """A variant, its oracle, and the options of both."""
    for count in (1, 2, 3):
        yield HeinsenRouting, price, {"num_iters": count}
        yield InvertedAttentionRouting, attend, {"num_iters": count}
        yield KMeansRouting, cluster, {"num_iters": count}
        for clip in (True, False):
            yield partial(SDARouting, bias=True), agree, {"num_iters": count, "clip": clip}
        for kappa, psi in ((1.0, 1.0), (0.2, 0.5)):
            options = {"num_iters": count, "kappa": kappa, "psi": psi}
            yield variational_bayes.VariationalBayesRouting, infer, options
    for scale in ("pose", "children"):
        yield SelfAttentionRouting, attend_to_all, {"scale": scale}
    yield self_routing.SelfRouting, gate, {}


@oracles.every_shape
@pytest.mark.parametrize("case", [*list_cases()], ids=lambda case: f"{case[1].__name__}-{case[2]}")
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (self_routing, variational_bayes):
        monkeypatch.setattr(module, "SMALLEST_MASS", 0.0)
    make, oracle, options = case
    votes = oracles.draw_votes(shape)
    layer = make(impl="reference", sizes=oracles.sizes_of(votes), **options)
    oracles.assert_layer_follows(layer, partial(oracle, **options), votes)
