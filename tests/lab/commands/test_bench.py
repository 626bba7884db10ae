"""`capsweep bench`: what it prints, writes and publishes, and when it refuses to."""

import inspect
import json
import math
import pkgutil
from pathlib import Path

import pytest

from capsweep.cli import main
from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measured
from capsweep.lab.bench.comparison import CandidateError
from capsweep.lab.commands.bench import BENCHES

PAGE = "by hand\n<!-- bench sweep: begin -->\nold\n<!-- bench sweep: end -->\nmore\n"
REPORT = BenchReport(
    [
        Measured("plan", 2.0, "s", 30),
        Measured("bf16", 1.5, "x", 3.5, at_least=True, skipped="no AMX"),
    ],
    [
        {"candidate": "a|b", "ms": 1234.5, "extra MB": None},
        {"candidate": "c", "ms": 0.5, "extra MB": 2},
        {"network": "capsnet_tiny", "tiles": "direct, 6x6"},
    ],
)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with hand-written text around the section of a benchmark."""
    path = tmp_path / "performance.md"
    path.write_bytes(PAGE.encode())
    return path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench sweep` finds what is written above, at once."""
    monkeypatch.setattr("capsweep.lab.bench.sweep.measure_sweep", lambda: REPORT)


@pytest.mark.usefixtures("measured")
def test_it_is_printed_for_people_and_programs_and_written(
    storage: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["bench", "sweep", f"STORAGE={storage}"]) == 0
    printed = capsys.readouterr().out
    for text in ("at most 30", "skipped: no AMX", "1,234", ", code "):
        assert text in printed
    written = json.loads((storage / "bench" / "sweep.json").read_text())
    assert written["bench"] == "sweep"
    assert written["timings"] == [dict(row) for row in REPORT.timings]
    assert [bar["verdict"] for bar in written["measured"]] == ["kept", "skipped"]
    assert written["measured"][1]["skipped"] == "no AMX"
    assert {"versions", "hardware", "load", "threads"} <= written["conditions"].keys()


@pytest.mark.usefixtures("measured")
def test_the_section_of_a_page_is_renewed(page: Path, storage: Path) -> None:
    main(["bench", "sweep", f"STORAGE={storage}", "--publish", str(page)])
    text = page.read_bytes().decode()
    assert "old" not in text
    assert "| plan | 2 s | at most 30 | kept |" in text
    assert "| a/b | 1,234 | – |" in text
    assert "| network | tiles |\n| --- | --- |\n| capsnet_tiny | direct, 6x6 |" in text


@pytest.mark.usefixtures("measured")
def test_numbers_of_a_gpu_have_a_section_of_their_own(
    page: Path, storage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: True)
    words = ["bench", "sweep", f"STORAGE={storage}", "--publish", str(page)]
    assert main(words) == 2
    assert "<!-- bench sweep on a GPU: begin -->" in capsys.readouterr().err
    section = "<!-- bench sweep on a GPU: begin -->\n<!-- bench sweep on a GPU: end -->\n"
    page.write_text(PAGE + section)
    assert main(words) == 0
    assert page.read_text().startswith(PAGE)
    assert "| plan | 2 s |" in page.read_text().removeprefix(PAGE)


def test_a_red_gate_leaves_nothing(
    page: Path, storage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> BenchReport:
        raise CandidateError("wrong: pose_BJD differs")

    monkeypatch.setattr("capsweep.lab.bench.sweep.measure_sweep", refuse)
    flags = [f"STORAGE={storage}", "--publish", str(page)]
    assert main(["bench", "sweep", *flags]) == 1
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert "bench sweep: RED, nothing is reported: wrong: pose_BJD differs" in errors
    assert not (storage / "bench").exists()
    assert page.read_bytes() == PAGE.encode()


def test_a_page_without_a_place_is_refused_before_measuring(
    page: Path, storage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("capsweep.lab.bench.sweep.measure_sweep", lambda: pytest.fail("measured"))
    page.write_text("nothing")
    assert main(["bench", "sweep", f"STORAGE={storage}", "--publish", str(page)]) == 2
    assert "<!-- bench sweep: begin -->" in capsys.readouterr().err


def test_what_is_quick_is_kept_apart_and_has_no_bars(
    storage: Path, page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(cells: int, seeds: int) -> BenchReport:
        return BenchReport([Measured(f"{cells} {seeds}", 31.0, "s", 30)])

    monkeypatch.setattr("capsweep.lab.bench.sweep.measure_sweep", measure)
    assert main(["bench", "--quick", "sweep", f"STORAGE={storage}"]) == 0
    assert [path.name for path in (storage / "bench").iterdir()] == ["sweep-quick.json"]
    monkeypatch.setattr("capsweep.lab.bench.sweep.measure_sweep", lambda: measure(1, 1))
    assert main(["bench", "sweep", f"STORAGE={storage}"]) == 1  # a bar is missed
    assert main(["bench", "--quick", "sweep", "--publish", str(page)]) == 2
    assert "measures nothing that could be published" in capsys.readouterr().err


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_can_be_quick(name: str) -> None:
    module = f"capsweep.lab.bench.{BENCHES[name]}"
    measure = pkgutil.resolve_name(f"{module}:measure_{name}")
    inspect.signature(measure).bind(**pkgutil.resolve_name(f"{module}:QUICK")[name])


def test_a_number_that_json_does_not_have_is_a_word() -> None:
    bars = [Measured("a", math.inf, "x", 1.0), Measured("b", None, "x", skipped="no GPU")]
    report = BenchReport(bars, [{"name": "c", "error": math.nan}])
    content = json.loads(json.dumps(report.as_json("it", {}), allow_nan=False))
    assert [bar["value"] for bar in content["measured"]] == ["Infinity", None]
    assert content["timings"] == [{"name": "c", "error": "NaN"}]


@pytest.mark.parametrize(
    ("value", "bar", "at_least", "verdict"),
    [
        (5.0, 5.0, True, "kept"),
        (4.99, 5.0, True, "missed"),
        (5.0, 5.0, False, "kept"),
        (5.01, 5.0, False, "missed"),
        (5.0, None, True, "no bar"),
    ],
)
def test_a_bar_is_kept_or_missed(
    value: float, bar: float | None, at_least: bool, verdict: str
) -> None:
    assert Measured("something", value, "x", bar, at_least).verdict == verdict
