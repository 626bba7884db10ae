"""What every routing variant promises. Variants are found, not listed.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from capsweep.config import compose, roots
from capsweep.model import routing
from capsweep.model.squash import squash
from capsweep.model.votes import Routed, Votes
from capsweep.training.size import size


def _variants() -> dict[str, ModuleType]:
    """Module stem to module, of all that define IMPLS."""
    stems = [info.name for info in pkgutil.iter_modules(routing.__path__)]
    modules = {stem: importlib.import_module(f"{routing.__name__}.{stem}") for stem in stems}
    return {stem: module for stem, module in modules.items() if hasattr(module, "IMPLS")}


VARIANTS = _variants()
every_variant = pytest.mark.parametrize("stem", VARIANTS)
every_impl = pytest.mark.parametrize(
    "route",
    [
        pytest.param(route, id=f"{stem}-{name}")
        for stem, module in VARIANTS.items()
        for name, route in module.IMPLS.items()
    ],
)
iterations = pytest.mark.parametrize("num_iters", [1, 2, 3])
with_and_without_bias = pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "plain"])
law = settings(deadline=None, max_examples=25)


class Sizes(NamedTuple):
    """B, I, J, P, D."""

    batch: int
    children: int
    parents: int
    child_pose: int
    parent_pose: int


class Layer(NamedTuple):
    """The input of one routed layer."""

    pose_BIP: Tensor
    weight_IJDP: Tensor
    bias_JD: Tensor

    def route(self, impl: Callable[..., Routed], num_iters: int) -> Routed:
        """Route with this layer's bias, and keep the trace."""
        votes = Votes(
            self.pose_BIP, self.weight_IJDP, torch.linalg.vector_norm(self.pose_BIP, dim=-1)
        )
        return impl(votes, num_iters=num_iters, bias_JD=self.bias_JD, with_trace=True)


sizes = st.builds(Sizes, *[st.integers(1, 5)] * 5)
seeds = st.integers(0, 2**32 - 1)


