"""The squashing non-linearity."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from torch import Tensor

from capsweep.model.capsules import squash

law = at_most_examples(100)
sizes = st.integers(1, 9)
seeds = st.integers(0, 2**32 - 1)
# Above a length of 1e7 the float64 nearest to 1 - 1/length^2 is 1 itself.
exponents = st.floats(-7, 7)


def _vectors(dimensions: int, seed: int, exponent: float) -> Tensor:
    """Five random directions, at the length 10 ** exponent."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(5, dimensions, generator=generator, dtype=torch.float64)
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) * 10**exponent


@law
@given(dimensions=sizes, seed=seeds, exponent=exponents)
def test_length_is_below_one_and_as_in_equation_1(
    dimensions: int, seed: int, exponent: float
) -> None:
    length = torch.linalg.vector_norm(squash(_vectors(dimensions, seed, exponent)), dim=-1)
    squared = 10 ** (2 * exponent)
    assert ((length > 0) & (length <= 1)).all()
    torch.testing.assert_close(length, torch.full_like(length, squared / (1 + squared)))


def test_known_values() -> None:
    s = torch.tensor([[3.0, 4.0], [0.0, -1.0]])
    expected = torch.tensor([[25 / 26 * 0.6, 25 / 26 * 0.8], [0.0, -0.5]])
    torch.testing.assert_close(squash(s), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_are_zero_at_zero(dtype: torch.dtype) -> None:
    s = torch.zeros(3, 4, dtype=dtype, requires_grad=True)
    v = squash(s)
    v.sum().backward()
    assert torch.equal(v, torch.zeros_like(v))
    assert s.grad is not None
    assert torch.equal(s.grad, torch.zeros_like(v))


@pytest.mark.parametrize("magnitude", [1e-30, 1e-15, 1e15])
def test_value_and_gradient_are_finite_at_extremes_of_float32(magnitude: float) -> None:
    s = torch.full((2, 3), magnitude, requires_grad=True)
    v = squash(s)
    v.sum().backward()
    assert v.isfinite().all()
    assert (torch.linalg.vector_norm(v.detach(), dim=-1) <= 1 + 1e-6).all()
    assert s.grad is not None
    assert s.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 3, 5)])
def test_gradient_is_that_of_the_function(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squash, s)
