"""What every routing variant promises. Variants are found, not listed.

Each is asked through its module, as a layer of a network does.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from routing_variants import (
    VARIANTS,
    Variant,
    assert_same,
    every_dividing_impl,
    every_impl,
    every_variant,
    iterations,
    normal,
)
from torch import Tensor

from capsweep.config import compose, package_files
from capsweep.model.routing import Routed
from capsweep.model.votes import Votes
from capsweep.training.size import network_size

law = at_most_examples(25)


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

    @property
    def votes(self) -> Votes:
        """As those of class capsules: a child is as present as its pose is long."""
        return Votes(
            self.pose_BIP, self.weight_IJDP, torch.linalg.vector_norm(self.pose_BIP, dim=-1)
        )

    def route(self, variant: Variant, num_iters: int) -> Routed:
        """Route, and keep the trace."""
        children, parents, parent_pose, _ = self.weight_IJDP.shape
        return variant.layer(num_iters, children, parents, parent_pose)(self.votes, with_trace=True)


sizes = st.builds(Sizes, *[st.integers(1, 5)] * 5)
seeds = st.integers(0, 2**32 - 1)


def _layer(size: Sizes, seed: int = 0, dtype: torch.dtype = torch.float64) -> Layer:
    """Standard normal poses and weights."""
    batch, children, parents, child_pose, parent_pose = size
    draw = normal(seed, dtype)
    return Layer(
        draw(batch, children, child_pose), draw(children, parents, parent_pose, child_pose)
    )


def test_variants_are_found() -> None:
    assert {"dynamic", "em"} <= set(VARIANTS)
    assert all(module.IMPLS for module in VARIANTS.values())


def test_each_variant_has_a_file_in_conf_and_each_file_a_variant() -> None:
    files = (package_files.PACKAGE / "model" / "routing").glob("*.py")
    assert {file.stem for file in files if "\nIMPLS = " in file.read_text()} == set(VARIANTS)


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
        network_size(config)


@every_impl
@iterations
def test_gradients_are_those_of_the_function(variant: Variant, num_iters: int) -> None:
    pose_BIP, weight_IJDP = _layer(Sizes(2, 3, 2, 2, 3))
    module = variant.layer(num_iters, children=3, parents=2, parent_pose=3)
    parameters = dict(module.named_parameters())

    def outputs(pose_BIP: Tensor, weight_IJDP: Tensor, *own: Tensor) -> tuple[Tensor, ...]:
        arguments = (Layer(pose_BIP, weight_IJDP).votes,)
        given = dict(zip(parameters, own, strict=True))
        routed = torch.func.functional_call(module, given, arguments)
        assert routed.pose_BJD.requires_grad
        assert routed.act_BJ.requires_grad
        # The first coupling is a constant, no function of the inputs.
        return tuple(x for x in routed[:3] if x is not None and x.requires_grad)

    leaves = [x.detach().requires_grad_() for x in (pose_BIP, weight_IJDP, *parameters.values())]
    assert torch.autograd.gradcheck(outputs, leaves)


@every_impl
@law
@given(size=sizes, seed=seeds, num_iters=st.integers(1, 4))
def test_the_order_of_children_does_not_matter(
    variant: Variant, size: Sizes, seed: int, num_iters: int
) -> None:
    layer = _layer(size, seed)
    order_I = torch.randperm(size.children, generator=torch.Generator().manual_seed(seed))
    shuffled = Layer(layer.pose_BIP[:, order_I], layer.weight_IJDP[order_I])
    before, after = layer.route(variant, num_iters), shuffled.route(variant, num_iters)
    assert_same(after.pose_BJD, before.pose_BJD)
    assert_same(after.act_BJ, before.act_BJ)
    if before.coupling_BIJ is not None:
        assert after.coupling_BIJ is not None
        assert_same(after.coupling_BIJ, before.coupling_BIJ[:, order_I])


@every_impl
@law
@given(size=sizes, seed=seeds, num_iters=st.integers(1, 4))
def test_an_item_does_not_depend_on_its_batch_mates(
    variant: Variant, size: Sizes, seed: int, num_iters: int
) -> None:
    layer = _layer(size, seed)
    together = layer.route(variant, num_iters)
    for item in range(size.batch):
        alone = layer._replace(pose_BIP=layer.pose_BIP[item : item + 1]).route(variant, num_iters)
        assert_same(alone.pose_BJD[0], together.pose_BJD[item])
        assert_same(alone.act_BJ[0], together.act_BJ[item])


@every_dividing_impl
@law
@given(size=sizes, seed=seeds, num_iters=st.integers(1, 4))
def test_a_child_divides_itself_among_the_parents(
    variant: Variant, size: Sizes, seed: int, num_iters: int
) -> None:
    routed = _layer(size, seed).route(variant, num_iters)
    assert routed.coupling_BIJ is not None
    coupling_BIJ = routed.coupling_BIJ.expand(size.batch, -1, -1)
    assert coupling_BIJ.shape == (size.batch, size.children, size.parents)
    assert (coupling_BIJ >= 0).all()
    assert_same(coupling_BIJ.sum(dim=2), torch.ones_like(coupling_BIJ[..., 0]))


@every_impl
@iterations
@pytest.mark.parametrize("scale", [0.0, 1e8], ids=["zero-votes", "huge-votes"])
def test_extreme_votes_give_finite_values_and_gradients(
    variant: Variant, num_iters: int, scale: float
) -> None:
    layer = _layer(Sizes(2, 7, 3, 4, 5), dtype=torch.float32)
    pose_BIP = (scale * layer.pose_BIP).requires_grad_()
    weight_IJDP = layer.weight_IJDP.requires_grad_()
    module = variant.layer(num_iters, children=7, parents=3, parent_pose=5).float()
    routed = module(Layer(pose_BIP, weight_IJDP).votes)
    (routed.pose_BJD.sum() + routed.act_BJ.sum()).backward()
    gradients = [pose_BIP.grad, weight_IJDP.grad, *(x.grad for x in module.parameters())]
    for tensor in (routed.pose_BJD, routed.act_BJ, *gradients):
        assert tensor is not None
        assert tensor.isfinite().all()


@every_impl
@iterations
@pytest.mark.parametrize(
    "size",
    [Sizes(1, 1, 1, 1, 1), Sizes(3, 7, 1, 2, 1), Sizes(2, 1, 5, 1, 3), Sizes(5, 13, 11, 7, 17)],
)
def test_awkward_sizes_give_finite_poses_and_activations_up_to_one(
    variant: Variant, num_iters: int, size: Sizes
) -> None:
    routed = _layer(size).route(variant, num_iters)
    assert routed.pose_BJD.shape == (size.batch, size.parents, size.parent_pose)
    assert routed.act_BJ.shape == (size.batch, size.parents)
    assert routed.pose_BJD.isfinite().all()
    assert ((routed.act_BJ >= 0) & (routed.act_BJ <= 1)).all()
