"""Controls of routing by agreement: couplings that are equal, learned, or drawn.

Shape letters: B batch, I L children, J parents, P child pose, D parent pose.
"""

from collections.abc import Callable
from functools import partial

import pytest
import routing_oracles as oracles
import torch
from routing_oracles import Image, RoutedImage, Shape
from routing_variants import assert_same
from torch import Tensor

from capsweep.model.routing import LayerSizes
from capsweep.model.routing.controls import RandomRouting, StaticRouting, UniformRouting
from capsweep.model.routing.dynamic import DynamicRouting

SIZE = 4, 5, 3, 4, 2
SIZES = LayerSizes(5, 3, 4, 2)


def weigh(image: Image, bias_JD: Tensor, weight_LJ: Tensor) -> RoutedImage:
    weight = {link: weight_LJ[link.local, link.parent[1]] for link in image.vote}
    coupling = oracles.divide(weight, "all", lambda weights: weights / weights.sum())
    return oracles.shrink(image, coupling, bias_JD)


@oracles.every_shape
@pytest.mark.parametrize(
    "make", [UniformRouting, StaticRouting, partial(RandomRouting, "fixed")], ids=str
)
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, make: Callable[..., DynamicRouting]
) -> None:
    votes = oracles.draw_votes(shape)
    layer = make(True, "reference", sizes=oracles.sizes_of(votes))
    equal_LJ = torch.ones(oracles.sizes_of(votes)[:2], dtype=torch.float64)

    def oracle(image: Image, bias_JD: Tensor, prior_LJ: Tensor | None = None) -> RoutedImage:
        weight_LJ = layer.draw_LJ if isinstance(layer, RandomRouting) else equal_LJ
        return weigh(image, bias_JD, weight_LJ if prior_LJ is None else prior_LJ.exp())

    oracles.assert_layer_follows(layer, oracle, votes)


def make_random(draw: str = "anew", seed: int = 0) -> RandomRouting:
    torch.manual_seed(seed)
    return RandomRouting(draw, True, "fast", sizes=SIZES).double()


def couplings(layer: RandomRouting) -> Tensor:
    return layer(oracles.draw_votes(SIZE)).coupling_BIJ


def test_random_shares_are_between_those_of_the_least_and_the_most_that_can_be_drawn() -> None:
    layer = make_random().train()
    drawn = torch.cat([couplings(layer) for _ in range(50)])
    least, most = 0.8 / (0.8 + 2 * 1.2), 1.2 / (1.2 + 2 * 0.8)
    assert least <= drawn.min() < least + 0.02
    assert most - 0.02 < drawn.max() <= most
    assert_same(drawn.sum(dim=2), torch.ones_like(drawn[..., 0]))
    torch.testing.assert_close(
        drawn.mean(dim=0), torch.full((5, 3), 1 / 3).double(), rtol=0.1, atol=0
    )


def test_training_draws_anew_and_all_images_of_a_batch_share_a_draw() -> None:
    layer = make_random("anew").train()
    torch.manual_seed(1)
    first, second = couplings(layer), couplings(layer)
    assert (first - second).abs().amax(dim=2).min() > 0
    assert (first == first[:1]).all()
    torch.manual_seed(1)
    assert torch.equal(couplings(layer), first)


def test_evaluations_and_fixed_draws_repeat_themselves() -> None:
    fixed = make_random("fixed").train()
    evaluated = make_random("anew").eval()
    drawn = [couplings(layer) for layer in (fixed, fixed, evaluated, evaluated)]
    assert all(torch.equal(one, drawn[0]) for one in drawn)
    assert not torch.equal(couplings(make_random("fixed", seed=1)), drawn[0])


def test_making_a_layer_takes_no_number_of_the_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    make_random(seed=5)
    assert torch.equal(torch.rand(3), expected)


def test_the_draw_belongs_to_the_weights() -> None:
    one, other = make_random(seed=0).eval(), make_random(seed=1).eval()
    assert not torch.equal(couplings(one), couplings(other))
    other.load_state_dict(one.state_dict())
    assert torch.equal(couplings(one), couplings(other))
