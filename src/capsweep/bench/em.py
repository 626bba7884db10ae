"""EM routing: images a second of whole training steps, against the textbook version, and memory.

Speeds are of the fastest step of each version, taken turn by turn in one process, so that what
else runs on the machine slows both; memory is the peak of a process started for it.
"""

import copy
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.bench import parity
from capsweep.bench.baselines import routed_by
from capsweep.bench.em_textbook import textbook
from capsweep.bench.measured import Measured
from capsweep.config import compose
from capsweep.model.losses import spread_loss
from capsweep.model.routing.em import fast, reference
from capsweep.model.votes import Routed
from capsweep.training import build, memory

THREADS, BATCH, CLASSES, IMAGE = 2, 8, 5, (1, 32, 32)
SIZES: Mapping[str, tuple[str, ...]] = {
    "64,8,16,16": (),
    "32,32,32,32": (
        "model.conv.channels=32",
        "model.primary.types=32",
        "model.capsules.types=[32,32]",
    ),
}
FASTEST = {2: 60.0, 3: 45.0}  # images a second, by routing iterations
LARGEST = {"64,8,16,16": 0.75, "32,32,32,32": 2.0}  # GB
TOLERANCE = 1e-4  # of the parity gate, in single precision
ROUTES: Mapping[str, Callable[..., Routed]] = {"fast": fast, "textbook": textbook}


class Training:
    """A network in training on one batch."""

    def __init__(self, network: nn.Module, route: Callable[..., Routed]) -> None:
        self.network = routed_by(network, route)
        self.optimizer = torch.optim.Adam(network.parameters())
        self.images_BCHW, self.target_BN = _batch()

    def step(self) -> float:
        """Forward, spread loss, backward, Adam; the seconds it took."""
        begun = time.perf_counter()
        self.optimizer.zero_grad()
        scores_BN = self.network(self.images_BCHW).scores_BN
        spread_loss(scores_BN, self.target_BN, margin=0.5, reduction="mean").backward()
        self.optimizer.step()
        return time.perf_counter() - begun


def routing(steps: int = 30) -> list[Measured]:
    """Speed at two and three iterations, and memory at three. Raises ParityError, before
    anything is measured, where the versions do not compute the same.
    """
    torch.set_num_threads(THREADS)
    found = []
    for num_iters, bar in FASTEST.items():
        network = _network("64,8,16,16", num_iters)
        _assert_same(network)
        versions = {name: Training(copy.deepcopy(network), route) for name, route in ROUTES.items()}
        seconds: dict[str, list[float]] = {name: [] for name in versions}
        for _ in range(steps):
            for name, training in versions.items():
                seconds[name].append(training.step())
        fastest = {name: min(taken) for name, taken in seconds.items()}
        what = f"EM routing, T = {num_iters}"
        speed, ratio = BATCH / fastest["fast"], fastest["textbook"] / fastest["fast"]
        found += [
            Measured(f"{what}: training", speed, "images/s", bar, at_least=True),
            Measured(f"{what}: over the textbook version", ratio, "x", 3.0, at_least=True),
        ]
    return found + [
        Measured(f"EM routing, T = 3, {size}: peak memory", _peak(size), "GB", bar)
        for size, bar in LARGEST.items()
    ]


def peak(size: str, num_iters: int = 3) -> float:
    """Train for three steps; the largest memory in GB that this process has had."""
    torch.set_num_threads(THREADS)
    training = Training(_network(size, num_iters), fast)
    for _ in range(3):
        training.step()
    peak_bytes = memory.peak()["process"]
    if peak_bytes is None:
        raise RuntimeError("this system does not say its peak memory: run on Linux")
    return peak_bytes / 1e9


def _peak(size: str) -> float:
    """In a process of its own."""
    script = f"from capsweep.bench import em; print(em.peak({size!r}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return float(done.stdout)


def _network(size: str, num_iters: int) -> nn.Module:
    torch.manual_seed(0)
    chosen = ["model=matrix_capsnet", f"routing.num_iters={num_iters}", *SIZES[size]]
    config = compose.cell(chosen).config
    model = {**config["model"], "image_shape": list(IMAGE), "num_classes": CLASSES}
    return build.network({**config, "model": model})


def _batch() -> tuple[Tensor, Tensor]:
    """Uniform pixels and one-hot targets."""
    images_BCHW = torch.rand(BATCH, *IMAGE, generator=torch.Generator().manual_seed(0))
    return images_BCHW, F.one_hot(torch.arange(BATCH) % CLASSES, CLASSES).float()


def _assert_same(network: nn.Module) -> None:
    """Raise ParityError unless all versions give the classes and gradients of the reference,
    in single precision.
    """
    expected = _results(network, reference)
    found = {name: _results(network, route) for name, route in ROUTES.items()}
    parity.check(expected, found, TOLERANCE)


def _results(network: nn.Module, route: Callable[..., Routed]) -> parity.Results:
    images_BCHW, target_BN = _batch()
    found = routed_by(copy.deepcopy(network), route)
    output = found(images_BCHW)
    spread_loss(output.scores_BN, target_BN, margin=0.5, reduction="mean").backward()
    gradients = {
        f"gradient of {name}": parameter.grad
        for name, parameter in found.named_parameters()
        if parameter.grad is not None
    }
    return {"logits": output.logits_BN, "poses": output.pose_BJD, **gradients}
