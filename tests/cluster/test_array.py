"""A job array by submitit: real processes of this machine, without Slurm and without Ray."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from configured_clusters import cluster
from fake_programs import HOSTILE, Programs

from capsweep import cli
from capsweep.cluster import slurm
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger

SHOW = "import os, signal, sys; print(sys.argv[1:], os.getcwd(), flush=True)"


def through_local(**keys: Any) -> Any:
    return cluster("slurm", array__through="local", **keys)


def test_each_part_is_a_process_with_its_words_in_the_folder_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [[sys.executable, "-c", SHOW, *HOSTILE, part] for part in ("1/2", "2/2")]
    jobs = slurm.submit_parts(through_local(), "job", commands, tmp_path / "jobs")
    assert [job.result() for job in jobs] == [0, 0]
    for job, part in zip(jobs, ("1/2", "2/2"), strict=True):
        assert f"{[*HOSTILE, part]} {os.getcwd()}" in str(job.stdout())
    assert not (tmp_path / "broken").exists()
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    (job,) = slurm.submit_parts(through_local(), "job", [failing], tmp_path / "jobs")
    assert "exit status 3" in str(job.exception())


RESUMED = """
import os, signal, sys
from pathlib import Path
if Path("ended").exists():
    sys.exit(0)
def end(*_):
    Path("ended").touch()
    sys.exit(130)
signal.signal(signal.SIGINT, end)
Path("begun").write_text(str(os.getppid()))
signal.pause()
"""


@pytest.mark.slow
def test_a_part_that_is_warned_ends_as_by_ctrl_c_and_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "begun")
    (job,) = slurm.submit_parts(
        through_local(), "job", [[sys.executable, "-c", RESUMED]], tmp_path / "jobs"
    )
    part = int((tmp_path / "begun").read_text())  # waits until it runs
    os.kill(part, signal.SIGUSR2)
    assert job.result() == 0
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90:30", 90), ("04:00:00", 240), ("2-12", 3600), ("1-0:30:0", 1470)],
)
def test_a_time_of_slurm_is_read_as_slurm_reads_it(text: str, minutes: int) -> None:
    assert slurm.parse_minutes(text) == minutes
    with pytest.raises(ConfigError, match=r"cluster\.time="):
        slurm.parse_minutes(f"{text}h")


def test_slurm_is_given_an_array_with_every_option(programs: Programs, tmp_path: Path) -> None:
    programs.add("srun")
    programs.add(
        "sbatch", 'cp "${@: -1}" "$(dirname "$0")/../given"; echo "Submitted batch job 12"'
    )
    keys = {"partition": "big", "account": "lab", "qos": "q", "constraint": "c", "memory": "64G"}
    section = cluster("slurm", **keys, array__parallel=2, setup="a b.sh", time="1-00:00:00")
    jobs = slurm.submit_parts(section, "job", [["true"]] * 3, tmp_path / "jobs")
    assert [job.job_id for job in jobs] == ["12_0", "12_1", "12_2"]
    given = (tmp_path / "given").read_text()
    for line in (
        *("partition=big", "account=lab", "qos=q", "constraint=c", "mem=64G", "gres=gpu:1"),
        *("array=0-2%2", "time=1440", "signal=USR2@180", "cpus-per-task=8", "job-name=job"),
        "requeue",
    ):
        assert f"#SBATCH --{line}\n" in given, line
    assert f"source '{os.getcwd()}/a b.sh'" in given


SMALL = """\
question: Does an array run it?
base: [epochs=1, limit_batches=1, batch_size=4, trainer.accelerator=cpu, model=cnn_tiny]
seeds: [0, 1]
baseline: cnn
arms: {cnn: {fixed: []}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""


@pytest.mark.slow
def test_an_array_runs_every_cell_of_a_sweep_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL)
    command = [
        *("sweep", "small.yaml", "--cluster=slurm", "--executor=array", "logger=csv"),
        *("cluster.array.parts=2", "cluster.array.through=local"),
    ]
    jobs: list[Any] = []
    submit = slurm.submit_parts
    monkeypatch.setattr(
        slurm, "submit_parts", lambda *arguments: jobs.extend(submit(*arguments)) or jobs
    )
    assert cli.main(command) == 0
    assert [job.result() for job in jobs] == [0, 0]
    ledger = Ledger(str(tmp_path / "outputs" / "ledger"))
    statuses = [ledger.read_result(each)["status"] for each in ledger.list_signatures()]
    assert statuses == ["finished"] * 2
