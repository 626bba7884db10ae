"""What a network costs, layer by layer, and the memory of a GPU that a training is counted as."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from trained_cells import train

from capsweep.config import compose
from capsweep.config.places import resolve
from capsweep.errors import ConfigError
from capsweep.training import devices
from capsweep.training.size import calibrate, measure_layers, measure_size

MIB = 2**20


def test_the_full_capsnet_on_mnist_has_the_papers_numbers() -> None:
    config = compose.cell(["model=capsnet", "dataset=mnist"]).config
    layer = {one.name: one for one in measure_layers(config)}
    assert sum(one.parameters for one in layer.values()) == 8_215_728
    assert layer["conv"].output_shape == (256, 20, 20)
    assert layer["conv"].flops == 2 * 256 * 81 * 20 * 20
    assert layer["primary"].output_shape == (1152, 8)
    assert layer["primary.conv"].parameters == 256 * 256 * 81 + 256
    assert layer["classes"].output_shape == (10, 16)
    assert layer["classes"].parameters == 1152 * 10 * 16 * 8
    assert layer["classes"].votes == 11_520  # 1,152 children, 10 parents
    assert sum(one.votes for one in layer.values()) == 11_520
    assert layer["classes.routing"].parameters == 160
    assert layer["decoder.layers.4"].output_shape == (784,)
    assert not {"", "decoder.layers"} & layer.keys()  # lists of layers are left out


@pytest.mark.parametrize(
    "target",
    ["capsweep.data.cifar10.tarfile.open", "torch.nn.functional.warnings.warn", "torch.optim.no"],
)
def test_a_path_that_leads_out_of_the_allowed_libraries_is_refused_by_name(
    target: str,
) -> None:
    config = compose.cell([f"optim.optimizer._target_={target}"]).config
    with pytest.raises(ConfigError, match=r"optim\.optimizer\._target_: "):
        measure_size(config)


def test_a_cell_is_counted_with_what_others_cannot_have_and_a_measured_one_with_all_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def say(**answers: Any) -> None:
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)

    # A GPU of 1,000 MiB that this process has alone, with 150 MiB beside torch's.
    say(is_available=True, empty_cache=None, max_memory_reserved=300 * MIB)
    say(mem_get_info=(550 * MIB, 1000 * MIB), memory_reserved=300 * MIB)
    assert devices.read_memory_peak()["gpu"] == 300 * MIB
    assert devices.read_taken_memory() == 450 * MIB
    say(mem_get_info=(650 * MIB, 1000 * MIB), memory_reserved=200 * MIB)
    assert devices.read_taken_memory() == 450 * MIB, "at its peak it had more"
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda: say(max_memory_reserved=200 * MIB)
    )
    devices.start_memory_peak()
    assert devices.read_memory_peak()["gpu"] == 200 * MIB, "what an earlier cell freed is not its"


@pytest.mark.gpu
def test_a_sweep_expects_at_least_what_a_captured_cell_takes(tmp_path: Path) -> None:
    small = ["logger=csv", "trainer.accelerator=gpu", "epochs=2", "limit_batches=6"]
    cell = compose.cell([*small, "dataset=digits", f"places.storage={tmp_path}"])
    measured = calibrate(cell, resolve(cell.config["places"]))
    gc.collect()
    recorded = train(cell)["peak_memory_bytes"]["gpu"]
    taken = measured.peak_memory_bytes["gpu"]
    assert 0 < recorded < taken
