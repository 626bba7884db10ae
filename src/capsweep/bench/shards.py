"""Shards: what it costs to compose, write, hash and read them, and how much memory a worker takes.

Digits are noise, since no speed here depends on them. All is done by one process on one core, what
is compared takes turns in it, and rates are medians.

Shape letters: B batch, L = 2 digits of an image, C H W image.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import h5py
import torch

from capsweep.bench import (
    data,
    device,
    extra_memory,
    interleaved,
    noise,
    shards_growth,
    shards_reading,
)
from capsweep.bench import shards_problem as problem
from capsweep.bench.measured import Measured, Report
from capsweep.bench.parity import ParityError
from capsweep.bench.shards_problem import SHARD
from capsweep.data.pairs import Pairs
from capsweep.data.shards.layout import BLOCK
from capsweep.data_prep.making import shard
from capsweep.files import sha256_of_file

AT_ONCE, COMPOSED = 1000, 60_000  # examples
NEEDED = 2e9  # bytes on the disk, beside what the largest shards need
WORKERS = ((100_000, False), (2_000_000, False), (100_000, True), (500_000, True))
WORKER = "capsweep.bench.shards_problem:one_shard"
NOTE = (
    "Shards of {examples:,} examples, uncompressed, with Fletcher32 in blocks of {block}: "
    "{plain:,.1f} bytes an example, {sourced:,.1f} with both digits alone. Written is composed, "
    "stored, hashed, flushed to the disk and renamed. Files were in {folder} (TMPDIR)."
)
READ_NOTE = (
    f"Read are {shards_reading.SHARDS} shards that were just written, so from the page cache: "
    "groups of blocks in permuted order, shuffled, cut into batches, float32 in 0..1."
)
FULL_NOTE = (
    "Extrapolated is what the processors take, one process a core; the storage must take the GB/s "
    "beside it."
)


def measure(
    budget: float = 60.0,
    examples: int = SHARD,
    workers: Sequence[tuple[int, bool]] = WORKERS,
    shards: int = shards_growth.SHARDS,
) -> Report:
    """All of it. budget: seconds of the rounds; examples: of a shard; workers: examples of the one
    shard of each, and whether both digits are stored alone too; shards: of the largest data set.

    Raises ParityError, before it measures, where a shard does not hold what is composed.
    """
    with device.threads(1), tempfile.TemporaryDirectory(prefix="capsweep-bench-") as name:
        folder = Path(name)
        if lacking := _lacking(folder, NEEDED):
            return Report([Measured("shards", None, "", skipped=lacking)])
        gate(folder)
        _say("rates")
        with shards_reading.shards_read(folder, examples) as read:
            calls, (plain, sourced) = _calls(folder, examples)
            taken = interleaved.take(calls | shards_reading.calls(*read), budget)
        _say("memory")
        resident = [_resident(folder, *of) for of in workers]
        _say(f"{shards * examples:,} examples")
        growth = shards_growth.take(folder, shards, examples)
    counts = dict.fromkeys(shards_reading.NAMES, shards_reading.SHARDS * examples)
    counts |= {"images": COMPOSED, "pairs": COMPOSED}
    rates = {name: counts.get(name, examples) / median(taken[name]) for name in taken}
    found = [
        *_written(rates),
        *shards_reading.measured(rates, plain),
        growth.measured(),
        *resident,
    ]
    rows = [*growth.rows(), *shards_growth.extrapolated(growth.of_one, plain)]
    note = NOTE.format(
        plain=plain, sourced=sourced, examples=examples, block=BLOCK, folder=folder.parent
    )
    return Report(found, rows, [note, READ_NOTE, FULL_NOTE], _limits(rates, plain))


def gate(folder: Path, spoil: Callable[[Path], object] | None = None) -> None:
    """Raise ParityError unless a shard holds the pairs that are composed on the fly, byte for byte,
    and these are their digits, moved and added.

    spoil: done to the shard before it is read.
    """
    digits = data.GATE_EXAMPLES
    whole = problem.job(digits, with_sources=True, digits=digits)
    made = problem.made(folder, whole, problem.part(0, digits))
    if spoil is not None:
        spoil(folder / made.name)
    with h5py.File(folder / made.name) as file:
        found = {name: of for name, of in file.items() if isinstance(of, h5py.Dataset)}
        stored = {name: torch.from_numpy(of[:]) for name, of in found.items()}
    composed = noise.pair_source(digits).compose(torch.arange(digits))
    for name, expected in _fields(composed).items():
        if not torch.equal(stored[name].long(), expected.long()):
            raise ParityError(f"{name} of a shard are not those composed on the fly")
    data.composition_gate(composed)
    (folder / made.name).unlink()


def _fields(pairs: Pairs) -> dict[str, torch.Tensor]:
    return {
        "images": pairs.images_BCHW,
        "labels": pairs.labels_BL,
        "indices": pairs.sources_BL,
        "shifts": pairs.shifts_BL2,
        "digits": pairs.digits_BLCHW,
    }


def _calls(
    folder: Path, examples: int
) -> tuple[dict[str, Callable[[], object]], tuple[float, float]]:
    """What is timed of composing and writing, by name; bytes of an example, without and with its
    digits alone.
    """
    jobs = [problem.job(examples, with_sources) for with_sources in (False, True)]
    one, other = (problem.made(folder, job, problem.part(0, examples)) for job in jobs)
    source, (make, make_both) = noise.pair_source(problem.DIGITS), (j.maker("train") for j in jobs)
    content, part = (folder / one.name).read_bytes(), problem.part(1, examples)
    calls = {
        "images": lambda: _each(lambda k: make(k, k + AT_ONCE)),
        "pairs": lambda: _each(lambda k: source.compose(torch.arange(k, k + AT_ONCE))),
        "written": lambda: shard.write(folder, jobs[0], part, make),
        "written, both digits": lambda: shard.write(folder, jobs[1], part, make_both),
        "disk": lambda: _raw(folder / "raw", content),
        "sha256": lambda: sha256_of_file(folder / one.name),
    }
    return calls, (one.bytes / examples, other.bytes / examples)


def _each(make: Callable[[int], object]) -> None:
    for k in range(0, COMPOSED, AT_ONCE):
        make(k)


def _raw(path: Path, content: bytes) -> None:
    """What the disk takes without us."""
    with path.open("wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())


def _written(rates: Mapping[str, float]) -> list[Measured]:
    def rate(name: str, what: str, *bars: float) -> Measured:
        bar, stretch = (*bars, None, None)[:2]
        return Measured(what, rates[name], "examples/s", bar, at_least=True, stretch=stretch)

    alone = "the same, with both digits alone"
    return [
        rate("images", f"composed in sequence, {AT_ONCE} at once", 300_000, 1_000_000),
        rate("pairs", alone, 300_000),
        rate("written", "written", 150_000),
        rate("written, both digits", alone),
    ]


def _limits(rates: Mapping[str, float], size: float) -> dict[str, float]:
    limits = {
        "disk": "a file written and flushed",
        "sha256": "sha256 of a file",
        "blocks": "blocks read by HDF5 alone",
    }
    return {f"{told}, GB/s": rates[name] * size / 1e9 for name, told in limits.items()}


def _resident(folder: Path, examples: int, with_sources: bool) -> Measured:
    """A worker's process that makes one shard, all in it counted."""
    alone = ", both digits alone too" if with_sources else ""
    what = f"resident memory of a worker, one shard of {examples:,} examples{alone}"
    lacking = _lacking(folder, NEEDED + examples * (4000 if with_sources else 1400))
    if lacking:
        return Measured(what, None, "MB", 500, skipped=lacking)
    peak = extra_memory.peak(WORKER, str(folder), examples, with_sources)
    for made in folder.glob("train-*.h5"):
        made.unlink()
    return Measured(what, peak / 1e6, "MB", 500)


def _lacking(folder: Path, needed: float) -> str | None:
    """Why something is skipped; None where there is room for it."""
    free = shutil.disk_usage(folder).free
    if free >= needed:
        return None
    return f"{folder.parent}: {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB needed; set TMPDIR"


def _say(what: str) -> None:
    print(f"shards: {what}", file=sys.stderr, flush=True)
