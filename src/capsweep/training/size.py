"""The cost of a cell: the computed size of its network, and the measured time of its steps.

A calibration trains a few steps to measure their time. The caller of `calibrate` stores the
measurement. The drivers of sweeps import this module, so it imports torch only inside functions.
"""

import gc
import importlib.metadata
import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from typing import TYPE_CHECKING, Any

from capsweep.config import code_identity
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import ConfigError
from capsweep.ledger.records import Measurement
from capsweep.storage.checked import compute_once

if TYPE_CHECKING:
    from capsweep.data.batches import BatchLoader
    from capsweep.training.module import CapsuleTask

LABELS = "labels_per_image"
STEPS, WARM_UP = 20, 3  # timed and untimed steps of a calibration
# Minimum time in seconds of all timed steps on a GPU. The time must be longer than one second,
# because NVML reports the utilisation of the last second.
BUSY = 4.0


@dataclass(frozen=True)
class Size:
    """The size of a network: its parameters and its floating-point operations."""

    parameters: int  # number of parameters
    # Floating-point operations of the forward pass of one image. Only the multiplications and
    # additions in matrix products and convolutions are counted. A decoder is included.
    flops: int


@dataclass(frozen=True)
class Layer:
    """The size of one module of a network, without the modules inside it.

    Attributes:
        name: The path of the module in the network.
        output_shape: The shape of the module's output for one image. If the output consists of
            several tensors, the shape of the first. None: the module was not called.
        parameters: The number of parameters.
        flops: Floating-point operations for one image, counted as in `Size`.
        votes: The number of votes for one image: one for each pair of a child and a parent. The
            number does not depend on the number of routing iterations.
    """

    name: str
    output_shape: tuple[int, ...] | None
    parameters: int
    flops: int
    votes: int


def measure_size(config: Mapping[str, Any]) -> Size:
    """Compute the size of the network of a canonical configuration.

    The network is built on the meta device, where tensors take no memory. The size is cached on
    disk. A later call with the same configuration and the same code does not import torch.

    Raises:
        ConfigError: If a `_target_` may not be called, if sizes do not fit together, or if
            `trainer.fused_optimizer` is true and the optimiser has no fused form.
    """

    def measure() -> dict[str, int]:
        layers = measure_layers(config)
        return {key: sum(getattr(one, key) for one in layers) for key in ("parameters", "flops")}

    return Size(**compute_once("sizes", _cache_key(config), measure))


def measure_layers(config: Mapping[str, Any]) -> list[Layer]:
    """Compute the size of each module in the network of a canonical configuration.

    The first entry is the network without the modules inside it. Containers such as Sequential are
    left out. One image passes through the network on the meta device, where torch computes only
    shapes.

    Raises:
        ConfigError: If a `_target_` may not be called, if sizes do not fit together, or if
            `trainer.fused_optimizer` is true and the optimiser has no fused form. The message names
            the key.
    """
    network, flops, shapes = _profile_forward(config)
    return [
        Layer(
            name=name or "(network)",
            output_shape=shapes.get(name),
            parameters=sum(parameter.numel() for parameter in module.parameters(recurse=False)),
            flops=flops[name],
            votes=getattr(module, "votes_per_image", 0),
        )
        for name, module in network.named_modules()
        if type(module).__name__ not in ("Sequential", "ModuleList")
    ]


