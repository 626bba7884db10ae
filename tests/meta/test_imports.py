"""Every module imports in a fresh interpreter, and what should be light is light."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.config.cell import Cell
from capsweep.config.package_files import PACKAGE

IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""

# None of them can be found, as on a host where they are not installed.
RUN_BARE = """
import sys
sys.modules.update(ray=None, wandb=None, h5py=None)
from capsweep.training.run import Job, run
from capsweep.config.cell import Cell
cell = Cell.from_json(sys.argv[1])
print(run(Job(cell))["status"])
from capsweep.errors import ConfigError
from capsweep.sweep import drive
from capsweep.tracking import mode as modes
drive.choose_executor("local")
sys.modules.update(tensorboard=None, tensorboardX=None)
loggers = [{**cell.config, "logger": {"name": n, "mode": "auto"}} for n in ("wandb", "tensorboard")]
asked = [(drive.choose_executor, "ray"), *((modes.decide_mode, config) for config in loggers)]
for refuse, what in asked:
    try:
        refuse(what)
    except ConfigError as error:
        print(error)
"""


def run_fresh(program: str, *arguments: str) -> str:
    """What a program prints in an interpreter that has imported nothing."""
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


MODULES = [
    ".".join(("capsweep", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in sorted(PACKAGE.rglob("[!_]*.py"))
]
FOLDERS = sorted({name.split(".")[1] for name in MODULES})
# What not every machine has.
NEEDS = {
    "tracking": "wandb",
    "model": "triton",
    **dict.fromkeys(("sweep", "runtime", "lab"), "ray"),
}


# Before anything else in their interpreter: on a CPU torch, `training` also shows that torchvision
# and pytorch_lightning import after the cure.
@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_imports_in_a_fresh_interpreter(folder: str) -> None:
    pytest.importorskip(NEEDS.get(folder, "pytest"))
    names = [name for name in MODULES if name.split(".")[1] == folder]
    loaded = set(run_fresh(IMPORT, *names).split())
    assert folder != "training" or {"torchvision", "pytorch_lightning"} <= loaded


SWEEP = """\
question: Does it import what it does not use?
base: [epochs=1, limit_batches=1, batch_size=4, trainer.accelerator=cpu, logger=csv]
seeds: [0]
baseline: cnn
arms: {cnn: {fixed: [model=cnn_small, "model.hidden=8"]}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""
COMMAND = """
import atexit, sys
from capsweep import cli
imported = lambda: sorted({name.partition(".")[0] for name in sys.modules})
atexit.register(lambda: print("", " ".join(imported()), sep="\\n"))
sys.exit(cli.main(sys.argv[1:]))
"""
TRAINING = {"pytorch_lightning", "torchmetrics", "torchvision", "ray", "wandb", "sklearn"}
# What is typed after `capsweep`, and what it does not import beyond what training needs.
COMMANDS = [
    ("--help", {"torch", "scipy", "matplotlib", "hydra", "numpy", "rich", "yaml"}),
    ("sweep FOLDER/imports.yaml STORAGE=FOLDER EXECUTOR=local", {"torch", "pandas", "optuna"}),
    ("plan FOLDER/imports.yaml STORAGE=FOLDER", {"torch", "scipy", "matplotlib"}),
    ("report FOLDER/imports.yaml STORAGE=FOLDER", {"torch", "pandas"}),
    ("ledger ls STORAGE=FOLDER", {"torch", "scipy", "matplotlib", "hydra", "numpy"}),
    ("ledger verify STORAGE=FOLDER", {"torch", "matplotlib", "hydra"}),
    ("info model=cnn_small", {"scipy", "matplotlib"}),
    ("train --help", {"torch", "scipy", "matplotlib"}),
]


@pytest.fixture(scope="module")
def finished_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep whose cell is finished, with the user's cache of the commands."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "imports.yaml").write_text(SWEEP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        run = f"sweep {folder}/imports.yaml STORAGE={folder} EXECUTOR=local"
        run_fresh(COMMAND, *run.split())
    return folder


@pytest.mark.parametrize(
    ("command", "more"), COMMANDS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_command_imports_what_it_uses(
    command: str, more: set[str], finished_sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(finished_sweep))
    typed = command.replace("FOLDER", str(finished_sweep)).split()
    loaded = set(run_fresh(COMMAND, *typed).splitlines()[-1].split())
    assert "capsweep" in loaded
    assert not (TRAINING | more) & loaded


# What docs/how-to/use-an-air-gapped-gpu-host.md does not ask for.
BARE = """
import sys, pytest
absent = ("ray", "wandb", "wandb_workspaces", "sklearn", "pandas", "optuna", "pyarrow")
sys.modules.update(dict.fromkeys(absent))
sys.exit(pytest.main(["--collect-only", "-qq", "-m", "gpu", *sys.argv[1:]]))
"""


def test_tests_that_need_a_gpu_are_collected_on_a_bare_host() -> None:
    tests = Path(__file__).resolve().parents[1]
    files = [path for path in tests.rglob("test_*.py") if re.search(r"mark\.gpu", path.read_text())]
    printed = run_fresh(BARE, *map(str, files))
    assert "test_parity.py" in printed


@pytest.mark.slow
def test_a_cell_runs_where_neither_ray_nor_wandb_is_installed(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("epochs=1")
    lines = run_fresh(RUN_BARE, cell.to_json()).splitlines()
    status, without_ray, without_wandb, without_board = lines[-4:]
    assert status == "finished"
    assert without_ray.startswith("EXECUTOR=ray: the package ray")
    assert "EXECUTOR=local" in without_ray
    assert without_wandb.startswith("logger=wandb: wandb is not installed")
    assert without_board.startswith("logger=tensorboard: tensorboard is not installed; type `pip")
