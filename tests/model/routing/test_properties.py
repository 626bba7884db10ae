"""What every routing variant promises. Variants are found, not listed.

Each is asked through its module, as a layer of a network does; of linear votes, or those of one
position where a variant takes matrices alone, and of convolutional votes, whose children stand
below several parent positions.

Shape letters: B batch, I children or child types, J parents or parent types, P child pose, D parent
pose, M parent positions, N child positions, K kernel offsets, L = K I children below a parent
position, R S rows and columns of a pose, T iterations.
"""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from routing_variants import (
    IMPLEMENTATIONS,
    VARIANTS,
    Variant,
    assert_same,
    every_convolving_and_dividing_impl,
    every_convolving_impl,
    every_dividing_impl,
    every_impl,
    every_impl_of_both_kinds,
    every_variant,
    iterations,
    move_links,
    normal,
)
from torch import Tensor, nn

from capsweep.config import compose, package_files
from capsweep.model import convolution
from capsweep.model.routing import LayerSizes, Routed, name_variant
from capsweep.model.votes import ConvolutionalVotes, LocalVotes, Votes
from capsweep.training.size import measure_size

law = at_most_examples(25)


def test_each_variant_has_a_file_in_conf_and_each_file_a_variant() -> None:
    assert {"dynamic", "em"} <= set(VARIANTS)
    files = (package_files.PACKAGE / "model" / "routing").glob("*.py")
    modules = {module.__name__.rpartition(".")[2] for module in VARIANTS.values()}
    assert {file.stem for file in files if "\nIMPLS = " in file.read_text()} == modules


@every_variant
def test_the_configuration_of_a_variant_makes_the_module_of_its_name(stem: str) -> None:
    config = compose.cell([f"routing={stem}"]).config
    section = config["routing"]
    assert section["name"] == stem
    assert section["impl"] == "auto"
    (variant, *_) = (each for each in IMPLEMENTATIONS if each.stem == stem)
    assert name_variant(variant.layer(1, LayerSizes(1, 1, 1, 1))) == stem
    with pytest.raises(ValueError, match=r"routing\.impl must be one of auto, ref.*, got warp"):
        measure_size({**config, "routing": {**section, "impl": "warp"}})


class Sizes(NamedTuple):
    """B, I, J, P, D."""

    batch: int
    children: int
    parents: int
    child_pose: int
    parent_pose: int


class Layer(NamedTuple):
    """The input of one routed layer; of matrices the last two axes of the weights are S S."""

    pose_BIP: Tensor
    weight_IJDP: Tensor
    is_linear: bool = True

    def make_votes(self) -> LocalVotes:
        """As those of class capsules: a child is as present as its pose is long."""
        length_BI = torch.linalg.vector_norm(self.pose_BIP, dim=-1)
        if self.is_linear:
            return Votes(self.pose_BIP, self.weight_IJDP, length_BI)
        below_all_MK = torch.arange(len(self.weight_IJDP))[None]
        matrices = self.pose_BIP.unflatten(2, (4, 4))[:, :, None], self.weight_IJDP[:, None]
        return ConvolutionalVotes(matrices[0], length_BI[..., None], matrices[1], below_all_MK)

    def make_routing(self, variant: Variant, num_iters: int) -> nn.Module:
        """The module that routes it."""
        children, parents, rows, columns = self.weight_IJDP.shape
        poses = (columns, rows) if self.is_linear else (16, 16)
        return variant.layer(num_iters, LayerSizes(children, parents, *poses))

    def route_by(self, variant: Variant, num_iters: int) -> Routed:
        """Route."""
        return self.make_routing(variant, num_iters)(self.make_votes())


def draw_layer(variant: Variant, size: Sizes, seed: int = 0) -> Layer:
    """Standard normal poses and weights, those of 4x4 matrices where it takes no others."""
    draw, is_linear = normal(seed), variant.routes(Votes)
    sides = (size.parent_pose, size.child_pose) if is_linear else (4, 4)
    pose_BIP = draw(size.batch, size.children, size.child_pose if is_linear else 16)
    return Layer(pose_BIP, draw(size.children, size.parents, *sides), is_linear)


@every_impl
@iterations
def test_gradients_are_those_of_the_function(variant: Variant, num_iters: int) -> None:
    layer = draw_layer(variant, Sizes(2, 3, 2, 2, 3))
    module = layer.make_routing(variant, num_iters)
    parameters = dict(module.named_parameters())

    def compute_outputs(pose_BIP: Tensor, weight_IJDP: Tensor, *own: Tensor) -> tuple[Tensor, ...]:
        arguments = (Layer(pose_BIP, weight_IJDP, layer.is_linear).make_votes(),)
        named = dict(zip(parameters, own, strict=True))
        routed = torch.func.functional_call(module, named, arguments)
        assert routed.pose_BJD.requires_grad
        assert routed.act_BJ.requires_grad or not getattr(module, "has_activations", True)
        # The first coupling is a constant, no function of the inputs.
        return tuple(x for x in routed[:3] if x is not None and x.requires_grad)

    leaves = [x.detach().requires_grad_() for x in (*layer[:2], *parameters.values())]
    assert torch.autograd.gradcheck(compute_outputs, leaves)


