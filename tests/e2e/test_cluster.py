"""Sweeps on real nodes that have no capsweep, with tokens, from another folder."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import ray_nodes
from ray_nodes import Node

from capsweep.config import package_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SMALL = """\
question: Do cells run on nodes?
base: [model=cnn_small, "model.hidden=8", epochs=2, limit_batches=2, batch_size=16,
       trainer.accelerator=cpu, logger=csv]
seeds: [0, 1]
baseline: cnn
arms: {cnn: {}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""

# `capsweep` that ends all processes of a node when every cell has a checkpoint of its first epoch.
LOSES_A_NODE = """
import json, sys
import processes
import ray_nodes
from capsweep import cli
from capsweep.sweep import drive

rows, lost = [], []

class Loser(drive.SweepProgress):
    def on_epoch(self, signature, row):
        super().on_epoch(signature, row)
        rows.append((signature, row["epoch"]))
        if len({name for name, epoch in rows if epoch > 0}) == 2 and not lost:
            lost.extend(ray_nodes.marked(sys.argv[1]))
            for pid in lost:
                processes.kill(pid)

drive.SweepProgress = Loser
status = cli.main(sys.argv[2:])
assert lost
print(json.dumps(rows))
sys.exit(status)
"""

# A worker says which code it runs.
SAYS_ITS_CODE = """
import sys
from pathlib import Path
from capsweep import ray_start
from capsweep.config import code_identity
with ray_start.connected(sys.argv[1], package=Path(sys.argv[2])):
    ask = ray_start.ray.remote(lambda: code_identity.package())
    print(ray_start.ray.get(ask.remote()) == code_identity.package(), code_identity.package())
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
        ray_nodes.head(folder, cpus=0, python=python, environment=named) as first,
        ray_nodes.node(first, cpus=2, python=python, environment=named),
    ):
        yield first


Swept = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sweep(tmp_path: Path, cluster: Node, clean_environment: dict[str, str], shared: Path) -> Swept:
    """Runs the small sweep on the cluster, from another folder; words are added."""
    file = tmp_path / "nodes.yaml"
    file.write_text(SMALL)

    def call(*words: str, token: str | Path | None = None) -> subprocess.CompletedProcess[str]:
        chosen = ["sweep", str(file), "--address", cluster.address, "--storage", str(shared)]
        environment = {**clean_environment, **cluster.driver(token)}
        return _run(["-m", "capsweep", *chosen, *words], environment, tmp_path)

    return call


def _run(
    words: Sequence[str], environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Python, with the code that is tested and what supports it."""
    path = f"{package_files.PACKAGE.parent}:{Path(ray_nodes.__file__).parent}"
    return subprocess.run(
        [sys.executable, *words],
        env={**environment, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_cells_run_where_no_capsweep_is_and_read_their_places_there(
    sweep: Swept, tmp_path: Path
) -> None:
    ended = sweep("cluster.node.storage='$SHARED'", "--ledger", str(tmp_path / "ledger"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "all 2 cells are finished" in ended.stdout
    assert len(list((tmp_path / "ledger").glob("*/*/result.json"))) == 2


def test_a_sweep_that_no_node_can_run_ends_before_it_begins(sweep: Swept) -> None:
    ended = sweep("cluster.node.storage='$SHARED/of-another-file-system'", "--seeds", "3")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert "no node can run these cells: NodeError: node " in ended.stderr
    assert "of-another-file-system/ledger is not the driver's" in ended.stderr


@pytest.mark.parametrize("token", ["0" * 64, Path("/no/token")])
def test_a_driver_without_the_token_is_refused_in_one_line(
    sweep: Swept, cluster: Node, token: str | Path
) -> None:
    ended = sweep(token=token)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    message = f"error: RAY_ADDRESS={cluster.address}: the cluster refuses the token"
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_drivers_of_different_code_have_workers_of_their_own(cluster: Node, tmp_path: Path) -> None:
    drivers = []
    for name in ("one", "other"):
        package = package_files.stage_packages(tmp_path / name)
        (package / "of_one_driver.py").write_text(f"NAME = {name!r}\n")
        words = ["-c", SAYS_ITS_CODE, cluster.address, str(package)]
        environment = {**cluster.driver(), "PYTHONPATH": str(package.parent)}
        drivers.append(
            subprocess.Popen(
                [sys.executable, *words], env=environment, stdout=subprocess.PIPE, text=True
            )
        )
    said = [driver.communicate(timeout=120)[0].split() for driver in drivers]
    assert [same for same, _ in said] == ["True", "True"]
    assert len({code for _, code in said}) == 2


def test_cells_leave_nodes_that_cannot_run_them(
    sweep: Swept, cluster: Node, python: Path, shared: Path, tmp_path: Path
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
        ray_nodes.node(cluster, cpus=1, python=python, within=hides),
        ray_nodes.node(cluster, cpus=1, python=python, environment=other),
    ):
        ended = sweep("--seeds", "4")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "all 4 cells are finished" in ended.stdout
    assert "is not the driver's" in ended.stderr
    assert "has torch 0.1, not " in ended.stderr
    assert ended.stderr.count("left out") == 2


def test_cells_of_a_lost_node_go_on_elsewhere_from_their_checkpoint(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    file = tmp_path / "lost.yaml"
    file.write_text(SMALL.replace("limit_batches=2", "limit_batches=40"))
    with ray_nodes.head(tmp_path, cpus=1) as first, ray_nodes.node(first, cpus=1) as second:
        words = [second.mark, "sweep", str(file), "--address", first.address]
        words += ["--storage", str(tmp_path), "epochs=8", "trainer.checkpoint_interval=0"]
        environment = {**clean_environment, **first.driver()}
        ended = _run(["-c", LOSES_A_NODE, *words], environment, tmp_path)
        assert second.process.wait(30) == -9
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "goes on from its last checkpoint" in ended.stdout
    first_epochs = [name for name, epoch in json.loads(ended.stdout.splitlines()[-1]) if epoch == 0]
    assert len(first_epochs) == len(set(first_epochs)) == 2
