"""Speed and errors of two convolution methods on a CPU: direct and transformed.

`direct` is torch's convolution. `transformed` transforms tiles of the image, and needs fewer
multiplications for large kernels. `auto` is the method that is expected to be faster. The
convolution of the paper's primary capsules is timed with both methods, and the results are compared
with a reference in float64. Many other sizes are timed too, to check the choice of `auto`.

Shape letters: B batch, C channels, H height, W width.
"""

from functools import partial
from itertools import product
from statistics import median

import torch

from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measurement, Row
from capsweep.lab.bench.comparison import (
    BEFORE,
    Candidate,
    Results,
    check_parity,
    compare,
    median_ratio,
    time_in_turns,
)
from capsweep.model.convolution import Convolution, set_weight_layout
from capsweep.training import devices

DIRECT, TRANSFORMED = "direct", "transformed"
CASE = "forward + backward"
BARS = ((CASE, TRANSFORMED, "over before", 2.8),)
TOLERANCE = 1e-5


# Kernels and images are square. There is no padding. The input and the output have the same number
# of channels.
NAMES = ("channels", "kernel", "stride", "pixels", "images")
PRIMARY, SMALL = (256, 9, 2, 20, 128), (4, 5, 1, 16, 4)
WINDOWS = ((5, 1, 16), (5, 2, 20), (9, 1, 16), (9, 2, 20))
GRID = [(c, *window, b) for window, c, b in product(WINDOWS, (32, 64, 128, 256), (8, 128))]
Sizes = tuple[int, int, int, int, int]


class ConvolutionProblem:
    """A convolution with a random input, and a random gradient for its output.

    The input is not negative, as after ReLU.

    Args:
        method: `direct`: torch's convolution. `transformed`: fewer multiplications for large
            kernels. `auto`: the method that is expected to be faster.
        sizes: Number of channels, side of the kernel, stride, side of the image, number of images.
        dtype: Data type of all tensors.
    """

    def __init__(self, method: str, sizes: Sizes, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        channels, kernel, stride, pixels, images = sizes
        convolution = Convolution(channels, channels, kernel, stride, same=False)
        convolution.method = method
        set_weight_layout(convolution.to(dtype), torch.channels_last)
        self.convolution = convolution
        features_BCHW, self.gradient_BCHW = (
            torch.randn(images, channels, size, size)
            .to(dtype)
            .to(memory_format=torch.channels_last)
            for size in (pixels, convolution.count_positions(pixels))
        )
        self.inputs = features_BCHW.relu_().requires_grad_(), *self.convolution.parameters()

    def __call__(self) -> Results:
        """Compute the output, and the gradients with respect to image, weights and bias."""
        output_BCHW = self.convolution(self.inputs[0])
        gradients = torch.autograd.grad(output_BCHW, self.inputs, self.gradient_BCHW)
        results = output_BCHW, *gradients
        return dict(zip(("output", "image", "weights", "bias"), results, strict=True))

    compute_results = __call__

    def find_method(self) -> str:
        """Return the method that computed all batches so far.

        The result is the text in `Convolution.methods`, such as `direct`. For transformed
        convolutions, the text also has the size of the tiles.

        Raises:
            ValueError: No batch has been computed yet, or several methods were used.
        """
        (method,) = self.convolution.methods
        return method


def measure_convolution(is_quick: bool = False) -> BenchReport:
    """Measure speeds and errors of direct and transformed convolutions on a CPU.

    On a GPU the report is empty, because convolutions are transformed only on CPUs. The candidate
    `before` uses the direct method, and its process returns freed memory to the system, as the
    processes of cells did in earlier versions.
    """
    report, ways = BenchReport(), ((BEFORE, DIRECT), (DIRECT, DIRECT), (TRANSFORMED, TRANSFORMED))
    if bench.is_gpu():
        return report
    primary, grid, seconds = (SMALL, [SMALL], 0.0) if is_quick else (PRIMARY, GRID, 20.0)
    expected = partial(compute_expected, primary)
    candidates = {
        name: Candidate(partial(ConvolutionProblem, way, primary), expected, TOLERANCE, name == way)
        for name, way in ways
    }
    compare(report, CASE, primary[-1], candidates, seconds)
    report.judge(BARS)
    direct, transformed = (report.find(CASE, way, "error") for way in (DIRECT, TRANSFORMED))
    if direct and transformed:
        what = "largest error, transformed / direct"
        report.numbers.append(Measurement(what, transformed / direct, "x", 1))
    devices.keep_freed_memory()
    with devices.using_threads(bench.THREADS):
        for sizes in grid:
            with report.catching(f"convolution of {sizes}"):
                report.rows.append(choose_method(sizes))
    report.judge_worst("time that auto takes, over the faster of the two", "x", None)
    return report


def compute_expected(sizes: Sizes) -> Results:
    """Compute the results of direct convolution in float64."""
    return ConvolutionProblem(DIRECT, sizes, torch.float64)()


def choose_method(sizes: Sizes) -> Row:
    """Time both methods for the given sizes; return a row with times and the choice of `auto`.

    Raises:
        ValueError: The results of the two methods differ by more than TOLERANCE.
    """
    problems = {way: ConvolutionProblem(way, sizes) for way in (DIRECT, TRANSFORMED)}
    check_parity(problems[DIRECT](), problems[TRANSFORMED](), TOLERANCE)
    calls = {way: partial(bench.time_call, problem) for way, problem in problems.items()}
    seconds = time_in_turns(calls, 0.0, least=3)
    automatic = ConvolutionProblem("auto", sizes)
    automatic()
    times = {way: median(seconds[way]) for way in problems}
    choice = DIRECT if automatic.find_method() == DIRECT else TRANSFORMED
    return {
        **dict(zip(NAMES, sizes, strict=True)),
        **{f"{way}: ms": time * 1e3 for way, time in times.items()},
        "over direct": median_ratio(seconds, DIRECT, TRANSFORMED),
        "tiles": problems[TRANSFORMED].find_method().rpartition(" ")[2],
        "auto": choice,
        "time that auto takes, over the faster of the two": times[choice] / min(times.values()),
    }
