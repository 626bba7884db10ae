"""The page: self-contained, every number leads to its cells, nothing of it runs what it shows."""

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reported_cells import PROVENANCE, SWEEP, build_table, evaluate, finish, small_sweep

from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import page

ALONE = frozenset({"meta", "link", "img", "br", "wbr", "source"})


class Parsed(HTMLParser):
    """Elements and texts of a page; every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def values(self, *names: str) -> list[str]:
        """Of attributes of these names."""
        return [value for _, name, value in self.attributes if name in names]

    @property
    def text(self) -> str:
        """All texts, spaces joined."""
        return " ".join(" ".join(self.texts).split())


def written(folder: Path, text: str = SWEEP) -> Parsed:
    """The page of the small sweep, with the ledger in the same folder."""
    answer = build_table(folder, text)
    return Parsed(page.write_page(answer, Ledger(folder), folder / "report").read_text())


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A ledger in which two rows are finished, and a cell of the third has failed."""
    _, points = small_sweep(tmp_path)
    for place, point in enumerate(points[:4]):
        folder = finish(tmp_path, point, 0.01 * (1 + place))
        evaluate(folder, "reconstructions-example0", "Inputs above, drawn below.")
    Ledger(tmp_path).note_failure(points[4].cell.signature, "OutOfMemoryError: 3 GiB too much")
    return tmp_path


def test_a_page_asks_for_nothing_and_its_links_lead_to_places_on_it(finished: Path) -> None:
    found = written(finished)
    sources = found.values("src", "href", "srcset", "action", "data", "poster")
    assert [value for value in sources if not value.startswith(("#", "data:"))] == []
    text = (finished / "report" / "index.html").read_text()
    assert "url(" not in text
    assert "@import" not in text
    assert found.tags["script"] == 1
    ids = Counter(found.values("id"))
    assert set(ids.values()) == {1}
    links = {value[1:] for value in found.values("href") if value.startswith("#")}
    assert links <= set(ids)
    assert {"cells-0-0", "cells-1-0", "cells-2-0", "cells-0-0-0"} <= links


def test_a_cell_says_where_its_numbers_come_from(finished: Path) -> None:
    found = written(finished)
    for fact in (
        "capsweep train experiment=digits",
        "made.code.commit c0ffee",
        "made.fingerprint f1f2f3",
        "made.hardware.processor A processor",
        "seconds.total 7",
        "peak_memory_bytes.process 536870912",
        "made.versions.torch 2.13.0",
        "made.started 2026-01-02T03:04:05+00:00",
        "cause OutOfMemoryError: 3 GiB too much",
    ):
        assert fact in found.text
    _, points = small_sweep(finished)
    assert f"folder {Ledger(finished).locate_files(points[0].cell.signature)}" in found.text


def test_pictures_of_cells_are_shown_with_their_captions(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(finished)
    assert "reconstructions-example0.png of cnn · –, seed 0" in found.values("alt")
    assert found.text.count("Inputs above, drawn below.") == 2  # the first seed of each row
    folder = finished / folder_of(small_sweep(finished)[1][0].cell.signature)
    for label in range(5):
        evaluate(folder, f"perturbations-class{label}", "caption")
    size = (folder / "evals" / "perturbations-class0.png").stat().st_size
    for most, count in ((6_000_000, 7), (3 * size, 3)):
        monkeypatch.setattr(page, "MOST_BYTES", most)
        pictures = page.read_pictures(build_table(finished).groups, Ledger(finished))
        assert len(pictures) == count


def test_figures_of_an_earlier_report_are_gone_and_files_of_others_stay(finished: Path) -> None:
    folder = finished / "report" / "figures"
    folder.mkdir(parents=True)
    for name in ("loss-mnist-1.png", "margin.png", "notes.txt"):
        (folder / name).write_text("")
    written(finished)
    names = {path.name for path in folder.iterdir()}
    assert {"loss.png", "notes.txt"} <= names
    assert not names & {"loss-mnist-1.png", "margin.png"}


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'])
def test_what_others_wrote_is_shown_and_never_run(tmp_path: Path, evil: str) -> None:
    text = SWEEP.replace("Is one arm better than the other?", json.dumps(f"Why {evil}?"))
    _, points = small_sweep(tmp_path, text)
    folder = finish(tmp_path, points[0], 0.1, provenance={**PROVENANCE, "command": evil})
    evaluate(folder, "couplings", evil)
    Ledger(tmp_path).note_failure(points[1].cell.signature, f"ValueError: {evil}")
    found = written(tmp_path, text)
    assert found.tags["script"] == 1
    assert "onerror" not in [name for _, name, _ in found.attributes]
    assert found.text.count(evil) >= 4


def test_a_run_is_linked_where_its_address_is_known_and_is_one(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    for point, url in zip(points, ("https://w.example/r1", "javascript:alert(1)"), strict=False):
        finish(tmp_path, point, 0.1, tracking_url=url)
    found = written(tmp_path).values("href")
    assert "https://w.example/r1" in found
    assert not [value for value in found if value.startswith("javascript")]
