"""Sweeps on real nodes that have no capsweep, with tokens, from another folder."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import commands
import pytest
import ray_nodes
from ray_nodes import Node

from capsweep.config import package_files

# The code that is tested and what supports it.
PATH = f"{package_files.PACKAGE.parent}:{Path(ray_nodes.__file__).parent}"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # 70 s on a quiet machine

TWO_CELLS = ["ARMS=cnn", "logger=csv"]  # of the small sweep

# `capsweep` that ends all processes of a node when every cell has a checkpoint of its first epoch.
LOSES_A_NODE = """
import json, sys, time
import processes
from capsweep import cli
from capsweep.sweep import drive

rows, lost = [], []

class Loser(drive.SweepProgress):
    def on_epoch(self, signature, row):
        super().on_epoch(signature, row)
        rows.append((signature, row["epoch"]))
        if len({name for name, epoch in rows if epoch > 0}) == 2 and not lost:
            lost.extend(processes.with_variable(sys.argv[1]))
            for pid in [pid for pid in lost if "raylet/raylet" in processes.command(pid)]:
                processes.kill(pid)
            time.sleep(3)  # in which the rest of the node tells of it
            for pid in lost:
                processes.kill(pid)

drive.SweepProgress = Loser
status = cli.main(sys.argv[2:])
assert lost
print(json.dumps(rows))
sys.exit(status)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that nodes see, by the variable SHARED."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the nodes: it has no capsweep."""
    return ray_nodes.make_bare_python(tmp_path_factory.mktemp("python"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, python: Path, shared: Path) -> Iterator[Node]:
    """A head without cores, and one node that sees the driver's folders."""
    folder, named = tmp_path_factory.mktemp("cluster"), {"SHARED": str(shared)}
    with (
        ray_nodes.running_head(folder, cpus=0, python=python, environment=named) as first,
        ray_nodes.running_node(first, cpus=2, python=python, environment=named),
    ):
        yield first


Sweep = Callable[..., str]


@pytest.fixture
def sweep(
    small_sweep: Path,
    tmp_path: Path,
    cluster: Node,
    clean_environment: dict[str, str],
    shared: Path,
) -> Sweep:
    """What two cells print on the cluster, typed in another folder; words are added."""

    def run_sweep(*more: str, status: int = 0, token: str | Path | None = None) -> str:
        words = [f"RAY_ADDRESS={cluster.address}", f"STORAGE={shared}", *TWO_CELLS, *more]
        environment = {**clean_environment, **cluster.make_environment(token), "PYTHONPATH": PATH}
        command = "sweep", str(small_sweep), *words
        process = commands.start(*command, env=environment, folder=tmp_path)
        return commands.read_to_end(process, status)

    return run_sweep


def test_cells_run_where_no_capsweep_is_and_read_their_places_there(
    sweep: Sweep, tmp_path: Path
) -> None:
    output = sweep("cluster.node.storage='$SHARED'", f"LEDGER={tmp_path / 'ledger'}")
    assert "all 2 cells are finished" in output
    assert len(list((tmp_path / "ledger").glob("*/*/result.json"))) == 2


@pytest.mark.parametrize("token", ["0" * 64, Path("/no/token")])
def test_a_driver_without_the_token_is_refused_in_one_line(
    sweep: Sweep, cluster: Node, token: str | Path
) -> None:
    output = sweep(token=token, status=2)
    assert f"error: RAY_ADDRESS={cluster.address}: the cluster refuses the token" in output
    assert "Traceback" not in output


def test_cells_leave_nodes_that_cannot_run_them(
    sweep: Sweep, cluster: Node, python: Path, shared: Path, tmp_path: Path
) -> None:
    """One has a folder of its own where the others share one, one has another torch."""
    hides = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {shared} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*hides, "true"]).returncode:
        pytest.skip("no mount namespace can be made here")
    older = tmp_path / "older" / "torch-0.1.dist-info"
    older.mkdir(parents=True)
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.1\n")
    other = {"PYTHONPATH": str(older.parent)}
    with (
        ray_nodes.running_node(cluster, cpus=1, python=python, within=hides),
        ray_nodes.running_node(cluster, cpus=1, python=python, environment=other),
    ):
        output = sweep("SEEDS=4")
    assert "all 4 cells are finished" in output
    assert "on this node is not the driver's" in output
    assert "has torch 0.1, not " in output
    assert output.count("a node is not used") == 2


def test_cells_of_a_lost_node_go_on_elsewhere_from_their_checkpoint(
    small_sweep: Path, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    with (
        ray_nodes.running_head(tmp_path, cpus=1) as first,
        ray_nodes.running_node(first, cpus=1) as second,
    ):
        words = ["sweep", str(small_sweep), f"RAY_ADDRESS={first.address}", f"STORAGE={tmp_path}"]
        words += [*TWO_CELLS, "epochs=14", "limit_batches=40", "trainer.checkpoint_interval=0"]
        environment = {**clean_environment, **first.make_environment(), "PYTHONPATH": PATH}
        program = ["-c", LOSES_A_NODE, f"{ray_nodes.MARK}={second.mark}"]
        output = commands.read_to_end(commands.start(*words, env=environment, program=program))
        assert second.process.wait(60)
    (line,) = [line for line in output.splitlines() if "continues from its last checkpoint" in line]
    assert re.match(r"cnn · seed \d: WorkerLost: its worker on \S+ \(\S+\) was lost: ", line)
    assert re.search(r"\(epoch \d+ was finished\) \(\d+ s\)  \[0 done, 1 running, ", line)
    assert not re.search(r"raylet|\x1b|\\x1b", output)
    (rows,) = [json.loads(line) for line in output.splitlines() if line.startswith("[[")]
    first_epochs = [signature for signature, epoch in rows if epoch == 0]
    assert len(first_epochs) == len(set(first_epochs)) == 2
