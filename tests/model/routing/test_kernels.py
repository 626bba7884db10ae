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
from capsweep.model.routing import LayerSizes, describe_routing
from capsweep.model.routing.dynamic import DynamicRouting
from capsweep.model.votes import Votes

pytest.importorskip("triton", reason="triton is not installed (make check installs it on Linux)")

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
from capsweep.model.capsules import find_fault_of_kernels
from capsweep.model.routing.dynamic import triton_route
from capsweep.model.votes import Votes
sys.stderr = sys.stdout
{before}
for _ in range(2):
    try:
        triton_route(Votes(torch.ones(1, 2, 3), torch.ones(2, 4, 5, 3)), 2)
    except ValueError as error:
        print(type(error).__name__, error)
"""


def test_kernels_that_cannot_run_are_found_out_once_and_told_with_the_cure() -> None:
    failed, *twice = _python("-c", REFUSED.format(before="")).splitlines()
    assert failed.startswith("Triton kernels cannot run on cpu, so torch operations are used: ")
    absent = _python("-c", REFUSED.format(before="sys.modules['triton'] = None")).splitlines()
    assert "import of triton halted" in absent[0]
    for lines in (twice, absent):
        assert len(lines) == 2
        assert len(set(lines)) == 1
        assert lines[0].startswith("ConfigError routing.impl=triton cannot run on cpu (it needs tr")
        assert lines[0].endswith("; set routing.impl=auto, fast or reference")
    if "TRITON_INTERPRET" in os.environ:
        assert find_fault_of_kernels(torch.device("cpu")) is None


def test_the_kernels_compile_for_a_gpu_without_atomics_tensor_cores_and_spilled_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert _python(str(SUPPORT / "compiled_kernels.py")) == ""
