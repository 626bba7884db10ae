"""Input that is larger, deeper or longer than anybody means: one line, before it is taken apart."""

import time
from pathlib import Path

import pytest

from capsweep import cli

LONG = "x" * 5_000
AXES = ["epochs=range(1,200)", "batch_size=range(1,200)"]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line of a command that is refused, within two seconds of its own."""
    started = time.process_time()
    assert cli.main(arguments) == 2
    assert time.process_time() - started < 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "unexpected" not in said
    return said


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What commands import is no part of their two seconds."""
    assert cli.main(["plan", "ablation", "--seeds", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--seeds", "99999999999"], "SEEDS=99999999999: 99,999,999,999 seeds; at most 10,000"),
        (["--seeds", "9" * 5_000], "SEEDS=999"),
        (["epochs=range(1,100000000)"], "gives no value, or more than 10,000"),
        (["routing.num_iters=1000000000000"], "routing.num_iters must be in [1, 1000]"),
        (AXES, "198,005 places and 3 seeds are more than 20,000 cells"),
        (["model.hidden=" + "[" * 3_000], "is not an override"),
        (["places.data='\0'"], "is not an override"),
        (["--ledger", "gs://"], "places.ledger=gs://: it names no bucket"),
        (["--storage", LONG], "no folder has such a name"),
        (["--ledger", "/dev/null"], "places.ledger=/dev/null: /dev/null is no folder"),
        (["--storage", "/dev/null/x"], "places.storage=/dev/null/x: /dev/null is no folder"),
        (["--zip", LONG], "ZIP="),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_choice_without_end_is_refused(
    arguments: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert names in refusal(capsys, "plan", "ablation", *arguments)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"question: \xff\xfe\n", "not YAML"),
        (b"question: " + b"[" * 20_000, "deeper than 64 levels"),
        (b"question: \0", "not YAML"),
        (b"a" * 50_000_000, "at most 1,000,000 are read"),
        (b"".join(b"k%d: 1\n" % key for key in range(40_000)), "k0: no such key"),
        (b"k: 1\n" * 40_000, "k is given twice"),
    ],
    ids=["not UTF-8", "deep", "NUL", "large", "many keys", "one key many times"],
)
def test_a_sweep_file_without_end_is_refused(
    content: bytes, names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odd.yaml"
    file.write_bytes(content)
    said = refusal(capsys, "plan", str(file))
    assert "odd.yaml: " in said
    assert names in said
