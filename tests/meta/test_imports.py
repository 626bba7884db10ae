"""Every module imports in a fresh interpreter, and what should be light is light."""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from capsweep.config.cell import Cell
from capsweep.config.roots import PACKAGE

Fresh = Callable[..., str]

IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""

# None of them can be found, as on a host where they are not installed.
WITHOUT_RAY_AND_WANDB = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "wandb", "h5py"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""

RUN = """
from capsweep.training.run import run
from capsweep.config import places
from capsweep.config.cell import Cell
cell = Cell.from_json(sys.argv[1])
print(run(cell, places.resolve(cell.config["places"]))["status"])

from capsweep.errors import ConfigError
from capsweep.sweep import executors
from capsweep.tracking import mode as modes
executors.choose("local")
try:
    executors.choose("ray")
except ConfigError as error:
    print(error)
try:
    modes.settle({**cell.config, "logger": {"name": "wandb", "mode": "auto"}})
except ConfigError as error:
    print(error)
"""


# Rooms with modules that need what not every machine has.
NEEDS = [
    ("sweep", "ray", "capsweep.sweep.executors.ray_tune"),
    ("model", "triton", "capsweep.model.routing.kernels"),
    ("tracking", "wandb", "capsweep.tracking.wandb_run"),
]


def rooms() -> dict[str, list[str]]:
    """Every public module, by its folder; those beside the folders are in `doors`."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        folders = path.relative_to(PACKAGE).parts[:-1]
        names = ("capsweep", *folders, *({path.stem} - {"__init__"}))
        if path.stem != "__main__":
            found.setdefault(folders[0] if folders else "doors", []).append(".".join(names))
    return found


ROOMS = rooms()


def test_all_rooms_are_found() -> None:
    assert {"config", "data", "model", "report", "statistics", "sweep", "training"} <= set(ROOMS)
    assert "capsweep.model.routing.dynamic" in ROOMS["model"]
    assert ROOMS["data"][0] == "capsweep.data"


# Before anything else in their interpreter: on a CPU torch, `data` and `training` also show that
# torchvision and pytorch_lightning import after the cure that these packages begin with.
@pytest.mark.parametrize("room", ROOMS)
def test_every_module_of_a_room_imports_in_a_fresh_interpreter(room: str, fresh: Fresh) -> None:
    for needing, package, why in NEEDS:
        if room == needing and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed, which {why} needs")
    loaded = fresh(IMPORT, *ROOMS[room]).split()
    assert "capsweep" in loaded
    if room in ("data", "training"):
        assert {"torchvision", "pytorch_lightning"} <= set(loaded)


@pytest.mark.parametrize(
    "names",
    [
        ["capsweep.cli"],
        ROOMS["config"],
        ROOMS["statistics"],
        ["capsweep.sweep.spec", "capsweep.sweep.choices", "capsweep.sweep.expand"],
        ["capsweep.report.table"],
        ["capsweep.tracking.process", "capsweep.tracking.pictures", "capsweep.tracking.tracker"],
    ],
    ids=lambda names: names[-1],
)
def test_planning_and_reporting_load_no_torch(names: list[str], fresh: Fresh) -> None:
    loaded = set(fresh(IMPORT, *names).split())
    heavy = {"torch", "torchvision", "pytorch_lightning", "sklearn", "ray", "wandb"}
    assert "capsweep" in loaded
    assert not heavy & loaded


def test_a_cell_runs_where_neither_ray_nor_wandb_is_installed(
    small_cell: Callable[..., Cell], fresh: Fresh
) -> None:
    cell = small_cell("epochs=1")
    lines = fresh(WITHOUT_RAY_AND_WANDB + RUN, cell.to_json()).splitlines()
    status, without_ray, without_wandb = lines[-3:]
    assert status == "finished"
    assert without_ray.startswith("EXECUTOR=ray: No module named 'ray")
    assert "EXECUTOR=local" in without_ray
    assert without_wandb.startswith("logger=wandb: wandb is not installed")


def test_help_is_instant() -> None:
    seconds = []
    for _ in range(5):
        started = time.monotonic()
        command = [sys.executable, "-m", "capsweep", "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds.append(time.monotonic() - started)
        assert "sweep" in shown.stdout
    assert min(seconds) < 0.5
