"""Dynamic routing by Triton kernels is the reference: interpreted on a CPU, compiled on a GPU; in a
network, on the wrong machine, and compiled for another.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import importlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from procedure_1 import AWKWARD, Layer, Size, layer
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton_layers import SMALL, assert_as_reference, gradients_of, outputs_of, placed, routed_by

from capsweep.errors import ConfigError
from capsweep.model.routing import dynamic
from capsweep.model.routing.dynamic_triton import triton_route
from capsweep.model.votes import ConvolutionalVotes, Votes

pytest.importorskip("triton", reason="triton is not installed (it is on Linux, in the dev extra)")

SUPPORT = Path(__file__).resolve().parents[2] / "support"
COMBINATIONS = [*itertools.product([False, True], repeat=3)]


@pytest.mark.parametrize("gradient", dynamic.GRADIENTS)
@pytest.mark.parametrize("num_iters", [1, 3])
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_every_combination_of_options_is_the_reference(
    device: str, combination: tuple[bool, bool, bool], num_iters: int, gradient: str
) -> None:
    assert_as_reference(placed(layer(SMALL), device), num_iters, combination, gradient)


@pytest.mark.parametrize(
    "size", [*AWKWARD, (1, 33, 11, 8, 16), (3, 2, 10, 17, 4), (2, 7, 3, 4, 5)], ids=str
)
def test_awkward_sizes_are_the_reference(device: str, size: Size) -> None:
    assert_as_reference(placed(layer(size), device), num_iters=2)


@at_most_examples(6)
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
    chosen = placed(layer(sizes, seed), where)
    assert_as_reference(chosen, num_iters, combination, gradient)


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
    device: str, name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = importlib.import_module("capsweep.model.routing.dynamic_kernels")
    monkeypatch.setattr(launches, name, value)
    assert_as_reference(placed(layer((3, 4, 3, 3, 2)), device), num_iters=2)


def test_in_single_precision_the_difference_is_rounding(device: str) -> None:
    chosen = placed(layer((3, 4, 5, 4, 6)), device, torch.float32)
    assert_as_reference(chosen, tolerance=2e-4)


def test_two_runs_have_the_same_bits(device: str) -> None:
    chosen = placed(layer((3, 4, 5, 4, 6)), device, torch.float32)
    runs = []
    for _ in range(2):
        routed = routed_by(triton_route, chosen, 3, (True, True, False))
        runs.append([*outputs_of(routed), *gradients_of(routed, chosen)])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_views_that_are_not_contiguous_are_routed_alike(device: str) -> None:
    chosen = placed(layer(SMALL), device)
    turned = [x.detach().mT.contiguous().mT.requires_grad_() for x in chosen]
    assert_as_reference(Layer(*turned))


@pytest.mark.parametrize("gradient", dynamic.GRADIENTS)
@pytest.mark.parametrize("scale", [0.0, 1e8], ids=["zero-votes", "huge-votes"])
def test_extreme_votes_give_finite_values_and_gradients(
    device: str, scale: float, gradient: str
) -> None:
    chosen = layer(SMALL)
    chosen = placed(chosen._replace(pose_BIP=scale * chosen.pose_BIP), device, torch.float32)
    routed = routed_by(triton_route, chosen, 3, (True, True, True), gradient=gradient)
    for tensor in (*outputs_of(routed), *gradients_of(routed, chosen)):
        assert tensor.isfinite().all()


def test_inside_autocast_it_computes_in_single_precision(device: str) -> None:
    chosen = placed(layer(SMALL), device, torch.float32)
    plain = routed_by(triton_route, chosen, 3, (True, True, True))
    expected = [*outputs_of(plain), *gradients_of(plain, chosen)]
    with torch.autocast(device, dtype=torch.bfloat16):
        routed = routed_by(triton_route, chosen, 3, (True, True, True))
        found = [*outputs_of(routed), *gradients_of(routed, chosen)]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_poses_in_half_precision_are_routed_in_single(device: str) -> None:
    chosen = placed(layer(SMALL), device, torch.float32)
    half_BIP = chosen.pose_BIP.detach().bfloat16().requires_grad_()
    routed = routed_by(triton_route, chosen._replace(pose_BIP=half_BIP), 2, (True, True, True))
    routed.pose_BJD.sum().backward()
    assert routed.pose_BJD.dtype == torch.float32
    assert half_BIP.grad.dtype == torch.bfloat16
    assert half_BIP.grad.abs().max() > 0


def test_a_second_derivative_is_refused(device: str) -> None:
    chosen = placed(layer(SMALL), device)
    value = routed_by(triton_route, chosen, 2, (True, False, False)).pose_BJD.square().sum()
    (gradient,) = torch.autograd.grad(value, chosen.pose_BIP, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# Dynamo looks at whether what enters an uncompiled part has a gradient, and warns itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_network_around_it_computes_the_same(device: str) -> None:
    chosen = placed(layer(SMALL), device)

    def network(pose_BIP: Tensor) -> Tensor:
        votes = Votes(2 * pose_BIP, chosen.weight_IJDP)
        return 3 * triton_route(votes, 2, chosen.bias_JD).pose_BJD

    found, expected = torch.compile(network, backend="eager"), network
    values = [f(chosen.pose_BIP) for f in (found, expected)]
    assert torch.equal(*values)
    grads = [torch.autograd.grad(value.square().sum(), chosen[:3]) for value in values]
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_tensors_without_numbers_pass_through() -> None:
    with FakeTensorMode():
        pose_BIP = torch.empty(2, 5, 4, requires_grad=True)
        weight_IJDP = torch.empty(5, 3, 6, 4, requires_grad=True)
        routed = triton_route(Votes(pose_BIP, weight_IJDP), 3)
        routed.pose_BJD.sum().backward()
    assert routed.pose_BJD.shape == (2, 3, 6)
    assert weight_IJDP.grad.shape == weight_IJDP.shape


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
from capsweep.model.routing.dynamic_triton import triton_route
from capsweep.model.votes import Votes
votes = Votes(torch.ones(1, 2, 3), torch.ones(2, 4, 5, 3))
assert "capsweep.model.routing.dynamic_kernels" not in sys.modules
there = sys.modules.pop("triton", None)  # torch may have imported it
sys.modules["triton"] = None  # as where it is not installed
for _ in range(2):
    try:
        triton_route(votes, 2)
    except ValueError as error:
        print(type(error).__name__, error)
    sys.modules.pop("triton")
    if there is not None:
        sys.modules["triton"] = there
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
