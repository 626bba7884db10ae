"""The package as it travels, and the commit that it is."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsweep.config import package_files
from capsweep.config.cell import Cell
from capsweep.tracking.content import Labels
from capsweep.training.run import Job

RUNS = """
import sys
from pathlib import Path
import capsweep
from capsweep.training.run import Job, run_job
from capsweep.training import RunHooks
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


AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b.example")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout of one commit."""
    for name in ("conf/one.yaml", "sweeps/one.yaml", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("question: a\n")
    for command in (["init", "-q"], ["add", "."], [*AUTHOR, "commit", "-qm", "one"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(package_files, "CHECKOUT", tmp_path)
    package_files.read_checkout.cache_clear()
    yield tmp_path
    package_files.read_checkout.cache_clear()


@pytest.mark.parametrize(
    ("files", "dirty"),
    [
        ([], False),
        (["conf/two.yaml"], True),
        (["conf/one.yaml"], True),
        (["README.md", "sweeps/one.yaml", "sweeps/two.yaml"], False),
    ],
)
def test_changes_that_are_not_committed_are_told_but_those_of_pages_and_sweeps(
    repository: Path, files: list[str], dirty: bool
) -> None:
    for name in files:
        (repository / name).write_text("changed\n")
    code = package_files.describe_code()
    assert (len(code["commit"]), code["dirty"], "changes" in code) == (40, dirty, dirty)
    (repository / ".git").rename(repository / "not-git")
    package_files.read_checkout.cache_clear()
    code = package_files.describe_code()
    assert (code["commit"], code["dirty"], "changes" in code) == (None, None, False)


def test_the_changes_of_a_checkout_are_kept_and_sent_to_nodes_without_git(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They can be applied to the commit; of a new file, which may have a password, only the name
    is there.
    """
    (repository / "conf" / "one.yaml").write_text("question: b\n\n")
    (repository / "README.md").write_text("# two\n")
    for name in ("new.py", "sweeps/new.yaml", "password.txt"):
        (repository / name).write_text("password = 1\n")
    changes = package_files.read_checkout()["changes"]
    assert "# untracked: new.py\n" in changes
    assert "+question: b\n" in changes
    assert "password" not in changes
    assert "README.md" not in changes
    assert "sweeps/" not in changes
    staged = package_files.stage_packages(tmp_path / "staged")
    git = ["git", "-C", str(repository)]
    subprocess.run([*git, "stash", "-q"], check=True)
    subprocess.run([*git, "apply", "-"], input=changes.encode(), check=True)
    assert (repository / "conf" / "one.yaml").read_text() == "question: b\n\n"
    monkeypatch.setattr(package_files, "PACKAGE", staged)
    (repository / ".git").rename(repository / "not-git")
    package_files.read_checkout.cache_clear()
    assert package_files.read_checkout()["changes"] == changes


def test_changes_of_many_bytes_are_cut(repository: Path) -> None:
    (repository / "conf" / "one.yaml").write_text("ü" * package_files.MOST_CHANGES)
    changes = package_files.read_checkout()["changes"]
    assert "; cut to 100,000 bytes\n" in changes
    assert package_files.MOST_CHANGES < len(changes.encode()) < package_files.MOST_CHANGES + 200
    assert "changes.diff (100,1" in package_files.describe_code()["changes"]
