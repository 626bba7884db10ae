"""`capsweep bench`: what it prints, writes and publishes, and when it refuses to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from capsweep.bench import conditions, parity, routing
from capsweep.bench.measured import Measured, Report
from capsweep.bench.parity import ParityError
from capsweep.cli import main
from capsweep.model.routing import dynamic
from capsweep.model.votes import Routed

PAGE = (
    "# Speed\r\n\nby hand, äöü\n<!-- bench scale: begin -->\nold\n<!-- bench scale: end -->\nmore\r"
)
REPORT = Report(
    [
        Measured("plan", 2.0, "s", 30, stretch=1),
        Measured("bf16", 1.5, "x", 3.5, at_least=True, skipped="no AMX"),
    ],
    [
        {"candidate": "a|b", "ms": 1234.5, "extra MB": None},
        {"candidate": "c", "ms": 0.5, "extra MB": 2},
    ],
    ["A note."],
    {"matmul, GFLOP/s": 151.2},
)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with hand-written text around the section of a benchmark."""
    path = tmp_path / "performance.md"
    path.write_bytes(PAGE.encode())
    return path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench scale` finds what is written above, at once."""
    monkeypatch.setattr("capsweep.bench.scale.growth", lambda: REPORT)


def _wrong(*arguments: object, **options: object) -> Routed:
    """Dynamic routing, its poses a little too long."""
    routed = dynamic.reference(*arguments, **options)
    return routed._replace(pose_BJD=routed.pose_BJD * (1 + 1e-7))


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_wrong_candidate_is_named_and_nothing_is_reported(
    flags: list[str],
    page: Path,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        routing, "candidates", lambda: {"right": dynamic.reference, "wrong": _wrong}
    )
    monkeypatch.setattr(routing, "GATE", routing.GATE[:1])
    page.write_bytes(before := PAGE.replace("scale", "routing").encode())
    flags = [*flags, "--storage", str(storage), "--publish", str(page)]
    assert main(["bench", "routing", *flags]) == 1
    printed, said = capsys.readouterr()
    assert printed == ""
    assert "wrong: pose_BJD differs by 1.0e-07, at most 1e-09 is allowed" in said
    assert "right" not in said
    assert not (storage / "bench").exists()
    assert page.read_bytes() == before


def test_parity_is_asked_of_every_number() -> None:
    expected = {"pose": torch.tensor([1.0, 2.0]), "gradient": torch.zeros(2)}
    parity.check(expected, {"same": dict(expected)}, 0.0)
    for wrong in (
        {"pose": torch.tensor([1.0, 2.1])},
        {"pose": torch.tensor([1.0, torch.nan])},
        {"pose": torch.tensor([1.0])},
        {"gradient": torch.ones(2)},
    ):
        with pytest.raises(ParityError, match="it: "):
            parity.check(expected, {"it": expected | wrong}, 0.01)
    with pytest.raises(ParityError, match="gives"):
        parity.check(expected, {"it": {"pose": expected["pose"]}}, 0.01)


@pytest.mark.usefixtures("measured")
def test_json_is_printed_and_written(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scale", "--json", "--storage", str(storage)]) == 0
    written = json.loads((storage / "bench" / "scale.json").read_text())
    assert json.loads(capsys.readouterr().out) == written
    assert written["bench"] == "scale"
    assert written["timings"] == [dict(row) for row in REPORT.timings]
    assert [bar["verdict"] for bar in written["measured"]] == ["kept", "skipped"]
    assert written["measured"][1]["skipped"] == "no AMX"
    assert {"versions", "hardware", "settings", "threads"} <= written["conditions"].keys()


@pytest.mark.usefixtures("measured")
def test_results_go_where_storage_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE", str(tmp_path / "elsewhere"))
    main(["bench", "scale"])
    assert (tmp_path / "elsewhere" / "bench" / "scale.json").is_file()


def test_a_missed_bar_is_an_exit_status(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsweep.bench.scale.growth", lambda: [Measured("plan", 31.0, "s", 30)])
    assert main(["bench", "scale", "--storage", str(storage)]) == 1


@pytest.mark.usefixtures("measured")
def test_the_terminal_shows_bars_timings_and_conditions(
    storage: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    main(["bench", "scale", "--storage", str(storage)])
    printed = capsys.readouterr().out
    for told in ("at most 30", "skipped: no AMX", "1,234", "MALLOC_ARENA_MAX=1", "A note."):
        assert told in printed


@pytest.mark.parametrize(("used", "told"), [(None, False), (0.05, False), (1.5, True)])
def test_a_busy_machine_is_told(used: float | None, told: bool) -> None:
    found = conditions.before() | {"cores_in_use": used}
    under = conditions.now(found) | {"tf32": conditions.tf32()}
    assert ("BUSY" in conditions.told(under)) == told


@pytest.mark.skipif(not conditions.STAT.exists(), reason="this system does not say")
def test_work_of_other_processes_is_seen() -> None:
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        used = conditions.cores_in_use()
    finally:
        spinning.kill()
        spinning.wait()
    assert used is not None
    assert used > conditions.BUSY


@pytest.mark.usefixtures("measured")
def test_only_what_stands_between_the_markers_is_replaced(page: Path, storage: Path) -> None:
    arguments = ["bench", "scale", "--storage", str(storage), "--publish", str(page)]
    for _ in range(2):  # a second time over the first
        main(arguments)
        found = page.read_bytes().decode()
        head, rest = found.split("<!-- bench scale: begin -->\n")
        section, tail = rest.split("<!-- bench scale: end -->")
        assert head == "# Speed\r\n\nby hand, äöü\n"
        assert tail == "\nmore\r"
        assert "old" not in section
        assert "| plan | 2 s | at most 30 | at most 1 | kept |" in section
        assert "| a/b | 1,234 | – |" in section


@pytest.mark.usefixtures("measured")
def test_no_page_changes_unless_asked(page: Path, storage: Path) -> None:
    main(["bench", "scale", "--storage", str(storage)])
    assert page.read_bytes() == PAGE.encode()


@pytest.mark.parametrize("text", ["nothing", PAGE + PAGE, PAGE.replace("begin", "start")])
def test_a_page_without_one_place_is_refused_before_measuring(
    text: str,
    page: Path,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("capsweep.bench.scale.growth", lambda: pytest.fail("measured"))
    page.write_bytes(text.encode())
    assert main(["bench", "scale", "--storage", str(storage), "--publish", str(page)]) == 2
    assert "<!-- bench scale: begin -->" in capsys.readouterr().err
    assert page.read_bytes() == text.encode()


def test_an_unknown_benchmark_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rooting"]) == 2
    assert "bench rooting: have start, scale" in capsys.readouterr().err
