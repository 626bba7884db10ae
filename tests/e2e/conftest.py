"""Small sweeps and the real command."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import commands
import pytest

SMALL = """\
question: Does the small sweep work?
base: [epochs=2, limit_batches=2, batch_size=16, trainer.accelerator=cpu]
seeds: [0, 1]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small, "model.hidden=8"]}
  capsnet:
    fixed: [model.conv.channels=8, model.primary.types=2]
    space: {routing.num_iters: [1, 3], loss.reconstruction.weight: [0, 0.0005]}
table:
  rows: [arm, routing.num_iters, loss.reconstruction.weight]
  columns: [dataset]
  metric: test/error
published: {source: nowhere, values: [{arm: cnn, dataset: mnist, value: 0.5}]}
"""

Capsweep = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def small_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep file of two seeds, a CNN and four CapsNet places; seconds to run."""
    path = tmp_path_factory.mktemp("sweeps") / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="session")
def capsweep(clean_environment: dict[str, str]) -> Capsweep:
    """Runs `capsweep ARGUMENTS` in a process of its own."""

    def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return commands.run(["-m", "capsweep", *arguments], {**clean_environment, **environment})

    return run_command
