"""`capsweep eval attack`: trained cells on images changed to mislead them."""

import json
from pathlib import Path

import numpy as np
import pytest
from finished_cells import forget_digests

from capsweep import cli

SWEEP = """\
question: Which network withstands attacks?
base: [epochs=1, limit_batches=20, batch_size=32, trainer.accelerator=cpu, logger=csv]
seeds: [0, 1]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small, "model.hidden=8"]}
  capsnet: {fixed: [model.conv.channels=8, model.primary.types=2, "model.decoder.hidden=[16]"]}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "both.yaml"
    path.write_text(SWEEP)
    return path


def trained(sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str], *more: str) -> None:
    """The sweep's cells, run for real."""
    choices = [str(sweep), "--storage", str(storage), *more]
    assert cli.main(["sweep", *choices, "--executor", "local"]) == 0
    capsys.readouterr()


def attack(sweep: Path, storage: Path, *options: str) -> int:
    choices = [str(sweep), "--storage", str(storage), "--device", "cpu"]
    return cli.main(["eval", "attack", *choices, *options])


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[field.strip() for field in line.strip("|").split("|")] for line in lines]


def percent(field: str) -> float:
    return float(field.split()[0])


def test_accuracy_falls_under_attack_and_every_cell_has_a_file(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(sweep, storage, capsys)
    options = ["--method", "fgsm,pgd", "--eps", "0.1,0.4", "--steps", "2", "--restarts", "2"]
    assert attack(sweep, storage, *options, "--examples", "30") == 0
    said = capsys.readouterr().out
    text = (storage / "reports/both/attack-untargeted.md").read_text()
    rows = rows_of(text)
    assert [row[:5] for row in rows] == [
        [arm, "digits", method, "2/2", "30"]
        for arm in ("cnn", "capsnet")
        for method in ("fgsm", "pgd")
    ]
    for row in rows:
        clean, near, far = map(percent, row[5:])
        assert clean >= max(near, far)
        assert clean > min(near, far)
    for note in (
        "units of the network's input; bounds of changed values: [0, 1]",
        "pgd: 2 steps of 1.25 eps, 2 restarts, on the cross-entropy of logits",
        "fgsm: 1 steps of 1 eps, 1 restarts",
    ):
        assert note in text
        assert note in said
    files = sorted(storage.glob("ledger/*/*/evals/attack-*.json"))
    assert len(files) == 8
    for path in files:
        told = json.loads(path.read_text())
        folder = path.parents[1]
        with np.load(folder / "predictions.npz") as stored:
            right = stored["scores"].argmax(axis=1) == stored["labels"]
        assert told["clean_accuracy"] == pytest.approx(right[:30].mean())
        assert [one["eps"] for one in told["attacks"]] == [0.1, 0.4]
        assert told["attacks"][0]["tries"] == 30
    first = {path: path.read_bytes() for path in files}
    assert attack(sweep, storage, *options, "--examples", "30") == 0
    assert {path: path.read_bytes() for path in files} == first


def test_targeted_attacks_have_a_table_of_their_own_and_missing_cells_are_told(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(sweep, storage, capsys, "--arms", "cnn", "--seeds", "1")
    options = ["--targeted", "--method", "bim", "--eps", "0.5", "--steps", "2", "--examples", "9"]
    assert attack(sweep, storage, *options) == 0
    text = (storage / "reports/both/attack-targeted.md").read_text()
    cnn, capsnet = rows_of(text)
    assert cnn[:5] == ["cnn", "digits", "bim", "1/2", "9"]
    assert capsnet[3:] == ["0/2", "–", "–", "–"]
    assert "rate of success of attacks at each of the other classes in turn" in text
    assert "missing: cnn · digits: seed 1: missing." in text
    (path,) = storage.glob("ledger/*/*/evals/attack-bim-targeted-*.json")
    (one,) = json.loads(path.read_text())["attacks"]
    assert one["tries"] == 9 * 9
    assert one["success_rate"] == one["successes"] / one["tries"]


def test_a_network_that_says_something_else_than_stored_is_an_error(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(sweep, storage, capsys, "--arms", "cnn", "--seeds", "1")
    (path,) = storage.glob("ledger/*/*/predictions.npz")
    with np.load(path) as stored:
        labels = stored["labels"]
    np.savez_compressed(path, scores=np.eye(10, dtype=np.float32)[labels], labels=labels)
    assert attack(sweep, storage) == 1
    assert "predictions.npz is damaged (it was altered" in capsys.readouterr().err
    forget_digests(path.with_name("result.json"), {"test/error": 0.0})
    assert attack(sweep, storage) == 2
    said = capsys.readouterr().err
    assert path.parent.name in said
    assert "otherwise than its predictions.npz says" in said
    assert not list(storage.glob("ledger/*/*/evals/attack*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "cw"], "--method must be of fgsm, bim, pgd, got cw"),
        (["--eps", "0.1,x"], "--eps must be numbers such as 0.1,0.2, got 0.1,x"),
        (["--eps", "0"], "--eps must be above 0"),
        (["--eps-scale", "bits"], "--eps-scale must be one of input, pixels, got bits"),
        (["--examples", "0"], "--examples must be >= 1, got 0"),
        (["--device", "nosuch"], "--device nosuch: "),
        (["--metric", "test/loss"], "METRIC: an attack is judged by test accuracy"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(
    sweep: Path,
    storage: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    assert attack(sweep, storage, *options) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") <= 2


def test_without_a_finished_cell_the_status_is_1(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attack(sweep, storage) == 1
    assert "no cell of both is finished; run the sweep first" in capsys.readouterr().err
