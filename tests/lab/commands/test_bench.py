"""`capsweep bench`: what it prints and publishes, and when it refuses to."""

import math
import pkgutil
from pathlib import Path

import pytest

from capsweep.cli import main
from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measurement
from capsweep.lab.commands.bench import BENCHES

PAGE = "by hand\n<!-- sweep: begin -->\nold\n<!-- sweep: end -->\nmore\n"
REPORT = BenchReport(
    [Measurement("plan", 2.0, "s", 30), Measurement("fast", math.inf, "x")],
    [
        {"case": "it", "candidate": "a|b", "ms": 1234.5, "extra MB": None},
        {"case": "it", "candidate": "c", "ms": 0.5, "extra MB": 2},
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
    monkeypatch.setattr("capsweep.lab.bench.sweep.measure_sweep", lambda is_quick: REPORT)


@pytest.mark.usefixtures("measured")
def test_numbers_are_printed_beside_their_bars_with_what_they_were_measured_by(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["bench", "sweep"]) == 0
    printed = capsys.readouterr().out
    for text in ("≤30", "infx", "1,234", ", code ", "cores, load ", ", torch 2."):
        assert text in printed


@pytest.mark.usefixtures("measured")
def test_the_section_of_a_page_is_renewed_and_that_of_a_gpu_is_another(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "sweep", "--publish", str(page)]
    main(words)
    text = page.read_bytes().decode()
    assert "old" not in text
    assert "\n- plan: 2 s (≤30)\n" in text
    assert "fast" not in text  # it has no bar
    monkeypatch.setattr(bench, "is_gpu", lambda: True)
    assert main(words) == 2
    assert "<!-- sweep on a GPU: begin -->" in capsys.readouterr().err
    page.write_text(PAGE + PAGE.replace("sweep", "sweep on a GPU"))
    assert main(words) == 0
    assert page.read_text().startswith(PAGE)
    assert "- plan: 2 s (" in page.read_text().removeprefix(PAGE)


@pytest.mark.parametrize("words", [[], ["--quick"]])
def test_a_page_without_a_place_is_refused_before_measuring(
    words: list[str],
    page: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("capsweep.lab.bench.sweep.measure_sweep", lambda _: pytest.fail("measured"))
    page.write_text(PAGE if words else "nothing")
    assert main(["bench", "sweep", *words, "--publish", str(page)]) == 2
    name = "sweep-quick" if words else "sweep"
    assert f"<!-- {name}: begin -->" in capsys.readouterr().err


def test_a_missed_bar_fails_unless_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    missed = BenchReport([Measurement("plan", 31.0, "s", 30)])
    monkeypatch.setattr("capsweep.lab.bench.sweep.measure_sweep", lambda is_quick: missed)
    assert main(["bench", "--quick", "sweep"]) == 0
    assert main(["bench", "sweep"]) == 1
    assert main(["bench", "sweeps"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)  # two minutes of a core alone, which other tests share
@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_runs(name: str) -> None:
    measure = pkgutil.resolve_name(f"capsweep.lab.bench.{BENCHES[name]}:measure_{name}")
    report: BenchReport = measure(is_quick=True)
    assert report.numbers
    assert not any(bar.unit == "fault" for bar in report.numbers)
    assert all(row.get("ms", 1) > 0 for row in report.rows)
