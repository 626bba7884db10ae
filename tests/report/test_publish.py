"""`sweeps/NAME.md`: what a command makes stands between two markers, the verdict is a person's."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import publish, table
from capsweep.report.table import ResultTable
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

Filled = Callable[[Point, float], None]
COMMAND = "make report SWEEP=ablation ROUTING=3"
BEGIN, END = "<!-- report: begin -->", "<!-- report: end -->"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Where `fill` writes."""
    return Ledger(tmp_path)


@pytest.fixture
def answer(
    ablation: tuple[Sweep, list[Point]], fill: Filled, ledger: Ledger, tmp_path: Path
) -> ResultTable:
    """Two rows that two commits made, and a failure that names a folder; its file is elsewhere."""
    sweep, points = ablation
    for number, point in enumerate(points[:6]):
        fill(point, 0.01 * number)
        code = {"commit": f"{number // 3}" * 40, "dirty": number == 0, "capsweep": "0.1.0"}
        made = {"started": f"2026-11-0{number + 1}T23:59:59+00:00", "code": code}
        path = tmp_path / folder_of(point.cell.signature) / "provenance.json"
        path.write_text(json.dumps(made))
    ledger.note_failure(points[6].cell.signature, "FileNotFoundError: /home/me/outputs/x is gone")
    there = tmp_path / "mine" / "ablation.yaml"
    there.parent.mkdir()
    return table.build_table(replace(sweep, path=there), points, ledger)


def test_a_new_page_has_the_answer_and_a_place_for_the_verdict(
    answer: ResultTable, ledger: Ledger, tmp_path: Path
) -> None:
    path = publish.publish_answer(answer, ledger, COMMAND)
    assert path == tmp_path / "mine" / "ablation.md"
    text = path.read_text()
    assert text.startswith(f"# ablation\n\n{BEGIN}\n\nDo routing iterations")
    assert "| cnn | – | 0 | **1.00 ± 1.00 % (3) [-1.48, 3.48]** | – | 0.39 % (mnist) |" in text
    assert "0/3 seeds; failed: storage" in text
    assert text.endswith(f"{END}\n\n## Verdict\n\n{publish.VERDICT}\n")


def test_it_says_how_to_make_it_again_and_whose_code_made_it(
    answer: ResultTable, ledger: Ledger
) -> None:
    text = publish.publish_answer(answer, ledger, COMMAND).read_text()
    assert (
        f"`{COMMAND}` printed this, from 6 cells, trained 2026-11-01 to 2026-11-06, by commit "
        "000000000000; commit 000000000000 with uncommitted changes; commit 111111111111."
    ) in text


def test_nothing_of_the_machine_is_published(
    answer: ResultTable, ledger: Ledger, tmp_path: Path
) -> None:
    text = publish.publish_answer(answer, ledger, COMMAND).read_text()
    assert "/home/me" not in text
    assert str(tmp_path) not in text


def test_what_is_outside_the_markers_stays_byte_for_byte(
    answer: ResultTable, ledger: Ledger
) -> None:
    path = publish.path_of(answer)
    before, after = (
        b"# Title\r\n\r\ntext\t \r\n",
        "\r\n\r\n## Verdict\r\n\r\nÜ no\x0c".encode(),
    )
    path.write_bytes(before + f"{BEGIN}\nold\n{END}".encode() + after)
    publish.publish_answer(answer, ledger, COMMAND)
    content = path.read_bytes()
    assert content.startswith(before + BEGIN.encode())
    assert content.endswith(END.encode() + after)
    assert b"old" not in content
    publish.publish_answer(answer, ledger, COMMAND)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "page",
    [
        "no place",
        BEGIN,
        f"{END}\n{BEGIN}",
        f"{BEGIN}\n{END}\n{BEGIN}\n{END}",
        f"{BEGIN}{BEGIN}{END}",
    ],
)
def test_a_page_without_one_place_is_left_alone_and_told_of(
    answer: ResultTable, ledger: Ledger, page: str
) -> None:
    path = publish.path_of(answer)
    path.write_text(page)
    with pytest.raises(
        UserError, match=r"ablation\.md: needs the lines <!-- report: begin --> and"
    ):
        publish.publish_answer(answer, ledger, COMMAND)
    assert path.read_text() == page


def test_a_folder_of_sweeps_that_cannot_be_written_has_a_cure(
    answer: ResultTable, ledger: Ledger
) -> None:
    there = replace(answer.sweep, path=Path("/proc/capsweep/ablation.yaml"))
    with pytest.raises(UserError, match=r"ablation\.md cannot be written .*; copy ablation\.yaml"):
        publish.publish_answer(replace(answer, sweep=there), ledger, COMMAND)


@pytest.mark.parametrize("damaged", ["{", "[]", '{"code": 3}', '{"hardware": []}'])
def test_numbers_of_unknown_making_are_not_published(
    answer: ResultTable, ledger: Ledger, tmp_path: Path, damaged: str
) -> None:
    next(tmp_path.glob("*/*/provenance.json")).write_text(damaged)
    with pytest.raises(UserError, match=r"provenance\.json is damaged .* run it again"):
        publish.publish_answer(answer, ledger, COMMAND)
    assert not publish.path_of(answer).exists()
