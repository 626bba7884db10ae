"""Batches: how fast they are made, and what they cost of a training step.

Pixels are noise of MNIST's size, since no speed here depends on them. Rates are medians.

Shape letters: B batch, N examples, C H W image.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median

import torch

from capsweep.bench.machine import THREADS, get_device, time_call
from capsweep.bench.results import BenchReport, Measured
from capsweep.config import compose
from capsweep.data.batches import Batch, TrainLoader
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.images import LabelledImages
from capsweep.data.pairs import PairSource
from capsweep.training.devices import using_threads
from capsweep.training.module import make_task

BATCH, SHIFT, EXAMPLES = 128, 2, 60_000
AT_ONCE = 200  # batches of a round
SIDE = 28  # pixels of an image
PAIRS = {"margin": 4, "shift": 4}  # pixels, of MultiMNIST


def make_noise(count: int) -> LabelledImages:
    """So many images, ten classes."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, 1, SIDE, SIDE)
    images_NCHW = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return LabelledImages(images_NCHW, torch.arange(count) % 10)


def measure_data(rounds: int = 5) -> BenchReport:
    """Shifted images and MultiMNIST."""
    with using_threads(1):
        images = _shift_batches()
        next(images)
        rate = median(_measure_rate(lambda: _take_batches(images)) for _ in range(rounds))
        measured = [Measured("shifted images by one thread", rate, "images/s")]
        measured += [_measure_composition(size) for size in (BATCH, 1000)]
    with using_threads(THREADS):
        measured.append(_measure_share_of_step(rounds))
    return BenchReport(measured)


def _measure_composition(at_once: int) -> Measured:
    """uint8 images, both digits alone, their labels and places; an epoch's numbers are drawn at
    once, as in training, and each example bears its share.
    """
    source = PairSource(make_noise(EXAMPLES), "train", 0, **PAIRS)
    order_N = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(0))
    k_N = torch.arange(EXAMPLES)
    numbers = source.draw_pairs(k_N)
    drawing = median(time_call(lambda: source.draw_pairs(k_N)) for _ in range(5))
    parts = [part for part in order_N.split(at_once) if len(part) == at_once]
    composing = median(
        time_call(lambda part=part: source.compose_drawn(numbers.select(part))) for part in parts
    )
    rate = 1 / (composing / at_once + drawing / EXAMPLES)
    what = f"MultiMNIST composed on one core, {at_once} at once"
    return Measured(what, rate, "examples/s", 300_000, at_least=True)


def _measure_share_of_step(rounds: int) -> Measured:
    """A batch's milliseconds over those of a training step of the full CapsNet."""
    batches = _shift_batches()
    step = _make_step()
    step(next(batches))
    steps = 1 if get_device().type == "cpu" else 50
    shares: list[float] = []
    for _ in range(rounds):
        batch = next(batches)
        making = time_call(lambda: _take_batches(batches)) / AT_ONCE
        training = time_call(lambda batch=batch: _repeat_step(step, batch, steps)) / steps
        shares.append(100 * making / training)
    return Measured("a batch of shifted images, of a CapsNet step", median(shares), "%", 3.0)


def _make_step() -> Callable[[Batch], None]:
    """What does one step of a CapsNet of MNIST, decoder and optimiser included."""
    cell = compose.cell(["model=capsnet", "dataset=mnist", f"batch_size={BATCH}"])
    task = make_task(cell).to(get_device())
    optimizer = task.make_optimizer(task.network)

    def run_step(batch: Batch) -> None:
        task.objective(task.network, batch).total.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run_step


def _shift_batches() -> Iterator[Batch]:
    """Epoch after epoch of shifted images, as a trainer takes them."""
    images = ShiftedImages(make_noise(EXAMPLES).to(get_device()), "train", SHIFT)
    loader = TrainLoader(images, BATCH, seed=0)
    while True:
        yield from loader
        loader.sampler.set_epoch(loader.sampler.epoch + 1)


def _take_batches(batches: Iterator[Batch]) -> None:
    for _ in islice(batches, AT_ONCE):
        pass


def _repeat_step(step: Callable[[Batch], None], batch: Batch, count: int) -> None:
    for _ in range(count):
        step(batch)


def _measure_rate(call: Callable[[], object]) -> float:
    """Images a second of a call that makes or takes AT_ONCE batches."""
    return AT_ONCE * BATCH / time_call(call)
