"""K-means routing against its equations.

Shape letters: B batch, I L children, J parents, D parent pose, M parent positions.
"""

import itertools
from functools import partial
from typing import Any

import routing_oracles as oracles
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from routing_oracles import Image, RoutedImage, Shape, any_seed, any_size
from routing_variants import iterations
from torch import Tensor

from capsweep.model.routing.k_means import KMeansRouting, reference
from capsweep.model.votes import LocalVotes

law = at_most_examples(25)


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


@oracles.every_shape
@iterations
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, num_iters: int
) -> None:
    votes = oracles.draw_votes(shape)
    layer = KMeansRouting(num_iters, "reference", sizes=oracles.sizes_of(votes))
    oracles.assert_layer_follows(layer, partial(cluster, num_iters=num_iters), votes)


def objective(votes: LocalVotes, coupling_BMLJ: Tensor, pose_BMJD: Tensor) -> Tensor:
    """Of each image."""
    direction_BMJD = pose_BMJD / pose_BMJD.norm(dim=3, keepdim=True)
    agreement_BMLJ = (votes.form_local() * direction_BMJD[:, :, None]).sum(dim=4)
    entropy_BMLJ = -torch.xlogy(coupling_BMLJ, coupling_BMLJ)
    return -(coupling_BMLJ * agreement_BMLJ + entropy_BMLJ).sum(dim=(1, 2, 3))


@law
@given(st.none() | any_size, any_seed, st.sampled_from([0.1, 1.0, 10.0]))
def test_no_iteration_raises_the_objective(shape: Shape, seed: int, scale: float) -> None:
    votes = oracles.draw_votes(shape, seed, scale)
    steps: Any = reference(votes, 12, with_trace=True).trace
    values = [objective(votes, step["coupling"], step["pose"]) for step in steps]
    for before_B, after_B in itertools.pairwise(values):
        assert (after_B <= before_B + 1e-12 * (1 + before_B.abs())).all()
