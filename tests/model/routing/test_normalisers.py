"""Normalisers of couplings against brute force, their laws, and dynamic routing with each of them.

Shape letters: B batch, I children, J parents, N logits.
"""

from collections.abc import Callable
from functools import partial

import pytest
import routing_oracles as oracles
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from routing_oracles import Image, RoutedImage, Shape
from routing_variants import assert_same, iterations, normal
from torch import Tensor

from capsweep.model.routing import dynamic
from capsweep.model.routing.dynamic import NORMALISERS, SHARE_NORMALISERS

law = at_most_examples(50)
every_normaliser = pytest.mark.parametrize("name", NORMALISERS)
# Some are equal, and some far apart.
any_logits = st.lists(st.integers(-8, 8) | st.floats(-50, 50), min_size=1, max_size=7).map(
    partial(torch.tensor, dtype=torch.float64)
)


def find_threshold(part: Callable[[float], Tensor], highest: float) -> Tensor:
    """What sums to 1, by bisection."""
    low, high = highest - 1, highest
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if part(middle).sum() > 1 else (low, middle)
    return part(low)


def divide(name: str, b: Tensor) -> Tensor:
    """The couplings of one child."""
    if name == "softmax":
        return oracles.softmax(b)
    if name == "sigmoid":
        return torch.stack([1 / (1 + (-x).exp()) for x in b])
    if name == "max_min":
        span = max(b) - min(b)
        return torch.stack([(x - min(b)) / span if span > 0 else x * 0 + 1 for x in b])
    if name == "sparsemax":
        return find_threshold(lambda tau: (b - tau).clamp(min=0), b.max().item())
    return find_threshold(lambda tau: (b / 2 - tau).clamp(min=0) ** 2, b.max().item() / 2)


@every_normaliser
@law
@given(any_logits)
def test_couplings_are_those_of_brute_force(name: str, logit_J: Tensor) -> None:
    coupling_J = NORMALISERS[name](logit_J, 0)
    torch.testing.assert_close(coupling_J, divide(name, logit_J), rtol=0, atol=1e-9)
    assert (coupling_J >= 0).all()
    if name in SHARE_NORMALISERS:
        assert coupling_J.sum().item() == pytest.approx(1, abs=1e-9)


@every_normaliser
@pytest.mark.parametrize("scale", [0.3, 10.0])
@pytest.mark.parametrize("dim", [0, 2])
def test_gradients_are_those_of_the_function(name: str, scale: float, dim: int) -> None:
    logit = (scale * normal(0)(2, 3, 4)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: NORMALISERS[name](x, dim), logit)


def agree(image: Image, bias_JD: Tensor, num_iters: int, name: str) -> RoutedImage:
    logit, norm = oracles.zeros(image), "all" if name == "softmax" else "types"
    found = RoutedImage({}, {}, {})
    for _ in range(num_iters):
        found = oracles.shrink(image, oracles.divide(logit, norm, partial(divide, name)), bias_JD)
        logit = {x: logit[x] + (u * found.pose[x.parent]).sum() for x, u in image.vote.items()}
    return found


@oracles.every_shape
@iterations
@every_normaliser
def test_dynamic_routing_divides_children_by_it(shape: Shape, num_iters: int, name: str) -> None:
    votes = oracles.draw_votes(shape)
    sizes = oracles.sizes_of(votes)
    module = dynamic.DynamicRouting(num_iters, True, "fast", normaliser=name, sizes=sizes).double()
    oracles.assert_follows(
        lambda votes, _: module(votes, with_trace=True),
        partial(agree, num_iters=num_iters, name=name),
        votes,
        module.bias_JD.detach(),
        with_gradients=False,
    )


@pytest.mark.gpu
@every_normaliser
def test_a_gpu_has_the_same_couplings_and_gradients(name: str) -> None:
    drawn_JN = 3 * normal(0)(5, 7)
    results = []
    for device in ("cpu", "cuda"):
        logit_JN = drawn_JN.detach().to(device).requires_grad_()
        coupling_JN = NORMALISERS[name](logit_JN, 0)
        (coupling_JN * drawn_JN.to(device)).sum().backward()
        assert logit_JN.grad is not None
        results.append((coupling_JN.detach().cpu(), logit_JN.grad.cpu()))
    for one, other in zip(*results, strict=True):
        assert_same(one, other)
