"""Ways to train a network, each in training on one batch: forward, objective, backward, Adam.

Ours is what a cell trains, its network and optimiser made as for a cell. Baselines are what public
code does: their routing, torch's plain Adam, single precision.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from capsweep.bench import comparison, machine
from capsweep.bench.routing import Route, replace_routing, route_by_bmm, route_by_textbook
from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.model.convolution import describe_methods
from capsweep.training import devices
from capsweep.training.fit import make_task
from capsweep.training.graphs import CHECKED
from capsweep.training.objective import Losses
from capsweep.training.step import autocast

BATCH = 128
CAPSNET = ("model=capsnet", "dataset=digits", "routing.num_iters=3")
MATRIX_CAPSNET = ("model=matrix_capsnet", "routing=em", "dataset=smallnorb", "loss=spread")
# Largest error of a tensor in units of its largest number, by precision. In float32 a feature near
# zero can be rounded to the other side of ReLU; `bench parity` judges float64.
TOLERANCE = {"32": 0.02, "tf32": 0.1, "bf16-mixed": 0.3}
FLOAT64_TOLERANCE = 1e-5  # the objective rounds scores to float32


@dataclass(frozen=True)
class StepCandidate:
    """One way to train.

    Attributes:
        impl: of the routing.
        precision: as in a configuration; of a baseline on a GPU what torch itself chooses.
        route: of a baseline; None: ours, as the cell says.
        captured: by CUDA graphs, as a cell on a GPU is.
        overrides: of the network that is trained.
        convolution: `trainer.convolution`.
        keeps_memory: its process keeps freed memory, as that of a cell on a processor does.
    """

    impl: str
    precision: str = "32"
    route: Route | None = None
    captured: bool = False
    overrides: tuple[str, ...] = CAPSNET
    convolution: str = "auto"
    keeps_memory: bool = True

    @property
    def cell(self) -> Cell:
        """The cell that it trains, or whose training a baseline replaces."""
        implementation = [f"routing.impl={self.impl}", f"precision={self.precision}"]
        implementation += [f"trainer.convolution={self.convolution}"]
        return compose.cell([*self.overrides, *implementation])

    @property
    def tolerance(self) -> float:
        """Of its numbers in float32; a baseline's convolutions may be rounded on a GPU."""
        is_rounded = self.route is not None and machine.is_gpu()
        return TOLERANCE["tf32" if is_rounded else self.precision]


class StepTraining:
    """A candidate in training on one batch, again and again. device: None is the machine's."""

    def __init__(
        self,
        candidate: StepCandidate,
        images: int = BATCH,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.candidate, self.device = candidate, device or machine.get_device()
        self.task = make_task(candidate.cell).to(self.device, dtype)
        self.task.graphs = "auto" if candidate.captured else "off"
        self.network = self.task.network.train()
        if candidate.route is None:
            self.optimizer = self.task.make_optimizer(self.network)
        else:
            replace_routing(self.network, candidate.route)
            _lay_out_plainly(self.network)
            torch.backends.cudnn.allow_tf32 = True  # torch's default, of this process
            self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.001)
        self.graphs = self.task.make_graphs(self.optimizer)
        self.batch = make_batch(candidate.cell, images, dtype, self.device)

    def __call__(self) -> None:
        """One step."""
        if self.candidate.route is None:
            self.graphs.train(self.batch)
            return
        self.optimizer.zero_grad()
        self._run_backward()
        self.optimizer.step()

    def compute_results(self) -> comparison.Results:
        """Return scores, loss and all gradients of the first step, without the graph that they are
        of: a captured step cannot be had as long as that is kept.
        """
        torch.manual_seed(0)  # of dropout
        losses = self._run_backward()
        gradients = {
            f"gradient of {name}": parameter.grad.clone()
            for name, parameter in self.network.named_parameters()
            if parameter.grad is not None
        }
        outputs = {"scores": losses.scores_BN.detach(), "loss": losses.total.detach()}
        return outputs | gradients

    def try_out(self) -> dict[str, np.ndarray]:
        """Return the results, for another process, after steps that show that it runs: of captured
        ones all that are compared with eager steps.

        Raises CandidateError where steps were to be captured and are not.
        """
        results = self.compute_results()
        for _ in range(1 + CHECKED if self.candidate.captured else 1):
            self()
        if self.candidate.captured and self.graphs.reason is not None:
            raise comparison.CandidateError(f"its steps are not captured: {self.graphs.reason}")
        return {name: tensor.cpu().float().numpy() for name, tensor in results.items()}

    def describe_convolutions(self) -> dict[str, str]:
        """By name, how they computed their batches."""
        return describe_methods(self.network)

    def _run_backward(self) -> Losses:
        with autocast(self.candidate.precision, self.device):
            losses = self.task.objective(self.network, self.batch)
        losses.total.backward()
        return losses


