"""Speed and errors of convolutions, direct and transformed, on a processor.

The convolution of the paper's primary capsules is compared with float64; many sizes are timed for
the rule that chooses between the two.

Shape letters: B batch, C channels, H W image.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import torch

from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measured
from capsweep.lab.bench.comparison import (
    Results,
    check_parity,
    median_ratio,
    relative_error,
    start_workers,
    time_in_turns,
)
from capsweep.model.convolution import Convolution, lay_out_weights
from capsweep.training import devices

DIRECT, TRANSFORMED = "direct", "transformed"
TORCH, TORCH_KEPT = "torch's", "torch's with freed memory kept"
OURS = "the convolution alone, forward + backward: transformed"
TOLERANCE = 1e-5
FEWEST_ROUNDS = 3


class ConvolutionSizes(NamedTuple):
    """Of a square convolution without padding: as many channels as outputs, square images."""

    channels: int
    kernel: int
    stride: int
    pixels: int
    images: int


PRIMARY = ConvolutionSizes(channels=256, kernel=9, stride=2, pixels=20, images=128)
GRID = [
    ConvolutionSizes(channels, *window, images)
    for window, channels, images in product(
        ((5, 1, 16), (5, 2, 20), (9, 1, 16), (9, 2, 20)), (32, 64, 128, 256), (8, 128)
    )
]
SMALL = ConvolutionSizes(channels=4, kernel=5, stride=1, pixels=16, images=4)
QUICK = {"convolution": {"budget": 0.0, "primary": SMALL, "grid": [SMALL]}}


class ConvolutionProblem:
    """A method, features as ReLU leaves them, and the gradients of the output, drawn once."""

    def __init__(
        self, method: str, sizes: ConvolutionSizes, dtype: torch.dtype = torch.float32
    ) -> None:
        torch.manual_seed(0)
        channels, pixels = sizes.channels, sizes.pixels
        convolution = Convolution(channels, channels, sizes.kernel, sizes.stride, same=False)
        convolution.method = method
        lay_out_weights(convolution.to(dtype), torch.channels_last)
        self.convolution = convolution
        features_BCHW, self.gradient_BCHW = (
            torch.randn(sizes.images, channels, size, size)
            .to(dtype)
            .to(memory_format=torch.channels_last)
            for size in (pixels, convolution.count_places(pixels))
        )
        self.inputs = features_BCHW.relu_().requires_grad_(), *self.convolution.parameters()

    def __call__(self) -> Results:
        """Return the output and all gradients."""
        output_BCHW = self.convolution(self.inputs[0])
        gradients = torch.autograd.grad(output_BCHW, self.inputs, self.gradient_BCHW)
        results = output_BCHW, *gradients
        return dict(zip(("output", "image", "weights", "bias"), results, strict=True))

    def find_method(self) -> str:
        """Return how all batches so far were computed."""
        (method,) = self.convolution.methods
        return method


def measure_convolution(
    budget: float = 20.0,
    primary: ConvolutionSizes = PRIMARY,
    grid: Sequence[ConvolutionSizes] = GRID,
) -> BenchReport:
    """Return speeds and errors. budget: least seconds of the rounds of the primary capsules'.

    Raises CandidateError, before a speed is measured, where the two methods do not compute the
    same.
    """
    if bench.is_gpu():
        why = "only processors transform convolutions"
        return BenchReport([Measured(OURS, None, "x", 2.8, True, why)])
    with devices.using_threads(bench.THREADS):
        for sizes in (primary, *grid):
            expected = ConvolutionProblem(DIRECT, sizes)()
            check_parity(expected, ConvolutionProblem(TRANSFORMED, sizes)(), TOLERANCE)
        errors = _measure_errors(primary)
    arguments = {TORCH: (DIRECT, False), TORCH_KEPT: (DIRECT, True), OURS: (TRANSFORMED, True)}
    prepared = {name: (_prepare_problem, primary, *each) for name, each in arguments.items()}
    with start_workers(prepared) as workers:
        seconds = time_in_turns(workers, budget)
        rows = workers[OURS].ask(partial(_measure_grid, grid))
    longest = max(row["over the faster"] for row in rows)
    measured = [
        Measured(f"{OURS} over {TORCH}", median_ratio(seconds, TORCH, OURS), "x", 2.8, True),
        Measured(f"{OURS} over {TORCH_KEPT}", median_ratio(seconds, TORCH_KEPT, OURS), "x"),
        *errors,
        Measured("what auto chooses, over the faster of the two: the longest", longest, "x"),
    ]
    return BenchReport(measured, rows)


def _prepare_problem(
    sizes: ConvolutionSizes, method: str, keeps_memory: bool
) -> ConvolutionProblem:
    """Return a problem in a process of its own, which keeps what is freed or not."""
    if keeps_memory:
        devices.keep_freed_memory()
    return ConvolutionProblem(method, sizes)


def _measure_errors(sizes: ConvolutionSizes) -> list[Measured]:
    """Return those of output and gradients, against direct convolution in float64."""
    exact = ConvolutionProblem(DIRECT, sizes, torch.float64)()
    direct, transformed = (
        max(relative_error(exact[name], tensor) for name, tensor in results.items())
        for results in (ConvolutionProblem(way, sizes)() for way in (DIRECT, TRANSFORMED))
    )
    what, unit = "the convolution's largest error", "of the largest number"
    return [
        Measured(f"{what}, direct", direct, unit),
        Measured(f"{what}, transformed", transformed, unit),
        Measured(f"{what}, transformed, over direct's", transformed / direct, "x", 1),
    ]


def _measure_grid(grid: Sequence[ConvolutionSizes], _: object) -> list[dict[str, Any]]:
    """Return a row for each size, with the method that `auto` chooses."""
    rows = []
    for sizes in grid:
        problems = {way: ConvolutionProblem(way, sizes) for way in (DIRECT, TRANSFORMED)}
        calls = {way: partial(bench.time_call, problem) for way, problem in problems.items()}
        seconds = time_in_turns(calls, 0.0, FEWEST_ROUNDS)
        automatic = ConvolutionProblem("auto", sizes)
        automatic()
        direct, transformed = (median(seconds[way]) for way in (DIRECT, TRANSFORMED))
        choice = DIRECT if automatic.find_method() == DIRECT else TRANSFORMED
        rows.append(
            {
                **sizes._asdict(),
                "direct: ms": direct * 1e3,
                "transformed: ms": transformed * 1e3,
                "over direct": median_ratio(seconds, DIRECT, TRANSFORMED),
                "tiles": problems[TRANSFORMED].find_method().rpartition(" ")[2],
                "auto": choice,
                "over the faster": median(seconds[choice]) / min(direct, transformed),
            }
        )
    return rows
