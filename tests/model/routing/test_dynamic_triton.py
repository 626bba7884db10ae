"""Dynamic routing by Triton kernels is the reference: interpreted on a CPU, compiled on a GPU.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import copy
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from procedure_1 import AWKWARD, Layer, Size, layer
from torch import Tensor

from capsweep.errors import ConfigError
from capsweep.model.routing import dynamic
from capsweep.model.routing.kernels import dynamic_triton
from capsweep.model.routing.kernels.dynamic_triton import triton_route
from capsweep.model.votes import ConvolutionalVotes, Routed, Votes

pytest.importorskip("triton", reason="triton is not installed (it is on Linux, in the dev extra)")

SMALL: Size = (2, 7, 3, 4, 5)
COMBINATIONS = [*itertools.product([False, True], repeat=3)]
SUPPORT = Path(__file__).resolve().parents[2] / "support"


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Where tensors are: the interpreter's on a CPU, the compiled kernels' on a GPU."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU: the compiled kernels are not run")
    if request.param == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON_INTERPRET is not 1: the kernels are compiled")
    return request.param


@pytest.fixture
def launches() -> ModuleType:
    """The module that decides the sizes of tiles and parts."""
    return dynamic_triton._launches(torch.device("cuda"))


def _placed(chosen: Layer, device: str, dtype: torch.dtype = torch.float64) -> Layer:
    return Layer(*[x.to(device, dtype).requires_grad_() for x in chosen])


def _routed(
    route: Any, chosen: Layer, num_iters: int, combination: Sequence[bool], **options: Any
) -> Routed:
    bias, prior, none = combination
    return route(
        Votes(chosen.pose_BIP, chosen.weight_IJDP),
        num_iters,
        chosen.bias_JD if bias else None,
        prior_LJ=chosen.prior_IJ if prior else None,
        none_of_the_above=none,
        **options,
    )


def _gradients(routed: Routed, chosen: Layer) -> list[Tensor]:
    """By all leaves, of a function that every number of poses and activations moves."""
    steps = torch.linspace(-1, 2, routed.pose_BJD.numel(), dtype=torch.float64)
    weight_BJD = steps.to(routed.pose_BJD).view_as(routed.pose_BJD)
    value = (routed.pose_BJD * weight_BJD).sum() + routed.act_BJ.square().sum()
    return list(torch.autograd.grad(value, chosen, allow_unused=True, materialize_grads=True))


def _outputs(routed: Routed) -> list[Tensor]:
    traced = [tensor for step in routed.trace or () for tensor in step.values()]
    assert routed.coupling_BIJ is not None
    return [routed.pose_BJD, routed.act_BJ, routed.coupling_BIJ, *traced]


def _assert_as_reference(
    chosen: Layer,
    num_iters: int = 3,
    combination: Sequence[bool] = (True, True, True),
    gradient: str = "full",
    tolerance: float = 1e-9,
) -> None:
    options = {"with_trace": True, "gradient": gradient}
    expected = _routed(dynamic.reference, chosen, num_iters, combination, **options)
    found = _routed(triton_route, chosen, num_iters, combination, **options)
    torch.testing.assert_close(
        _outputs(found), _outputs(expected), rtol=tolerance, atol=tolerance
    )
    torch.testing.assert_close(
        _gradients(found, chosen), _gradients(expected, chosen), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("gradient", dynamic.GRADIENTS)
@pytest.mark.parametrize("num_iters", [1, 2, 3])
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_every_combination_of_options_is_the_reference(
    device: str, combination: tuple[bool, bool, bool], num_iters: int, gradient: str
) -> None:
    _assert_as_reference(_placed(layer(SMALL), device), num_iters, combination, gradient)


@pytest.mark.parametrize("size", [*AWKWARD, (2, 33, 11, 8, 16), (3, 2, 10, 17, 4)], ids=str)
def test_awkward_sizes_are_the_reference(device: str, size: Size) -> None:
    _assert_as_reference(_placed(layer(size), device), num_iters=2)


def test_many_iterations_are_the_reference(device: str) -> None:
    _assert_as_reference(_placed(layer((2, 5, 3, 2, 3)), device), num_iters=5)


@settings(deadline=None, max_examples=8)
@given(
    sizes=st.tuples(*[st.integers(1, 6)] * 5),
    num_iters=st.integers(1, 3),
    combination=st.tuples(*[st.booleans()] * 3),
    gradient=st.sampled_from(dynamic.GRADIENTS),
    seed=st.integers(0, 2**32),
)
def test_any_layer_is_the_reference(
    sizes: Size, num_iters: int, combination: tuple[bool, bool, bool], gradient: str, seed: int
) -> None:
    where = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = _placed(layer(sizes, seed), where)
    _assert_as_reference(chosen, num_iters, combination, gradient)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TILE_BYTES", 8),
        ("TILE_BYTES", 2**14),
        ("MOST_WEIGHT_BYTES", 8),
        ("PROGRAMS", 1),
        ("PROGRAMS", 4),
        ("SHORTEST_PART", 1),
    ],
)
def test_the_sizes_of_tiles_and_parts_do_not_matter(
    device: str, launches: ModuleType, name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, name, value)
    _assert_as_reference(_placed(layer((3, 5, 3, 3, 2)), device), num_iters=2)


def test_in_single_precision_the_difference_is_rounding(device: str) -> None:
    chosen = _placed(layer((3, 17, 5, 8, 6)), device, torch.float32)
    _assert_as_reference(chosen, tolerance=2e-4)


def test_two_runs_have_the_same_bits(device: str) -> None:
    chosen = _placed(layer((5, 19, 5, 8, 6)), device, torch.float32)
    runs = []
    for _ in range(2):
        routed = _routed(triton_route, chosen, 3, (True, True, False))
        runs.append([*_outputs(routed), *_gradients(routed, chosen)])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_inside_autocast_it_computes_in_single_precision(device: str) -> None:
    chosen = _placed(layer(SMALL), device, torch.float32)
    plain = _routed(triton_route, chosen, 3, (True, True, True))
    expected = [*_outputs(plain), *_gradients(plain, chosen)]
    with torch.autocast(device, dtype=torch.bfloat16):
        routed = _routed(triton_route, chosen, 3, (True, True, True))
        found = [*_outputs(routed), *_gradients(routed, chosen)]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_poses_in_half_precision_are_routed_in_single(device: str) -> None:
    chosen = _placed(layer(SMALL), device, torch.float32)
    half_BIP = chosen.pose_BIP.detach().bfloat16().requires_grad_()
    routed = _routed(triton_route, chosen._replace(pose_BIP=half_BIP), 2, (True, True, True))
    routed.pose_BJD.sum().backward()
    assert routed.pose_BJD.dtype == torch.float32
    assert half_BIP.grad.dtype == torch.bfloat16
    assert half_BIP.grad.abs().max() > 0


def test_views_that_are_not_contiguous_are_routed_alike(device: str) -> None:
    chosen = _placed(layer(SMALL), device)
    turned = [x.detach().mT.contiguous().mT.requires_grad_() for x in chosen]
    _assert_as_reference(Layer(*turned))


@pytest.mark.parametrize("gradient", dynamic.GRADIENTS)
@pytest.mark.parametrize("scale", [0.0, 1e8], ids=["zero-votes", "huge-votes"])
def test_extreme_votes_give_finite_values_and_gradients(
    device: str, scale: float, gradient: str
) -> None:
    chosen = layer(SMALL)
    chosen = _placed(chosen._replace(pose_BIP=scale * chosen.pose_BIP), device, torch.float32)
    routed = _routed(triton_route, chosen, 3, (True, True, True), gradient=gradient)
    for tensor in (*_outputs(routed), *_gradients(routed, chosen)):
        assert tensor.isfinite().all()


def test_weights_alone_can_have_a_gradient(device: str) -> None:
    chosen = Layer(*[x.detach() for x in _placed(layer(SMALL), device)])
    chosen.weight_IJDP.requires_grad_()
    grads = []
    for route in (dynamic.reference, triton_route):
        routed = _routed(route, chosen, 3, (True, True, False))
        grads += torch.autograd.grad(routed.pose_BJD.sum(), chosen.weight_IJDP)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-9, atol=1e-9)


def test_without_gradients_the_numbers_are_the_same(device: str) -> None:
    chosen = _placed(layer(SMALL), device)
    with_gradients = _routed(triton_route, chosen, 3, (True, True, True))
    with torch.no_grad():
        without = _routed(triton_route, chosen, 3, (True, True, True))
    assert not without.pose_BJD.requires_grad
    for one, other in zip(_outputs(without), _outputs(with_gradients), strict=True):
        assert torch.equal(one, other)


def test_a_second_derivative_is_refused(device: str) -> None:
    chosen = _placed(layer(SMALL), device)
    value = _routed(triton_route, chosen, 2, (True, False, False)).pose_BJD.square().sum()
    (gradient,) = torch.autograd.grad(value, chosen.pose_BIP, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_copied_layer_routes_alike(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dynamic.IMPLS, "triton", triton_route)
    sizes = {"num_children": 7, "num_parents": 3, "parent_pose": 5}
    routing = dynamic.DynamicRouting(2, True, "triton", learned_prior=True, **sizes).to(device)
    votes = _placed(layer(SMALL), device, torch.float32).votes
    copied = copy.deepcopy(routing)(votes)
    assert torch.equal(copied.pose_BJD, routing(votes).pose_BJD)


def test_a_compiled_network_around_it_computes_the_same(device: str) -> None:
    chosen = _placed(layer(SMALL), device)

    def network(pose_BIP: Tensor) -> Tensor:
        votes = Votes(2 * pose_BIP, chosen.weight_IJDP)
        return 3 * triton_route(votes, 2).pose_BJD

    compiled = torch.compile(network, backend="eager")
    assert torch.equal(compiled(chosen.pose_BIP), network(chosen.pose_BIP))


def test_what_no_implementation_can_do_is_refused_by_name() -> None:
    votes = layer(SMALL).votes
    with pytest.raises(ValueError, match=r"routing\.num_iters must be >= 1, got 0"):
        triton_route(votes, 0)
    with pytest.raises(ValueError, match=r"routing\.gradient must be one of full, last, got no"):
        triton_route(votes, 2, gradient="no")


def test_votes_that_are_not_linear_are_refused_with_the_cure() -> None:
    numbers = torch.zeros(1, 1, 1, 2, 2)
    votes = ConvolutionalVotes(numbers, numbers[..., 0, 0], numbers, torch.zeros(1, 1).long())
    with pytest.raises(ConfigError, match=r"routing\.impl=triton .* set routing\.impl=fast"):
        triton_route(votes, 2)


def test_parents_that_fit_no_tile_are_refused_with_the_cure(device: str) -> None:
    votes = Votes(torch.ones(1, 1, 1, device=device), torch.ones(1, 2**11, 2**10, 1, device=device))
    with pytest.raises(ConfigError, match=r"2048 parents of 1024 .* set routing\.impl=fast"):
        triton_route(votes, 2)


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own, where Triton compiles, with this one's paths."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


REFUSED = """
import sys, torch
from capsweep.model.routing import dynamic
from capsweep.model.routing.kernels.dynamic_triton import triton_route
from capsweep.model.votes import Votes
votes = Votes(torch.ones(1, 2, 3), torch.ones(2, 4, 5, 3))
assert "triton" not in sys.modules, "imported before it is asked for"
sys.modules["triton"] = None  # as where it is not installed
for _ in range(2):
    try:
        triton_route(votes, 2)
    except ValueError as error:
        print(type(error).__name__, error)
    sys.modules.pop("triton")
"""


def test_without_triton_and_without_a_gpu_it_says_so_and_the_cure() -> None:
    done = _python("-c", REFUSED)
    assert done.returncode == 0, done.stderr
    absent, elsewhere = done.stdout.splitlines()
    assert absent.startswith("ConfigError routing.impl=triton needs triton, which is not installed")
    assert elsewhere.startswith("ConfigError routing.impl=triton needs a GPU, and these votes are ")
    for message in (absent, elsewhere):
        assert "set routing.impl=fast or routing.impl=reference" in message


def test_the_kernels_compile_for_a_gpu_without_atomics_and_tensor_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = _python(str(SUPPORT / "compiled_kernels.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
