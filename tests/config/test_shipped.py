"""The package as it travels."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.config import package_files
from capsweep.config.cell import Cell
from capsweep.sweep.job import Job
from capsweep.tracking.labels import Labels

RUNS = """
import sys
from pathlib import Path
import capsweep
from capsweep.sweep.job import Job, run_job
from capsweep.training.run_hooks import RunHooks
assert Path(capsweep.__file__).is_relative_to(sys.argv[1]), capsweep.__file__
outcome = run_job(Job.from_json(sys.stdin.read()), RunHooks())
print(outcome.cause or outcome.result["status"])
"""

STAGES = """
import sys
from pathlib import Path
from capsweep.config import package_files
assert package_files.PACKAGE.is_relative_to(sys.argv[1]), package_files.PACKAGE
package_files.stage_packages(Path(sys.argv[2]))
"""


def test_the_same_code_is_the_same_copy(tmp_path: Path) -> None:
    first, second = (
        package_files.stage_packages(tmp_path / "1"),
        package_files.stage_packages(tmp_path / "2"),
    )
    names = sorted(path.relative_to(first) for path in first.rglob("*"))
    assert names == sorted(path.relative_to(second) for path in second.rglob("*"))
    files = [name for name in names if (first / name).is_file()]
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in files)
    assert {"conf", "sweeps", "cli"} <= set(os.listdir(first))
    assert not [name for name in files if name.suffix == ".pyc"]


def test_a_job_of_a_cluster_stages_packages_that_lie_in_different_folders(tmp_path: Path) -> None:
    # Ray unpacks each of a job's py_modules into a folder of its own.
    package = package_files.stage_packages(tmp_path / "sent")
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder, name in zip(folders, ("capsweep", "data_prep"), strict=True):
        folder.mkdir()
        shutil.move(package.with_name(name), folder / name)
    again = tmp_path / "again"
    subprocess.run(
        [sys.executable, "-c", STAGES, str(folders[0]), str(again)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        cwd=tmp_path,
        check=True,
    )
    assert {"multimnist.py", "__init__.py"} <= set(os.listdir(again / "data_prep"))
    assert {"conf", "sweeps", "cli"} <= set(os.listdir(again / "capsweep"))


def test_a_ray_of_this_machine_needs_no_copy() -> None:
    with package_files.staged_packages_for(None) as package:
        assert package is None


@pytest.mark.slow
def test_a_worker_reads_neither_conf_nor_sweeps(
    tmp_path: Path, small_cell: Callable[..., Cell]
) -> None:
    with package_files.staged_packages_for("somewhere:1") as staged:
        assert staged is not None
        package = shutil.copytree(staged, tmp_path / "worker" / "capsweep")
    shutil.rmtree(package / "conf")
    shutil.rmtree(package / "sweeps")
    cell = small_cell("logger=csv")
    ended = subprocess.run(
        [sys.executable, "-c", RUNS, str(tmp_path)],
        input=Job(cell, Labels()).to_json(),
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        cwd=package.parent,
        capture_output=True,
        text=True,
    )
    assert ended.stdout.splitlines()[-1] == "finished", ended.stdout + ended.stderr
