"""`capsweep report`: the answer on the screen, in every form of file, and for programs."""

import csv
import json
from pathlib import Path

import pytest
import reported_cells

from capsweep import cli
from capsweep.sweep import choices, expand, spec

SEARCH = """\
question: Which rate?
kind: search
base: [experiment=digits]
seeds: [0]
arms: {capsnet: {fixed: [routing=dynamic], space: {optim.optimizer.lr: [0.001, 0.01]}}}
search: {metric: val/error, trials: 2}
"""


@pytest.fixture
def finished(storage: Path) -> Path:
    """A storage whose ledger has the cells of `make sweep ROUTING=3`, but for one that failed."""
    sweep = choices.load_sweep("ablation", {"ROUTING": "3"})
    points = expand.expand_sweep(sweep)
    ledger = storage / "ledger"
    folders = [reported_cells.finish(ledger, each, i / 100) for i, each in enumerate(points)]
    (folders[-1] / "result.json").unlink()
    (folders[-1] / "error.txt").write_text("OutOfMemoryError: 3 GiB too much\n")
    return storage


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The ablation as a file of one's own."""
    path = tmp_path / "mine.yaml"
    path.write_text(spec.load("ablation").path.read_text())
    return path


def report(storage: Path, *arguments: str, sweep: str | Path = "ablation") -> int:
    """`capsweep report SWEEP ROUTING=3 ARGUMENTS`."""
    return cli.main(["report", str(sweep), "ROUTING=3", f"STORAGE={storage}", *arguments])


def rows_of(folder: Path) -> list[dict[str, str]]:
    """The rows of table.csv."""
    return list(csv.DictReader((folder / "table.csv").read_text().splitlines()))


def test_a_report_is_a_table_on_the_screen_and_in_files(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / "wandb" / "offline-run-1").mkdir(parents=True)
    assert report(finished) == 0
    printed = capsys.readouterr().out
    assert f"/wandb leet {finished}/wandb" in printed
    folder = finished / "reports" / "ablation-ROUTING=3"
    assert f"report: {folder / 'index.html'}\n" in printed
    assert {path.name for path in folder.iterdir()} >= {"table.md", "table.tex", "table.csv"}
    assert (folder / "index.html").is_file()
    for text in (printed, (folder / "table.md").read_text()):
        assert "2/3 seeds; failed: out of memory" in text
        assert "failed: capsnet · 3 · 0.0005: OutOfMemoryError: 3 GiB too much" in text
    paper = (folder / "table.tex").read_text()
    assert "3 GiB" not in paper  # causes name folders and machines
    assert r"failed: capsnet $\cdot$ 3 $\cdot$ 0.0005: out of memory" in paper
    assert [row["n"] for row in rows_of(folder)] == ["3", "3", "2"]


def test_json_is_the_same_table_and_alone_on_standard_output(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(finished, "--json") == 0
    printed = capsys.readouterr()
    rows = rows_of(finished / "reports" / "ablation-ROUTING=3")
    for field, row in zip(json.loads(printed.out)["fields"], rows, strict=True):
        assert field.keys() == row.keys()
        assert field["cells"] == json.loads(row["cells"])
    assert "report: " in printed.err


def test_publish_writes_beside_the_sweep_how_to_make_it_anywhere(
    finished: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--publish", "EXCLUDE=arm=capsnet seed=0", "optim.optimizer.lr=0.001"]
    words += [f"places.data={tmp_path}", "trainer.threads=2"]
    assert report(finished, *words, sweep=mine) == 0
    page = mine.with_suffix(".md")
    assert f"published: {page}" in capsys.readouterr().out
    command = (
        "make report SWEEP=mine.yaml ROUTING=3 'EXCLUDE=arm=capsnet seed=0' optim.optimizer.lr"
    )
    assert command in page.read_text()
    assert str(tmp_path) not in page.read_text()


REFUSED = {
    "": "mine.md has the table of `make report SWEEP=mine.yaml ROUTING=3`; to replace it, remove",
    "EPOCHS=9": "mine-EPOCHS=9 is not published: no cell is finished",
}


def test_other_choices_are_another_report_and_replace_no_answer_unsaid(
    finished: Path, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(mine), f"STORAGE={finished}", "--publish"]
    page = mine.with_suffix(".md")
    assert report(finished, "--publish", sweep=mine) == 0
    answer = page.read_text()
    for more, why in REFUSED.items():
        assert cli.main([*words, *more.split()]) == 2
        assert why in capsys.readouterr().err
        assert page.read_text() == answer
    reports = {path.name: path for path in (finished / "reports").iterdir()}
    assert set(reports) == {"mine", "mine-ROUTING=3"}
    for name, text in {"table.md": "`{}` prints this.", "index.html": "<code>{}</code>"}.items():
        command = "make report SWEEP=mine.yaml ROUTING=3"
        assert text.format(command) in (reports["mine-ROUTING=3"] / name).read_text()
        assert "mine.yaml with ROUTING=3." in (reports["mine-ROUTING=3"] / name).read_text()
        assert "mine.yaml with" not in (reports["mine"] / name).read_text()


def test_where_nothing_is_finished_a_report_says_how_to_see_what_is(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(finished, "EPOCHS=9") == 0
    printed = capsys.readouterr().out
    assert "no cell is finished; `make ledger ARGS='ls sweep=ablation'` lists cells" in printed
    assert "0/3 seeds" not in printed
    assert not (finished / "reports").exists()


def test_a_search_writes_what_a_sweep_writes(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text(SEARCH)
    words = ["report", str(file), f"STORAGE={storage}"]
    assert cli.main([*words, "--publish"]) == 2
    assert "error: rates is a search: " in capsys.readouterr().err
    assert cli.main(words) == 0
    assert "rates: no cell is finished; " in capsys.readouterr().out
    for number, point in enumerate(expand.check_search(choices.load_sweep(str(file)))):
        made = {**reported_cells.PROVENANCE, "overrides": list(point.cell.overrides)}
        metrics = {"val/error": number / 10}
        reported_cells.finish(storage / "ledger", point, 0.0, provenance=made, metrics=metrics)
    assert cli.main([*words, "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)["fields"]
    names = ("arm", "optim.optimizer.lr", "mean", "best")
    values = [tuple(field[name] for name in names) for field in fields]
    assert values == [("capsnet", 0.001, 0.0, True), ("capsnet", 0.01, 0.1, False)]
    folder = storage / "reports" / "rates"
    written = {path.name for path in folder.iterdir()}
    assert written >= {"table.md", "table.tex", "table.csv", "index.html"}
    for name in ("table.md", "table.tex", "index.html"):
        assert "this table supports no claim" in (folder / name).read_text()
    assert [row["arm"] for row in rows_of(folder)] == ["capsnet", "capsnet"]


def test_a_sweep_that_ran_does_not_fail_for_its_report(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "ablation", "ARMS=cnn", "EXECUTOR=local"]
    (finished / "reports").write_text("a file")
    assert cli.main([*words, f"STORAGE={finished}", "logger=csv"]) == 0
    assert "index.html could not be written (NotADirectoryError" in capsys.readouterr().out
    assert report(finished) == 1
    assert capsys.readouterr().out.endswith("; type make report to try again\n")
