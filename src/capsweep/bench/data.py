"""Batches: what they cost of a training step, and against the same augmentation done per sample.

Pixels are noise, since no speed here depends on them. Rates are medians; what is compared takes
turns in one process.

Shape letters: B batch, N examples, C H W image.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from statistics import median

import torch
from torch.nn import functional as F

from capsweep.bench import noise, per_sample
from capsweep.bench.device import device as here
from capsweep.bench.device import seconds, threads
from capsweep.bench.measured import Measured
from capsweep.bench.noise import MARGIN, MOVED, pair_source
from capsweep.bench.parity import ParityError
from capsweep.config import compose
from capsweep.data.images import LabelledImages
from capsweep.data.loader import TrainLoader
from capsweep.data.pairs import ComposedPairs, Pairs
from capsweep.data.presented import Batch, Presented
from capsweep.data.shifted import ShiftedImages
from capsweep.training import assemble

BATCH, SHIFT, WORKERS = 128, 2, 2
EXAMPLES, GATE_EXAMPLES = 60_000, 1024
OURS, THEIRS = 200, 40  # batches of a round


def batches(rounds: int = 5) -> list[Measured]:
    """Shifted images and MultiMNIST. Raises ParityError, before anything is measured, where
    the augmentations are not the same.
    """
    device = here()
    with threads(1):
        gate()
        composition_gate(pair_source(GATE_EXAMPLES).compose(torch.arange(GATE_EXAMPLES)))
        found = [_against_per_sample(device, rounds), *_composition_on_one_core()]
    with threads():
        found.append(_share_of_step(device, rounds))
        if device.type == "cuda":
            found.append(_composition_against_network(device, rounds))
    return found


def gate(transform: per_sample.Transform | None = None) -> None:
    """Raise ParityError unless both augmentations give windows of their images, and all 25.

    transform: instead of torchvision's.
    """
    digits = noise.digits(GATE_EXAMPLES)
    named = LabelledImages(digits.images_NCHW, torch.arange(GATE_EXAMPLES))
    ours = TrainLoader(ShiftedImages(named, "train", SHIFT), BATCH, seed=0)
    _check_windows("ours", ours, digits)
    transform = transform or per_sample.shifting(SHIFT)
    count = GATE_EXAMPLES // BATCH
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = per_sample.loader(named, transform, BATCH, count, workers=0)
        _check_windows("torchvision", (Batch(*batch) for batch in theirs), digits)


def composition_gate(made: Pairs) -> None:
    """Raise ParityError unless these first pairs are their digits, moved and added one by one."""
    digits_NCHW = F.pad(noise.digits(GATE_EXAMPLES).images_NCHW, [MARGIN + MOVED] * 4)
    side = made.images_BCHW.shape[-1]
    for place, (sources, shifts) in enumerate(zip(made.sources_BL, made.shifts_BL2, strict=True)):
        moved = [
            digits_NCHW[source, :, MOVED - down :, MOVED - right :][:, :side, :side]
            for source, (down, right) in zip(sources.tolist(), shifts.tolist(), strict=True)
        ]
        summed_CHW = (moved[0].int() + moved[1].int()).clamp(max=255)
        if not torch.equal(made.digits_BLCHW[place], torch.stack(moved)):
            raise ParityError(
                f"MultiMNIST: the digits of example {place} are not its sources moved"
            )
        if not torch.equal(made.images_BCHW[place].int(), summed_CHW):
            raise ParityError(f"MultiMNIST: example {place} is not the sum of its digits")


def _check_windows(what: str, made: Iterable[Batch], digits: LabelledImages) -> None:
    """Batches whose labels are the places of their images in `digits`."""
    padded_NCHW = F.pad(digits.images_NCHW, [SHIFT] * 4).float() / 255
    side, size = 2 * SHIFT + 1, digits.images_NCHW.shape[-1]
    seen = torch.zeros(side, side, dtype=torch.bool)
    for images_BCHW, index_B, *_ in made:
        if images_BCHW.dtype != torch.float32:
            raise ParityError(f"{what}: {images_BCHW.dtype}")
        is_known_B = torch.zeros(len(index_B), dtype=torch.bool)
        for row in range(side):
            for column in range(side):
                window_BCHW = padded_NCHW[index_B, :, row : row + size, column : column + size]
                error_B = (images_BCHW - window_BCHW).abs().flatten(1).amax(dim=1)
                seen[row, column] |= (error_B < 1e-6).any()
                is_known_B |= error_B < 1e-6
        unknown = int((~is_known_B).sum())
        if unknown:
            raise ParityError(f"{what}: {unknown} images are no shifts of theirs by up to {SHIFT}")
    if not seen.all():
        raise ParityError(f"{what}: only {int(seen.sum())} of {side**2} shifts are drawn")


def _against_per_sample(device: torch.device, rounds: int) -> Measured:
    """Images a second, ours by one thread."""
    digits = noise.digits(EXAMPLES)
    ours = _endless(ShiftedImages(digits.to(device), "train", SHIFT))
    transform = per_sample.shifting(SHIFT)
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds):
        # Its workers end with it, so that they make nothing ahead while ours are timed.
        theirs = iter(per_sample.loader(digits, transform, BATCH, THEIRS + 1, WORKERS))
        next(theirs)  # workers start; what they make ahead meanwhile is in their favour
        rates["theirs"].append(_rate(lambda made=theirs: [x.to(device) for x, _ in made], THEIRS))
        next(ours)
        rates["ours"].append(_rate(lambda: _take(ours, OURS), OURS))
    speed = {name: median(rate) for name, rate in rates.items()}
    ratio = median(a / b for a, b in zip(rates["ours"], rates["theirs"], strict=True))
    what = (
        f"shifted images on {device.type}, {speed['ours']:,.0f} a second by one thread, over "
        f"torchvision per sample, {speed['theirs']:,.0f} by {WORKERS} workers"
    )
    return Measured(what, ratio, "x", 50.0, at_least=True)


def _share_of_step(device: torch.device, rounds: int) -> Measured:
    """A batch's milliseconds over those of a training step of the full CapsNet."""
    made = _endless(ShiftedImages(noise.digits(EXAMPLES).to(device), "train", SHIFT))
    step = _training("dataset=mnist", device)
    step(next(made))
    steps = 1 if device.type == "cpu" else 50
    taken: dict[str, list[float]] = {"batch": [], "step": []}
    for _ in range(rounds):
        batch = next(made)
        taken["batch"].append(seconds(lambda: _take(made, OURS)) / OURS)
        taken["step"].append(seconds(lambda batch=batch: _repeat(step, batch, steps)) / steps)
    batch, whole = (1000 * median(taken[name]) for name in ("batch", "step"))
    what = f"a batch of shifted images ({batch:.3f} ms) of a CapsNet step ({whole:.1f} ms)"
    return Measured(what, 100 * batch / whole, "%", 3.0)


