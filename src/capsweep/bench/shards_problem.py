"""Shards of noise digits: the job, its shards, and a worker in a process of its own.

It imports what a worker imports and nothing else, so that a worker's memory can be measured.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from capsweep.bench import noise
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.shards import sequence
from capsweep.data.shards.manifest import Manifest, Origin, Shard
from capsweep.data_prep.making import worker
from capsweep.data_prep.making.shard import Part
from capsweep.data_prep.making.work import Work
from capsweep.data_prep.multimnist import MultiMnist

DIGITS, TEST_DIGITS = 60_000, 10_000  # MNIST's
SHARD = 100_000  # examples, of MultiMNIST's 600 shards
SETTINGS = {"seed": 0, "margin": noise.MARGIN, "shift": noise.MOVED, "validation": 0}


def job(examples: int, with_sources: bool = False, digits: int = DIGITS) -> MultiMnist:
    """So many training pairs, as `dataset=multimnist` composes them of MNIST's digits."""
    splits = Splits(train=noise.digits(digits), test=noise.digits(TEST_DIGITS))
    content = sequence.content(Origin("noise", "0" * 64), splits, 1, SETTINGS)
    arrays = {"train": _arrays(splits.train), "test": _arrays(splits.test)}
    return MultiMnist(replace(content, splits={"train": examples}), arrays, with_sources)


def part(number: int, examples: int) -> Part:
    """The shard of this number, where all have as many examples."""
    return Part(f"train-{number:05d}.h5", "train", number * examples, examples)


def made(folder: Path, whole: MultiMnist, one: Part) -> Shard:
    """A shard, as a worker makes it. Raises OSError."""
    outcome = worker.do(whole, Work(folder, one))
    if outcome.shard is None:
        raise OSError(outcome.cause)
    return outcome.shard


def manifest(whole: MultiMnist, shards: tuple[Shard, ...]) -> Manifest:
    """What the index of these training shards says."""
    fields = {field.name: (field.dtype, field.shape) for field in whole.fields()}
    return Manifest(whole.content, "pixels", fields, shards)


def one_shard(folder: str, examples: int, with_sources: bool) -> list[Callable[[], object]]:
    """For `extra_memory`: a worker that is given a job, and one shard to make."""
    whole = job(examples, with_sources)
    return [lambda: made(Path(folder), whole, part(0, examples))]


def _arrays(examples: LabelledImages) -> tuple[np.ndarray, np.ndarray]:
    return examples.images_NCHW.numpy(), examples.labels_N.numpy().astype(np.uint8)