def _profile_forward(config: Mapping[str, Any]) -> tuple[Any, Counter[str], dict[str, Any]]:
    """Pass one image through a network on the meta device.

    Returns:
        The network, the FLOPs of each module, and the output shape of each module that was called.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from capsweep.model.routing import find_layers
    from capsweep.training import build

    build.check_targets(config)
    build.build_optimizer(config)
    dataset = config["dataset"]
    flops: Counter[str] = Counter()
    shapes: dict[str, Any] = {}
    running = [""]  # the names of the running modules, the innermost last
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = build.build_network(config)
        for layer in find_layers(network):
            layer.impl = "reference"  # its FLOPs are reported for every implementation
        names = {module: name for name, module in network.named_modules()}

        def enter_module(module: Any, *_: Any) -> None:
            flops[running[-1]] += counter.get_total_flops() - flops.total()
            running.append(names[module])

        def leave_module(module: Any, _: Any, output: Any) -> None:
            flops[running[-1]] += counter.get_total_flops() - flops.total()
            first = output if isinstance(output, torch.Tensor) else output[0]
            shapes.setdefault(running.pop(), tuple(first.shape[1:]))

        for module in names:
            module.register_forward_pre_hook(enter_module)
            module.register_forward_hook(leave_module)
        try:
            output = network(torch.empty(1, *dataset["image_shape"]))
            if (decoder := getattr(network, "decoder", None)) is not None:
                for _ in range(dataset.get(LABELS, 1)):  # one reconstruction per class in an image
                    decoder(output.pose_BJD, torch.empty(1, dataset["num_classes"]))
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"model={config['model']['name']}: {reason}") from error
    return network, flops, shapes


def _cache_key(config: Mapping[str, Any]) -> str:
    """Build a cache key from all settings and code on which `measure_layers` depends."""
    libraries = ("torch", "torchvision", "pytorch-lightning")  # a `_target_` may be in a library
    code = [code_identity.hash_package(), *map(importlib.metadata.version, libraries)]
    targets = sorted(str(target) for _, target in code_identity.find_targets(config))
    fused = config["optim"]["optimizer"]["_target_"], config["trainer"]["fused_optimizer"]
    dataset = [config["dataset"].get(key) for key in ("image_shape", "num_classes", LABELS)]
    decides = [code, config["model"], config["routing"], dataset, targets, fused]
    return json.dumps(decides, sort_keys=True)


def calibrate(cell: Cell, places: Places) -> Measurement:
    """Measure the time and memory of a cell in a few training steps and a test batch.

    The cell's network is trained on the cell's data, first for WARM_UP untimed steps, then for
    STEPS timed steps. On a GPU, more steps are timed until all timed steps together took BUSY
    seconds. Then a test batch is evaluated and timed. No file is written. At the end, the random
    state and the number of threads are restored, and memory is freed.

    Args:
        cell: The cell.
        places: The folders on this node.

    Raises:
        ConfigError: If this node has no device for the cell, or if the network, loss or optimiser
            cannot be built with the settings of the cell.
        DataError: If the data cannot be used.
    """
    from capsweep.runtime.lightning import isolate_rng
    from capsweep.training.devices import using_threads

    with isolate_rng(), using_threads(cell.config["trainer"]["threads"]):
        try:
            return _measure_steps(cell, places)
        finally:
            gc.collect()


def _measure_steps(cell: Cell, places: Places) -> Measurement:
    import torch

    from capsweep.data.batches import EvaluationLoader
    from capsweep.data.images import EVALUATION_BATCH
    from capsweep.training import build, devices, provenance

    started = time.perf_counter()
    config, device = cell.config, devices.choose_device(cell.config)
    task, parts = build.prepare_training(cell, str(places.data), device)
    task.to(device)
    train = parts["train"].make_loader(config["batch_size"], config["seed"])
    startup = time.perf_counter() - started
    seconds = _time_training(task, train)
    utilisation, total = None, None
    if device.type == "cuda":
        with suppress(ModuleNotFoundError, RuntimeError):  # if NVIDIA's package is absent
            utilisation = torch.cuda.utilization(device) / 100
        total = torch.cuda.get_device_properties(device).total_memory
    evaluation_seconds = _time_evaluation(task, EvaluationLoader(parts["test"], EVALUATION_BATCH))
    memory = devices.read_memory_peak()
    if device.type == "cuda":  # includes the graphs, which exist during validation
        memory["gpu"] = devices.read_taken_memory()
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


def _time_training(task: "CapsuleTask", loader: "BatchLoader") -> list[float]:
    """Train some steps, and return the seconds of each step after the warm-up.

    The seconds include the work on the device.
    """
    # The task keeps the graphs, so that their memory is measured too.
    captured = task.captured = task.make_graphs(task.make_optimizer(task.network))
    margin = task.objective.margin_at(0, 1)
    task.train()
    least = BUSY if task.device.type == "cuda" else 0.0
    seconds: list[float] = []
    batches = iter(cycle(islice(loader, STEPS)))
    while len(seconds) < WARM_UP + STEPS or sum(seconds[WARM_UP:]) < least:
        started = time.perf_counter()
        float(captured.train(next(batches), margin))  # waits for the device
        seconds.append(time.perf_counter() - started)
    return seconds[WARM_UP:]


def _time_evaluation(task: "CapsuleTask", loader: "BatchLoader") -> float:
    """Test a batch twice, and return the seconds per image of the second test.

    The first test does not count, because it includes preparations.
    """
    import torch

    batch, seconds = next(iter(loader)), 0.0
    task.eval()
    for _ in range(2):
        started = time.perf_counter()
        with torch.no_grad():
            task.test_step(batch, 0)
        task.metrics["test"].compute("test")  # waits for the device
        seconds = time.perf_counter() - started
    return seconds / len(batch.labels)