any_layer = given(
    size=st.builds(Sizes, *[st.integers(1, 5)] * 5),
    seed=st.integers(0, 2**32 - 1),
    num_iters=st.integers(1, 4),
)


@every_impl
@law
@any_layer
def test_the_order_of_children_does_not_matter_and_that_of_parents_is_that_of_their_weights(
    variant: Variant, size: Sizes, seed: int, num_iters: int
) -> None:
    layer, generator = draw_layer(variant, size, seed), torch.Generator().manual_seed(seed)
    order_I, order_J = (torch.randperm(n, generator=generator) for n in size[1:3])
    weight_IJDP = layer.weight_IJDP[order_I][:, order_J]
    shuffled = Layer(layer.pose_BIP[:, order_I], weight_IJDP, layer.is_linear)
    module = layer.make_routing(variant, num_iters)
    before = module(layer.make_votes())
    move_links(module, "IL", order_I)
    move_links(module, "J", order_J)
    after = module(shuffled.make_votes())
    assert_same(after.pose_BJD, before.pose_BJD[:, order_J])
    assert_same(after.act_BJ, before.act_BJ[:, order_J])
    if before.coupling_BIJ is not None:
        assert_same(after.coupling_BIJ, before.coupling_BIJ[:, order_I][..., order_J])


@every_impl
@law
@any_layer
def test_parents_follow_from_the_couplings_of_the_last_iteration(
    variant: Variant, size: Sizes, seed: int, num_iters: int
) -> None:
    layer = draw_layer(variant, size, seed)
    module, votes = layer.make_routing(variant, num_iters), layer.make_votes()
    routed = module(votes, with_trace=True)
    form_parents = getattr(module, "form_parents", None)
    if form_parents is None:
        assert variant.stem.startswith("toy")
        return
    formed = form_parents(votes, routed.trace[-1]["coupling"])
    assert_same(formed.pose_BJD, routed.pose_BJD)
    assert_same(formed.act_BJ, routed.act_BJ)
    if routed.logit_BJ is not None:
        assert_same(formed.logit_BJ, routed.logit_BJ)
    drawn_BIJ = normal(seed)(size.batch, size.children, size.parents).sigmoid()
    assert torch.equal(form_parents(votes, drawn_BIJ[:, None]).coupling_BIJ, drawn_BIJ)


@every_impl
@law
@any_layer
def test_an_item_does_not_depend_on_its_batch_mates(
    variant: Variant, size: Sizes, seed: int, num_iters: int
) -> None:
    layer = draw_layer(variant, size, seed)
    together = layer.route_by(variant, num_iters)
    for item, pose_IP in enumerate(layer.pose_BIP):
        alone = layer._replace(pose_BIP=pose_IP[None]).route_by(variant, num_iters)
        assert_same(alone.pose_BJD[0], together.pose_BJD[item])
        assert_same(alone.act_BJ[0], together.act_BJ[item])


@every_dividing_impl
@law
@any_layer
def test_a_child_divides_itself_among_the_parents(
    variant: Variant, size: Sizes, seed: int, num_iters: int
) -> None:
    coupling_BIJ = draw_layer(variant, size, seed).route_by(variant, num_iters).coupling_BIJ
    assert coupling_BIJ is not None
    coupling_BIJ = coupling_BIJ.expand(size.batch, -1, -1)
    assert coupling_BIJ.shape == (size.batch, size.children, size.parents)
    assert (coupling_BIJ >= 0).all()
    assert_same(coupling_BIJ.sum(dim=2), torch.ones_like(coupling_BIJ[..., 0]))


AWKWARD = [(1, 1, 1, 1, 1), (3, 7, 1, 2, 1), (2, 1, 5, 1, 3), (5, 13, 11, 7, 17)]


@every_impl
@iterations
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e8], ids=["zero-votes", "votes", "huge-votes"])
@pytest.mark.parametrize("size", AWKWARD)
def test_awkward_sizes_and_extreme_votes_give_finite_values_and_gradients(
    variant: Variant, num_iters: int, size: tuple[int, ...], scale: float
) -> None:
    batch, _, parents, _, parent_pose = size
    layer = draw_layer(variant, Sizes(*size))
    leaves = [x.float().requires_grad_() for x in (scale * layer.pose_BIP, layer.weight_IJDP)]
    module = layer.make_routing(variant, num_iters).float()
    routed = module(Layer(*leaves, layer.is_linear).make_votes())
    assert routed.pose_BJD.shape == (batch, parents, parent_pose if layer.is_linear else 16)
    assert routed.act_BJ.shape == (batch, parents)
    assert ((routed.act_BJ >= 0) & (routed.act_BJ <= 1 + 1e-6)).all()
    (routed.pose_BJD.sum() + routed.act_BJ.sum()).backward()
    given = [leaf.grad for leaf in (*leaves, *module.parameters())]
    gradients = [gradient for gradient in given if gradient is not None]  # none of idle parameters
    assert len(gradients) >= 2
    for tensor in (routed.pose_BJD, routed.act_BJ, *gradients):
        assert tensor.isfinite().all()


