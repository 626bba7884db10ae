"""Training steps: the speed of our code against public code, and a check of the results.

`bench step` measures the speed. Our way trains as a cell does, with the cell's network and
optimiser. Baselines train as public code does: with their own routing, torch's plain Adam and
single precision. The networks are the CapsNet of the paper, and matrix capsules with EM routing. On
a CPU, all networks with large convolutions are measured too, and a small CapsNet with each routing
variant. On a GPU, steps are captured as CUDA graphs, unless the name of the candidate contains
`eager`. Steps of baselines are never captured. Baselines use torch's default settings, so a GPU
rounds their convolutions to TF32.

`bench parity` compares whole networks on this device with a reference, which runs on a CPU in
float64 with direct convolutions. If the device computes in float64, only tiny errors are allowed.
In float32 larger errors are allowed, because rounding can change the sign of a feature near zero,
and the gradient of ReLU jumps at zero.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import torch

from capsweep.config import compose, overrides
from capsweep.data.batches import Batch
from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measurement, comparison
from capsweep.lab.bench.comparison import BEFORE, MEMORY, Candidate, Results
from capsweep.lab.bench.routing import ROUTES, Route, replace_routing
from capsweep.model.convolution import set_weight_layout
from capsweep.model.routing.dynamic import NORMALISERS
from capsweep.training.build import make_task

Words = tuple[str, ...]
CAPSNET = ("model=capsnet", "dataset=digits", "routing.num_iters=3")
MATRIX_CAPSNET = ("model=matrix_capsnet", "routing=em", "dataset=smallnorb", "loss=spread")
VARIANTS = ("experiment=overlap", "model.head=linear", "loss=binary_cross_entropy")
DIRECT = "trainer.convolution=direct"
REFERENCE = ("routing.impl=reference", DIRECT)
CNN = ("model=cnn_small", "dataset=digits", "model.dropout=0")  # dropout differs between devices
# By precision: the largest allowed `find_largest_error` of the outputs and of the gradients.
PARITY_BARS = {
    "float64": {"outputs": 1e-6, "gradients": 1e-5},
    "float32": {"outputs": 2e-5, "gradients": 0.02},
    "bf16-mixed": {"outputs": 0.02, "gradients": 0.3},
}
BF16, TF32 = "precision=bf16-mixed", "precision=tf32"
NETWORKS = {  # by data set; each network has a kernel of 4x4 or more in a layer after the first
    "mnist": ("capsnet_small", "baseline_mnist", "cnn_matched", "cnn_small"),
    "multimnist": ("capsnet_tiny", "baseline_multimnist", "cnn_tiny"),
    "svhn": ("capsnet_svhn",),
    "affnist": ("baseline_affnist",),
    "smallnorb": ("baseline_smallnorb",),
}
NOW = "transformed"
STEP, ROUTINGS = "capsnet", "capsnet_tiny by routing"
CORE_BARS = (
    (STEP, "bf16", "over textbook", 3.5),
    (STEP, NOW, "over textbook", 5.0),
    (STEP, NOW, "over before", 2.0),
    ("baseline_mnist", NOW, "over direct", 1.5),
    ("capsnet_small", NOW, "over direct", 1.3),
    ("capsnet_tiny", NOW, "over direct", 1.3),
    ("EM routing, T = 2", "now", "images/s", 60.0),
    ("EM routing, T = 3", "now", "images/s", 45.0),
)
GPU_BARS = (
    (STEP, "bf16", "images/s", 45_000.0),
    (STEP, "tf32", "images/s", 35_000.0),
    (STEP, "bf16", "over textbook", 4.0),
    ("EM routing, T = 3", "now", "images/s", 2_000.0),
)
MEMORY_BAR = 1.3  # largest allowed (peak memory) / (peak memory of BEFORE)
# Lowest allowed (speed of a variant) / (speed of dynamic routing). If a variant is slower, its
# code must be made faster.
SLOWEST_VARIANT = 0.5


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
        near zero, and the gradient of ReLU jumps at zero. `bench parity` has a stricter check, in
        float64.
        """
        if BF16 in self.words:
            return 0.3
        return 0.1 if TF32 in self.words or (self.route and bench.is_gpu()) else 0.05


