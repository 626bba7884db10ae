"""The fast path in data-parallel training: two processes see half a batch each."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from capsweep.config import compose
from capsweep.training import build

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
chosen = ["model=capsnet_tiny", "routing.learned_prior=true", "loss.reconstruction.weight=0"]
config = compose.cell(chosen).config
assert config["routing"]["impl"] == "fast"
network = build.network(config)
images_BCHW = torch.rand(8, *config["dataset"]["image_shape"])
if rank >= 0:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    trained, images_BCHW = DistributedDataParallel(network), images_BCHW[rank::2]
else:
    trained = network
trained(images_BCHW).scores_BN.square().mean().backward()
gradients = {name: each.grad for name, each in network.named_parameters() if each.grad is not None}
torch.save(gradients, f"{folder}/{rank}.pt")
"""


def _process(rank: int, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(rank), str(folder)],
        stderr=subprocess.PIPE,
        text=True,
    )


def test_gradients_of_two_processes_are_those_of_one(tmp_path: Path) -> None:
    processes = [_process(rank, tmp_path) for rank in (-1, 0, 1)]
    for process in processes:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    alone, *halves = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (-1, 0, 1))
    assert "classes.routing.prior_IJ" in alone
    for half in halves:
        torch.testing.assert_close(half, alone, rtol=1e-4, atol=1e-6)
