"""Training steps that a GPU replays as CUDA graphs.

Python starts a step once, not each of its hundreds of kernels. The first batch of each size is
trained eagerly, which makes what libraries and the optimiser make once. The second is captured:
forward, backward, clipping, optimiser and metrics, on static tensors. From then on a step is a copy
into these, and one launch. What changes from step to step is a tensor on the device: the batch, the
learning rates, and the margin of a loss that grows.

The first replays are compared with eager steps on copies of the network and its optimiser; where
they differ, training goes on from the copies, eagerly; so it does where a step changes numbers that
Python keeps. So a GPU that nobody has tried, or a network whose Python decides something anew in
each step, cannot give wrong numbers.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from capsweep.data.batches import Batch
from capsweep.training.step import Losses, SplitMetrics, TrainingStep, list_numbers

Run = Callable[[], None]
Shape = tuple[object, ...]  # of a batch, with the types of its numbers
CHECKED = 2  # replays of a graph: what Python decided at its capture is not what it decides next
# Largest norm of a difference, over that of what an eager step has: of loss and gradients, by
# precision. Of weights, which Adam moves by as much for small gradients as for large ones.
TOLERANCE = {"32": 1e-3, "tf32": 1e-2, "bf16-mixed": 5e-2}
UPDATE_TOLERANCE = 0.2


class CapturedStep:
    """Trains on batches of one shape by replaying a step that was captured.

    Attributes:
        gradients: the parameters' gradients after a replay, as they were clipped.
        checked: how many replays were compared with an eager step.
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
        drawn = batch.targets_BLCHW
        targets_BLCHW = None if drawn is None else torch.empty_like(drawn)
        # Laid out as the batch, so that convolutions choose the same algorithms.
        self.batch = Batch(
            torch.empty_like(batch.images_BCHW), torch.empty_like(batch.labels), targets_BLCHW
        )
        groups, device = step.optimizer.param_groups, step.device
        # Kernels read float32; the processor's float64, as it has the rate itself.
        rate_type = torch.float32 if device.type == "cuda" else torch.float64
        self.rates = [torch.zeros((), dtype=rate_type, device=device) for _ in groups]
        self.margin = None
        if margin is not None:
            self.margin = torch.zeros((), dtype=torch.float64, device=device)
        self.gradients: list[Tensor | None] = []
        self.loss = torch.zeros((), device=device)
        if device.type == "cuda":  # before the capture, which forbids copies
            move_counters(step.optimizer, device)
        self._fill(batch, margin)
        self.replay = capture(self._run)

    def __call__(self, batch: Batch, margin: float | None) -> Tensor:
        """Train on a batch of this shape, and return its loss."""
        self._fill(batch, margin)
        self.replay()
        self.metrics.images += len(batch.labels)
        return self.loss.clone()  # the next replay overwrites it

    def _fill(self, batch: Batch, margin: float | None) -> None:
        for static, value in zip(self.batch[:3], batch[:3], strict=True):
            if static is not None and value is not None:
                static.copy_(value)
        for rate, group in zip(self.rates, self.step.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        if self.margin is not None and margin is not None:
            self.margin.fill_(margin)

    def _run(self) -> None:
        """Take the step that is captured."""
        with _rates_on_device(self.step, self.rates):
            losses = self.step(self.batch, self.margin)
        self.metrics.add_sums(losses, self.batch)
        self.loss = losses.total
        self.gradients = [parameter.grad for parameter in self.step.network.parameters()]


def move_counters(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Move what an optimiser counts, as its steps and NAdam's products, to a device."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() == 0:
                state[name] = value.to(device)


@contextmanager
def _rates_on_device(step: TrainingStep, rates: Sequence[Tensor]) -> Iterator[None]:
    """Let the optimiser read its learning rates off the device.

    Outside of the block they are numbers, as the schedule and checkpoints know them.
    """
    groups, is_captured = step.optimizer.param_groups, step.device.type == "cuda"
    before = [{key: group.get(key) for key in ("lr", "capturable")} for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
        if is_captured:
            group["capturable"] = True
    try:
        yield
    finally:
        for group, values in zip(groups, before, strict=True):
            group.update({key: value for key, value in values.items() if key in group})


class GraphCapture:
    """Captures CUDA graphs that share the memory of what lies between their inputs and outputs.

    A step that draws on the processor would replay the same numbers: it raises RuntimeError.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.pool = device, torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Return what replays the work that `run` starts, which is not done now."""
        graph, drawn = torch.cuda.CUDAGraph(), torch.get_rng_state()
        generator = torch.cuda.default_generators[self.device.index or 0]
        before = generator.clone_state()
        try:
            # Other threads, of a monitor, may ask the device for something meanwhile.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                run()
        except BaseException:
            generator.graphsafe_set_state(before)  # it would believe that the capture goes on
            raise
        if not torch.equal(drawn, torch.get_rng_state()):
            torch.set_rng_state(drawn)
            raise RuntimeError("the step draws random numbers on the processor")
        return graph.replay


class StepGraphs:
    """Training by captured steps, a graph for each shape of batch.

    Attributes:
        reason: why training is eager; None where it is not.
    """

    def __init__(
        self,
        step: TrainingStep,
        metrics: SplitMetrics,
        reason: str | None = None,
        capture: Callable[[Run], Run] | None = None,
    ) -> None:
        self.step, self.metrics, self.reason = step, metrics, reason
        self.capture = capture
        self.shapes: set[Shape] = set()  # of batches that were trained eagerly
        self.captured_sizes: set[int] = set()
        self.captured: dict[Shape, CapturedStep] = {}
        if reason is None and capture is None:
            self.capture = GraphCapture(step.device)

    def train(self, batch: Batch, margin: float | None = None) -> Tensor:
        """Train on a batch, captured where that is possible, and return its loss."""
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
        """Return how training has computed its steps, for the provenance."""
        if self.reason is not None:
            return f"off: {self.reason}"
        sizes = ", ".join(map(str, sorted(self.captured_sizes, reverse=True)))
        return f"captured, batches of {sizes}" if sizes else "off: each size of batch came once"

    def release(self) -> None:
        """Give the graphs' memory back. No more can be captured: their pool ends with the last."""
        self.captured.clear()
        self.step.optimizer.zero_grad()

    def _train_first(self, shape: Shape, batch: Batch, margin: float | None) -> Tensor:
        self.shapes.add(shape)
        before = list_numbers(self.step)
        loss = self._train_eagerly(batch, margin)
        changed = list_numbers(self.step).items() - before.items()
        if names := sorted(name for name, _ in changed if name in before):
            # Replays run no Python: a graph would keep the numbers that it was captured with.
            self._give_up(f"each step changes numbers of Python: {', '.join(names)}")
        return loss

    def _train_eagerly(self, batch: Batch, margin: float | None) -> Tensor:
        losses = self.step(batch, margin)
        self.metrics.update(losses, batch)
        return losses.total

    def _capture(self, shape: Shape, batch: Batch, margin: float | None) -> None:
        assert self.capture is not None
        try:
            captured = CapturedStep(self.step, self.metrics, batch, margin, self.capture)
        except Exception as error:  # CUDA, libraries and a network's own code raise anything
            self._give_up(f"it cannot be captured: {_first_line(error)}")
            return
        self.captured[shape] = captured
        self.captured_sizes.add(len(batch.labels))

    def _train_checked(self, shape: Shape, batch: Batch, margin: float | None) -> Tensor:
        checked = self._train_copy(batch, margin)
        # Here nothing refers to the copy, or to the graphs, of which it had to give up the memory.
        if checked is None:
            return self._train_eagerly(batch, margin)
        (eager, losses, before), captured = checked, self.captured[shape]
        captured.checked += 1
        sums = {name: value.clone() for name, value in self.metrics.sums.items()}
        images = self.metrics.images
        loss = captured(batch, margin)
        fault = find_difference(eager, losses.total, captured, loss, before)
        if fault is None:
            return loss
        self.step.take_over(eager)
        self.metrics.sums, self.metrics.images = sums, images
        self.metrics.update(losses, batch)
        self._give_up(f"its captured step is not its eager one: {fault}")
        return losses.total

    def _train_copy(
        self, batch: Batch, margin: float | None
    ) -> tuple[TrainingStep, Losses, list[Tensor]] | None:
        """Return a copy that has trained on the batch, its losses, and the parameters before.

        None: there is no such copy, and training goes on eagerly.
        """
        device = self.step.device
        try:
            before = [parameter.detach().clone() for parameter in self.step.network.parameters()]
            eager = self.step.copy()
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                return eager, eager(batch, margin), before
        except Exception as error:  # of memory, or of a network's own code
            reason = _first_line(error)
        self._give_up(f"it has no copy with which it is checked: {reason}")
        return None

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self.release()
        print_reason(reason)


def print_reason(reason: str) -> None:
    """Say on stderr why a cell is trained eagerly on a GPU."""
    line = f"trainer.graphs: this cell is trained without CUDA graphs, since {reason}"
    print(line, file=sys.stderr, flush=True)


def find_difference(
    eager: TrainingStep,
    eager_loss: Tensor,
    captured: CapturedStep,
    loss: Tensor,
    before: Sequence[Tensor],
) -> str | None:
    """Return in what a captured step differs from an eager one, beyond rounding.

    None: in nothing, or nothing is finite any more. before: the parameters before the step.
    """
    if not (eager_loss.isfinite() or loss.isfinite()):
        return None
    tolerance = TOLERANCE[eager.precision]
    if fault := _compare("loss", eager_loss, loss, tolerance):
        return fault
    parameters = zip(eager.network.named_parameters(), captured.gradients, before, strict=True)
    own = list(captured.step.network.parameters())
    for ((name, expected), gradient, old), new in zip(parameters, own, strict=True):
        if (expected.grad is None) != (gradient is None):
            return f"{name} has a gradient in one of them"
        if expected.grad is not None and gradient is not None:
            fault = _compare(f"gradient of {name}", expected.grad, gradient, tolerance)
            fault = fault or _compare(
                f"change of {name}", expected.detach() - old, new.detach() - old, UPDATE_TOLERANCE
            )
            if fault:
                return fault
    return None


def _compare(name: str, expected: Tensor, found: Tensor, tolerance: float) -> str | None:
    length = partial(torch.linalg.vector_norm, dtype=torch.float64)  # without copies in float64
    difference, size = length(found - expected).item(), length(expected).item()
    if difference <= tolerance * size:
        return None
    return f"the {name} differs by {difference:.3g}, where it has the norm {size:.3g}"


def _describe_shape(batch: Batch, margin: float | None) -> Shape:
    """Describe what static tensors hold; copied into others, numbers would be rounded."""
    tensors = (None if one is None else (one.shape, one.dtype) for one in batch[:3])
    return (*tensors, margin is None)


def _first_line(error: BaseException) -> str:
    """Return the first line of what ended a capture, not of what its end raised then."""
    cause = error.__context__ or error
    return (str(cause).splitlines() or [type(cause).__name__])[0]