class StepTraining:
    """A network that is trained by repeated steps on one batch.

    Args:
        way: Way to train the network.
        images: Number of images in the batch.
        dtype: Data type of weights and images.
        device: Device to train on; None: the GPU if there is one, else the CPU.
    """

    def __init__(
        self,
        way: Way,
        images: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.way, self.device = way, device or bench.get_device()
        self.task = make_task(compose.cell([*way.network, *way.words])).to(self.device, dtype)
        self.network = self.task.network.train()
        if way.route is None:
            self.optimizer = self.task.make_optimizer(self.network)
        else:
            replace_routing(self.network, way.route)
            set_weight_layout(self.network, torch.contiguous_format)
            torch.backends.cudnn.allow_tf32 = True  # torch's default, for this process
            self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.001)
        self.graphs = self.task.make_graphs(self.optimizer)
        self.batch = self._draw_batch(images, dtype)

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

    def _draw_batch(self, images: int, dtype: torch.dtype) -> Batch:
        """Draw random images; each has as many labels as an image of the data set."""
        dataset = self.task.config["dataset"]
        noise = torch.Generator().manual_seed(0)
        shape, count = dataset["image_shape"], dataset.get("labels_per_image", 1)
        images_BCHW = torch.rand(images, *shape, generator=noise).to(self.device, dtype)
        first_B1 = torch.arange(images, device=self.device)[:, None]
        labels_BL = (first_B1 + torch.arange(count, device=self.device)) % dataset["num_classes"]
        return Batch(images_BCHW, labels_BL, images_BCHW[:, None].expand(-1, count, -1, -1, -1))


def list_variants() -> dict[str, Way]:
    """Return a way to train for each routing variant and each normaliser that is not the default.

    Each file of conf/routing is a routing variant. Normalisers belong to dynamic routing. Each way
    to train uses the implementation that `routing.impl: auto` chooses.
    """
    options = overrides.list_options("routing")
    choices: dict[str, Words] = {name: (f"routing={name}",) for name in options}
    for name in [*NORMALISERS][1:]:
        choices[f"dynamic, {name}"] = ("routing=dynamic", f"routing.normaliser={name}")
    return {name: Way((*VARIANTS, *choice)) for name, choice in choices.items()}


@lru_cache(maxsize=1)  # the candidates of a network are compared one after another
def compute_expected(network: Words, images: int, is_exact: bool = False) -> Results:
    """Compute the results with which all ways to train a network must agree.

    With `is_exact`, they are computed in float64 on the CPU.
    """
    dtype, device = (torch.float64, torch.device("cpu")) if is_exact else (torch.float32, None)
    return StepTraining(Way(network, REFERENCE), images, dtype, device).compute_results()


# Case, number of images, ways to train, and the minimum duration of all rounds in seconds.
Group = tuple[str, int, Mapping[str, Way], float]


def list_baselines() -> dict[str, Way]:
    """Return the two baselines, which train the CapsNet as public code does."""
    names = ("textbook", "bmm")
    return {name: Way(CAPSNET, REFERENCE, ROUTES[name], keeps_memory=False) for name in names}


def list_ways(*network: str) -> dict[str, Way]:
    """Return three ways to train a network on a CPU.

    - BEFORE: Convolutions are direct. Freed memory is returned to the system. Cells of earlier
      versions trained like this.
    - "direct": Convolutions are direct. The process keeps freed memory.
    - NOW: Convolutions are transformed if that is expected to be faster. The process keeps freed
      memory. Cells train like this today.
    """
    direct = Way(network, (DIRECT,))
    return {BEFORE: replace(direct, keeps_memory=False), "direct": direct, NOW: Way(network)}


