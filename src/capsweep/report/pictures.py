"""Pictures that evaluations left with the cells: which of them a page shows."""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from capsweep.errors import DamageError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATION_KINDS, EVALUATIONS, Ledger, kind_of_evaluation
from capsweep.report.cells import FieldCells, KnownCell, distinct_cells

TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
MOST_OF_A_KIND = 10  # of one row: as many as there are digits
MOST = 120  # of a page: one of a thousand cells shall open
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Picture:
    """name: of its file; rank: among those of its row and kind, from 0."""

    name: str
    field: FieldCells
    seed: int
    rank: int

    @property
    def cell(self) -> KnownCell:
        """Whose it is."""
        return self.field.cells[self.seed]


@dataclass(frozen=True)
class EmbeddedPicture:
    """caption: what its numbers' file says of it, empty where nothing does; size: width and height
    in pixels, None where its type does not tell.
    """

    picture: Picture
    caption: str
    media: str
    content: bytes
    size: tuple[int, int] | None


@dataclass(frozen=True)
class PictureKind:
    """Pictures that are shown, row by row; left_out: how many more there are."""

    name: str
    shown: Sequence[EmbeddedPicture]
    left_out: int


def read_pictures(fields: Sequence[FieldCells], ledger: Ledger) -> list[PictureKind]:
    """Of every row the first seed that has a kind, some pictures of it: the first of each before
    any second one, as many as a page has room for.
    """
    pictures = [picture for field in fields for picture in _list_candidates(field)]
    places = sorted(range(len(pictures)), key=lambda place: pictures[place].rank)[:MOST]
    shown: dict[str, list[EmbeddedPicture]] = {}
    for picture in (pictures[place] for place in sorted(places)):
        content = ledger.read(picture.cell.signature, f"{EVALUATIONS}/{picture.name}")
        if content is not None:
            embedded = _embed_picture(picture, content, ledger)
            shown.setdefault(kind_of_evaluation(picture.name), []).append(embedded)
    count = Counter(
        kind_of_evaluation(name) for cell in distinct_cells(fields) for name in list_pictures(cell)
    )
    for kind, embedded in shown.items():
        count[kind] -= len({(e.picture.cell.signature, e.picture.name) for e in embedded})
    return [PictureKind(k, shown.get(k, ()), count[k]) for k in sorted(count, key=_kind_order)]


def list_pictures(cell: KnownCell) -> list[str]:
    """The names of a cell's pictures."""
    return [name for name in cell.evaluations if PurePosixPath(name).suffix in TYPES]


def _list_candidates(field: FieldCells) -> Iterator[Picture]:
    seeds: dict[str, int] = {}
    ranks: Counter[str] = Counter()
    for seed, cell in sorted(field.cells.items()):
        for name in list_pictures(cell):
            kind = kind_of_evaluation(name)
            if seeds.setdefault(kind, seed) == seed and ranks[kind] < MOST_OF_A_KIND:
                yield Picture(name, field, seed, ranks[kind])
                ranks[kind] += 1


def _embed_picture(picture: Picture, content: bytes, ledger: Ledger) -> EmbeddedPicture:
    """With its size, if it is a PNG, and the caption beside its numbers, if that can be read."""
    is_png = content.startswith(PNG) and len(content) >= 24
    width, height = struct.unpack(">II", content[16:24]) if is_png else (0, 0)
    path = PurePosixPath(picture.name)
    numbers = f"{EVALUATIONS}/{path.stem}.npz"
    stored = ledger.read(picture.cell.signature, numbers)
    try:
        arrays = stored_files.read_arrays(stored, numbers, "draw it again") if stored else {}
        caption = str(arrays.get("caption", ""))
    except DamageError as error:
        caption = str(error)
    size = (width, height) if is_png else None
    return EmbeddedPicture(picture, caption, TYPES[path.suffix], content, size)


def _kind_order(kind: str) -> tuple[int, str]:
    """Those that are known come first."""
    return EVALUATION_KINDS.index(kind) if kind in EVALUATION_KINDS else len(EVALUATION_KINDS), kind
