"""Training steps that a GPU replays as CUDA graphs.

In an eager step, Python starts hundreds of GPU kernels one by one. With a CUDA graph, Python starts
the whole training step with one call. The first batch of each shape is trained eagerly, so that
libraries and the optimiser create their state. Before the second batch of a shape, the step is
captured on static tensors. The graph includes the forward pass, the backward pass, the clipping of
gradients, the optimiser and the metrics. From then on, each batch is copied into the static
tensors, and the graph is replayed. All values that change from step to step are tensors on the
device: the batch, the learning rates, and the margin of the loss if the margin grows during
training.

The first replays are compared with eager steps, which train copies of the network and optimiser. If
a replay differs from the eager step, the network and optimiser get the values of the copies, and
training continues eagerly. Training also stays eager if a step changes a Python number, such as a
counter in a module. So the results are right even on an untested GPU, or for a network whose Python
code makes decisions in each step.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from capsweep.data.batches import Batch
from capsweep.training.step import Losses, SplitMetrics, TrainingStep, list_numbers

Run = Callable[[], None]
Shape = tuple[object, ...]  # shapes and types of a batch's tensors, and whether the margin grows
# Number of replays of each graph that are compared with an eager step. One comparison is not
# enough, because Python code may make another decision in a later step.
CHECKED = 2
# Largest allowed norm of the difference between a replay and the eager step, relative to the norm
# in the eager step. TOLERANCE is for the loss and the gradients, by precision. UPDATE_TOLERANCE is
# for changes of weights. UPDATE_TOLERANCE is larger, because Adam changes a weight as much for a
# small gradient as for a large gradient.
TOLERANCE = {"32": 1e-3, "tf32": 1e-2, "bf16-mixed": 5e-2}
UPDATE_TOLERANCE = 0.2


class CapturedStep:
    """A captured training step, which is replayed for batches of one shape.

    Args:
        step: The eager step that is captured.
        metrics: The training metrics, to which each replay adds.
        batch: A batch of this shape. The capture does not train on this batch.
        margin: The margin of the loss; None: the margin does not grow.
        capture: Captures the GPU work of a function, and returns a function that replays the work.

    Attributes:
        gradients: The clipped gradients of the parameters in the last replay.
        checked: The number of replays that were compared with an eager step.
    """

    def __init__(
        self,
        step: TrainingStep,
        metrics: SplitMetrics,
        batch: Batch,
        margin: float | None,
        capture: Callable[[Run], Run],
    ) -> None:
        self.step, self.metrics, self.checked = step, metrics, 0
        # `empty_like` keeps the memory format, so that convolutions choose the same algorithms.
        static = (None if tensor is None else torch.empty_like(tensor) for tensor in batch)
        self.batch = Batch._make(static)
        groups, device = step.optimizer.param_groups, step.device
        # GPU kernels read learning rates in float32. The processor reads them in float64.
        rate_type = torch.float32 if device.type == "cuda" else torch.float64
        self.rates = [torch.zeros((), dtype=rate_type, device=device) for _ in groups]
        zero = torch.zeros((), dtype=torch.float64, device=device)
        self.margin = None if margin is None else zero
        self.gradients: list[Tensor | None] = []
        self.loss = torch.zeros((), device=device)
        if device.type == "cuda":  # a capture may not copy between the processor and the GPU
            move_counters(step.optimizer, device)
        self._fill(batch, margin)
        self.replay = capture(self._run)

    def __call__(self, batch: Batch, margin: float | None) -> Tensor:
        """Train on a batch by a replay, and return the loss of the batch."""
        self._fill(batch, margin)
        self.replay()
        self.metrics.images += len(batch.labels)
        return self.loss.clone()  # the next replay overwrites `self.loss`

    def _fill(self, batch: Batch, margin: float | None) -> None:
        for static, value in zip(self.batch, batch, strict=True):
            if static is not None and value is not None:
                static.copy_(value)
        for rate, group in zip(self.rates, self.step.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        if self.margin is not None and margin is not None:
            self.margin.fill_(margin)

    def _run(self) -> None:
        """Train on the static tensors. `capture` records the GPU work of this call."""
        with _rates_on_device(self.step, self.rates):
            losses = self.step(self.batch, self.margin)
        self.metrics.add_sums(losses, self.batch)
        self.loss = losses.total
        self.gradients = [parameter.grad for parameter in self.step.network.parameters()]


def move_counters(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Move the scalars of an optimiser's state, such as its step counts, to a device."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() == 0:
                state[name] = value.to(device)


@contextmanager
def _rates_on_device(step: TrainingStep, rates: Sequence[Tensor]) -> Iterator[None]:
    """Let the optimiser read its learning rates from tensors on the device, inside the block.

    Outside the block, the learning rates are numbers, because the schedule and checkpoints need
    numbers.
    """
    groups, is_captured = step.optimizer.param_groups, step.device.type == "cuda"
    before = [dict(group) for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
        if is_captured:
            group["capturable"] = True
    try:
        yield
    finally:
        for group, values in zip(groups, before, strict=True):
            group.update(values)


def capture_graph(device: torch.device, pool: Any, run: Run) -> Run:
    """Capture the GPU work that `run` starts, and return a function that replays the work.

    The capture only records the work. Each replay does the work.

    Args:
        device: The GPU.
        pool: The memory for intermediate results, which several graphs can share.
        run: The function whose work is captured.

    Raises:
        RuntimeError: If CUDA cannot capture the work. Also if `run` draws random numbers on the
            processor, because each replay would repeat these numbers.
    """
    graph, drawn = torch.cuda.CUDAGraph(), torch.get_rng_state()
    generator = torch.cuda.default_generators[device.index or 0]
    before = generator.clone_state()
    try:
        # Other threads, such as a monitor, may query the device during the capture.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            run()
    except BaseException:
        # Without this call, the generator would stay in the state of a capture.
        generator.graphsafe_set_state(before)
        raise
    if not torch.equal(drawn, torch.get_rng_state()):
        torch.set_rng_state(drawn)
        raise RuntimeError("the step draws random numbers on the processor")
    return graph.replay


@dataclass
class StepGraphs:
    """The training steps of a network, with one captured step for each shape of batch.

    Attributes:
        step: The eager step.
        metrics: The training metrics.
        reason: Why training is eager; None: steps are captured.
        capture: Captures the GPU work of a function, and returns a function that replays the work;
            None: `capture_graph`, with memory that all graphs share.
        shapes: The shapes of the batches so far. The first batch of each shape is trained eagerly.
        captured_sizes: The batch sizes for which a step was captured.
        captured: The captured step of each shape.
    """

    step: TrainingStep
    metrics: SplitMetrics
    reason: str | None = None
    capture: Callable[[Run], Run] | None = None
    shapes: set[Shape] = field(default_factory=set)
    captured_sizes: set[int] = field(default_factory=set)
    captured: dict[Shape, CapturedStep] = field(default_factory=dict)

    def train(self, batch: Batch, margin: float | None = None) -> Tensor:
        """Train on a batch, by a captured step if possible, and return the loss of the batch."""
        shape = _describe_shape(batch, margin)
        if self.reason is None and shape not in self.shapes:
            return self._train_first(shape, batch, margin)
        if self.reason is None and shape not in self.captured:
            self._capture(shape, batch, margin)
        if self.reason is not None:
            return self._train_eagerly(batch, margin)
        if self.captured[shape].checked < CHECKED:
            return self._train_checked(shape, batch, margin)
        return self.captured[shape](batch, margin)

    def describe(self) -> str:
        """Describe how the training steps were computed, for the provenance."""
        if self.reason is not None:
            return f"off: {self.reason}"
        sizes = ", ".join(map(str, sorted(self.captured_sizes, reverse=True)))
        return (
            f"captured, batches of {sizes}" if sizes else "off: each batch size occurred only once"
        )

    def release(self) -> None:
        """Free the memory of all graphs; no further step can be captured afterwards.

        The graphs share a memory pool, and this pool is freed with the last graph.
        """
        self.captured.clear()
        self.step.optimizer.zero_grad()

    def _train_first(self, shape: Shape, batch: Batch, margin: float | None) -> Tensor:
        self.shapes.add(shape)
        before = list_numbers(self.step)
        loss = self._train_eagerly(batch, margin)
        changed = list_numbers(self.step).items() - before.items()
        if names := sorted(name for name, _ in changed if name in before):
            # A replay runs no Python code, so each replay would use the numbers of the capture.
            self._give_up(f"each step changes Python numbers: {', '.join(names)}")
        return loss

    def _train_eagerly(self, batch: Batch, margin: float | None) -> Tensor:
        losses = self.step(batch, margin)
        self.metrics.update(losses, batch)
        return losses.total

    def _capture(self, shape: Shape, batch: Batch, margin: float | None) -> None:
        if self.capture is None:
            pool = torch.cuda.graph_pool_handle()
            self.capture = partial(capture_graph, self.step.device, pool)
        try:
            captured = CapturedStep(self.step, self.metrics, batch, margin, self.capture)
        except Exception as error:  # CUDA and a network's code can raise any exception
            self._give_up(f"its step cannot be captured: {_first_line(error)}")
            return
        self.captured[shape] = captured
        self.captured_sizes.add(len(batch.labels))

    def _train_checked(self, shape: Shape, batch: Batch, margin: float | None) -> Tensor:
        checked = self._train_copy(batch, margin)
        # If the copy failed, the memory of the copy and of all graphs is free by now.
        if checked is None:
            return self._train_eagerly(batch, margin)
        (eager, losses, before), captured = checked, self.captured[shape]
        captured.checked += 1
        sums = {name: value.clone() for name, value in self.metrics.sums.items()}
        images = self.metrics.images
        loss = captured(batch, margin)
        fault = find_difference(eager, losses.total, captured, before)
        if fault is None:
            return loss
        self.step.take_over(eager)
        self.metrics.sums, self.metrics.images = sums, images
        self.metrics.update(losses, batch)
        self._give_up(f"its captured step differs from its eager step: {fault}")
        return losses.total

    def _train_copy(
        self, batch: Batch, margin: float | None
    ) -> tuple[TrainingStep, Losses, list[Tensor]] | None:
        """Copy the network, and train the copy eagerly on a batch.

        Returns:
            None if this fails; all further training is then eager. Otherwise three values: the
            eager step of the copy, which has trained on the batch; the losses of this step; and the
            parameters of the network before the step.
        """
        device = self.step.device
        try:
            before = [parameter.detach().clone() for parameter in self.step.network.parameters()]
            eager = self.step.copy()
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                return eager, eager(batch, margin), before
        except Exception as error:  # too little memory, or an error in a network's code
            reason = _first_line(error)
        self._give_up(f"its network cannot be copied for a check: {reason}")
        return None

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self.release()
        print_reason(reason)


def print_reason(reason: str) -> None:
    """Print to stderr why a cell is trained eagerly on a GPU."""
    line = f"trainer.graphs: this cell is trained without CUDA graphs, because {reason}"
    print(line, file=sys.stderr, flush=True)


def find_difference(
    eager: TrainingStep, eager_loss: Tensor, captured: CapturedStep, before: Sequence[Tensor]
) -> str | None:
    """Compare a captured step with an eager step, and describe the first large difference.

    The losses, the gradients and the changes of the parameters are compared. A difference is large
    if its norm, relative to the norm in the eager step, exceeds TOLERANCE (for losses and
    gradients) or UPDATE_TOLERANCE (for changes). Rounding cannot explain a large difference.

    Args:
        eager: The eager step, which has just trained a copy of the network on a batch.
        eager_loss: The loss of the eager step.
        captured: The captured step, which has just trained the network on the same batch.
        before: The parameters before both steps.

    Returns:
        The first large difference, in words. None: there is no large difference, or both losses are
        infinite or NaN.
    """
    if not (eager_loss.isfinite() or captured.loss.isfinite()):
        return None
    tolerance = TOLERANCE[eager.precision]
    if fault := _compare("loss", eager_loss, captured.loss, tolerance):
        return fault
    named, replayed = eager.network.named_parameters(), captured.step.network.parameters()
    parameters = zip(named, captured.gradients, before, replayed, strict=True)
    for (name, expected), gradient, old, new in parameters:
        if (expected.grad is None) != (gradient is None):
            return f"{name} has a gradient in only one of the two steps"
        if expected.grad is not None and gradient is not None:
            fault = _compare(f"gradient of {name}", expected.grad, gradient, tolerance)
            fault = fault or _compare(
                f"change of {name}", expected.detach() - old, new.detach() - old, UPDATE_TOLERANCE
            )
            if fault:
                return fault
    return None


def _compare(name: str, expected: Tensor, actual: Tensor, tolerance: float) -> str | None:
    length = partial(torch.linalg.vector_norm, dtype=torch.float64)  # without float64 copies
    difference, size = length(actual - expected).item(), length(expected).item()
    if difference <= tolerance * size:
        return None
    return f"the {name} differs by {difference:.3g}; its norm is {size:.3g}"


def _describe_shape(batch: Batch, margin: float | None) -> Shape:
    """Return the shapes and types of a batch, and whether the margin of the loss grows.

    The types are included, because static tensors of another type would round the values of the
    batch.
    """
    tensors = (None if one is None else (one.shape, one.dtype) for one in batch)
    return (*tensors, margin is None)


def _first_line(error: BaseException) -> str:
    """Return the first line of the message that says why a step failed.

    If a step fails during its capture, torch raises a second error at the end of the capture. The
    first error is the context of the second error. The message of the first error is used.
    """
    cause = error.__context__ or error
    return (str(cause).splitlines() or [type(cause).__name__])[0]
