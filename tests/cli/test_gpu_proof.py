"""`capsweep gpu-proof`: bounded parts, what goes wrong in one of them, resuming, publishing."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsweep import cli
from capsweep.cli import gpu_proof, gpu_proof_parts, gpu_proof_table
from capsweep.cli.gpu_proof_parts import Part
from capsweep.ledger.ledger import Ledger

CONDITIONS = {
    "when": "2026-11-25T10:00+00:00",
    "device": "cuda",
    "load": 0.5,
    "hardware": {
        **{"gpus": ["NVIDIA H100"], "processor": "a processor"},
        **{"capability": "AVX512", "cores": 16},
    },
    "versions": {"torch": "2.11.0"},
    "code": {"commit": "0123456789abcdef", "dirty": False},
}
BAR = {"what": "speed", "unit": "x", "bar": 1.0, "at_least": True, "skipped": None}
MISSED = {"measured": [BAR | {"value": 0.5, "verdict": "missed"}], "timings": []}
PAGE = "by hand\n<!-- bench gpu-proof: begin -->\n<!-- bench gpu-proof: end -->\nmore\n"
Prove = Callable[..., int]


def python(text: str) -> Callable[[float], list[str]]:
    """A command."""
    return lambda _: [sys.executable, "-c", text]


def make_part(name: str, text: str = "print('fine')", bound: float = 60, **options: Any) -> Part:
    """A part that prints, and keeps what it printed."""
    read = options.pop("read", gpu_proof_parts.read_output)
    return Part(name, python(text), bound, read, **options)


@pytest.fixture
def prove(storage: Path, monkeypatch: pytest.MonkeyPatch) -> Prove:
    """The exit status of the command with these parts, the last of which is the export."""

    def run(
        *parts: Part,
        device: str = "NVIDIA H100",
        code: str = "code",
        torch: str = "2.11.0",
        conf: str = "conf",
        minutes: int = 25,
    ) -> int:
        hardware = CONDITIONS["hardware"] | {"gpus": [device]}
        conditions = CONDITIONS | {"hardware": hardware, "versions": {"torch": torch}}
        monkeypatch.setattr(gpu_proof, "read_conditions", lambda _: conditions)
        monkeypatch.setattr(gpu_proof, "hash_configs", lambda: conf)
        monkeypatch.setattr(gpu_proof_table, "check_images", lambda _: None)
        monkeypatch.setattr(gpu_proof.code_identity, "hash_package", lambda: code)
        monkeypatch.setattr(gpu_proof_parts, "list_parts", lambda *_: list(parts))
        return cli.main(["gpu-proof", "--storage", str(storage), "--minutes", str(minutes)])

    return run


def read_parts(storage: Path) -> dict[str, Any]:
    """How the parts ended."""
    return json.loads((storage / "gpu-proof.json").read_text())["parts"]


def test_a_part_that_fails_or_hangs_is_recorded_and_the_next_one_runs(
    prove: Prove, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = tmp_path / "child"
    hangs = (
        "import os, pathlib, subprocess, sys, time\n"
        "started = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(child)!r}).write_text(str(started.pid))\n"
        "print('so far', flush=True)\n"
        "time.sleep(600)\n"
    )
    fails = make_part("fails", "print('first'); raise SystemExit('no such kernel')")
    killed = make_part("killed", "import os; os.kill(os.getpid(), 9)")
    parts = (fails, make_part("hangs", hangs, bound=10), killed, make_part("fine"))
    assert prove(*parts) == 1
    ended = read_parts(storage)
    statuses = {name: entry["status"] for name, entry in ended.items()}
    assert statuses == {
        **{"fails": "failed", "hangs": "out of time", "killed": "failed", "fine": "done"}
    }
    assert ended["fails"]["cause"] == "first\nno such kernel"
    assert ended["hangs"]["cause"].startswith("ended after 10 s\nso far\n")
    assert ended["fine"]["cause"] is None
    assert ended["fine"]["content"] == {"text": "fine\n"}
    assert not is_alive(int(child.read_text()))
    printed = capsys.readouterr().out
    assert "    no such kernel\n" in printed
    assert "failed: fails, hangs, killed; the reasons are in" in printed


def test_a_part_is_killed_with_the_command(tmp_path: Path) -> None:
    child = tmp_path / "child"
    part = f"import os, pathlib; pathlib.Path({str(child)!r}).write_text(str(os.getpid()))\n"
    text = (
        "import os, sys, pathlib\n"
        "from capsweep.cli.gpu_proof_parts import run_command\n"
        f"words = [sys.executable, '-c', {part + 'import time; time.sleep(600)'!r}]\n"
        f"run_command(words, 600, pathlib.Path({str(tmp_path / 'log')!r}), os.environ)\n"
    )
    command = subprocess.Popen([sys.executable, "-c", text])
    while not (child.exists() and child.read_text()):
        assert command.poll() is None
        time.sleep(0.05)
    command.kill()
    command.wait()
    assert not is_alive(int(child.read_text()))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait to be reaped."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


def test_what_is_done_under_the_same_conditions_is_not_run_again(
    prove: Prove, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    count = f"open({str(runs)!r}, 'a').write('x')"
    counts, export = make_part("counts", count), make_part("export", is_repeated=True)
    assert prove(counts, make_part("fails", "raise SystemExit(1)"), export) == 1
    assert prove(counts, make_part("fails"), export) == 0
    assert runs.read_text() == "x"
    assert read_parts(storage)["fails"]["status"] == "done"
    assert "counts: done by an earlier call" in capsys.readouterr().out
    prove(counts, export, code="other")
    prove(counts, export, code="other", device="NVIDIA H200")
    assert runs.read_text() == "xxx"
    printed = capsys.readouterr().out
    assert "is of code code; all parts are run anew" in printed
    assert "is of device NVIDIA H100; all parts are run anew" in printed
    other = {"code": "other", "device": "NVIDIA H200", "torch": "2.13.0"}
    prove(counts, export, **other)
    prove(counts, export, **other, conf="changed")
    assert runs.read_text() == "xxxxx"
    printed = capsys.readouterr().out
    assert "is of torch 2.11.0; all parts" in printed
    assert "is of configurations conf; all parts" in printed


def test_what_failed_comes_after_what_was_not_tried(prove: Prove, storage: Path) -> None:
    export = make_part("export", is_repeated=True)
    prove(make_part("fails", "raise SystemExit(1)"), export)
    prove(
        make_part("fails", "raise SystemExit(1)"),
        make_part("new", statuses={0: "unfinished"}),
        export,
    )
    logs = {name: storage / "gpu-proof" / f"{name}.log" for name in ("new", "fails", "export")}
    times = [path.stat().st_mtime_ns for path in logs.values()]
    assert times == sorted(times)


def test_a_missed_bar_is_printed_with_its_number_and_is_an_exit_status(
    prove: Prove, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove(make_part("step", read=lambda *_: MISSED), make_part("export")) == 1
    assert "    MISSED: speed: 0.5 x, at least 1\n" in capsys.readouterr().out


def test_parts_that_lack_time_remain_and_are_an_exit_status(
    prove: Prove, capsys: pytest.CaptureFixture[str]
) -> None:
    table = make_part("table", statuses={0: "unfinished"}, takes_rest=True)
    parts = (make_part("long", bound=300), table, make_part("export"))
    assert prove(*parts, minutes=2) == 3
    printed = capsys.readouterr().out
    assert "long: not started, too little time is left" in printed
    assert "remains: long, table; the same command goes on" in printed


def test_a_bound_is_cut_to_what_is_left_but_for_the_export() -> None:
    part, choose = make_part("part", bound=90), gpu_proof_parts.choose_bound
    assert [choose(part, left) for left in (1000, 110, 100, 99)] == [90, 70, 60, None]
    export = make_part("export", bound=40, is_repeated=True)
    assert [choose(export, left) for left in (1000, 40, 30, 20)] == [40, 40, 30, None]


def test_a_table_begins_when_its_size_can_be_chosen_well_and_goes_on_with_less() -> None:
    table, choose = make_part("table", bound=420, takes_rest=True), gpu_proof_parts.choose_bound
    assert [choose(table, left) for left in (1040, 418, 417)] == [1000, 378, None]
    assert [choose(table, left, has_begun=True) for left in (417, 180, 179)] == [377, 140, None]


def test_the_table_keeps_seven_of_25_minutes(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    parts = gpu_proof_parts.list_parts(tmp_path, tmp_path, lambda: [], ledger, False)
    names = ["doctor", "parity", "tests", "routing", "step", "data", "em", "sharing", "table"]
    assert [part.name for part in parts] == [*names, "export"]
    assert sum(part.bound for part in parts) <= 25 * 60 - 20  # of the conditions
    (table,) = [part for part in parts if part.takes_rest]
    assert table.bound == 7 * 60
    assert parts[-1].bound == gpu_proof_parts.RESERVED


def test_the_epochs_of_the_table_are_chosen_once(prove: Prove, storage: Path) -> None:
    rows = [{"candidate": "fast fp32", "images/s": 60_000.0}]
    step = make_part("step", read=lambda *_: {"timings": rows})
    parts = (step, make_part("table", bound=420, takes_rest=True, statuses={0: "unfinished"}))
    prove(*parts, make_part("export"), minutes=6)
    assert json.loads((storage / "gpu-proof.json").read_text())["table"] is None  # too late
    prove(*parts, make_part("export"), minutes=8)
    chosen = json.loads((storage / "gpu-proof.json").read_text())["table"]
    assert 23 <= chosen["epochs"] <= 25
    prove(*parts, make_part("export"), minutes=25, code="other")
    assert json.loads((storage / "gpu-proof.json").read_text())["table"] == chosen


def test_a_part_without_anything_to_do_yet_has_not_failed(
    prove: Prove, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = Part("export", lambda _: [], 40, gpu_proof_parts.read_output, is_repeated=True)
    assert prove(make_part("fine"), idle) == 0
    assert read_parts(storage)["export"]["status"] == "skipped"
    assert "there is nothing to do yet" in capsys.readouterr().out


def test_absent_images_are_named_before_the_first_part(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(gpu_proof, "read_conditions", lambda _: CONDITIONS)
    data = tmp_path / "data"
    (data / "mnist").mkdir(parents=True)
    (data / "mnist" / "train-images-idx3-ubyte.gz").touch()
    words = ["gpu-proof", "--storage", str(storage), "--data-dir"]
    assert cli.main([*words, str(data)]) == 2
    message = capsys.readouterr().err
    assert f"error: {data}: train-labels-idx1-ubyte.gz, t10k-images" in message
    assert "or set DATA_DIR" in message
    assert cli.main([*words, str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert not (storage / "gpu-proof.json").exists()


def test_tests_are_counted_and_those_that_failed_are_named(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest, time\n"
        "def test_cuda_is_fine(): pass\n"
        "def test_cuda_is_wrong(): assert False\n"
        "@pytest.mark.skip\n"
        "def test_cuda_is_absent(): pass\n"
        "def test_cuda_hangs(): time.sleep(600)\n"
    )
    result = tmp_path / "tests.xml"
    words = gpu_proof_parts.make_tests(result, is_quick=False)
    words = [word for word in words if "tests/" not in word] + [str(tmp_path / "test_it.py")]
    # Plugins that the configuration speaks of may be absent.
    words = [*words, "-p", "no:timeout", "-p", "no:xdist", "--noconftest"]
    part = Part("tests", lambda _: words, 8, gpu_proof_parts.read_tests, result)
    entry = gpu_proof_parts.run_part(part, 8, tmp_path / "log", os.environ)
    assert entry["status"] == "out of time"
    assert entry["content"] == {
        **{"passed": 1, "failed": 1, "skipped": 1},
        "failures": ["::test_cuda_is_wrong"],
    }


def write_state(storage: Path, **changes: Any) -> Path:
    """The file of a proof."""
    entry = {"status": "done", "cause": None, "seconds": 61.0, "bound": 90.0, "content": MISSED}
    failed = entry | {"status": "failed", "cause": "first line\n`x` is no kernel", "content": {}}
    tests = entry | {"content": {"passed": 3, "failed": 1, "skipped": 0, "failures": ["a::b"]}}
    table = entry | {
        "content": {"table": "# t\n\nA question?\n\n| a |\n\n`make report` prints.\n\n"}
    }
    parts = {"parity": entry, "tests": tests, "step": failed, "table": table}
    state = {"rehearsal": False, "made_by": {}, "conditions": CONDITIONS}
    storage.mkdir(exist_ok=True)
    path = storage / "gpu-proof.json"
    path.write_text(json.dumps(state | {"parts": parts, "table": None} | changes))
    return path


def test_a_page_is_renewed_from_a_file_without_a_gpu(storage: Path, tmp_path: Path) -> None:
    page, source = tmp_path / "page.md", write_state(storage)
    page.write_text(PAGE)
    assert cli.main(["gpu-proof", "--publish", str(page), "--from", str(source)]) == 0
    text = page.read_text()
    assert text.startswith("by hand\n")
    assert text.endswith("<!-- bench gpu-proof: end -->\nmore\n")
    assert "2026-11-25, code 0123456789ab, NVIDIA H100, a processor with AVX512" in text
    assert "| step | FAILED | 1 min 01 s |" in text
    assert "| speed | 0.5 x | at least 1 | MISSED |" in text
    assert "FAILED: `'x' is no kernel`" in text
    assert "first line" not in text
    assert "3 passed, 1 failed, 0 skipped: a::b." in text
    assert "A question?\n\n| a |" in text
    assert "make report" not in text


def test_a_rehearsal_is_not_published(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, source = tmp_path / "page.md", write_state(storage, rehearsal=True)
    page.write_text(PAGE)
    assert cli.main(["gpu-proof", "--publish", str(page), "--from", str(source)]) == 2
    assert "of a rehearsal, which measures nothing" in capsys.readouterr().err
    assert page.read_text() == PAGE


@pytest.mark.parametrize("content", ["[]", "{", '{"parts": {}}', None])
def test_a_file_that_is_none_of_a_proof_is_named(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "other.json"
    if content is not None:
        source.write_text(content)
    assert cli.main(["gpu-proof", "--publish", "page.md", "--from", str(source)]) == 2
    assert f"error: {source}: " in capsys.readouterr().err


def test_without_a_gpu_nothing_is_run(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gpu-proof", "--storage", str(storage)]) == 2
    assert "sees no GPU here; --rehearse tries the command without" in capsys.readouterr().err
    assert not (storage / "gpu-proof.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)  # two and a half minutes alone
def test_a_rehearsal_runs_every_part(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gpu-proof", "--rehearse", "--storage", str(storage)]) == 0
    state = json.loads((storage / "gpu-proof-rehearsal.json").read_text())
    assert state["rehearsal"]
    assert {entry["status"] for entry in state["parts"].values()} == {"done"}
    assert state["parts"]["tests"]["content"]["passed"] > 0
    assert "capsnet" in state["parts"]["table"]["content"]["table"]
    assert len(list(storage.glob("gpu-proof-rehearsal/ledger/*/*/result.json"))) == 4
    assert (storage / "gpu-proof-rehearsal" / "gpu-proof-cells.tar").stat().st_size > 10_000
    assert not (storage / "ledger").exists()
    assert cli.main(["gpu-proof", "--rehearse", "--storage", str(storage)]) == 0
    assert "parity: done by an earlier call" in capsys.readouterr().out
