"""Whole training steps of the CapsNet of the paper: forward, objective, backward, Adam.

The baselines are what public code does: their routing, torch's plain Adam, single precision. Ours
is what a cell trains, its network and optimiser made as for a cell.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from capsweep.bench import device, extra_memory, interleaved, limits, parity
from capsweep.bench.baselines import Route, bmm, routed_by, textbook
from capsweep.bench.interleaved import Seconds
from capsweep.bench.measured import Measured, Report
from capsweep.bench.parity import Results
from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.data.presented import Batch
from capsweep.model.routing import dynamic
from capsweep.training import assemble
from capsweep.training.objective import Losses
from capsweep.training.size import size

BATCH = 128
GATE_BATCH = 8
GRAPHS = "reduce-overhead"
NAMES = {"32": "fp32", "bf16-mixed": "bf16"}
PRODUCTS = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Largest error of a tensor in units of its largest number, by precision.
TOLERANCE = {"32": 1e-3, "bf16-mixed": 0.2}
NOTE = (
    f"Steps of `capsweep train model=capsnet routing.num_iters=3` with its decoder, on {BATCH} "
    "images that are there already. The baselines take plain Adam in single precision; ours count "
    "a cell's metrics too. Extra "
    "memory is by how much a fresh process grows in a step, parameters and Adam's moments not "
    "counted. The share of the matmul limit counts three times the forward pass, against a product "
    "in the same precision."
)


@dataclass(frozen=True)
class Candidate:
    """One way to train. route: of a baseline; None: ours, as the cell says. compiled: a mode of
    torch.compile.
    """

    impl: str
    precision: str = "32"
    route: Route | None = None
    compiled: str | None = None

    @property
    def cell(self) -> Cell:
        """The cell that it trains, or whose training a baseline replaces."""
        chosen = ["model=capsnet", "dataset=digits", "routing.num_iters=3"]
        chosen += [f"routing.impl={self.impl}", f"precision={self.precision}"]
        return compose.cell(chosen + [f"trainer.compile={self.compiled}"] * bool(self.compiled))


def candidates() -> dict[str, Candidate]:
    """By name. On a GPU also Triton's kernel, and a compiled network, which CUDA graphs replay."""
    own: dict[str, tuple[str, str | None]] = {"fp32": ("32", None), "bf16": ("bf16-mixed", None)}
    impls = ["fast"]
    if device.on_gpu():
        own |= {f"{name} graphs": (precision, GRAPHS) for name, (precision, _) in own.items()}
        impls += [name for name in dynamic.IMPLS if name == "triton"]
    return {
        "textbook": Candidate("reference", route=textbook),
        "bmm": Candidate("reference", route=bmm),
        **{
            f"{impl} {name}": Candidate(impl, precision, compiled=compiled)
            for impl in impls
            for name, (precision, compiled) in own.items()
        },
    }


class Training:
    """A candidate in training on one batch, again and again."""

    def __init__(self, candidate: Candidate, images: int = BATCH) -> None:
        self.candidate = candidate
        self.task = assemble.task(candidate.cell).to(device.device())
        self.network = self.task.network.train()
        if candidate.route is None:
            self.optimizer = self.task.make_optimizer(self.network)
        else:
            routed_by(self.network, candidate.route)
            _lay_out_plainly(self.network)
            self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.001)
        self.batch = _batch(candidate.cell, images)

    def step(self, batch: Batch | None = None) -> None:
        """One step."""
        batch = batch or self.batch
        losses = self._backward(batch)
        if self.candidate.route is None:
            self.task.train_metrics.update(losses, batch)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def results(self) -> Results:
        """Scores, loss and all gradients of the first step."""
        losses = self._backward(self.batch)
        gradients = {
            f"gradient of {name}": parameter.grad.clone()
            for name, parameter in self.network.named_parameters()
            if parameter.grad is not None
        }
        return {"scores": losses.scores_BN, "loss": losses.total, **gradients}

    def _backward(self, batch: Batch) -> Losses:
        mixed = self.candidate.precision == "bf16-mixed"
        with torch.autocast(device.device().type, dtype=torch.bfloat16, enabled=mixed):
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


def _batch(cell: Cell, images: int) -> Batch:
    """Uniform pixels, classes in turn."""
    dataset = cell.config["dataset"]
    draw = torch.Generator().manual_seed(0)
    images_BCHW = torch.rand(images, *dataset["image_shape"], generator=draw)
    labels_B = torch.arange(images) % dataset["num_classes"]
    return Batch(images_BCHW.to(device.device()), labels_B.to(device.device()))


def gate() -> None:
    """Raise ParityError unless all candidates give the scores, loss and gradients of the reference,
    as precisely as they compute.
    """
    expected = Training(Candidate("reference"), GATE_BATCH).results()
    found = {
        name: (Training(candidate, GATE_BATCH).results(), TOLERANCE[candidate.precision])
        for name, candidate in candidates().items()
    }
    parity.check_each(expected, found)


PREPARED = f"{__name__}:prepared"


def prepared(name: str) -> list[Callable[[], object]]:
    """One step of a candidate, after one on two images."""
    training = Training(candidates()[name])
    training.step(_batch(training.candidate.cell, 2))
    return [training.step]


def measure(budget: float = 20.0) -> Report:
    """All candidates. budget: least seconds. Raises ParityError before it measures."""
    with device.threads():
        gate()
        known = candidates()
        told = limits.told(PRODUCTS)
        extra = {name: _extra(name) for name in known}
        trainings = {name: Training(candidate) for name, candidate in known.items()}
        taken = interleaved.take({name: made.step for name, made in trainings.items()}, budget)
    flops = 3 * BATCH * size(known["bmm"].cell.config).flops
    rows = [
        interleaved.row(taken, name, BATCH, extra[name], flops, _limit(told, candidate))
        for name, candidate in known.items()
    ]
    return Report(bars(taken, rows), rows, [NOTE], told)


def _limit(told: Mapping[str, float], candidate: Candidate) -> float:
    """Operations a second of a product in the candidate's precision."""
    return told[f"matmul {NAMES[candidate.precision]}, GFLOP/s"] * 1e9


def _extra(name: str) -> int:
    print(f"step: memory of {name}", file=sys.stderr, flush=True)
    return extra_memory.of(PREPARED, name)[0]


def bars(taken: Seconds, rows: list[dict[str, Any]]) -> list[Measured]:
    """The bars of the training step."""
    on_gpu = device.skipped_on_gpu()
    no_amx = None if device.has_amx() else "no AMX in this processor"
    own = [row for row in rows if row["candidate"] not in interleaved.BASELINES]
    fastest = max((row["images/s"] for row in own), default=None)
    bf16, fp32 = (interleaved.over(taken, "textbook", f"fast {kind}") for kind in ("bf16", "fp32"))
    return [
        Measured(
            "step: bf16 over textbook fp32", bf16, "x", 3.5, True, 5, on_gpu or no_amx or _no(bf16)
        ),
        Measured("step: fp32 over textbook fp32", fp32, "x", 1.7, True, 2, on_gpu or _no(fp32)),
        Measured(
            "step: images a second on a GPU, the fastest of ours",
            fastest if device.on_gpu() else None,
            "images/s",
            60_000,
            at_least=True,
            stretch=150_000,
            skipped=None if device.on_gpu() else "no GPU",
        ),
    ]


def _no(value: float | None) -> str | None:
    return "not measured in this run" if value is None else None