def list_core_groups(is_quick: bool) -> Iterator[Group]:
    """Yield the comparisons that run on a CPU.

    The last comparison has all routing variants; with `is_quick`, it has only two of them.
    `measure_step` runs the last comparison with one thread, because a cell of a sweep also has one
    thread.
    """
    images, seconds = (2, 0.0) if is_quick else (128, 60.0)
    ways = list_baselines() | list_ways(*CAPSNET) | {"bf16": Way(CAPSNET, (BF16,))}
    yield STEP, images, ways, seconds
    for dataset, names in ({} if is_quick else NETWORKS).items():
        for name in names:
            yield name, images, list_ways(f"model={name}", f"dataset={dataset}"), seconds / 6
    for number in (2, 3):
        network = *MATRIX_CAPSNET, f"routing.num_iters={number}"
        yield f"EM routing, T = {number}", max(1, images // 16), {"now": Way(network)}, seconds / 6
    variants = list_variants()
    few = {name: variants[name] for name in ("dynamic", "em")}
    yield ROUTINGS, max(1, images // 2), few if is_quick else variants, seconds


def list_groups(is_quick: bool) -> Iterator[Group]:
    """Yield the comparisons to run on this machine.

    On a GPU, our code trains each network with eager and with captured steps, at two batch sizes.
    """
    if not bench.is_gpu():
        yield from list_core_groups(is_quick)
        return
    images, seconds = (2, 0.0) if is_quick else (128, 4.0)
    eager = "trainer.graphs=off"
    capsnet, em = list_baselines(), (*MATRIX_CAPSNET, "routing.num_iters=3")
    for name, words in {"fp32": (), "tf32": (TF32,), "bf16": (BF16,)}.items():
        capsnet |= {f"{name}, eager": Way(CAPSNET, (*words, eager)), name: Way(CAPSNET, words)}
    for size in (images, 4 * images):
        yield STEP, size, capsnet, seconds
    for size in (max(1, images // 16), images // 2):
        ways = {"eager": Way(em, (eager,)), "now": Way(em)}
        yield "EM routing, T = 3", size, ways, seconds


def measure_step(is_quick: bool = False) -> BenchReport:
    """Measure the speed of each way to train; a way with wrong results is reported as a fault."""
    report = BenchReport()
    for case, images, ways, seconds in list_groups(is_quick):
        candidates = {name: make_candidate(way, images) for name, way in ways.items()}
        threads = 1 if case == ROUTINGS else bench.THREADS
        comparison.compare(report, case, images, candidates, seconds, threads)
    if bench.is_gpu():
        report.judge(GPU_BARS)
        return report
    # The bar for bfloat16 only applies to a CPU with instructions for bfloat16 matrix products.
    has_amx = "amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    report.judge(bar for bar in CORE_BARS if has_amx or bar[1] != "bf16")
    variants = list_variants()
    report.judge((ROUTINGS, name, "over dynamic", SLOWEST_VARIANT) for name in variants)
    memory = max((row.get(MEMORY) or 0.0 for row in report.rows), default=0.0)
    report.numbers.append(Measurement(f"{MEMORY}, worst case", memory, "x", MEMORY_BAR))
    return report


def make_candidate(way: Way, images: int) -> Candidate:
    """Return a candidate that trains a network in one way."""
    prepare = partial(StepTraining, way, images)
    expected = partial(compute_expected, way.network, images)
    return Candidate(prepare, expected, way.tolerance, way.keeps_memory)


def list_compared(precision: str) -> dict[str, Way]:
    """Return the ways to train that `bench parity` compares with the reference, for one precision.

    The CapsNet is compared in every precision, with the routing implementation `fast` and, on a
    GPU, also with `triton`. In float64 and float32 more networks are compared: the matrix capsules,
    a CNN, and a small CapsNet with each routing variant. Variants use the implementation that
    `routing.impl: auto` chooses. The variant `random` draws its couplings only once, so that the
    couplings are equal on every device.
    """
    impls = ("fast", "triton") if bench.is_gpu() else ("fast",)
    rounded = (BF16,) if precision == "bf16-mixed" else ()
    ways = {f"capsnet by {i}": Way(CAPSNET, (f"routing.impl={i}", *rounded)) for i in impls}
    if rounded:
        return ways
    ways |= {"matrix_capsnet": Way(MATRIX_CAPSNET), "cnn_small": Way(CNN)}
    variants = list_variants()
    variants["random"] = Way((*variants["random"].network, "routing.draw=fixed"))
    return ways | {f"capsnet_tiny, {name}": way for name, way in variants.items()}


def measure_parity(is_quick: bool = False) -> BenchReport:
    """Measure the largest errors of networks in each precision, beside their bars.

    `list_compared` chooses the networks for a precision. With `is_quick`, only the first two of
    them are measured.
    """
    report, images = BenchReport(), 2 if is_quick else 8
    for precision, bars in PARITY_BARS.items():
        ways = list_compared(precision)
        for name in [*ways][:2] if is_quick else ways:
            with report.catching(f"{name}, {precision}"):
                for kind, (error, largest) in find_errors(ways[name], precision, images).items():
                    what = f"{name}, {precision}, error of {kind} (largest: {largest})"
                    report.numbers.append(Measurement(what, error, "of the maximum", bars[kind]))
    return report


def find_errors(way: Way, precision: str, images: int) -> dict[str, tuple[float, str]]:
    """Find the largest errors of a way to train; the reference runs in float64 on a CPU.

    Returns:
        For outputs and for gradients, the largest error and the name of the tensor that has it.
    """
    exact = compute_expected(way.network, images, is_exact=True)
    dtype = torch.float64 if precision == "float64" else torch.float32
    given = StepTraining(way, images, dtype).compute_results()
    outputs = {name: exact[name] for name in ("scores", "loss")}
    gradients = {name: tensor for name, tensor in exact.items() if name not in outputs}
    return {
        "outputs": comparison.find_largest_error(outputs, given),
        "gradients": comparison.find_largest_error(gradients, given),
    }
