"""The fast path of EM routing is the reference: every option, awkward sizes, one image or many.

Shape letters: as in `em_layers`.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from em_layers import LAYERS, Draw, Layer, convolutional_layer, dense_layer
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from capsweep.config import compose
from capsweep.model import votes as votes_file
from capsweep.model.routing import em, em_fast
from capsweep.model.routing.em_procedure import ACTIVATIONS, ASSIGNMENTS, MASSES, NORMS, EMProcedure
from capsweep.model.votes import Routed
from capsweep.training import build

law = at_most_examples(25)
every_procedure = [
    pytest.param(
        EMProcedure(0.5, norm=norm, r0=r0, mass_norm=mass_norm, activation=activation),
        id=f"{norm}-{r0}-{mass_norm}-{activation}",
    )
    for norm in NORMS
    for r0 in ASSIGNMENTS
    for mass_norm in MASSES
    for activation in ACTIVATIONS
]


every_layer = pytest.mark.parametrize("kind", LAYERS)


def _outputs(routed: Routed) -> list[Tensor]:
    """All that is returned, the trace included."""
    values = [routed.pose_BJD, routed.act_BJ, routed.coupling_BIJ, routed.logit_BJ]
    traced = [tensor for step in routed.trace or () for tensor in step.values()]
    return [tensor for tensor in values if tensor is not None] + traced


def _routed(
    layer: Layer, route: Callable[..., Routed], num_iters: int, procedure: EMProcedure
) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Everything returned, and the gradients by all leaves of a random function of the parents."""
    routed = route(
        layer.votes, num_iters, layer.beta_u_J, layer.beta_a_J, True, procedure=procedure
    )
    draw = Draw(1, routed.pose_BJD.dtype)
    assert routed.logit_BJ is not None
    parents = (routed.pose_BJD, routed.act_BJ, routed.logit_BJ)
    value = sum((tensor * draw.normal(*tensor.shape).detach()).sum() for tensor in parents)
    assert isinstance(value, Tensor)
    return _outputs(routed), torch.autograd.grad(
        value, layer.leaves, allow_unused=True, materialize_grads=True
    )


def _assert_as_reference(
    layer: Layer,
    num_iters: int,
    procedure: EMProcedure = em.PAPER_PROCEDURE,
    tolerance: float = 1e-9,
) -> None:
    expected, expected_gradients = _routed(layer, em.reference, num_iters, procedure)
    found, found_gradients = _routed(layer, em.fast, num_iters, procedure)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        list(found_gradients), list(expected_gradients), rtol=tolerance, atol=tolerance
    )


@every_layer
@pytest.mark.parametrize("procedure", every_procedure)
@pytest.mark.parametrize("num_iters", [1, 2, 4])
def test_outputs_traces_and_gradients_are_those_of_the_reference(
    kind: str, procedure: EMProcedure, num_iters: int
) -> None:
    _assert_as_reference(LAYERS[kind](Draw(0)), num_iters, procedure)


@every_layer
@pytest.mark.parametrize("images", [1, 2, 3])
def test_it_does_not_matter_how_many_images_are_routed_together(
    kind: str, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = LAYERS[kind](Draw(0))
    at_once = images * layer.votes.numbers_per_image
    monkeypatch.setattr(votes_file, "NUMBERS_AT_ONCE", (at_once, at_once))
    _assert_as_reference(layer, num_iters=3)


@law
@given(
    batch=st.integers(1, 3),
    grid=st.integers(1, 7),
    kernel=st.integers(1, 3),
    types=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    norm=st.sampled_from(NORMS),
    seed=st.integers(0, 2**32 - 1),
)
def test_awkward_kernels_and_poses_are_routed_as_by_the_reference(
    batch: int,
    grid: int,
    kernel: int,
    types: tuple[int, int],
    rows: int,
    columns: int,
    norm: str,
    seed: int,
) -> None:
    layer = convolutional_layer(Draw(seed), batch, max(grid, kernel), kernel, types, rows, columns)
    _assert_as_reference(layer, 3, EMProcedure(norm=norm), tolerance=1e-7)


@every_layer
def test_in_single_precision_the_difference_is_rounding(kind: str) -> None:
    _assert_as_reference(LAYERS[kind](Draw(0, torch.float32)), 3, tolerance=2e-3)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("num_iters", [1, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_output_alone_has_the_gradients_of_the_reference(
    activation: str, num_iters: int, number: int
) -> None:
    layer, procedure = LAYERS["convolutional"](Draw(0)), EMProcedure(0.5, activation=activation)
    gradients: list[Sequence[Tensor]] = []
    for route in (em.reference, em.fast):
        routed = route(layer.votes, num_iters, layer.beta_u_J, layer.beta_a_J, procedure=procedure)
        output = (routed.pose_BJD, routed.act_BJ, routed.logit_BJ)[number]
        assert output is not None
        value = output.square().sum()
        gradients.append(
            torch.autograd.grad(value, layer.leaves, allow_unused=True, materialize_grads=True)
        )
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-9)


def test_a_second_derivative_is_refused() -> None:
    layer = LAYERS["convolutional"](Draw(0))
    routed = em.fast(layer.votes, 2, layer.beta_u_J, layer.beta_a_J)
    value = routed.pose_BJD.square().sum()
    (gradient,) = torch.autograd.grad(value, layer.leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@every_layer
def test_without_gradients_the_numbers_are_the_same(kind: str) -> None:
    layer = LAYERS[kind](Draw(0))
    betas = layer.beta_u_J, layer.beta_a_J
    with_gradients = em.fast(layer.votes, 3, *betas)
    with torch.no_grad():
        without = em.fast(layer.votes, 3, *betas)
    assert not without.pose_BJD.requires_grad
    torch.testing.assert_close(_outputs(without), _outputs(with_gradients), rtol=0, atol=0)


@pytest.mark.parametrize("images", [1, 40])
def test_many_images_without_gradients_never_have_their_votes_at_once(
    images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = 0

    class Spied(em_fast.VoteMoments):
        """Q, its size noted."""

        def __init__(self, votes_BMJDL: Tensor) -> None:
            nonlocal largest
            largest = max(largest, votes_BMJDL.numel())
            super().__init__(votes_BMJDL)

    layer = convolutional_layer(Draw(0), images, 5, 3, (3, 5), 4, 4)
    monkeypatch.setattr(em_fast, "VoteMoments", Spied)
    monkeypatch.setattr(
        votes_file,
        "NUMBERS_AT_ONCE",
        (layer.votes.numbers_per_image, layer.votes.numbers_per_image),
    )
    with torch.no_grad():
        em.fast(layer.votes, 2, layer.beta_u_J, layer.beta_a_J)
    assert largest == layer.votes.numbers_per_image


@pytest.mark.parametrize("where", ["meta", "fake"])
def test_networks_without_numbers_pass_through(where: str) -> None:
    config = compose.cell(["model=matrix_capsnet", "routing.impl=fast"]).config
    shape = config["dataset"]["image_shape"]
    with torch.device("meta") if where == "meta" else FakeTensorMode():
        output = build.build_network(config)(torch.empty(3, *shape))
        output.scores_BN.sum().backward()
    assert output.scores_BN.shape == (3, config["dataset"]["num_classes"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_numbers_are_the_same() -> None:
    with torch.device("cuda"):
        draw = Draw(0)
        draw.generator = torch.Generator("cuda").manual_seed(0)
        _assert_as_reference(dense_layer(draw, 3, 7, 5, (3, 6)), 3)
