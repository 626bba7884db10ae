"""A calibration: a few real training steps, timed, that leave nothing behind."""

import gc
import time
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from statistics import median

import torch
from torch import nn

from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.data.batches import Batch, BatchLoader, EvaluationLoader
from capsweep.data.splits import EVALUATION_BATCH
from capsweep.runtime.lightning import isolate_rng
from capsweep.training import build, devices, provenance
from capsweep.training.devices import using_threads
from capsweep.training.fit import make_task
from capsweep.training.graphs import StepGraphs
from capsweep.training.module import CapsuleTask
from capsweep.training.size import Measurement
from capsweep.training.step import autocast

STEPS, WARM_UP = 20, 3
BUSY = 4.0  # seconds of steps on a GPU at least: NVML tells how busy it was in the last one


def calibrate(cell: Cell, places: Places, steps: int = STEPS) -> Measurement:
    """Train the cell's own network on its own data for `steps` timed steps, after a warm-up; on a
    GPU for BUSY seconds at least.

    Random state and thread count are as before, memory is freed; nothing is written. Raises
    ConfigError, before all else, for a `_target_` that may not be called.
    """
    build.check_targets(cell.config)
    with isolate_rng(), using_threads(cell.config["trainer"]["threads"]):
        try:
            return _measure_steps(cell, places, steps)
        finally:
            gc.collect()


def _measure_steps(cell: Cell, places: Places, steps: int) -> Measurement:
    devices.start_memory_peak()
    started = time.perf_counter()
    config = cell.config
    device = devices.choose_device(config)
    if device.type == "cpu":
        devices.keep_freed_memory()
    task = make_task(cell).to(device)
    parts = build.load_splits(config, str(places.data), device)
    train = parts["train"].make_loader(config["batch_size"], config["seed"])
    startup = time.perf_counter() - started
    captured = task.make_graphs(task.make_optimizer(task.network))
    seconds = _train(task, captured, train, steps)
    utilisation = _read_utilisation(device)
    evaluation = EvaluationLoader(parts["test"], EVALUATION_BATCH)
    evaluation_seconds = _time_evaluation(task, evaluation)
    memory, total = devices.read_memory_peak(), None
    if device.type == "cuda":  # with the graphs, which are there when a cell is validated
        memory["gpu"] = devices.read_taken_memory()
        total = torch.cuda.get_device_properties(device).total_memory
    return Measurement(
        shape=cell.shape,
        hardware=provenance.name_hardware(),
        seconds_per_step=median(seconds),
        evaluation_seconds_per_image=evaluation_seconds,
        startup_seconds=startup,
        peak_memory_bytes=memory,
        utilisation=utilisation,
        device_memory_bytes=total,
        steps=len(seconds),
    )


def _train(task: CapsuleTask, captured: StepGraphs, loader: BatchLoader, steps: int) -> list[float]:
    """Return the seconds of each step after the warm-up, the device's work included."""
    margin = task.objective.margin_at(0, 1)
    task.train()
    least = BUSY if task.device.type == "cuda" else 0.0
    seconds: list[float] = []
    batches = iter(cycle(islice(loader, steps)))
    while len(seconds) < WARM_UP + steps or sum(seconds[WARM_UP:]) < least:
        begun = time.perf_counter()
        float(captured.train(next(batches), margin))  # waits for the device
        seconds.append(time.perf_counter() - begun)
    return seconds[WARM_UP:]


def _time_evaluation(task: CapsuleTask, loader: EvaluationLoader) -> float:
    """Return seconds per image of a batch, the second time: what only the first one prepares is not
    counted.
    """
    batch: Batch = next(iter(loader))
    network: nn.Module = task.network.eval()
    seconds = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        with torch.no_grad(), autocast(task.config["precision"], task.device):
            for _, losses in task.parts.evaluate(batch, partial(task.objective, network)):
                float(losses.total)
        seconds = time.perf_counter() - begun
    return seconds / len(batch.labels)


def _read_utilisation(device: torch.device) -> float | None:
    """Of the GPU in its last second, 0..1; None without one, or without NVIDIA's bindings."""
    if device.type == "cuda":
        with suppress(ModuleNotFoundError, RuntimeError):
            return torch.cuda.utilization(device) / 100
    return None
