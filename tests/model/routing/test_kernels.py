"""The Triton kernels of dynamic routing, where they cannot run, and compiled for a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from capsweep.errors import ConfigError
from capsweep.model.routing.dynamic import triton_route
from capsweep.model.votes import ConvolutionalVotes

pytest.importorskip("triton", reason="triton is not installed (it is on Linux, in the dev extra)")

SUPPORT = Path(__file__).resolve().parents[2] / "support"


def test_votes_that_are_not_linear_are_refused_with_the_cure() -> None:
    numbers = torch.zeros(1, 1, 1, 2, 2)
    votes = ConvolutionalVotes(numbers, numbers[..., 0, 0], numbers, torch.zeros(1, 1).long())
    with pytest.raises(ConfigError, match=r"routing\.impl=triton .* set routing\.impl=fast"):
        triton_route(votes, 2)


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


def test_without_triton_and_without_a_gpu_it_says_so_and_the_cure() -> None:
    absent, elsewhere = _python("-c", REFUSED).splitlines()
    assert absent.startswith("ConfigError routing.impl=triton needs triton, which is not installed")
    assert elsewhere.startswith("ConfigError routing.impl=triton needs a GPU, and these votes are ")
    for message in (absent, elsewhere):
        assert "set routing.impl=fast or routing.impl=reference" in message


def test_the_kernels_compile_for_a_gpu_without_atomics_tensor_cores_and_spilled_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert _python(str(SUPPORT / "compiled_kernels.py")) == ""
