"""Ways to train a network, each in training on one batch: forward, objective, backward, Adam.

Ours is what a cell trains, its network and optimiser made as for a cell. Baselines are what public
code does: their routing, torch's plain Adam, single precision.
"""

import gc
from dataclasses import dataclass

import numpy as np
import torch

from capsweep.config import compose, package_files
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.lab import bench
from capsweep.lab.bench.comparison import CandidateError, Results, check_parity
from capsweep.lab.bench.routing import Route, replace_routing, route_by_bmm, route_by_textbook
from capsweep.model.convolution import lay_out_weights
from capsweep.model.routing.dynamic import NORMALISERS
from capsweep.training import devices
from capsweep.training.graphs import CHECKED
from capsweep.training.module import make_task
from capsweep.training.step import Losses, autocast

BATCH = 128
CAPSNET = ("model=capsnet", "dataset=digits", "routing.num_iters=3")
MATRIX_CAPSNET = ("model=matrix_capsnet", "routing=em", "dataset=smallnorb", "loss=spread")
VARIANTS = ("experiment=overlap", "model.head=linear", "loss=binary_cross_entropy")
# Largest error of a tensor in units of its largest number, by precision. In float32 a feature near
# zero can be rounded to the other side of ReLU; `bench parity` judges float64.
TOLERANCE = {"32": 0.02, "tf32": 0.1, "bf16-mixed": 0.3}
FLOAT64_TOLERANCE = 1e-5  # the objective rounds scores to float32