def make_batch(cell: Cell, images: int, dtype: torch.dtype, device: torch.device) -> Batch:
    """Random images for the network of a cell, with as many classes as its images show."""
    dataset = cell.config["dataset"]
    noise = torch.Generator().manual_seed(0)
    shape, count = dataset["image_shape"], dataset.get("labels_per_image", 1)
    images_BCHW = torch.rand(images, *shape, generator=noise).to(device, dtype)
    first_B1 = torch.arange(images, device=device)[:, None]
    labels_BL = (first_B1 + torch.arange(count, device=device)) % dataset["num_classes"]
    return Batch(images_BCHW, labels_BL, images_BCHW[:, None].expand(-1, count, -1, -1, -1))


def _lay_out_plainly(network: nn.Module) -> None:
    """Weights of convolutions in torch's own order, also those of one channel, whose strides can
    say either.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.data
            plain = torch.empty_like(weight, memory_format=torch.contiguous_format)
            module.weight.data = plain.copy_(weight)


def list_baselines() -> dict[str, StepCandidate]:
    """Return what public code does with the CapsNet of the paper, by name."""
    return {
        name: StepCandidate("reference", route=route, convolution="direct", keeps_memory=False)
        for name, route in (("textbook", route_by_textbook), ("bmm", route_by_bmm))
    }


def make_reference(overrides: tuple[str, ...]) -> StepCandidate:
    """Of a network: what all others must compute."""
    return StepCandidate("reference", overrides=overrides, convolution="direct")


def compute_expected(overrides: tuple[str, ...], images: int) -> comparison.Results:
    """Return the results of a network's reference, on the processor."""
    results = StepTraining(make_reference(overrides), images).compute_results()
    return {name: tensor.cpu() for name, tensor in results.items()}


def check_step(
    expected: comparison.Results, name: str, candidate: StepCandidate, arrays: dict[str, np.ndarray]
) -> None:
    """Raise ParityError unless a candidate gave the expected results, as precisely as it computes.

    arrays: what its process answered.
    """
    results = {key: torch.from_numpy(array) for key, array in arrays.items()}
    comparison.check_parity(expected, {name: (results, candidate.tolerance)})


def check_steps(
    candidates: Mapping[str, StepCandidate],
    images: int = BATCH,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Raise ParityError unless all candidates give the scores, loss and gradients of the reference,
    as precisely as they compute.

    dtype: float64 for networks with ReLU before large weights, whose gradients jump where a feature
    is rounded to another sign.
    """
    first = next(iter(candidates.values()))
    reference = make_reference(first.overrides)
    results = {}
    for name, candidate in candidates.items():
        tolerance = FLOAT64_TOLERANCE if dtype == torch.float64 else candidate.tolerance
        outputs = StepTraining(candidate, images, dtype).compute_results()
        results[name] = outputs, tolerance
    expected = StepTraining(reference, images, dtype).compute_results()
    comparison.check_parity(expected, results)


def prepare_step(candidate: StepCandidate, images: int = BATCH) -> StepTraining:
    """In training in a process of its own, whose memory it then keeps or gives back."""
    if candidate.keeps_memory and not machine.is_gpu():
        devices.keep_freed_memory()
    return StepTraining(candidate, images)
