"""What a worker of shards takes of a node's memory."""

from pathlib import Path

import numpy as np
import pytest
from disturbed_jobs import Measured, importable

from capsweep.data.shards.manifest import Content, Origin
from capsweep.data_prep.making.ray_tasks import RayTasks
from capsweep.data_prep.making.shard import Part
from capsweep.data_prep.making.work import MEMORY, Work
from capsweep.data_prep.multimnist import MultiMnist

pytestmark = [
    pytest.mark.slow,
    # Ray leaves its sockets and its files of logs to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_a_worker_stays_within_the_memory_that_its_task_asks_for(
    tmp_path: Path,
) -> None:
    """As many digits as MNIST has, and a shard of a quarter of a million examples."""
    notes, folder = tmp_path / "notes", tmp_path / "shards"
    notes.mkdir()
    folder.mkdir()
    job = Measured(as_many_digits_as_mnist(), notes)
    parts = [Part("train-00000.h5", "train", 0, 250_000), Part("test-00000.h5", "test", 0, 1000)]
    with importable():
        works = [Work(folder, part) for part in parts]
        outcomes = list(RayTasks().run(job, works, lambda: False))
    assert all(outcome.made for outcome in outcomes)
    assert max(job.peaks()) < MEMORY


def as_many_digits_as_mnist() -> MultiMnist:
    random = np.random.default_rng(0)
    counts = {"train": 60_000, "test": 10_000}
    digits = {
        split: (
            random.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8),
            random.integers(0, 10, count, dtype=np.uint8),
        )
        for split, count in counts.items()
    }
    settings = {"seed": 0, "margin": 4, "shift": 4, "validation": 0}
    content = Content("multimnist", 1, settings, Origin("noise", "0" * 64), counts)
    return MultiMnist(content, digits, with_sources=True)