def draw_convolved(stride: int) -> ConvolutionalVotes:
    """A 5x6 grid of children of two types below 3x3 kernels of parents of three, poses of 4x4. With
    stride 2 the last column has no parent.
    """
    draw = normal(0)
    return ConvolutionalVotes(
        draw(2, 30, 2, 4, 4),
        draw(2, 30, 2).sigmoid(),
        0.5 * draw(9, 2, 3, 4, 4),
        torch.tensor(convolution.list_fields(convolution.PositionGrid(5, 6), 3, stride)),
    )


@every_convolving_and_dividing_impl
@iterations
@pytest.mark.parametrize("stride", [1, 2])
def test_a_child_divides_itself_among_the_parents_at_all_positions_above_it(
    variant: Variant, num_iters: int, stride: int
) -> None:
    votes = draw_convolved(stride)
    has_parent_N = torch.isin(torch.arange(30), votes.child_MK)
    module = variant.layer(num_iters, LayerSizes(18, 3, 16, 16))
    trace = module(votes, with_trace=True).trace
    assert len(trace) == getattr(module, "num_iters", 1)
    for coupling_BMLJ in (step["coupling"] for step in trace):
        assert (coupling_BMLJ >= 0).all()
        given_BMKI = coupling_BMLJ.sum(dim=3).unflatten(2, (9, 2))
        sums_BNI = coupling_BMLJ.new_zeros(len(coupling_BMLJ), 30, 2)
        sums_BNI.index_add_(1, votes.child_MK.flatten(), given_BMKI.flatten(1, 2))
        expected_BNI = has_parent_N.double()[None, :, None].expand_as(sums_BNI)
        torch.testing.assert_close(sums_BNI, expected_BNI, rtol=0, atol=1e-12)


@every_convolving_impl
def test_a_child_without_a_parent_changes_nothing_and_gets_no_gradient(variant: Variant) -> None:
    votes, module = draw_convolved(stride=2), variant.layer(3, LayerSizes(18, 3, 16, 16))
    without_N = ~torch.isin(torch.arange(30), votes.child_MK)
    assert without_N.nonzero().flatten().tolist() == [5, 11, 17, 23, 29]
    pose_BNIRS = votes.pose_BNIRS.requires_grad_()
    routed = module(votes)
    (routed.pose_BJD.sum() + routed.act_BJ.sum()).backward()
    assert pose_BNIRS.grad is not None
    assert not pose_BNIRS.grad[:, without_N].any()
    assert pose_BNIRS.grad[:, ~without_N].abs().amax(dim=(2, 3, 4)).min() > 0
    with torch.no_grad():
        pose_BNIRS[:, without_N] = 99.0
    after = module(votes)
    assert torch.equal(after.pose_BJD, routed.pose_BJD)
    assert torch.equal(after.act_BJ, routed.act_BJ)


@every_impl_of_both_kinds
@iterations
def test_a_kernel_as_large_as_the_grid_is_a_layer_of_one_position(
    variant: Variant, num_iters: int
) -> None:
    draw = normal(0)
    pose_BNIRS, weight_KIJSS = draw(2, 4, 3, 4, 4), draw(4, 3, 5, 4, 4)
    activation_BNI = draw(2, 4, 3).sigmoid()
    convolved = ConvolutionalVotes(pose_BNIRS, activation_BNI, weight_KIJSS, torch.arange(4)[None])
    # The same votes as a linear layer gives: V = M W, written as a matrix on the flat pose.
    identity, matrices = torch.eye(4, dtype=torch.float64), weight_KIJSS.flatten(0, 2)
    weights = [torch.kron(identity, matrix.T.contiguous()) for matrix in matrices]
    weight_IJDP = torch.stack(weights).unflatten(0, (12, 5))
    dense = Votes(pose_BNIRS.flatten(3).flatten(1, 2), weight_IJDP, activation_BNI.flatten(1))
    module = variant.layer(num_iters, LayerSizes(12, 5, 16, 16))
    kinds: list[LocalVotes] = [convolved, dense]
    first, second = map(module, kinds)
    assert_same(first.pose_BJD, second.pose_BJD)
    assert_same(first.act_BJ, second.act_BJ)
    if first.coupling_BIJ is not None:
        assert_same(first.coupling_BIJ, second.coupling_BIJ)
