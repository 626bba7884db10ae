"""`capsweep new` in a copy of this checkout: what it writes runs, and changes nothing else."""

import os
import re
import shutil
import sys
from pathlib import Path

import commands
import numpy as np
import pytest

from capsweep import cli
from capsweep.config import code_identity, compose, package_files

COPIED = ("src", "conf", "sweeps", "data_prep", "docs/examples", "tests", "pyproject.toml")
KINDS = ("routing", "loss", "model", "dataset")
NAME = "fresh_idea"
PLAN_AND_IDENTIFY = """
import sys
from capsweep import cli
from capsweep.config import code_identity, compose
name = sys.argv[1]
chosen = [f"ROUTING=3,{name}", f"DATASET={name}", f"MODEL={name}"]
cli.main(["plan", "ablation", *chosen, f"loss=margin,{name}"])
print(code_identity.hash_numerics(compose.cell([]).config))
"""


def save_arrays(path: Path) -> Path:
    """Forty images of three classes to train on, ten to test on."""
    draw, arrays = np.random.default_rng(0), {}
    for split, size in {"train": 40, "test": 10}.items():
        arrays[f"{split}_images"] = draw.integers(0, 256, (size, 2, 20, 24), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(size) % 3
    np.savez(path, allow_pickle=False, **arrays)
    return path


class Checkout:
    """A copy of this checkout into which new files are written."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, original = folder, package_files.CHECKOUT
        for name in COPIED:
            source, target = original / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        patch.setattr(package_files, "CHECKOUT", folder)
        self.data = save_arrays(folder / "own.npz")

    def write_new(self, kind: str, name: str = NAME) -> int:
        """The exit status of `capsweep new`."""
        file = ["--file", str(self.data)] if kind == "dataset" else []
        return cli.main(["new", kind, name, *file])

    def run(self, *command: str) -> str:
        """What a command prints whose modules are those of the copy."""
        paths = os.pathsep.join(str(self.folder / name) for name in ("src", "."))
        environment = {**os.environ, "PYTHONPATH": paths, "STORAGE": str(self.folder / "outputs")}
        ended = commands.run(command, environment, self.folder)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    return Checkout(tmp_path / "checkout", monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
def test_it_names_what_it_wrote_and_three_commands(
    kind: str, checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checkout.write_new(kind) == 0
    wrote, _, named = capsys.readouterr().out.partition(f"next, in {checkout.folder}:\n")
    names = re.findall(r"^wrote (\S+)$", wrote, re.MULTILINE)
    assert names[0] == f"conf/{kind}/{NAME}.yaml"
    assert len(names) == (1 if kind == "dataset" else 3)
    counts = "classes: 3; images of train, test:\n  0 0: 14, 4\n  1 1: 13, 3\n  2 2: 13, 3\n"
    assert (counts in wrote) == (kind == "dataset")
    texts = [(checkout.folder / name).read_text() for name in names]
    assert not any("mine" in text or "Mine" in text for text in texts)
    first, train, last = named.splitlines()
    assert NAME in first
    assert NAME in last
    assert f"make train {kind}={NAME} debug=fast" in train


def test_all_kinds_run_together_and_other_cells_keep_their_code(checkout: Checkout) -> None:
    assert [checkout.write_new(kind) for kind in KINDS] == [0, 0, 0, 0]
    chosen = [f"{kind}={NAME}" for kind in KINDS]
    printed = checkout.run("-m", "capsweep", "train", *chosen, "debug=fast")
    assert "test/error" in printed
    planned, _, code = checkout.run("-c", PLAN_AND_IDENTIFY, NAME).strip().rpartition("\n")
    row = f"capsnet · routing={NAME} · routing.num_iters=3 · loss.reconstruction.weight=0 · loss="
    assert f"{row}{NAME} " in planned
    assert code == code_identity.hash_numerics(compose.cell([]).config)


def test_a_new_sweep_plans_the_shipped_routings_and_ones_own(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checkout.write_new("sweep", "shipped") == 0
    assert [checkout.write_new(kind) for kind in ("routing", "sweep")] == [0, 0]
    assert capsys.readouterr().out.endswith(f"  make report SWEEP={NAME}\n")
    for sweep, own in {"shipped": [], NAME: [NAME]}.items():
        planned = checkout.run("-m", "capsweep", "plan", sweep)
        rows = [line.split("  ")[0] for line in planned.splitlines() if line.endswith("3 missing")]
        assert rows == [
            "cnn",
            *(f"capsnet · routing={name}" for name in ("uniform", "dynamic", *own)),
        ]


@pytest.mark.slow
def test_the_files_of_all_kinds_pass_their_tests_and_every_check(checkout: Checkout) -> None:
    assert [checkout.write_new(kind) for kind in KINDS] == [0, 0, 0, 0]
    (checkout.folder / ".venv").symlink_to(sys.prefix)
    written = [str(path) for path in checkout.folder.rglob(f"*{NAME}*.py")]
    for tool in ("ruff check", "ruff format --check", "basedpyright"):
        checkout.run("-m", *tool.split(), *written)
    lint = "from importlinter.cli import lint_imports_command as lint; lint()"
    assert "0 broken" in checkout.run("-c", lint)
    options = ("-q", "-n0", "-p", "no:cacheprovider", "-k", NAME)
    found = checkout.run("-m", "pytest", *options, "tests/model", "tests/config")
    assert " passed" in found


REFUSED = {
    "routing em": "conf/routing/em.yaml exists already",
    "model routing": "src/capsweep/model/routing exists already",
    "dataset digits --file own.npz": "conf/dataset/digits.yaml exists already",
    f"dataset {NAME}": "new dataset: type --file PATH; --file takes a folder",
    f"dataset {NAME} --file absent": "absent: No such file",
    f"dataset {NAME} --file own.npz --test 20": "capsweep new: argument --test: must be a share",
    f"dataset {NAME} --file own.npz --size 8x": "capsweep new: argument --size: must be like 32",
    f"dataset {NAME} --file own.npz --test 0.2": "own.npz has test images already",
    f"loss {NAME} --size 8": "--file, --test, --validation, --size are only",
}
NO_NAMES = ("null", "class", "3d", "a.b", "Mine", "../up", "a" * 25)


def test_what_cannot_be_made_is_refused_and_nothing_is_written(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(checkout.folder)
    before = sorted(checkout.folder.rglob("*"))
    for words, message in (REFUSED | {f"loss {n}": f"{n}: a name has" for n in NO_NAMES}).items():
        assert cli.main(["new", *words.split()]) == 2
        assert re.match(rf"error: \S*{re.escape(message)}", capsys.readouterr().err)
    assert sorted(checkout.folder.rglob("*")) == before


def test_an_installed_package_is_no_place_for_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(package_files, "CHECKOUT", tmp_path)
    assert cli.main(["new", "loss", NAME]) == 2
    assert "run it in a clone" in capsys.readouterr().err