def _composition_on_one_core() -> list[Measured]:
    """uint8 images, both digits alone, their labels and places; an epoch's numbers are drawn at
    once, as in training, and each example bears its share.
    """
    source = pair_source(EXAMPLES)
    order_N = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(0))
    k_N = torch.arange(EXAMPLES)
    drawn, drawing = source.draw(k_N), median(seconds(lambda: source.draw(k_N)) for _ in range(5))
    found = []
    for size in (BATCH, 1000):
        parts = [part for part in order_N.split(size) if len(part) == size]
        taken = [
            seconds(lambda part=part: source.composed(drawn.at(part))) / size for part in parts
        ]
        rate = 1 / (median(taken) + drawing / EXAMPLES)
        what = f"MultiMNIST composed on one core, {size} at once"
        found.append(Measured(what, rate, "examples/s", 300_000, at_least=True))
    return found


def _composition_against_network(device: torch.device, rounds: int) -> Measured:
    """Batches for training, over what the full CapsNet trains on."""
    pairs = ComposedPairs(
        noise.digits(EXAMPLES).to(device),
        "train",
        seed=0,
        margin=MARGIN,
        shift=MOVED,
        pairs=1000,
        test_examples=1,
    )
    made, step = _endless(pairs), _training("dataset=multimnist", device)
    step(next(made))
    ratios = []
    for _ in range(rounds):
        batch = next(made)
        composed = _rate(lambda: _take(made, OURS), OURS)
        ratios.append(composed / _rate(lambda batch=batch: _repeat(step, batch, 50), 50))
    what = "MultiMNIST composed on the device over what CapsNet trains on"
    return Measured(what, median(ratios), "x", 1.0, at_least=True)


def _training(dataset: str, device: torch.device) -> Callable[[Batch], None]:
    """What does one step of a CapsNet of the data set, decoder and optimiser included."""
    cell = compose.cell(["model=capsnet", dataset, f"batch_size={BATCH}"])
    task = assemble.task(cell).to(device)
    optimizer = task.make_optimizer(task.network)

    def step(batch: Batch) -> None:
        task.objective(task.network, batch).total.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _endless(examples: Presented) -> Iterator[Batch]:
    """Epoch after epoch, as a trainer takes them."""
    loader = TrainLoader(examples, BATCH, seed=0)
    while True:
        yield from loader
        loader.sampler.set_epoch(loader.sampler.epoch + 1)


def _take(made: Iterator[Batch], count: int) -> None:
    for _ in islice(made, count):
        pass


def _repeat(step: Callable[[Batch], None], batch: Batch, count: int) -> None:
    for _ in range(count):
        step(batch)


def _rate(call: Callable[[], object], count: int) -> float:
    """Images a second of a call that makes or takes so many batches."""
    return count * BATCH / seconds(call)
