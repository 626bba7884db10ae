"""`capsweep eval ensemble | attack | multicrop | routing`."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import official_files
import pytest

from capsweep import cli
from capsweep.cli import program
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import folder_of
from capsweep.statistics.examples import find_wrong
from capsweep.sweep import choices, expand, spec
from capsweep.sweep.expand import Point

LABELS = np.array([0, 1, 2, 0])
RIGHT = [0, 1, 2, 0]
PUBLISHED = "0.25 % ≠ mnist (network unknown, epochs unknown)"
Output = pytest.CaptureFixture[str]


def evaluate(name: str, sweep: Path, storage: Path, *options: str) -> int:
    device = () if name == "ensemble" else ("--device", "cpu")
    return cli.main(["eval", name, str(sweep), f"STORAGE={storage}", *device, *options])


def train_cells(sweep: Path, storage: Path, *options: str) -> None:
    """Run cells of the sweep for real."""
    choices = [str(sweep), f"STORAGE={storage}", *options]
    assert cli.main(["sweep", *choices, "EXECUTOR=local"]) == 0


def read_rows(path: Path) -> list[list[str]]:
    lines = [line for line in path.read_text().splitlines() if line.startswith("|")][2:]
    return [[field.strip() for field in line.strip("|").split("|")] for line in lines]


def list_points(sweep: Path) -> dict[tuple[str, int], Point]:
    return {(p.arm, p.seed): p for p in expand.expand_sweep(spec.load(str(sweep)))}


def find_folders(sweep: Path, storage: Path, arm: str, *options: str) -> list[Path]:
    """Folders of the cells of an arm, one for each seed."""
    parsed = program.parse_arguments(["report", str(sweep), *options])
    points = expand.expand_sweep(choices.load_sweep(parsed.sweep, parsed.words, parsed.overrides))
    return [storage / "ledger" / folder_of(p.cell.signature) for p in points if p.arm == arm]


def store_cell(storage: Path, point: Point, predicted: list[int]) -> Path:
    """A finished cell that predicts these classes, surer of the right ones."""
    folder = storage / "ledger" / folder_of(point.cell.signature)
    folder.mkdir(parents=True)
    sureness = np.where(np.array(predicted) == LABELS, 1, 0.6)
    scores = np.eye(3, dtype=np.float32)[predicted] * sureness[:, None].astype(np.float32)
    np.savez_compressed(folder / "predictions.npz", scores=scores, labels=LABELS)
    error = float(find_wrong(scores, LABELS).mean())
    result = stored_files.with_digests({"metrics": {"test/error": error}}, {})
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_a_table_of_members_single_error_and_ensemble_is_printed_and_written(
    sweep: Path, storage: Path, capsys: Output
) -> None:
    points = list_points(sweep)
    for seed, predicted in enumerate([[1, 1, 2, 0], [0, 2, 2, 0], [0, 1, 0, 0]]):
        store_cell(storage, points["capsnet", seed], predicted)
    store_cell(storage, points["cnn", 1], [0, 1, 2, 1])
    failed = store_cell(storage, points["cnn", 2], RIGHT)
    (failed / "result.json").unlink()
    (failed / "error.txt").write_text("OutOfMemoryError: 3 GiB too much\n\ntrace")
    assert evaluate("ensemble", sweep, storage) == 0
    printed = capsys.readouterr().out
    path = storage / "reports" / "three" / "ensemble.md"
    assert f"report: {path}" in printed
    cnn, capsnet = read_rows(path)
    assert cnn == ["cnn", "digits", "1/3", "25.00 %", "–", "–"]
    together = "0.00 % (0 of 4) [0.00, 48.99]"
    assert capsnet == ["capsnet", "digits", "3/3", "25.00 %", together, PUBLISHED]
    for note in (
        "failed: cnn · digits: OutOfMemoryError: 3 GiB too much.",
        "stale: all that are finished: 4 cells made by other code",
        "published: a paper.",
    ):
        assert note in path.read_text()
        assert note in printed


def test_accuracy_falls_under_attack_and_every_cell_has_a_file(
    sweep: Path, storage: Path, capsys: Output
) -> None:
    train_cells(sweep, storage, "limit_batches=20", "batch_size=32", "SEEDS=2")
    capsys.readouterr()
    options = ["limit_batches=20", "batch_size=32", "SEEDS=2", "--method", "fgsm,pgd"]
    options += ["--eps", "0.1,0.4", "--steps", "2", "--restarts", "2", "--examples", "30"]
    assert evaluate("attack", sweep, storage, *options) == 0
    printed = capsys.readouterr().out
    report = storage / "reports/three-BATCH=32-SEEDS=2-limit_batches=20"
    rows = read_rows(report / "attack-untargeted.md")
    assert [row[:5] for row in rows] == [
        [arm, "digits", method, "2/2", "30"]
        for arm in ("cnn", "capsnet")
        for method in ("fgsm", "pgd")
    ]
    for row in rows:
        clean, near, far = (float(field.split()[0]) for field in row[5:])
        assert clean >= max(near, far)
        assert clean > min(near, far)
    assert "bounds of changed values: [0, 1]" in printed
    assert "pgd: 2 steps of 1.25 eps, 2 restarts" in printed
    files = sorted(storage.glob("ledger/*/*/evals/attack-*.json"))
    assert len(files) == 8
    for file in files:
        content = json.loads(file.read_text())
        with np.load(file.parents[1] / "predictions.npz") as stored:
            right = stored["scores"].argmax(axis=1) == stored["labels"]
        assert content["clean_accuracy"] == pytest.approx(right[:30].mean())
        assert [attack["eps"] for attack in content["attacks"]] == [0.1, 0.4]
        assert content["attacks"][0]["tries"] == 30
    assert evaluate("attack", sweep, storage, *options, "--targeted", "--method", "fgsm") == 0
    text = (report / "attack-targeted.md").read_text()
    assert "success rate of attacks with each of the other classes in turn" in text


def test_images_of_an_arm_are_tried_on_the_others_and_back(
    sweep: Path, storage: Path, capsys: Output
) -> None:
    options = ["limit_batches=20", "batch_size=32", "SEEDS=2"]
    train_cells(sweep, storage, *options)
    plain = [*options, "--eps", "0.1,0.4", "--examples", "30"]
    assert evaluate("attack", sweep, storage, *plain) == 0
    table = storage / "reports/three-BATCH=32-SEEDS=2-limit_batches=20/attack-untargeted.md"
    own = read_rows(table)
    transfer = [*plain, "--transfer", "cnn"]
    assert evaluate("attack", sweep, storage, *transfer) == 0
    rows = read_rows(table)
    assert [[*row[:5]] for row in rows] == [
        ["cnn", "digits", "fgsm", "itself", "2/2"],
        ["cnn", "digits", "fgsm", "capsnet · digits", "2/2"],
        ["capsnet", "digits", "fgsm", "itself", "2/2"],
        ["capsnet", "digits", "fgsm", "cnn · digits", "2/2"],
    ]
    assert [[*row[:3], *row[4:]] for row in rows[::2]] == own
    assert rows[1][6] == rows[0][6]  # clean
    assert "masked" in table.read_text()

    files = sorted(storage.glob("ledger/*/*/evals/attack-*-on-*.json"))
    assert len(files) == 4
    for file in files:
        content = json.loads(file.read_text())
        pair = [file.parents[1].name, file.stem.rpartition("-on-")[2]]
        assert [content["made_on"], content["tried_on"]] == pair

    first, second = find_folders(sweep, storage, "capsnet", *options)
    shutil.rmtree(first)
    assert evaluate("attack", sweep, storage, *transfer) == 0
    assert [row[4] for row in read_rows(table)] == ["2/2", "1/2", "1/2", "1/2"]
    shutil.rmtree(second)
    assert evaluate("attack", sweep, storage, *transfer) == 2
    assert "--transfer cnn: no other arm has a finished cell" in capsys.readouterr().err


def test_both_errors_of_crops_are_printed_and_written(sweep: Path, storage: Path) -> None:
    data = storage.parent / "data"
    written = official_files.write_cifar10(data, train=40, test=30, form="plain")
    options = ["dataset=cifar10", *written, f"DATA_DIR={data}", "ARMS=cnn"]
    train_cells(sweep, storage, *options, "SEEDS=1")
    assert evaluate("multicrop", sweep, storage, *options, "SEEDS=1") == 0
    (path,) = storage.glob("ledger/*/*/evals/multicrop.json")
    content = json.loads(path.read_text())
    assert (content["crops"], content["examples"], content["ties"]) == (13, 30, 0)
    result = json.loads((path.parents[1] / "result.json").read_text())
    assert content["single_error"] == pytest.approx(result["metrics"]["test/error"])
    errors = [f"{100 * content[key]:.2f} %" for key in ("single_error", "multicrop_error")]
    (table,) = storage.glob("reports/three-ARMS=cnn-DATASET=cifar10-*/multicrop.md")
    assert read_rows(table) == [["cnn", "cifar10", "1/1", "30", *errors]]


UNCHOSEN = """\
  uniform: {fixed: [routing=uniform, model.conv.channels=8, model.primary.types=2]}
  attention: {fixed: [routing=self_attention, model.conv.channels=8, model.primary.types=2]}
