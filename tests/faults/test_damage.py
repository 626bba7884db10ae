"""Damage that is not a kill: a full disk, a result cut in half, two drivers at once, too little
memory, a clock set back.
"""

import json

import pytest
from commands import read_to_end
from small_disks import small_disk

from capsweep import cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_full_disk_while_writing_a_result(disturbed) -> None:
    with small_disk(disturbed.storage, megabytes=0.6) as storage:
        output = disturbed.run("SEEDS=1", status=1)
        assert "No space left on device" in output
        assert "Traceback" not in output
        results = list(storage.glob("ledger/*/*/result.json"))
        assert all(json.loads(path.read_text())["metrics"] for path in results), "a torn result"
        assert not list(storage.glob("ledger/*/*/.*.tmp"))
    disturbed.run("SEEDS=1")  # on a disk with room


def test_a_result_cut_in_half_is_made_again(disturbed, undisturbed) -> None:
    disturbed.run()
    path = sorted(disturbed.storage.glob("ledger/*/*/result.json"))[0]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "5 done, 0 missing, 1 failed" in disturbed.run()
    assert disturbed.read_answer() == undisturbed


def test_two_drivers_at_once_run_every_cell_once(disturbed, undisturbed) -> None:
    drivers = [disturbed.start("EXECUTOR=local") for _ in range(2)]
    outputs = [read_to_end(driver) for driver in drivers]
    assert disturbed.read_answer() == undisturbed
    assert any("is being run by process" in output for output in outputs), outputs
    assert not list(disturbed.storage.glob("ledger/claims/*"))


def test_a_cell_that_exceeds_memory_is_tried_once_with_a_larger_share(
    disturbed, capsys: pytest.CaptureFixture[str]
) -> None:
    text = disturbed.file.read_text().replace("seeds: [0, 1]", "seeds: [0]")
    disturbed.file = disturbed.file.with_name("huge.yaml")
    disturbed.file.write_text(text.replace('"model.hidden=8"', '"model.hidden=100000000"'))
    output = read_to_end(disturbed.start(), status=1)
    assert output.count("trying again with a larger share") == 1
    assert "1 of 3 cells failed" in output
    cli.main(["ledger", "failures", "huge", f"STORAGE={disturbed.storage}"])
    output = capsys.readouterr().out
    assert "out of memory: 1 cell:" in output
    assert "model.hidden=100000000" in output