def _layer(size: Sizes, seed: int = 0, dtype: torch.dtype = torch.float64) -> Layer:
    """Standard normal poses, weights and bias."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    batch, children, parents, child_pose, parent_pose = size
    return Layer(
        normal(batch, children, child_pose),
        normal(children, parents, parent_pose, child_pose),
        normal(parents, parent_pose),
    )


def _assert_same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_variants_are_found() -> None:
    assert "dynamic" in VARIANTS
    assert all(module.IMPLS for module in VARIANTS.values())


def test_each_variant_has_a_file_in_conf_and_each_file_a_variant() -> None:
    assert {path.stem for path in (roots.find("conf") / "routing").glob("*.yaml")} == set(VARIANTS)


@every_variant
def test_the_configuration_of_a_variant_calls_the_module_of_its_name(stem: str) -> None:
    section = compose.cell([f"routing={stem}"]).config["routing"]
    module, _, _ = section["_target_"].rpartition(".")
    assert module == f"capsweep.model.routing.{stem}"
    assert section["name"] == stem
    assert section["impl"] in VARIANTS[stem].IMPLS


@every_variant
def test_an_unknown_implementation_is_refused_by_name(stem: str) -> None:
    config = compose.cell([f"routing={stem}"]).config
    config = {**config, "routing": {**config["routing"], "impl": "warp"}}
    with pytest.raises(ValueError, match=r"routing\.impl must be one of reference.*, got warp"):
        size(config)


@every_impl
@pytest.mark.parametrize("num_iters", [0, -1])
def test_less_than_one_iteration_is_refused_by_name(
    route: Callable[..., Routed], num_iters: int
) -> None:
    with pytest.raises(ValueError, match=rf"routing\.num_iters must be >= 1, got {num_iters}"):
        _layer(Sizes(1, 2, 2, 2, 2)).route(route, num_iters)


@every_impl
@iterations
@with_and_without_bias
def test_gradients_are_those_of_the_function(
    route: Callable[..., Routed], num_iters: int, with_bias: bool
) -> None:
    pose_BIP, weight_IJDP, bias_JD = _layer(Sizes(2, 3, 2, 2, 3))

    def outputs(pose_BIP: Tensor, weight_IJDP: Tensor, *bias_JD: Tensor) -> tuple[Tensor, ...]:
        votes = Votes(pose_BIP, weight_IJDP, torch.linalg.vector_norm(pose_BIP, dim=-1))
        routed = route(votes, num_iters, *bias_JD)
        assert routed.pose_BJD.requires_grad
        assert routed.act_BJ.requires_grad
        # The first coupling is a constant, no function of the inputs.
        return tuple(x for x in routed[:3] if x is not None and x.requires_grad)

    inputs = (pose_BIP, weight_IJDP, bias_JD) if with_bias else (pose_BIP, weight_IJDP)
    assert torch.autograd.gradcheck(outputs, [x.requires_grad_() for x in inputs])


@every_impl
@law
@given(size=sizes, seed=seeds, num_iters=st.integers(1, 4))
def test_the_order_of_children_does_not_matter(
    route: Callable[..., Routed], size: Sizes, seed: int, num_iters: int
) -> None:
    layer = _layer(size, seed)
    order_I = torch.randperm(size.children, generator=torch.Generator().manual_seed(seed))
    shuffled = layer._replace(
        pose_BIP=layer.pose_BIP[:, order_I], weight_IJDP=layer.weight_IJDP[order_I]
    )
    before, after = layer.route(route, num_iters), shuffled.route(route, num_iters)
    _assert_same(after.pose_BJD, before.pose_BJD)
    _assert_same(after.act_BJ, before.act_BJ)
    if before.coupling_BIJ is not None:
        assert after.coupling_BIJ is not None
        _assert_same(after.coupling_BIJ, before.coupling_BIJ[:, order_I])


@every_impl
@law
@given(size=sizes, seed=seeds, num_iters=st.integers(1, 4))
def test_an_item_does_not_depend_on_its_batch_mates(
    route: Callable[..., Routed], size: Sizes, seed: int, num_iters: int
) -> None:
    layer = _layer(size, seed)
    together = layer.route(route, num_iters)
    for item in range(size.batch):
        alone = layer._replace(pose_BIP=layer.pose_BIP[item : item + 1]).route(route, num_iters)
        _assert_same(alone.pose_BJD[0], together.pose_BJD[item])
        _assert_same(alone.act_BJ[0], together.act_BJ[item])


@every_impl
@law
@given(size=sizes, seed=seeds, num_iters=st.integers(1, 4))
def test_a_child_divides_itself_among_the_parents(
    route: Callable[..., Routed], size: Sizes, seed: int, num_iters: int
) -> None:
    routed = _layer(size, seed).route(route, num_iters)
    if routed.coupling_BIJ is None:
        pytest.skip("a variant without couplings")
    assert routed.coupling_BIJ.shape == (size.batch, size.children, size.parents)
    assert (routed.coupling_BIJ >= 0).all()
    _assert_same(
        routed.coupling_BIJ.sum(dim=2),
        torch.ones(size.batch, size.children, dtype=torch.float64),
    )


@every_impl
@law
@given(size=sizes, seed=seeds)
def test_one_iteration_squashes_the_equally_divided_votes(
    route: Callable[..., Routed], size: Sizes, seed: int
) -> None:
    layer = _layer(size, seed)
    votes_BIJD = torch.einsum("bip,ijdp->bijd", layer.pose_BIP, layer.weight_IJDP)
    expected_BJD = squash(votes_BIJD.sum(dim=1) / size.parents + layer.bias_JD)
    _assert_same(layer.route(route, num_iters=1).pose_BJD, expected_BJD)


@every_impl
@iterations
@with_and_without_bias
@pytest.mark.parametrize("scale", [0.0, 1e8], ids=["zero-votes", "huge-votes"])
def test_extreme_votes_give_finite_values_and_gradients(
    route: Callable[..., Routed], num_iters: int, with_bias: bool, scale: float
) -> None:
    layer = _layer(Sizes(2, 7, 3, 4, 5), dtype=torch.float32)
    pose_BIP = (scale * layer.pose_BIP).requires_grad_()
    weight_IJDP = layer.weight_IJDP.requires_grad_()
    votes = Votes(pose_BIP, weight_IJDP, torch.linalg.vector_norm(pose_BIP, dim=-1))
    routed = route(votes, num_iters, layer.bias_JD if with_bias else None)
    (routed.pose_BJD.sum() + routed.act_BJ.sum()).backward()
    for tensor in (routed.pose_BJD, routed.act_BJ, pose_BIP.grad, weight_IJDP.grad):
        assert tensor is not None
        assert tensor.isfinite().all()


@every_impl
@iterations
@pytest.mark.parametrize(
    "size",
    [Sizes(1, 1, 1, 1, 1), Sizes(3, 7, 1, 2, 1), Sizes(2, 1, 5, 1, 3), Sizes(5, 13, 11, 7, 17)],
)
def test_awkward_sizes_give_parents_of_length_below_one(
    route: Callable[..., Routed], num_iters: int, size: Sizes
) -> None:
    routed = _layer(size).route(route, num_iters)
    assert routed.pose_BJD.shape == (size.batch, size.parents, size.parent_pose)
    assert routed.act_BJ.shape == (size.batch, size.parents)
    assert routed.pose_BJD.isfinite().all()
    assert ((routed.act_BJ > 0) & (routed.act_BJ < 1)).all()
