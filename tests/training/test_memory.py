"""The memory of a GPU that a training is counted as."""

import gc
from pathlib import Path

import pytest
import torch
from trained_cells import train

from capsweep.config import compose
from capsweep.config.places import resolve
from capsweep.training import devices, size

MIB = 2**20


class FakeMemory:
    """What torch says of a GPU of 1,000 MiB that this process has alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reserved, self.peak, self.cached, self.beside = 300, 300, 100, 150
        answers = {
            "is_available": lambda: True,
            "mem_get_info": lambda: ((1000 - self.beside - self.reserved) * MIB, 1000 * MIB),
            "memory_reserved": lambda: self.reserved * MIB,
            "max_memory_reserved": lambda: self.peak * MIB,
            "max_memory_allocated": lambda: 120 * MIB,
            "empty_cache": self.empty_cache,
            "reset_peak_memory_stats": self.reset_peak,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    def empty_cache(self) -> None:
        self.reserved, self.cached = self.reserved - self.cached, 0

    def reset_peak(self) -> None:
        self.peak = self.reserved


def test_a_cell_is_counted_with_what_others_cannot_have_and_a_measured_one_with_all_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = FakeMemory(monkeypatch)
    assert devices.read_memory_peak()["gpu"] == 300 * MIB
    assert devices.read_taken_memory() == 450 * MIB
    memory.empty_cache()
    assert devices.read_taken_memory() == 450 * MIB, "at its peak it had more"
    devices.start_memory_peak()
    assert devices.read_memory_peak()["gpu"] == 200 * MIB, "what an earlier cell freed is not its"


@pytest.mark.gpu
def test_a_sweep_expects_at_least_what_a_captured_cell_takes(tmp_path: Path) -> None:
    cell = compose.cell(
        [
            *("logger=csv", "trainer.accelerator=gpu", "epochs=2", "limit_batches=6"),
            *("dataset=digits", f"places.storage={tmp_path}"),
        ]
    )
    measured = size.calibrate(cell, resolve(cell.config["places"]))
    gc.collect()
    recorded = train(cell)["peak_memory_bytes"]["gpu"]
    taken = measured.peak_memory_bytes["gpu"]
    assert recorded is not None
    assert taken is not None
    assert 0 < recorded < taken
