"""The sweep that tests of commands evaluate."""

from pathlib import Path

import pytest

SWEEP = """\
question: Are three better than one?
base: [epochs=1, limit_batches=1, batch_size=16, trainer.accelerator=cpu, logger=csv]
seeds: [0, 1, 2]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small, "model.hidden=8"]}
  capsnet: {fixed: [model.conv.channels=8, model.primary.types=2, "model.decoder.hidden=[16]"]}
table: {rows: [arm], columns: [dataset], metric: test/error}
published: {source: a paper, values: [{arm: capsnet, dataset: mnist, value: 0.0025}]}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of two arms and three seeds."""
    path = tmp_path / "three.yaml"
    path.write_text(SWEEP)
    return path