@dataclass(frozen=True)
class StepCandidate:
    """Describes one way to train.

    Attributes:
        impl: `routing.impl`.
        precision: `precision`; a baseline on a GPU has torch's own settings instead.
        route: what routes in a baseline; None: our routing, as `impl` says.
        captured: whether its steps are CUDA graphs, as those of a cell on a GPU.
        overrides: what the network is composed of.
        convolution: `trainer.convolution`.
        keeps_memory: whether its process keeps freed memory, as that of a cell on a processor.
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
        """Return the cell that it trains, or whose training a baseline replaces."""
        implementation = [f"routing.impl={self.impl}", f"precision={self.precision}"]
        implementation += [f"trainer.convolution={self.convolution}"]
        return compose.cell([*self.overrides, *implementation])

    @property
    def tolerance(self) -> float:
        """Return the error that its numbers may have; those of a baseline on a GPU are of TF32."""
        is_rounded = self.route is not None and bench.is_gpu()
        return TOLERANCE["tf32" if is_rounded else self.precision]


class StepTraining:
    """Trains a candidate on one batch, again and again.

    device: where it trains; None: on the GPU, if the machine has one.
    """

    def __init__(
        self,
        candidate: StepCandidate,
        images: int = BATCH,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.candidate, self.dtype = candidate, dtype
        self.device = device or bench.get_device()
        self.begin(images)

    def begin(self, images: int) -> None:
        """Begin anew with batches of a size."""
        candidate = self.candidate
        self.task = make_task(candidate.cell).to(self.device, self.dtype)
        self.task.graphs = "auto" if candidate.captured else "off"
        self.network = self.task.network.train()
        if candidate.route is None:
            self.optimizer = self.task.make_optimizer(self.network)
        else:
            replace_routing(self.network, candidate.route)
            lay_out_weights(self.network, torch.contiguous_format)
            torch.backends.cudnn.allow_tf32 = True  # torch's default, of this process
            self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.001)
        self.graphs = self.task.make_graphs(self.optimizer)
        self.batch = make_batch(candidate.cell, images, self.dtype, self.device)

    def __call__(self) -> None:
        """Train one step."""
        if self.candidate.route is None:
            self.graphs.train(self.batch)
            return
        self.optimizer.zero_grad()
        self._run_backward()
        self.optimizer.step()

    def compute_results(self) -> Results:
        """Return scores, loss and all gradients of the first step, on the processor.

        They do not keep the graph that they are of, under which no step can be captured.
        """
        torch.manual_seed(0)  # of dropout
        losses = self._run_backward()
        gradients = {
            f"gradient of {name}": parameter.grad.to("cpu", copy=True)
            for name, parameter in self.network.named_parameters()
            if parameter.grad is not None
        }
        outputs = {"scores": losses.scores_BN, "loss": losses.total}
        return {name: tensor.detach().cpu() for name, tensor in outputs.items()} | gradients

    def try_out(self, images: int) -> dict[str, np.ndarray]:
        """Begin anew, and return the results of the first step, for another process.

        More steps have run then: captured ones as often as they are compared with eager ones. The
        peak of memory begins anew, too. Raises CandidateError where steps were to be captured and
        are not.
        """
        self.begin(images)
        gc.collect()  # the graphs of another size
        results = self.compute_results()
        for _ in range(1 + CHECKED if self.candidate.captured else 1):
            self()
        if self.candidate.captured and self.graphs.reason is not None:
            raise CandidateError(f"its steps are not captured: {self.graphs.reason}")
        devices.start_memory_peak()
        return {name: tensor.float().numpy() for name, tensor in results.items()}

    def _run_backward(self) -> Losses:
        with autocast(self.candidate.precision, self.device):
            losses = self.task.objective(self.network, self.batch)
        losses.total.backward()
        return losses


def prepare_step(candidate: StepCandidate) -> StepTraining:
    """Return a candidate in training, in a process of its own that keeps freed memory or not."""
    if candidate.keeps_memory and not bench.is_gpu():
        devices.keep_freed_memory()
    return StepTraining(candidate, 1)


def make_batch(cell: Cell, images: int, dtype: torch.dtype, device: torch.device) -> Batch:
    """Draw random images for the network of a cell, with as many classes as its images show."""
    dataset = cell.config["dataset"]
    noise = torch.Generator().manual_seed(0)
    shape, count = dataset["image_shape"], dataset.get("labels_per_image", 1)
    images_BCHW = torch.rand(images, *shape, generator=noise).to(device, dtype)
    first_B1 = torch.arange(images, device=device)[:, None]
    labels_BL = (first_B1 + torch.arange(count, device=device)) % dataset["num_classes"]
    return Batch(images_BCHW, labels_BL, images_BCHW[:, None].expand(-1, count, -1, -1, -1))


def list_baselines() -> dict[str, StepCandidate]:
    """Return what public code does with the CapsNet of the paper, by name."""
    return {
        name: StepCandidate("reference", route=route, convolution="direct", keeps_memory=False)
        for name, route in (("textbook", route_by_textbook), ("bmm", route_by_bmm))
    }


def list_variants() -> dict[str, StepCandidate]:
    """Return a candidate for each file of conf/routing and each normaliser of dynamic routing, by
    the implementation that `routing.impl: auto` chooses.
    """
    folder = package_files.find_folder("conf") / "routing"
    choices = {path.stem: [f"routing={path.stem}"] for path in sorted(folder.glob("*.yaml"))}
    for name in [*NORMALISERS][1:]:
        choices[f"dynamic, {name}"] = ["routing=dynamic", f"routing.normaliser={name}"]
    return {
        name: StepCandidate("auto", overrides=(*VARIANTS, *choice))
        for name, choice in choices.items()
    }


def compute_expected(
    overrides: tuple[str, ...],
    images: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Results:
    """Return the results of a network's reference, which all candidates must give."""
    reference = StepCandidate("reference", overrides=overrides, convolution="direct")
    return StepTraining(reference, images, dtype, device).compute_results()


def check_step(
    candidate: StepCandidate, images: int = BATCH, dtype: torch.dtype = torch.float32
) -> None:
    """Raise CandidateError unless a candidate gives the results of the reference.

    Scores, loss and gradients are compared, as precisely as the candidate computes. dtype: float64
    for networks with ReLU before large weights, whose gradients jump where a feature is rounded to
    another sign.
    """
    tolerance = FLOAT64_TOLERANCE if dtype == torch.float64 else candidate.tolerance
    results = StepTraining(candidate, images, dtype).compute_results()
    check_parity(compute_expected(candidate.overrides, images, dtype), results, tolerance)
