"""Whole training steps: forward, objective, backward, Adam, of the CapsNet of the paper and of the
matrix capsule network with EM routing.

The baselines of the CapsNet are what public code does: their routing, torch's plain Adam, single
precision. Ours is what a cell trains, its network and optimiser made as for a cell. EM routing is
compared with its reference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capsweep.bench import comparison, machine
from capsweep.bench.results import BenchReport, Measured
from capsweep.bench.routing import Route, replace_routing, route_by_bmm, route_by_textbook
from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.training.devices import using_threads
from capsweep.training.fit import make_task
from capsweep.training.objective import Losses

BATCH = 128
GATE_BATCH = 8
CAPSNET = ("model=capsnet", "dataset=digits", "routing.num_iters=3")
# Largest error of a tensor in units of its largest number, by precision.
TOLERANCE = {"32": 1e-3, "bf16-mixed": 0.2}
EM_BATCH = 8
EM_NETWORK = ("model=matrix_capsnet", "routing=em", "dataset=smallnorb", "loss=spread")
EM_FASTEST = {2: 60.0, 3: 45.0}  # images a second, by routing iterations
EM_TOLERANCE = 1e-4


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
        dataset, device = candidate.cell.config["dataset"], machine.get_device()
        noise = torch.Generator().manual_seed(0)
        images_BCHW = torch.rand(images, *dataset["image_shape"], generator=noise).to(device)
        self.batch = Batch(images_BCHW, torch.arange(images).to(device) % dataset["num_classes"])

    def run_step(self) -> None:
        """One step."""
        losses = self._run_backward()
        if self.candidate.route is None:
            self.task.train_metrics.update(losses, self.batch)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def compute_results(self) -> comparison.Results:
        """Scores, loss and all gradients of the first step."""
        losses = self._run_backward()
        gradients = {
            f"gradient of {name}": parameter.grad.clone()
            for name, parameter in self.network.named_parameters()
            if parameter.grad is not None
        }
        return {"scores": losses.scores_BN, "loss": losses.total, **gradients}

    def _run_backward(self) -> Losses:
        is_mixed = self.candidate.precision == "bf16-mixed"
        with torch.autocast(machine.get_device().type, dtype=torch.bfloat16, enabled=is_mixed):
            losses = self.task.objective(self.network, self.batch)
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


def check_candidates() -> None:
    """Raise ParityError unless all candidates give the scores, loss and gradients of the reference,
    as precisely as they compute.
    """
    reference = StepTraining(StepCandidate("reference"), GATE_BATCH)
    results = {}
    for name, candidate in list_candidates().items():
        outputs = StepTraining(candidate, GATE_BATCH).compute_results()
        results[name] = outputs, TOLERANCE[candidate.precision]
    comparison.check_parity(reference.compute_results(), results)


def prepare_step(candidate: StepCandidate) -> Callable[[], object]:
    """One step of a candidate, after a first one, in which Adam's moments are made."""
    training = StepTraining(candidate)
    training.run_step()
    return training.run_step


def measure_step(budget: float = 20.0) -> BenchReport:
    """All candidates. budget: least seconds. Raises ParityError before it measures."""
    with using_threads(machine.THREADS):
        check_candidates()
        candidates = list_candidates()
        extra = {n: machine.measure_extra_memory(prepare_step, c) for n, c in candidates.items()}
        steps = {name: StepTraining(candidate).run_step for name, candidate in candidates.items()}
        seconds = comparison.time_in_turns(steps, budget)
    rows = [comparison.make_row(seconds, name, BATCH, extra[name]) for name in candidates]
    return BenchReport(judge_steps(seconds, rows), rows)


def judge_steps(seconds: comparison.Seconds, rows: list[dict[str, Any]]) -> list[Measured]:
    """The bars of the training step; of bfloat16 where a processor multiplies its matrices itself,
    as Linux says.
    """
    cpuinfo, on_gpu = Path("/proc/cpuinfo"), machine.reason_to_skip()
    has_amx = cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text().split()
    no_bf16 = on_gpu or (None if has_amx else "no AMX in this processor")
    bf16, fp32 = (
        comparison.median_ratio(seconds, "textbook", f"fast {kind}") for kind in ("bf16", "fp32")
    )
    ours = [row["images/s"] for row in rows if row["candidate"] not in comparison.BASELINES]
    fastest, no_gpu = (max(ours), None) if on_gpu else (None, "no GPU")
    what = "step: images a second on a GPU, the fastest of ours"
    return [
        Measured("step: bf16 over textbook fp32", bf16, "x", 3.5, True, no_bf16),
        Measured("step: fp32 over textbook fp32", fp32, "x", 1.7, True, on_gpu),
        Measured(what, fastest, "images/s", 60_000, True, no_gpu),
    ]


def measure_em(steps: int = 30) -> BenchReport:
    """Speed of the fastest step at two and three iterations. Raises ParityError, before a speed is
    measured, where the versions do not compute the same.
    """
    measured: list[Measured] = []
    with using_threads(machine.THREADS):
        for num_iters, bar in EM_FASTEST.items():
            overrides = (*EM_NETWORK, f"routing.num_iters={num_iters}")
            fast, reference = (
                StepTraining(StepCandidate(impl, overrides=overrides), EM_BATCH)
                for impl in ("fast", "reference")
            )
            results = {"fast": (fast.compute_results(), EM_TOLERANCE)}
            comparison.check_parity(reference.compute_results(), results)
            seconds = comparison.time_in_turns({"fast": fast.run_step}, budget=0, least=steps)
            what, speed = f"EM routing, T = {num_iters}: training", EM_BATCH / min(seconds["fast"])
            skipped = machine.reason_to_skip()
            measured.append(Measured(what, speed, "images/s", bar, True, skipped))
    return BenchReport(measured)
