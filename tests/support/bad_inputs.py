"""What a drawn bad input is, what all kinds draw from, and how its end is judged."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import bad_input_process

SECONDS = 5.0  # in which every bad input is told
SWEEP = """\
question: Is one arm better than the other?
base: [experiment=digits, epochs=1, limit_batches=1, batch_size=16, trainer.accelerator=cpu]
seeds: [0, 1]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small, model.hidden=8]}
  capsnet:
    fixed: [model=capsnet_small, model.conv.channels=8, model.primary.types=2]
    space: {routing.num_iters: [2], model.decoder.hidden: [[8]]}
table: {rows: [arm, routing.num_iters], columns: [dataset], metric: test/error}
published: {source: nowhere, values: [{arm: cnn, dataset: digits, value: 0.5}]}
"""
TRACES = re.compile(r"Traceback|HYDRA_FULL_ERROR|Fatal Python error|Segmentation fault")
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Outcome:
    """How a command ended. status None: it was killed after its time."""

    status: int | None
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        """Both streams."""
        return f"{self.out}\n{self.err}"


STORED = ["--storage", "out"]
LONG = "x" * 5_000
LARGE = "1" + "0" * 30
CODES = "\x1b[2J\x1b]0;x\x07"
# What no key of any configuration and no option can mean.
NEVER = (
    "nan", "inf", "-inf", "1e999", LARGE, "-1000000000000000000000",
    "{a:1}", "[[[]]]", "${no.such.key}", "${oc.env:AWS_SECRET_ACCESS_KEY}", "${oc.decode:x}",
    f"'{CODES}'", "'\udc80'", LONG, "[" * 2_000, "???",
)  # fmt: skip
DOUBTFUL = ("-1", "0", "1.5", "true", "null", "abc", "''", "[1,2]", "-0.0", "1_000", "0x10", "ünï")

Judge = Callable[[Outcome, Path], str | None]  # with the case's folder; what is wrong with an end


@dataclass(frozen=True)
class Case:
    """A bad input: what it is in words, how its folder is made, the command, and its judge."""

    told: str
    argv: Sequence[str]
    judge: Judge
    prepare: Callable[[Path], None] = lambda folder: None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Base:
    """What was made once: a ledger of four cells, one of them failed, and the sweep they are of.

    signatures: of finished cells. failed: of the other. archive: an export of them.
    tell: what a command says of the undamaged ledger.
    """

    folder: Path
    signatures: tuple[str, ...]
    failed: str
    archive: bytes
    tell: Callable[[tuple[str, ...]], str]


Draw = Callable[[Random, Base], Case]


def judged(outcome: Outcome) -> str | None:
    """What no command may do, whatever it was given."""
    if outcome.status is None:
        return f"it took longer than {SECONDS:.0f} s"
    if outcome.status < 0:
        return f"signal {-outcome.status} ended it"
    if outcome.status == bad_input_process.TRAINED:
        return "a silent use: it would have trained"
    if TRACES.search(outcome.said):
        return "a traceback"
    if outcome.status not in (0, 1, 2, 3):
        return "a status that means nothing"
    if outcome.status == 2 and "error: " not in outcome.err:
        return "no line that begins with error:"
    if OBEYED.search(outcome.said):
        return "what a terminal would obey was printed"
    return None


def refused(*words: str) -> Judge:
    """Status 2, and an error line that has these words."""

    def judge(outcome: Outcome, folder: Path) -> str | None:
        if outcome.status != 2:
            return "a silent use: it ended as though all were well"
        if missing := [word for word in words if word not in outcome.err]:
            return f"its error does not name {missing[0]!r}"
        return None

    return judge


def any_end(outcome: Outcome, folder: Path) -> str | None:
    """What can be meant, or cannot be told from what is meant."""
    return None


def files_below(folder: Path) -> dict[str, bytes]:
    """Every plain file below a folder, hidden ones of the runner left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name not in (".out", ".err")
    }


def mutated(chance: Random, content: bytes) -> tuple[str, bytes]:
    """Content as a bad disk, or a bad hand, leaves it: in words, and as bytes."""
    at = chance.randrange(max(1, len(content)))
    flipped = bytes([content[at] ^ (1 << chance.randrange(8))]) if content else b"\x80"
    return chance.choice(
        [
            (f"cut off at {at}", content[:at]),
            ("empty", b""),
            (f"a bit flipped at {at}", content[:at] + flipped + content[at + 1 :]),
            (f"NUL at {at}", content[:at] + b"\0" + content[at:]),
            (f"no UTF-8 at {at}", content[:at] + b"\xff\xfe\xc3" + content[at:]),
            ("of zeros", b"\0" * 4096),
            ("random bytes", chance.randbytes(2048)),
            ("50,000 brackets", b"[" * 50_000),
            ("50,000 braces", b'{"a":' * 50_000),
            ("terminal codes before it", b"\x1b[2J\x1b]0;x\x07\n" + content),
        ]
    )


def keep(path: Path, content: bytes) -> None:
    """Write it, and say nothing."""
    path.write_bytes(content)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of nested mappings and lists stands, the whole first."""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    return [path, *(found for name, item in inner for found in paths_of(item, (*path, name)))]
