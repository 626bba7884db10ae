"""Pictures that evaluations left with the cells: which of them a page shows."""

import io
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath

import numpy as np

from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.report.cells import FieldCells, KnownCell, distinct

# Kinds that are known by name, longest first where one begins another; any other is its file's.
KINDS = (
    "reconstructions",
    "perturbations",
    "segmentation",
    "routing-change",
    "training-loss",
    "vote-distances",
    "couplings",
)
TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
OF_A_KIND = 3  # of one row
BYTES = 6_000_000  # of a page
WIDE = 1.8  # width by height
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Picture:
    """name: of its file; caption: what its numbers' file says of it, empty where nothing does;
    size: width and height in pixels, None where its type does not tell.
    """

    kind: str
    name: str
    field: FieldCells
    seed: int
    caption: str
    media: str
    content: bytes
    size: tuple[int, int] | None

    @property
    def is_wide(self) -> bool:
        """Whether half of a page is too narrow for it."""
        return self.size is not None and self.size[0] > WIDE * self.size[1]


@dataclass(frozen=True)
class Pictures:
    """shown: by kind; left_out: how many pictures of the cells are not shown."""

    shown: dict[str, list[Picture]]
    left_out: int


def kind_of(name: str) -> str:
    """What a file below evals/ shows, by its name."""
    stem = PurePosixPath(name).stem
    return next((kind for kind in KINDS if stem.startswith(kind)), stem)


def read(fields: Sequence[FieldCells], ledger: Ledger) -> Pictures:
    """Of every row the first seed that has a kind, a few pictures of it, as far as there is room:
    a page of a thousand cells shall open.
    """
    shown: dict[str, list[Picture]] = {}
    room, count = BYTES, 0
    for field, seed, cell, name in chain.from_iterable(map(_chosen, fields)):
        content = ledger.read(cell.signature, f"{EVALUATIONS}/{name}")
        if content is None:
            continue
        room -= len(content)
        if room < 0:
            break
        count += 1
        media, said = TYPES[PurePosixPath(name).suffix], _caption(ledger, cell, name)
        picture = Picture(kind_of(name), name, field, seed, said, media, content, _size(content))
        shown.setdefault(picture.kind, []).append(picture)
    there = sum(len(_pictures(cell)) for cell in distinct(fields))
    ordered = sorted(shown, key=lambda kind: (KINDS.index(kind) if kind in KINDS else 99, kind))
    return Pictures({kind: shown[kind] for kind in ordered}, there - count)


def _chosen(field: FieldCells) -> Iterator[tuple[FieldCells, int, KnownCell, str]]:
    """The field, seed, cell and file of each picture that is to be shown of it."""
    seen: dict[str, int] = {}
    of_seed: dict[str, int] = {}
    for seed, cell in sorted(field.cells.items()):
        for name in _pictures(cell):
            kind = kind_of(name)
            if of_seed.setdefault(kind, seed) == seed and seen.get(kind, 0) < OF_A_KIND:
                seen[kind] = seen.get(kind, 0) + 1
                yield field, seed, cell, name


def _pictures(cell: KnownCell) -> list[str]:
    return [name for name in cell.evaluations if PurePosixPath(name).suffix in TYPES]


def _size(content: bytes) -> tuple[int, int] | None:
    """Of a PNG, from its header, which begins with them."""
    if not content.startswith(PNG) or len(content) < 24:
        return None
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def _caption(ledger: Ledger, cell: KnownCell, name: str) -> str:
    """The caption beside a picture's numbers; empty where there is none that can be read."""
    numbers = f"{EVALUATIONS}/{PurePosixPath(name).stem}.npz"
    content = ledger.read(cell.signature, numbers)
    if content is None:
        return ""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return str(stored["caption"]) if "caption" in stored else ""
    except (ValueError, OSError, zipfile.BadZipFile):
        return f"{numbers} cannot be read"
