"""`sweeps/NAME.md`: what a command makes stands between two markers, the verdict is a person's."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from capsweep.errors import DataError, UserError
from capsweep.report import publish

COMMAND = "make report SWEEP=ablation ROUTING=3"
BEGIN, END = "<!-- report: begin -->", "<!-- report: end -->"
Train = Callable[..., None]


@pytest.fixture
def train(ablation) -> Train:
    """Leaves the files of a cell: its number in the sweep, its epochs' seconds, its making."""

    def write(number: int, seconds: list[float], **made: object) -> None:
        ablation.finish(number, {"test/error": 0.01 * number})
        folder = ablation.folder_of(number)
        (folder / "provenance.json").write_text(json.dumps(made))
        science = ablation.points[number].cell.science
        (folder / "config.yaml").write_text(yaml.safe_dump(science))
        lines = [f'{{"epoch": {epoch}, "seconds": {s}}}\n' for epoch, s in enumerate(seconds)]
        (folder / "metrics.jsonl").write_text("".join(lines))

    return write


@pytest.fixture
def write_page(ablation, train: Train, tmp_path: Path) -> Callable[[], Path]:
    """Publishes two rows that two commits made, and a failure that names a folder."""
    for number in range(6):
        code = {"commit": f"{number // 3}" * 40, "dirty": number == 0}
        train(number, [], started=f"2026-11-0{number + 1}T23:59:59+00:00", code=code)
    why = "FileNotFoundError: /home/me/outputs/x is gone"
    ablation.ledger.note_failure(ablation.points[6].cell.signature, why)
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "ablation.yaml"
    ablation.sweep = replace(ablation.sweep, path=path, command=COMMAND)
    return lambda: publish.publish_answer(ablation.build(), ablation.ledger)


def test_a_new_page_has_the_answer_and_a_place_for_the_verdict(
    write_page: Callable[[], Path], tmp_path: Path
) -> None:
    path = write_page()
    text = path.read_text()
    assert text.startswith(f"# ablation\n\n{BEGIN}\n\nDo routing iterations")
    assert (
        "| cnn | – | 0 | **1.00 ± 1.00 % (3) [0.00, 3.48]** | – | *0.39 % ≠ baseline_mnist" in text
    )
    assert "0/3 seeds; failed: storage" in text
    assert text.endswith(f"{END}\n\n## Verdict\n\n{publish.VERDICT}\n")
    assert (
        f"`{COMMAND}` printed this, from 6 cells of 0 epochs, trained 2026-11-01 to 2026-11-06 in "
        "0.0 s of cells on unknown hardware, by commit 000000000000; commit 000000000000 with "
        "uncommitted changes; commit 111111111111."
    ) in text
    assert "/home/me" not in text
    assert str(tmp_path) not in text


def test_cells_that_name_a_folder_of_the_machine_or_lack_a_file_are_not_published(
    ablation, write_page: Callable[[], Path], tmp_path: Path
) -> None:
    page = write_page()
    published, archive = page.read_bytes(), page.parent / "ledgers" / "ablation.tar.xz"
    kept = archive.read_bytes()
    provenance = ablation.folder_of(1) / "provenance.json"
    content = provenance.read_text()
    provenance.write_text(json.dumps({"command": "capsweep train places.data=/home/me/data"}))
    with pytest.raises(UserError, match=r"provenance.json names a folder .*, /home/me/data; run"):
        write_page()
    provenance.write_text(content)
    (ablation.folder_of(1) / "config.yaml").unlink()
    with pytest.raises(DataError, match=r"config\.yaml is absent"):
        write_page()
    assert (page.read_bytes(), archive.read_bytes()) == (published, kept)
    assert list(archive.parent.iterdir()) == [archive]


def test_a_table_of_cut_data_is_no_answer(choose: Callable, tmp_path: Path) -> None:
    cut = choose("ablation", routing="3", overrides=["limit_batches=2"])
    cut.fill(0.01)
    cut.sweep = replace(cut.sweep, path=tmp_path / "ablation.yaml")
    with pytest.raises(UserError, match="is not published: NO RESULT: TRAINED AND TESTED ON 2"):
        publish.publish_answer(cut.build(), cut.ledger)
    assert not (tmp_path / "ablation.md").exists()


def test_what_is_outside_the_markers_stays_byte_for_byte(
    write_page: Callable[[], Path], tmp_path: Path
) -> None:
    path = tmp_path / "mine" / "ablation.md"
    before, after = b"# Title\r\n\r\ntext\t \r\n", "\r\n\r\n## Verdict\r\n\r\nÜ no\x0c".encode()
    path.write_bytes(before + f"{BEGIN}\nreplaced\n{END}".encode() + after)
    content = write_page().read_bytes()
    assert content.startswith(before + BEGIN.encode())
    assert content.endswith(END.encode() + after)
    assert b"replaced" not in content


@pytest.mark.parametrize("page", ["no place", f"{END}\n{BEGIN}", f"{BEGIN}\n{END}\n{BEGIN}\n{END}"])
def test_a_page_without_one_place_is_left_alone_and_told_of(
    write_page: Callable[[], Path], tmp_path: Path, page: str
) -> None:
    path = tmp_path / "mine" / "ablation.md"
    path.write_text(page)
    with pytest.raises(UserError, match=r"ablation\.md: needs the lines <!-- report: begin -->"):
        write_page()
    assert path.read_text() == page
