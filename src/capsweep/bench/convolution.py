"""The convolution of the paper's primary capsules, direct and transformed: its speed, and its
errors against float64.

Shape letters: B batch, C channels, H W image.
"""

import torch
from torch import Tensor

from capsweep.bench.comparison import Results, median_ratio, relative_error, time_in_turns
from capsweep.bench.processes import RemoteCall, start_calls
from capsweep.bench.results import Measured
from capsweep.model.convolution import Convolution, to_channels_last
from capsweep.training import devices

ERROR_BATCH = 8
CHANNELS, KERNEL, STRIDE, SIZE = 256, 9, 2, 20
DIRECT, TRANSFORMED = "direct", "transformed"
TORCH, TORCH_KEPT = "torch's", "torch's with freed memory kept"
OURS = "the convolution alone, forward + backward: transformed"


class ConvolutionProblem:
    """A method, features as ReLU leaves them, and the gradients of the output, drawn once."""

    def __init__(self, method: str, images: int, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        convolution = Convolution(CHANNELS, CHANNELS, KERNEL, STRIDE, same=False)
        convolution.method = method
        self.convolution = to_channels_last(convolution.to(dtype))
        features_BCHW = _draw_numbers(images, SIZE).relu().to(dtype)
        self.inputs = (features_BCHW.requires_grad_(), *self.convolution.parameters())
        self.gradient_BCHW = _draw_numbers(images, convolution.count_places(SIZE)).to(dtype)

    def __call__(self) -> Results:
        """The output and all gradients."""
        output_BCHW = self.convolution(self.inputs[0])
        gradients = torch.autograd.grad(output_BCHW, self.inputs, self.gradient_BCHW)
        return dict(
            zip(("output", "image", "weights", "bias"), (output_BCHW, *gradients), strict=True)
        )


def _draw_numbers(images: int, size: int) -> Tensor:
    return torch.randn(images, CHANNELS, size, size).to(memory_format=torch.channels_last)


def prepare_convolution(method: str, keeps_memory: bool, images: int) -> ConvolutionProblem:
    """In a process of its own. keeps_memory: whether it keeps what is freed."""
    if keeps_memory:
        devices.keep_freed_memory()
    return ConvolutionProblem(method, images)


def measure_convolution(budget: float, images: int) -> list[Measured]:
    """Speed, in processes that take turns, and errors. budget: least seconds of the rounds."""
    arguments = {TORCH: (DIRECT, False), TORCH_KEPT: (DIRECT, True), OURS: (TRANSFORMED, True)}
    prepared = {name: (prepare_convolution, *each, images) for name, each in arguments.items()}
    with start_calls(prepared) as calls:
        seconds = time_in_turns(calls, budget, time_call=RemoteCall.__call__)
    direct, transformed = find_largest_errors()
    what, unit = "the convolution's largest error", "of the largest number"
    return [
        Measured(f"{OURS} over {TORCH}", median_ratio(seconds, TORCH, OURS), "x", 2.8, True),
        Measured(f"{OURS} over {TORCH_KEPT}", median_ratio(seconds, TORCH_KEPT, OURS), "x"),
        Measured(f"{what}, direct", direct, unit),
        Measured(f"{what}, transformed", transformed, unit),
        Measured(f"{what}, transformed, in units of direct's", transformed / direct, "x", 1),
    ]


def find_largest_errors() -> tuple[float, ...]:
    """Direct and transformed: of output and gradients, against direct convolution in float64."""
    exact = ConvolutionProblem(DIRECT, ERROR_BATCH, torch.float64)()
    results = (ConvolutionProblem(method, ERROR_BATCH)() for method in (DIRECT, TRANSFORMED))
    return tuple(max(relative_error(exact[name], each[name]) for name in exact) for each in results)
