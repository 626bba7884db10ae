"""The Triton kernels of dynamic routing, where they cannot run, and compiled for a GPU."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from capsweep.model.capsules import find_fault_of_kernels
from capsweep.model.routing import LayerSizes, Route, describe_routing
from capsweep.model.routing.dynamic import DynamicRouting
from capsweep.model.votes import Votes

pytest.importorskip("triton", reason="triton is not installed (it is on Linux, in the dev extra)")

SUPPORT = Path(__file__).resolve().parents[2] / "support"


@pytest.fixture(name="votes")
def fixture_votes() -> Votes:
    """Linear ones of 4 images, 6 children and 3 parents."""
    noise = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=noise)
    return Votes(draw(4, 6, 2), draw(6, 3, 5, 2))


def make_layer(**options: Any) -> DynamicRouting:
    sizes = LayerSizes(children=6, parents=3, child_pose=2, parent_pose=5)
    return DynamicRouting(2, bias=True, sizes=sizes, **options)


def test_what_routed_is_told_and_a_trace_which_is_always_the_references_is_none(
    votes: Votes,
) -> None:
    chosen, named = make_layer(impl="auto"), make_layer(impl="reference")
    chosen(votes, with_trace=True)
    assert (describe_routing(chosen), describe_routing(named)) == ("auto", "reference")
    assert torch.equal(chosen(votes).pose_BJD, make_layer(impl="fast")(votes).pose_BJD)
    assert torch.equal(named(votes).pose_BJD, chosen(votes, with_trace=True).pose_BJD)
    assert (describe_routing(chosen), describe_routing(named)) == ("auto: fast", "reference")
    assert describe_routing(torch.nn.Linear(1, 1)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("normaliser", ["softmax", "sigmoid"])
def test_on_a_gpu_auto_is_triton_where_it_applies(normaliser: str, votes: Votes) -> None:
    layer = make_layer(impl="auto", normaliser=normaliser).cuda()
    routed = layer(Votes(votes.pose_BIP.cuda(), votes.weight_IJDP.cuda()))
    assert describe_routing(layer) == f"auto: {'triton' if normaliser == 'softmax' else 'fast'}"
    expected = make_layer(impl="reference", normaliser=normaliser)(votes)
    torch.testing.assert_close(routed.pose_BJD.cpu(), expected.pose_BJD, atol=1e-5, rtol=1e-4)
    layer.cpu()(votes)
    assert describe_routing(layer) == "auto: fast" + " or triton" * (normaliser == "softmax")


def test_of_several_implementations_auto_takes_the_last_that_can_route_these_votes() -> None:
    impls = {"reference": lambda *_, **__: 1, "fast": lambda *_, **__: 2, "best": lambda *_: 3}
    route = Route(impls, "auto", {"best": lambda votes, **options: votes > len(options)})
    assert [route(1), route(0), route(1, divided=True)] == [3, 2, 2]
    assert route.used == {"best", "fast"}


def _python(*arguments: str) -> str:
    """What a Python of its own prints, where Triton compiles, with this one's paths."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    ).stdout


REFUSED = """
import sys, torch
from capsweep.model.routing.dynamic import triton_route
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


FAULTS = """
import sys, torch
from capsweep.model.capsules import find_fault_of_kernels
sys.stderr = sys.stdout
{before}
for _ in range(2):
    print("fault:", find_fault_of_kernels(torch.device("cpu")))
"""


def test_kernels_that_cannot_run_are_found_out_once_and_told_but_for_an_absent_triton() -> None:
    failed, *twice = _python("-c", FAULTS.format(before="")).splitlines()
    assert failed.startswith("routing.impl=auto: torch's operations, since triton fails: ")
    assert len(set(twice)) == 1 < len(twice)
    absent = _python("-c", FAULTS.format(before="sys.modules['triton'] = None")).splitlines()
    assert absent == ["fault: import of triton halted; None in sys.modules"] * 2
    if "TRITON_INTERPRET" in os.environ:
        assert find_fault_of_kernels(torch.device("cpu")) is None


def test_without_triton_and_without_a_gpu_it_says_so_and_the_cure() -> None:
    absent, elsewhere = _python("-c", REFUSED).splitlines()
    assert absent.startswith("ConfigError routing.impl=triton needs triton, which is not installed")
    assert elsewhere.startswith("ConfigError routing.impl=triton needs a GPU, and these votes are ")
    for message in (absent, elsewhere):
        assert "set routing.impl=auto, fast or reference" in message


def test_the_kernels_compile_for_a_gpu_without_atomics_tensor_cores_and_spilled_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert _python(str(SUPPORT / "compiled_kernels.py")) == ""
