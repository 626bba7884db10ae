"""Where the kernels of a routing are run."""

import os

import pytest
import torch


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Where tensors are: the interpreter's on a CPU, the compiled kernels' on a GPU."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU: the compiled kernels are not run")
    if request.param == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON_INTERPRET is not 1: the kernels are compiled")
    return request.param
