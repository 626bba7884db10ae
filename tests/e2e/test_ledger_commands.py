"""`capsweep ledger ...` as a person uses it, on a ledger that real cells made."""

import json
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import foreign_claims
import pytest
import reported_cells

from capsweep import cli
from capsweep.ledger import lease
from capsweep.ledger.ledger import folder_of

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def swept(small_sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the ten cells of the small sweep; finished in this process."""
    storage = tmp_path_factory.mktemp("swept")
    choices = ["EXECUTOR=local", f"STORAGE={storage}", "logger=csv"]
    assert cli.main(["sweep", str(small_sweep), *choices]) == 0
    return storage


Ask = Callable[..., str]


@pytest.fixture
def ask(capsys: Capture) -> Ask:
    """What `capsweep ledger ARGUMENTS` prints of a storage, errors last."""

    def run_command(storage: Path, *arguments: str, status: int = 0) -> str:
        capsys.readouterr()
        assert cli.main(["ledger", *arguments, f"STORAGE={storage}"]) == status
        return "".join(capsys.readouterr())

    return run_command


def list_signatures(storage: Path) -> list[str]:
    """The signatures of the storage's finished cells."""
    return sorted(path.parent.name for path in storage.glob("ledger/*/*/result.json"))


def test_cells_are_listed_and_shown_as_text_and_json(swept: Path, ask: Ask) -> None:
    read = partial(ask, swept)
    first = list_signatures(swept)[0]
    header, *lines = read("ls").splitlines()
    assert header.split()[:7] == ["signature", "state", "error", "data", "epochs", "seed", "date"]
    assert len(lines) == 10
    assert all(" done " in line and " digits 2 " in line and " % " in line for line in lines)
    rows = json.loads(read("ls", "--json", "sweep=small", "seed=1"))
    assert {(row["status"], row["dataset"], row["seed"]) for row in rows} == {("done", "digits", 1)}
    assert {row["arm"] for row in rows} == {"cnn", "capsnet"}
    assert len(read("ls", "status=done").splitlines()) == 11
    faulty = read("ls", "status=failed", status=2)
    assert "status=failed: no cell has this value; the cells have done" in faulty
    text = read("show", first[:5])
    for part in ("science", "routing", "metrics.test/error", "versions.torch"):
        assert part in text
    cell = json.loads(read("show", first[:5], "--json"))
    assert (cell["signature"], cell["status"]) == (first, "done")
    assert cell["science"]["epochs"] == cell["result"]["epochs"] == 2
    assert cell["provenance"]["command"].startswith("capsweep train ")


def test_reproduce_prints_the_command_and_run_gives_the_same_numbers(swept: Path, ask: Ask) -> None:
    first = list_signatures(swept)[0]
    result = next(swept.glob(f"ledger/*/{first}/result.json"))
    signed = result.read_text()
    earlier = json.loads(signed)
    del earlier["metrics"]["test/balanced_error"]  # an earlier version did not measure it
    result.write_text(json.dumps(earlier))
    reported_cells.sign(result.parent)
    before = result.read_bytes()
    text = ask(swept, "reproduce", first, "--run")
    assert "capsweep train " in text
    assert "test/error" in text
    assert "now" not in text
    assert result.read_bytes() == before
    result.write_text(signed)


def test_numbers_of_another_machine_are_compared_with_what_differs(
    swept: Path, tmp_path: Path, capsys: Capture
) -> None:
    first = list_signatures(swept)[0]
    folder = tmp_path / "theirs" / folder_of(first)
    shutil.copytree(swept / "ledger" / folder_of(first), folder)
    made = json.loads((folder / "provenance.json").read_text())
    made["hardware"] = {"processor": "Theirs", "capability": "AVX2", "gpus": []}
    result = json.loads((folder / "result.json").read_text())
    ours = result["metrics"]["test/error"]
    result["metrics"]["test/error"] = theirs = ours - 0.25
    (folder / "provenance.json").write_text(json.dumps(made))
    (folder / "result.json").write_text(json.dumps(result))
    reported_cells.sign(folder)
    typed = [f"STORAGE={tmp_path}", f"LEDGER={tmp_path / 'theirs'}"]
    words = ["ledger", "reproduce", first, "--run", *typed, f"places.data={tmp_path / 'data'}"]
    assert cli.main(words) == 1
    text = capsys.readouterr().out
    assert f"test/error {theirs:.6g}: now {ours} (+0.25)\n" in text
    assert "\nhardware differs: Theirs (AVX2) then, " in text
    assert "torch differs" not in text
    assert len(list((tmp_path / "reproduced").iterdir())) == 1
    assert cli.main([*words, "epochs=3"]) == 2
    assert "epochs would change the cell" in capsys.readouterr().err


def test_reproduce_sets_back_a_default_that_has_changed(swept: Path, ask: Ask) -> None:
    first = list_signatures(swept)[0]
    path = next(swept.glob(f"ledger/*/{first}/provenance.json"))
    result = path.with_name("result.json")
    provenance, signed = path.read_text(), result.read_text()
    without_default = json.loads(provenance)
    without_default["overrides"].remove("batch_size=16")  # as if 16 had been the default then
    path.write_text(json.dumps(without_default))
    reported_cells.sign(path.parent)
    text = ask(swept, "reproduce", first)
    path.write_text(provenance)
    result.write_text(signed)
    assert "# the default of batch_size has changed: 16 then, 128 now" in text
    assert "batch_size=16" in text.splitlines()[-1]


def test_an_export_is_merged_by_another_host_which_then_runs_nothing(
    swept: Path, small_sweep: Path, tmp_path: Path, ask: Ask, capsys: Capture
) -> None:
    ask(swept, "export", str(tmp_path / "cells.tar"))
    other = tmp_path / "other"
    added = ask(other, "import", str(tmp_path / "cells.tar"))
    assert "10 cells added, 0 were there already" in added
    choices = ["EXECUTOR=local", f"STORAGE={other}", "logger=csv"]
    assert cli.main(["sweep", str(small_sweep), *choices]) == 0
    assert "nothing to run" in capsys.readouterr().out
    removed = list_signatures(other)[0]
    ask(other, "rm", removed)
    cli.main(["plan", str(small_sweep), f"STORAGE={other}", "logger=csv"])
    assert "10 cells: 9 done, 1 missing" in capsys.readouterr().out
    assert "no cell in" in ask(other, "show", removed, status=2)


def test_a_run_whose_machine_is_gone_is_released_and_a_living_one_is_not(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = partial(ask, tmp_path, "release", "0123")
    (tmp_path / "ledger" / "01" / "0123456789abcdef").mkdir(parents=True)
    write = partial(foreign_claims.write_claim, tmp_path / "ledger", "0123456789abcdef")
    path = write()
    threading.Timer(0.5, write, kwargs={"beat": 4}).start()
    assert "is being run by process 1 on far; stop that" in release(status=2)
    assert path.exists()
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
    assert "from process 1 on far" in release()
    assert not path.exists()
    assert "0123456789abcdef: no process has claimed" in release(status=2)
    with lease.take_lease(tmp_path / "ledger", "0123456789abcdef"):
        assert "stop that process first" in release(status=2)
