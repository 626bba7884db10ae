"""A calibration: a few real training steps, timed, that leave nothing behind."""

import gc
import time
from collections.abc import Callable
from itertools import cycle, islice
from statistics import fmean, median

import torch
from torch import nn

from capsweep.config.cell import Cell, hash_shape
from capsweep.config.places import Places
from capsweep.data.batches import Batch, BatchLoader, EvaluationLoader
from capsweep.data.module import EVALUATION_BATCH, prepare_splits
from capsweep.lightning import isolate_rng
from capsweep.training import build, devices, provenance
from capsweep.training.devices import using_threads
from capsweep.training.module import CapsuleTask, make_task
from capsweep.training.size import Measurement

STEPS, WARM_UP = 20, 3
# Seconds of steps on a GPU at least, and between two looks at how busy it is: NVML tells of the
# last second at most.
BUSY, LOOK = 4.0, 1.0


def calibrate(cell: Cell, places: Places, steps: int = STEPS) -> Measurement:
    """Train the cell's own network on its own data for `steps` timed steps, after a warm-up; on a
    GPU for BUSY seconds at least.

    Of a cell for several devices: what one has to do with its share of each batch, without what
    they tell each other; its memory is that of one device.
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
    device = torch.device("cuda" if devices.on_gpus(cell.config) else "cpu")
    task = make_task(cell).to(device)
    train, evaluation = _make_loaders(cell, places, device)
    startup = time.perf_counter() - started
    busy: list[float | None] = []
    least = BUSY if device.type == "cuda" else 0.0
    seconds = _train(
        cell, task, train, WARM_UP + steps, least, lambda: busy.append(_read_utilisation(device))
    )[WARM_UP:]
    known = [share for share in busy if share is not None]
    evaluation_seconds = _time_evaluation(cell, task, evaluation)
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    return Measurement(
        shape=hash_shape(cell),
        hardware=provenance.name_hardware(devices.count_devices(cell.config)),
        seconds_per_step=median(seconds),
        evaluation_seconds_per_image=evaluation_seconds,
        startup_seconds=startup,
        peak_memory_bytes=_reserved_memory_peak(device),
        utilisation=fmean(known) if known else None,
        device_memory_bytes=total,
        steps=len(seconds),
    )


def _make_loaders(
    cell: Cell, places: Places, device: torch.device
) -> tuple[BatchLoader, EvaluationLoader]:
    config = cell.config
    parts = prepare_splits(
        build.build_source(config),
        str(places.data),
        build.build_presenter(config),
        config["dataset"]["validation"],
        device,
        image_shape=config["dataset"]["image_shape"],
    )
    ranks = devices.count_devices(config)
    loader = parts["train"].make_loader(config["batch_size"], config["seed"], 0, ranks)
    return loader, EvaluationLoader(parts["test"], EVALUATION_BATCH)


def _train(
    cell: Cell,
    task: CapsuleTask,
    loader: BatchLoader,
    steps: int,
    least: float,
    look: Callable[[], object],
) -> list[float]:
    """Seconds of each step, the device's work included: `steps` of them, and more until those after
    the warm-up took `least` seconds. look: called after every LOOK seconds of these.
    """
    optimizer = task.make_optimizer(task.network)
    task.train()
    seconds: list[float] = []
    passed = looked = 0.0
    batches = iter(cycle(islice(loader, steps)))
    while len(seconds) < steps or passed < least:
        begun = time.perf_counter()
        with _autocast_precision(cell, task.device):
            losses = task.objective(task.network, next(batches))
        losses.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        float(losses.total.detach())  # waits for the device
        seconds.append(time.perf_counter() - begun)
        if len(seconds) > WARM_UP:
            passed += seconds[-1]
        if passed - looked >= LOOK:
            looked = passed
            look()
    return seconds


def _autocast_precision(cell: Cell, device: torch.device) -> torch.autocast:
    mixed = cell.config["precision"] == "bf16-mixed"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed)


def _time_evaluation(cell: Cell, task: CapsuleTask, loader: EvaluationLoader) -> float:
    """Seconds per image, of one batch; what compiles for it is not counted."""
    batch: Batch = next(iter(loader))
    network: nn.Module = task.network.eval()
    seconds = 0.0
    for _ in range(1 if cell.config["trainer"]["compile"] is None else 2):
        begun = time.perf_counter()
        with torch.no_grad(), _autocast_precision(cell, task.device):
            float(task.objective(network, batch).total)
        seconds = time.perf_counter() - begun
    return seconds / len(batch.labels)


def _reserved_memory_peak(device: torch.device) -> dict[str, int | None]:
    """As `devices.read_memory_peak`, but on the GPU what is reserved: others cannot have that."""
    if device.type != "cuda":
        return devices.read_memory_peak()
    return devices.read_memory_peak() | {"gpu": torch.cuda.max_memory_reserved(device)}


def _read_utilisation(device: torch.device) -> float | None:
    """Of the GPU in its last second, 0..1; None without one, or without NVIDIA's bindings."""
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.utilization(device) / 100
    except (ModuleNotFoundError, RuntimeError):
        return None