table:"""


def test_routing_is_measured_into_a_table(sweep: Path, storage: Path, capsys: Output) -> None:
    sweep.write_text(sweep.read_text().replace("table:", UNCHOSEN))
    train_cells(sweep, storage, "SEEDS=2")
    capsys.readouterr()
    words = ["routing", sweep, storage, "SEEDS=2", "--examples", "30"]
    assert evaluate(*words) == 0
    printed = capsys.readouterr().out
    report = storage / "reports" / "three-SEEDS=2"
    rows = read_rows(report / "routing.md")
    assert [row[:5] for row in rows] == [
        [arm, "digits", "classes", "2/2", "30"] for arm in ("capsnet", "uniform", "attention")
    ]
    assert rows[1][5:7] == ["100.00 ± 0.00 %", "0.00 ± 0.00 %"]
    assert (rows[1][7], rows[1][11:]) == ("–", ["–", "–"])
    assert rows[1][9] == rows[1][10]  # frozen or not
    assert "–" not in rows[0][5:]
    for note in ("left out: cnn · digits: its network does not route", "not sum to 1", "is ours"):
        assert note in (report / "routing.md").read_text()
        assert note in printed
    dynamic = list_points(sweep)["capsnet", 0].cell.signature
    folder = storage / "ledger" / folder_of(dynamic)
    written = json.loads((folder / "evals" / "routing.json").read_text())
    with np.load(folder / "predictions.npz") as stored:
        wrong = find_wrong(stored["scores"][:30], stored["labels"][:30])
    assert (written["examples"], written["error"]) == (30, wrong.mean())
    (folder / "weights.ckpt").unlink()
    assert evaluate(*words) == 0
    assert "no weights; the stored routing.json is used" in capsys.readouterr().out
    assert read_rows(report / "routing.md") == rows
    assert evaluate(*words, "ARMS=cnn") == 2
    assert "three: none of its cells routes" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("attack", ["--method", "cw"], "--method: must be some of fgsm, bim, pgd, got cw"),
        ("attack", ["--eps", "0.1,x"], "--eps: must be above 0, such as 0.1,0.2, got 0.1,x"),
        ("attack", ["--eps", "0"], "--eps: must be above 0, such as 0.1,0.2, got 0"),
        ("attack", ["--transfer", "dnn"], "--transfer dnn: no such arm; have cnn, capsnet"),
        ("attack", ["--device", "nosuch"], "--device nosuch: "),
        ("vote-distances", ["--examples", "0,²"], "--examples: must be indices such as 0,5,7"),
        ("couplings", ["--iterations", "0"], "--iterations: must be a whole number >= 1, got 0"),
        ("ensemble", ["METRIC=test/loss"], "METRIC: evaluations have their own metrics"),
        ("ensemble", [], "no cell of three is finished; run the sweep first"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(
    sweep: Path, storage: Path, capsys: Output, name: str, options: list[str], message: str
) -> None:
    with suppress(SystemExit):  # of the parser
        assert evaluate(name, sweep, storage, *options) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
