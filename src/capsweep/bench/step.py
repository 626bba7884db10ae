"""Whole training steps: forward, objective, backward, Adam, of the CapsNet of the paper and of the
matrix capsule network with EM routing.

The baselines of the CapsNet are what public code does: their routing, torch's plain Adam, single
precision. Ours is what a cell trains, its network and optimiser made as for a cell. EM routing is
compared with its reference.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capsweep.bench import machine
from capsweep.bench.candidates import (
    BASELINES,
    Results,
    Seconds,
    check_parity,
    make_row,
    median_ratio,
    time_in_turns,
)
from capsweep.bench.results import BenchReport, Measured
from capsweep.bench.routing import Route, replace_routing, route_by_bmm, route_by_textbook
from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.training import devices
from capsweep.training.devices import using_threads
from capsweep.training.module import make_task
from capsweep.training.objective import Losses

BATCH = 128
GATE_BATCH = 8
CAPSNET = ("model=capsnet", "dataset=digits", "routing.num_iters=3")
# Largest error of a tensor in units of its largest number, by precision.
TOLERANCE = {"32": 1e-3, "bf16-mixed": 0.2}
NOTE = (
    f"Steps of `capsweep train model=capsnet routing.num_iters=3` with its decoder, on {BATCH} "
    "images that are there already. The baselines take plain Adam in single precision; ours count "
    "a cell's metrics too. Extra memory is by how much a fresh process grows in a step, parameters "
    "and Adam's moments not counted."
)
EM_BATCH = 8
EM_NETWORK = ("model=matrix_capsnet", "routing=em", "dataset=smallnorb", "loss=spread")
EM_SMALL, EM_LARGE = "64,8,16,16", "32,32,32,32"
EM_SIZES = {
    EM_SMALL: (),
    EM_LARGE: (
        *("model.conv.channels=32", "model.primary.types=32"),
        "model.capsules.types=[32,32]",
    ),
}
EM_FASTEST = {2: 60.0, 3: 45.0}  # images a second, by routing iterations
EM_LARGEST = {EM_SMALL: 0.75, EM_LARGE: 2.0}  # GB
EM_TOLERANCE = 1e-4
EM_NOTE = f"Steps (forward, spread loss, backward, Adam) on {EM_BATCH} images of smallNORB's size."


@dataclass(frozen=True)
class StepCandidate:
    """One way to train. route: of a baseline; None: ours, as the cell says. compiled: the network
    by torch.compile, replayed by CUDA graphs. overrides: of the network that is trained.
    """

    impl: str
    precision: str = "32"
    route: Route | None = None
    compiled: bool = False
    overrides: tuple[str, ...] = CAPSNET

    @property
    def cell(self) -> Cell:
        """The cell that it trains, or whose training a baseline replaces."""
        implementation = [f"routing.impl={self.impl}", f"precision={self.precision}"]
        graphs = ["trainer.compile=reduce-overhead"] if self.compiled else []
        return compose.cell([*self.overrides, *implementation, *graphs])


def list_candidates() -> dict[str, StepCandidate]:
    """By name. On a GPU also Triton's kernel, and a compiled network."""
    candidates = {
        "textbook": StepCandidate("reference", route=route_by_textbook),
        "bmm": StepCandidate("reference", route=route_by_bmm),
    }
    for impl in ("fast", "triton") if machine.is_gpu() else ("fast",):
        for name, precision in (("fp32", "32"), ("bf16", "bf16-mixed")):
            candidates[f"{impl} {name}"] = StepCandidate(impl, precision)
            if machine.is_gpu():
                candidates[f"{impl} {name} graphs"] = StepCandidate(impl, precision, compiled=True)
    return candidates


class StepTraining:
    """A candidate in training on one batch, again and again."""

    def __init__(self, candidate: StepCandidate, images: int = BATCH) -> None:
        self.candidate = candidate
        self.task = make_task(candidate.cell).to(machine.get_device())
        self.network = self.task.network.train()
        if candidate.route is None:
            self.optimizer = self.task.make_optimizer(self.network)
        else:
            replace_routing(self.network, candidate.route)
            _lay_out_plainly(self.network)
            self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.001)
        self.batch = make_batch(candidate.cell, images)

    def run_step(self, batch: Batch | None = None) -> None:
        """One step."""
        batch = batch or self.batch
        losses = self._run_backward(batch)
        if self.candidate.route is None:
            self.task.train_metrics.update(losses, batch)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def compute_results(self) -> Results:
        """Scores, loss and all gradients of the first step."""
        losses = self._run_backward(self.batch)
        gradients = {
            f"gradient of {name}": parameter.grad.clone()
            for name, parameter in self.network.named_parameters()
            if parameter.grad is not None
        }
        return {"scores": losses.scores_BN, "loss": losses.total, **gradients}

    def _run_backward(self, batch: Batch) -> Losses:
        is_mixed = self.candidate.precision == "bf16-mixed"
        with torch.autocast(machine.get_device().type, dtype=torch.bfloat16, enabled=is_mixed):
            losses = self.task.objective(self.network, batch)
        losses.total.backward()
        return losses


