"""Ways to train a network on one batch, and a check of their results against a reference.

Our way trains as a cell does, with the cell's network and optimiser. Baselines train as public code
does: with their own routing, torch's plain Adam and single precision.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from capsweep.config import compose, package_files
from capsweep.data.batches import Batch
from capsweep.lab import bench
from capsweep.lab.bench.comparison import Results
from capsweep.lab.bench.routing import Route, replace_routing
from capsweep.model.convolution import set_weight_layout
from capsweep.model.routing.dynamic import NORMALISERS
from capsweep.training.build import make_task

Words = tuple[str, ...]
CAPSNET = ("model=capsnet", "dataset=digits", "routing.num_iters=3")
MATRIX_CAPSNET = ("model=matrix_capsnet", "routing=em", "dataset=smallnorb", "loss=spread")
VARIANTS = ("experiment=overlap", "model.head=linear", "loss=binary_cross_entropy")
DIRECT = "trainer.convolution=direct"
REFERENCE = ("routing.impl=reference", DIRECT)
BF16, TF32 = "precision=bf16-mixed", "precision=tf32"


@dataclass(frozen=True)
class Way:
    """A way to train a network.

    Attributes:
        network: Settings (KEY=VALUE) that decide what is computed, such as the model.
        words: Settings (KEY=VALUE) that decide how the network is computed, such as the precision.
        route: Routing function of a baseline; None: our routing.
        keeps_memory: Whether a process that computes on a CPU keeps freed memory for later use.
            The processes of cells do so.
    """

    network: Words = CAPSNET
    words: Words = ()
    route: Route | None = None
    keeps_memory: bool = True

    @property
    def tolerance(self) -> float:
        """The largest allowed error of a tensor, relative to the largest value of the reference.

        Rounding can cause an error of this size. On a GPU, torch's default settings round the
        convolutions of baselines to TF32. In float32, rounding can change the sign of a feature
        near zero, and the gradient of ReLU jumps at zero.
        """
        if BF16 in self.words:
            return 0.3
        return 0.1 if TF32 in self.words or (self.route and bench.is_gpu()) else 0.05


class StepTraining:
    """A network that is trained by repeated steps on one batch.

    Args:
        way: Way to train the network.
        images: Number of images in the batch.
    """

    def __init__(self, way: Way, images: int) -> None:
        self.way = way
        self.task = make_task(compose.cell([*way.network, *way.words])).to(bench.get_device())
        self.network = self.task.network.train()
        if way.route is None:
            self.optimizer = self.task.make_optimizer(self.network)
        else:
            replace_routing(self.network, way.route)
            set_weight_layout(self.network, torch.contiguous_format)
            torch.backends.cudnn.allow_tf32 = True  # torch's default, for this process
            self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.001)
        self.graphs = self.task.make_graphs(self.optimizer)
        self.batch = self._draw_batch(images)

    def __call__(self) -> None:
        """Train one step.

        Raises:
            RuntimeError: The step should be a captured CUDA graph, but could not be captured.
        """
        if self.way.route is not None:
            self.graphs.step(self.batch)
            return
        self.graphs.train(self.batch)
        if bench.is_gpu() and self.task.graphs == "auto" and self.graphs.reason is not None:
            raise RuntimeError(f"training steps are not captured: {self.graphs.reason}")

    def compute_results(self) -> Results:
        """Compute scores, loss and gradients of one training step."""
        torch.manual_seed(0)  # for dropout
        losses = self.graphs.step(self.batch)
        gradients = {
            f"gradient of {name}": parameter.grad.clone()
            for name, parameter in self.network.named_parameters()
            if parameter.grad is not None
        }
        return {"scores": losses.scores_BN, "loss": losses.total, **gradients}

    def _draw_batch(self, images: int) -> Batch:
        """Draw random images; each has as many labels as an image of the data set."""
        dataset = self.task.config["dataset"]
        noise, device = torch.Generator().manual_seed(0), bench.get_device()
        shape, count = dataset["image_shape"], dataset.get("labels_per_image", 1)
        images_BCHW = torch.rand(images, *shape, generator=noise).to(device)
        first_B1 = torch.arange(images, device=device)[:, None]
        labels_BL = (first_B1 + torch.arange(count, device=device)) % dataset["num_classes"]
        return Batch(images_BCHW, labels_BL, images_BCHW[:, None].expand(-1, count, -1, -1, -1))


def list_variants() -> dict[str, Way]:
    """Return a way to train for each routing variant and each normaliser that is not the default.

    Each file of conf/routing is a routing variant. Normalisers belong to dynamic routing. Each way
    to train uses the implementation that `routing.impl: auto` chooses.
    """
    folder = package_files.find_folder("conf") / "routing"
    choices: dict[str, Words] = {
        path.stem: (f"routing={path.stem}",) for path in sorted(folder.glob("*.yaml"))
    }
    for name in [*NORMALISERS][1:]:
        choices[f"dynamic, {name}"] = ("routing=dynamic", f"routing.normaliser={name}")
    return {name: Way((*VARIANTS, *choice)) for name, choice in choices.items()}


@lru_cache(maxsize=1)  # the candidates of a network are compared one after another
def compute_expected(network: Words, images: int) -> Results:
    """Compute the results with which all ways to train a network must agree."""
    return StepTraining(Way(network, REFERENCE), images).compute_results()
