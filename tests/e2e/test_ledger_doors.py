"""`capsweep ledger ...` as a person uses it, on a ledger that real cells made."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import reported_cells

from capsweep import cli
from capsweep.ledger import lease


@pytest.fixture(scope="module")
def swept(small_sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the ten cells of the small sweep; finished in this process."""
    storage = tmp_path_factory.mktemp("swept")
    choices = ["--executor", "local", "--storage", str(storage), "logger=csv"]
    assert cli.main(["sweep", str(small_sweep), *choices]) == 0
    return storage


def ledger(storage: Path, *arguments: str) -> int:
    """`capsweep ledger ARGUMENTS` on a storage."""
    return cli.main(["ledger", *arguments, "--storage", str(storage)])


def first(storage: Path) -> str:
    """A signature of the storage."""
    return sorted(path.parent.name for path in storage.glob("ledger/*/*/result.json"))[0]


def test_ls_has_a_line_per_cell(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger(swept, "ls") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert all("done" in line and line.endswith("%") for line in lines)
    assert ledger(swept, "ls", "--status", "failed") == 0
    assert capsys.readouterr().out == ""
    ledger(swept, "ls", "--json")
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 10
    assert {row["status"] for row in rows} == {"done"}


def test_a_status_that_no_cell_can_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        ledger(tmp_path, "ls", "--status", "finished")
    assert "invalid choice: 'finished'" in capsys.readouterr().err


def test_what_is_looked_at_is_json_too(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*arguments: str) -> Any:
        assert ledger(swept, *arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    cell = told("show", first(swept)[:5])
    assert (cell["signature"], cell["status"]) == (first(swept), "done")
    assert cell["result"]["metrics"].keys() >= {"test/error"}
    assert cell["science"]["epochs"] == cell["result"]["epochs"] == 2
    assert cell["provenance"]["command"].startswith("capsweep train ")
    why = told("why", first(swept))
    other = told("compare", first(swept), why["nearest"])
    assert other["second"] == why["nearest"]
    assert sum(other["counts"].values()) == 360  # test digits
    assert why["differences"]
    assert told("ls", "--status", "failed") == []


def test_show_tells_settings_result_origin_and_interval(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ledger(swept, "show", first(swept)[:5]) == 0
    said = capsys.readouterr().out
    for part in ("science", "routing", "metrics.test/error", "versions.torch", "(Wilson)"):
        assert part in said


def test_why_names_the_key_that_differs_from_the_nearest_cell(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = json.loads(next(swept.glob(f"ledger/*/{first(swept)}/provenance.json")).read_text())
    other = [text for text in overrides["overrides"] if not text.startswith("seed=")]
    assert ledger(swept, "why", *other, "seed=7") == 0
    said = capsys.readouterr().out
    assert "missing" in said
    assert "  seed: 7 here, " in said
    assert said.count(" here, ") == 1


def test_reproduce_prints_the_command_and_run_gives_the_same_numbers(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = next(swept.glob(f"ledger/*/{first(swept)}/result.json")).read_bytes()
    assert ledger(swept, "reproduce", first(swept), "--run") == 0
    said = capsys.readouterr().out
    assert "capsweep train " in said
    assert "test/error" in said
    assert "now" not in said
    assert next(swept.glob(f"ledger/*/{first(swept)}/result.json")).read_bytes() == before


def test_reproduce_sets_back_a_default_that_has_changed(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(swept.glob(f"ledger/*/{first(swept)}/provenance.json"))
    result = path.with_name("result.json")
    whole, signed = path.read_text(), result.read_text()
    plain = json.loads(whole)
    plain["overrides"].remove("batch_size=16")  # as if 16 had been the default then
    path.write_text(json.dumps(plain))
    reported_cells.sign(path.parent)
    assert ledger(swept, "reproduce", first(swept)) == 0
    said = capsys.readouterr().out
    path.write_text(whole)
    result.write_text(signed)
    assert "# a default has changed since: batch_size: 128 here, 16 there" in said
    assert "batch_size=16" in said.splitlines()[-1]


def test_compare_tests_two_cells_on_the_same_examples(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signatures = sorted(path.parent.name for path in swept.glob("ledger/*/*/result.json"))
    assert ledger(swept, "compare", signatures[0], signatures[1]) == 0
    said = capsys.readouterr().out
    assert "360 test examples" in said
    assert "McNemar" in said
    assert "paired bootstrap" in said


def test_an_export_is_merged_by_another_host_which_then_runs_nothing(
    swept: Path, small_sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ledger(swept, "export", str(tmp_path / "cells.tar")) == 0
    there = tmp_path / "there"
    assert ledger(there, "import", str(tmp_path / "cells.tar")) == 0
    assert "10 cells merged, 0 were there already" in capsys.readouterr().out
    choices = ["--executor", "local", "--storage", str(there), "logger=csv"]
    assert cli.main(["sweep", str(small_sweep), *choices]) == 0
    assert "nothing to run" in capsys.readouterr().out


def test_two_sweeps_that_share_a_cell_share_its_result(
    swept: Path, small_sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(small_sweep.read_text().replace("seeds: [0, 1]", "seeds: [1, 0]"))
    assert cli.main(["plan", str(other), "--storage", str(swept), "logger=csv"]) == 0
    assert "10 cells: 10 done, 0 missing" in capsys.readouterr().out


def test_removed_cells_are_missing_again(
    swept: Path, small_sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = first(swept)
    assert ledger(swept, "rm", signature) == 0
    cli.main(["plan", str(small_sweep), "--storage", str(swept), "logger=csv"])
    assert "10 cells: 9 done, 1 missing" in capsys.readouterr().out
    assert ledger(swept, "show", signature) == 2
    assert "no cell of" in capsys.readouterr().err


def test_cells_as_they_were_made_have_no_fault_and_a_flipped_bit_is_one(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ledger(swept, "verify") == 0
    assert "of them finished: 0 faults" in capsys.readouterr().out
    weights = next(swept.glob(f"ledger/*/{first(swept)}/weights.ckpt"))
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    assert ledger(swept, "verify", first(swept)) == 1
    said = capsys.readouterr().out
    assert f"{weights} is damaged" in said
    assert "1 cells, 1 of them finished: 1 faults" in said
    weights.unlink()  # as an export may leave it out
    assert ledger(swept, "verify") == 0
    weights.write_bytes(whole)


def test_gc_of_a_clean_ledger_removes_nothing(
    swept: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = sorted(swept.rglob("ledger/*/*/*"))
    assert ledger(swept, "gc") == 0
    assert "0 files or folders" in capsys.readouterr().out
    assert sorted(swept.rglob("ledger/*/*/*")) == before


def test_a_run_whose_machine_is_gone_is_released_and_a_living_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = {"host": "far", "machine": "another boot", "pid": 1, "started": "1"}
    path = tmp_path / "ledger" / "claims" / "0123456789abcdef.000001"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"owner": owner, "beat": 3}))
    assert ledger(tmp_path, "release", "0123") == 0
    assert "from process 1 on far" in capsys.readouterr().out
    assert not path.exists()
    with lease.hold_lease(tmp_path / "ledger", "0123456789abcdef"):
        assert ledger(tmp_path, "release", "0123") == 2
    assert "end it first" in capsys.readouterr().err
    assert ledger(tmp_path, "release", "0123") == 2
    assert "0 claimed cells" in capsys.readouterr().err