def _lay_out_plainly(network: nn.Module) -> None:
    """Weights of convolutions in torch's own order, also those of one channel, whose strides can
    say either.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.data
            plain = torch.empty_like(weight, memory_format=torch.contiguous_format)
            module.weight.data = plain.copy_(weight)


def make_batch(cell: Cell, images: int) -> Batch:
    """Uniform pixels, classes in turn."""
    dataset = cell.config["dataset"]
    generator = torch.Generator().manual_seed(0)
    images_BCHW = torch.rand(images, *dataset["image_shape"], generator=generator)
    labels_B = torch.arange(images) % dataset["num_classes"]
    return Batch(images_BCHW.to(machine.get_device()), labels_B.to(machine.get_device()))


def check_candidates() -> None:
    """Raise ParityError unless all candidates give the scores, loss and gradients of the reference,
    as precisely as they compute.
    """
    expected = StepTraining(StepCandidate("reference"), GATE_BATCH).compute_results()
    results = {
        name: (
            StepTraining(candidate, GATE_BATCH).compute_results(),
            TOLERANCE[candidate.precision],
        )
        for name, candidate in list_candidates().items()
    }
    check_parity(expected, results)


def prepare_step(candidate: StepCandidate) -> Callable[[], object]:
    """One step of a candidate, after one on two images."""
    training = StepTraining(candidate)
    training.run_step(make_batch(candidate.cell, 2))
    return training.run_step


def measure_step(budget: float = 20.0) -> BenchReport:
    """All candidates. budget: least seconds. Raises ParityError before it measures."""
    with using_threads(machine.THREADS):
        check_candidates()
        candidates = list_candidates()
        print("step: memory", file=sys.stderr, flush=True)
        extra = {n: machine.measure_extra_memory(prepare_step, c) for n, c in candidates.items()}
        steps = {name: StepTraining(candidate).run_step for name, candidate in candidates.items()}
        seconds = time_in_turns(steps, budget)
    rows = [make_row(seconds, name, BATCH, extra[name]) for name in candidates]
    return BenchReport(judge_steps(seconds, rows), rows, [NOTE])


def judge_steps(seconds: Seconds, rows: list[dict[str, Any]]) -> list[Measured]:
    """The bars of the training step."""
    bf16, fp32 = (median_ratio(seconds, "textbook", f"fast {kind}") for kind in ("bf16", "fp32"))
    no_bf16 = machine.reason_to_skip() or (None if _has_amx() else "no AMX in this processor")
    ours = [row["images/s"] for row in rows if row["candidate"] not in BASELINES]
    fastest, no_gpu = (max(ours), None) if machine.is_gpu() else (None, "no GPU")
    what = "step: images a second on a GPU, the fastest of ours"
    return [
        Measured("step: bf16 over textbook fp32", bf16, "x", 3.5, True, no_bf16),
        Measured("step: fp32 over textbook fp32", fp32, "x", 1.7, True, machine.reason_to_skip()),
        Measured(what, fastest, "images/s", 60_000, True, no_gpu),
    ]


def _has_amx() -> bool:
    """Whether the processor multiplies matrices of bfloat16 by itself (Linux says so)."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text().split()


def make_em_training(impl: str, num_iters: int, size: str = EM_SMALL) -> StepTraining:
    """The network of a size in training."""
    overrides = (*EM_NETWORK, f"routing.num_iters={num_iters}", *EM_SIZES[size])
    return StepTraining(StepCandidate(impl, overrides=overrides), EM_BATCH)


def measure_em(steps: int = 30) -> BenchReport:
    """Speed of the fastest step at two and three iterations, turn by turn in one process, and
    memory at three, the peak of a process started for it. Raises ParityError, before anything is
    measured, where the versions do not compute the same.
    """
    measured: list[Measured] = []
    with using_threads(machine.THREADS):
        for num_iters, bar in EM_FASTEST.items():
            fast, reference = (make_em_training(impl, num_iters) for impl in ("fast", "reference"))
            results = {"fast": (fast.compute_results(), EM_TOLERANCE)}
            check_parity(reference.compute_results(), results)
            calls = {"fast": fast.run_step, "reference": reference.run_step}
            seconds = time_in_turns(calls, budget=0, least=steps)
            what = f"EM routing, T = {num_iters}: training"
            speed, slower = (EM_BATCH / min(seconds[name]) for name in calls)
            skipped = machine.reason_to_skip()
            measured += [
                Measured(what, speed, "images/s", bar, at_least=True, skipped=skipped),
                Measured(f"{what} over the reference", speed / slower, "x"),
            ]
    for size, bar in EM_LARGEST.items():
        peak = machine.call_in_fresh_process(train_and_read_peak, size)
        measured.append(Measured(f"EM routing, T = 3, {size}: peak memory", peak / 1e9, "GB", bar))
    return BenchReport(measured, notes=[EM_NOTE])


def train_and_read_peak(size: str) -> int:
    """The largest memory in bytes that this process has had, after three steps."""
    with using_threads(machine.THREADS):
        training = make_em_training("fast", 3, size)
        for _ in range(3):
            training.run_step()
    peak = devices.read_memory_peak()["process"]
    if peak is None:
        raise RuntimeError("this system does not say its peak memory: run on Linux")
    return peak
