"""Pictures that evaluations left with the cells: which of them a page shows."""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from capsweep.errors import DamageError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATION_KINDS, EVALUATIONS, Ledger, kind_of_evaluation
from capsweep.report.cells import FieldCells, KnownCell

TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
OF_A_KIND = 10  # of one row: as many as there are digits
BYTES = 6_000_000  # of a page
MISSES = 50  # pictures in sequence that had no room: no more are asked for
WIDE = 1.8  # width by height
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Picture:
    """name: of its file; caption: what its numbers' file says of it, empty where nothing does;
    size: width and height in pixels, None where its type does not tell.
    """

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
class LeftOut:
    """So many pictures of one kind and one cell that are not shown."""

    field: FieldCells
    seed: int
    count: int


@dataclass(frozen=True)
class PictureKind:
    """Pictures that are shown, row by row; where the others are."""

    name: str
    shown: tuple[Picture, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def more(self) -> int:
        """How many are not shown."""
        return sum(one.count for one in self.left_out)


@dataclass(frozen=True)
class PictureCandidate:
    """A picture that may be shown. rank: of its row and kind; turn: of the row's kinds."""

    place: int
    field: FieldCells
    seed: int
    cell: KnownCell
    name: str
    rank: int
    turn: int


def read(fields: Sequence[FieldCells], ledger: Ledger) -> list[PictureKind]:
    """Of every row the first seed that has a kind, some pictures of it, as far as there is room:
    a page of a thousand cells shall open.

    Rows and kinds take turns, so that what has no room is lacking in all of them alike.
    """
    shown: dict[str, list[tuple[PictureCandidate, Picture]]] = {}
    candidates = [
        one for place, field in enumerate(fields) for one in _choose_candidates(place, field)
    ]
    room, misses = BYTES, 0
    for one in sorted(candidates, key=lambda one: (one.rank, one.turn, one.place)):
        if misses == MISSES:
            break
        content = ledger.read(one.cell.signature, f"{EVALUATIONS}/{one.name}")
        if content is None or len(content) > room:
            misses += 1
            continue
        room, misses = room - len(content), 0
        shown.setdefault(kind_of_evaluation(one.name), []).append(
            (one, _make_picture(ledger, one, content))
        )
    left_out = _left_out(fields, [one for some in shown.values() for one, _ in some])
    return [
        PictureKind(kind, tuple(picture for _, picture in some), tuple(left_out.get(kind, ())))
        for kind in sorted(shown.keys() | left_out.keys(), key=_kind_order)
        for some in [sorted(shown.get(kind, ()), key=lambda pair: (pair[0].place, pair[0].rank))]
    ]


def _choose_candidates(place: int, field: FieldCells) -> Iterator[PictureCandidate]:
    """The pictures of a row that may be shown. Its first turn is another kind's than that of the
    row above, so that every row and every kind has one early.
    """
    found: dict[str, tuple[int, KnownCell, list[str]]] = {}
    for seed, cell in sorted(field.cells.items()):
        of_cell: dict[str, list[str]] = {}
        for name in _list_pictures(cell):
            of_cell.setdefault(kind_of_evaluation(name), []).append(name)
        for kind, names in of_cell.items():
            found.setdefault(kind, (seed, cell, names))
    for number, kind in enumerate(sorted(found, key=_kind_order)):
        seed, cell, names = found[kind]
        turn = (number - place) % len(found)
        for rank, name in enumerate(names[:OF_A_KIND]):
            yield PictureCandidate(place, field, seed, cell, name, rank, turn)


def _make_picture(ledger: Ledger, one: PictureCandidate, content: bytes) -> Picture:
    return Picture(
        name=one.name,
        field=one.field,
        seed=one.seed,
        caption=_read_caption(ledger, one.cell, one.name),
        media=TYPES[PurePosixPath(one.name).suffix],
        content=content,
        size=_png_size(content),
    )


def _left_out(
    fields: Sequence[FieldCells], shown: Sequence[PictureCandidate]
) -> dict[str, list[LeftOut]]:
    """By kind; a cell of several rows is told of in the first."""
    found: dict[str, list[LeftOut]] = {}
    seen = {(one.cell.signature, one.name) for one in shown}
    told: set[str] = set()
    for field in fields:
        for seed, cell in sorted(field.cells.items()):
            if cell.signature in told:
                continue
            told.add(cell.signature)
            names = [name for name in _list_pictures(cell) if (cell.signature, name) not in seen]
            for kind, count in Counter(map(kind_of_evaluation, names)).items():
                found.setdefault(kind, []).append(LeftOut(field, seed, count))
    return found


def _kind_order(kind: str) -> tuple[int, str]:
    """Those that are known come first."""
    return EVALUATION_KINDS.index(kind) if kind in EVALUATION_KINDS else len(EVALUATION_KINDS), kind


def _list_pictures(cell: KnownCell) -> list[str]:
    return [name for name in cell.evaluations if PurePosixPath(name).suffix in TYPES]


def _png_size(content: bytes) -> tuple[int, int] | None:
    """Of a PNG, from its header, which begins with them."""
    if not content.startswith(PNG) or len(content) < 24:
        return None
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def _read_caption(ledger: Ledger, cell: KnownCell, name: str) -> str:
    """The caption beside a picture's numbers; empty where there is none that can be read."""
    numbers = f"{EVALUATIONS}/{PurePosixPath(name).stem}.npz"
    content = ledger.read(cell.signature, numbers)
    if content is None:
        return ""
    try:
        found = stored_files.read_arrays(content, numbers, "draw it again")
    except DamageError as error:
        return str(error)
    return str(found.get("caption", ""))
