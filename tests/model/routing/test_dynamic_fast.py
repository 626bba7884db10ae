"""The fast path of dynamic routing is the reference, and keeps nothing of the size of the votes.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import copy
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from capsweep.config import compose
from capsweep.model.routing import dynamic, dynamic_fast
from capsweep.model.votes import Routed, Votes
from capsweep.training import build

law = at_most_examples(40)
devices = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
        ),
    ],
)


class Layer(NamedTuple):
    """A layer to be routed, and the options."""

    pose_BIP: Tensor
    weight_IJDP: Tensor
    prior_IJ: Tensor | None
    bias_JD: Tensor | None
    options: dict[str, Any]

    @property
    def leaves(self) -> list[Tensor]:
        """What has a gradient."""
        tensors = (self.pose_BIP, self.weight_IJDP, self.prior_IJ, self.bias_JD)
        return [tensor for tensor in tensors if tensor is not None]

    def routed(self, impl: str, num_iters: int, with_trace: bool = False) -> Routed:
        """By one implementation."""
        votes = Votes(self.pose_BIP, self.weight_IJDP)
        return dynamic.IMPLS[impl](
            votes, num_iters, self.bias_JD, with_trace, prior_LJ=self.prior_IJ, **self.options
        )

    def gradients(self, routed: Routed) -> tuple[Tensor, ...]:
        """Of a random function of what the next layer sees, by all leaves."""
        generator = torch.Generator().manual_seed(1)
        shape = routed.pose_BJD.shape
        random = torch.randn(shape, dtype=torch.float64, generator=generator).to(routed.pose_BJD)
        value = (routed.pose_BJD * random).sum() + (routed.act_BJ * random[..., 0]).sum()
        return torch.autograd.grad(value, self.leaves, allow_unused=True, materialize_grads=True)


def _layer(
    sizes: tuple[int, int, int, int, int],
    *,
    prior: bool = True,
    bias: bool = True,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    **options: Any,
) -> Layer:
    batch, children, parents, child_pose, parent_pose = sizes
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return drawn.to(device, dtype).requires_grad_()

    return Layer(
        normal(batch, children, child_pose),
        normal(children, parents, parent_pose, child_pose),
        normal(children, parents) if prior else None,
        normal(parents, parent_pose) if bias else None,
        options,
    )


def _assert_as_reference(layer: Layer, num_iters: int, tolerance: float = 1e-9) -> None:
    expected = layer.routed("reference", num_iters, with_trace=True)
    found = layer.routed("fast", num_iters, with_trace=True)
    assert expected.trace is not None
    assert found.trace is not None
    for one, other in zip(found.trace, expected.trace, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found[:3], expected[:3], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        layer.gradients(found), layer.gradients(expected), rtol=tolerance, atol=tolerance
    )


@devices
@pytest.mark.parametrize("gradient", dynamic.GRADIENTS)
@pytest.mark.parametrize("none_of_the_above", [False, True], ids=["", "none-of-the-above"])
@pytest.mark.parametrize("prior", [False, True], ids=["", "prior"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
def test_outputs_traces_and_every_gradient_are_those_of_the_reference(
    device: str, num_iters: int, bias: bool, prior: bool, none_of_the_above: bool, gradient: str
) -> None:
    options = {"none_of_the_above": none_of_the_above, "gradient": gradient}
    layer = _layer((3, 7, 5, 3, 6), prior=prior, bias=bias, device=device, **options)
    _assert_as_reference(layer, num_iters)


@law
@given(
    st.tuples(*[st.integers(1, 6)] * 5),
    st.integers(1, 4),
    st.integers(1, 200),
)
def test_of_any_size_however_many_children_are_routed_at_once(
    sizes: tuple[int, int, int, int, int], num_iters: int, numbers_at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_fast, "NUMBERS_AT_ONCE", (numbers_at_once, numbers_at_once))
        _assert_as_reference(_layer(sizes), num_iters)


@devices
def test_single_precision_is_as_exact_as_that_of_the_reference(device: str) -> None:
    sizes = (16, 288, 10, 8, 16)
    exact = _layer(sizes, device=device)
    single = _layer(sizes, dtype=torch.float32, device=device)
    expected = exact.gradients(exact.routed("reference", 3))
    worst = {}
    for impl in ("reference", "fast"):
        found = single.gradients(single.routed(impl, 3))
        pairs = zip(found, expected, strict=True)
        worst[impl] = [float((one - other).norm() / other.norm()) for one, other in pairs]
    for fast, reference in zip(worst["fast"], worst["reference"], strict=True):
        assert fast <= 2 * reference


@devices
def test_inside_autocast_it_computes_in_single_precision(device: str) -> None:
    layer = _layer((4, 9, 3, 4, 6), dtype=torch.float32, device=device)
    expected = layer.routed("fast", 3)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = layer.routed("fast", 3)
        gradients = layer.gradients(found)
    assert found.pose_BJD.dtype == torch.float32
    assert torch.equal(found.pose_BJD, expected.pose_BJD)
    torch.testing.assert_close(gradients, layer.gradients(expected), rtol=0, atol=0)


def test_half_poses_are_routed_in_the_precision_of_the_weights() -> None:
    layer = _layer((4, 9, 3, 4, 6), dtype=torch.float32)
    half = layer._replace(pose_BIP=layer.pose_BIP.detach().bfloat16().requires_grad_())
    rounded = layer._replace(pose_BIP=half.pose_BIP.detach().float().requires_grad_())
    assert torch.equal(half.routed("fast", 3).pose_BJD, rounded.routed("fast", 3).pose_BJD)
    assert half.gradients(half.routed("fast", 3))[0].dtype == torch.bfloat16


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchDispatchMode."""
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.numbers = max(self.numbers, made.untyped_storage().nbytes() // made.itemsize)
        return made


@pytest.mark.parametrize("options", [{}, {"none_of_the_above": True}, {"gradient": "last"}])
def test_nothing_of_the_size_of_the_votes_is_ever_made(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = batch, children, parents, _, parent_pose = 128, 40, 10, 8, 16
    layer = _layer(sizes, **options)
    votes = batch * children * parents * parent_pose
    monkeypatch.setattr(dynamic_fast, "NUMBERS_AT_ONCE", (votes // 10, votes // 10))
    with LargestTensor() as largest:
        layer.gradients(layer.routed("fast", 3))
    assert largest.numbers <= votes / 8


def test_a_second_derivative_is_refused() -> None:
    layer = _layer((2, 5, 3, 4, 6))
    pose_BJD = layer.routed("fast", 3).pose_BJD
    with pytest.raises(RuntimeError, match=r"routing\.impl=reference"):
        torch.autograd.grad(pose_BJD.sum(), layer.pose_BIP, create_graph=True)


def _network(model: str = "capsnet_tiny") -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    config = compose.cell([f"model={model}"]).config
    return build.build_network(config), torch.rand(4, *config["dataset"]["image_shape"])


def _step(network: nn.Module, images_BCHW: Tensor) -> list[Tensor]:
    network(images_BCHW).scores_BN.square().sum().backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    return [gradient for gradient in gradients if gradient is not None]


# Dynamo looks at whether what enters an uncompiled part has a gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("model", ["capsnet_tiny", "matrix_capsnet_tiny"])
def test_the_rest_of_the_network_can_be_compiled(model: str) -> None:
    network, images_BCHW = _network(model)
    compiled = copy.deepcopy(network)
    compiled.compile(backend="aot_eager")
    torch.testing.assert_close(_step(compiled, images_BCHW), _step(network, images_BCHW))
