"""Sweeps that run as jobs of a cluster, or are submitted to Slurm."""

from pathlib import Path
from typing import Any

import pytest
from fake_programs import Programs

pytest.importorskip("ray")
from ray.job_submission import JobDetails
from ray_nodes import no_token as no_token  # a fixture

from capsweep import cli
from capsweep.cli import sweep as commands
from capsweep.cluster import driver
from capsweep.cluster.client import SweepJob

NAME = "capsweep-ablation-01234567"
COMMAND = "exec python -m capsweep sweep ablation"


def make_job(status: str = "RUNNING", **details: Any) -> SweepJob:
    said = {"type": "SUBMISSION", "entrypoint": COMMAND, "start_time": 0, **details}
    return SweepJob(f"{NAME}-1", NAME, "ablation", 1, JobDetails(status=status, **said))


JOB = make_job()


class Head:
    """A job server with one job, and a client that gets its answers."""

    address = "http://127.0.0.1:8265"

    def __init__(self, job: SweepJob = JOB, log: str = "plan\n") -> None:
        self.job, self.log = job, log

    def list_sweeps(self) -> list[SweepJob]:
        return [self.job]

    def read_job(self, job_id: str) -> SweepJob:
        return self.job

    def read_log(self, job_id: str) -> str:
        return self.log


AT_WORK = """\
9 trials, 5 ended before
[0 done, 2 running, 0 failed of 4, about 9 min left]
cnn · seed 1: FAILED: NaN (8 s)  [1 done, 1 running, 1 failed of 4, about 1 min left]
  why: capsweep ledger show 01

"""


@pytest.mark.parametrize(
    ("state", "status", "log", "lines"),
    [
        ("RUNNING", None, "plan\n\n", ["plan"]),
        (
            "RUNNING",
            None,
            AT_WORK,
            ["9 trials, 5 ended before", "[1 done, 1 running, 1 failed of 4, ", "why: capsweep"],
        ),
        ("FAILED", 2, AT_WORK + "error: no such key\n", ["error: no such key"]),
        ("FAILED", 127, "", ["the head has no program python; set "]),
    ],
)
def test_status_has_the_newest_numbers_of_cells_and_the_end_of_the_output(
    state: str,
    status: int | None,
    log: str,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = Head(make_job(state, driver_exit_code=status, message="no node"), log)
    monkeypatch.setattr(commands, "open_jobs", lambda cluster: head)
    assert cli.main(["status", f"RAY_ADDRESS={Head.address}"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{JOB.id}: {state.lower()}")
    for text, line in zip(lines, others, strict=True):
        assert line.startswith(f"  {text}")


@pytest.mark.parametrize(
    ("status", "text", "shell"),
    [(-9, "its driver was killed (signal 9)", 137), (1, "attached to", 1)],
)
def test_a_driver_that_was_killed_is_reported(
    status: int, text: str, shell: int, capsys: pytest.CaptureFixture[str]
) -> None:
    server: Any = Head(make_job("FAILED", driver_exit_code=status))
    assert commands.watch_job(server, JOB) == shell
    printed = capsys.readouterr().out
    assert text in printed
    assert ("killed" in printed) == (status < 0)


def test_a_command_that_runs_already_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "open_jobs", lambda cluster: Head())
    job = make_job(metadata={driver.CODE: "another"})
    monkeypatch.setattr(driver, "submit_sweep", lambda *arguments: (job, False))
    assert cli.main(["sweep", "ablation", "SEEDS=1", "CLUSTER=address", "--detach"]) == 0
    printed = capsys.readouterr().out
    assert "this command runs already" in printed
    assert "it runs other code than yours; to run yours" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sweep ablation CLUSTER=aws", "cluster=aws: no such option; "),
        ("sweep ablation --dry-run", "capsweep plan` prints the cells"),
        ("sweep ablation CLUSTER=address --detach EXECUTOR=local", "needs EXECUTOR=ray"),
        (
            "status RAY_ADDRESS=https://me:secret@head:8265",
            "error: RAY_ADDRESS or cluster.jobs: credentials in the URL of head:8265 ",
        ),
        ("status", "answers at http://127.0.0.1:1; start"),
        ("status RAY_ADDRESS=127.0.0.1", "must be auto, HOST:PORT such as 127.0.0.1:6379, or"),
        ("sweep ablation RAY_ADDRESS=ray://head:10001", "must be auto, HOST:PORT such as"),
        (
            "attach ablation RAY_ADDRESS=127.0.0.1:9",
            "RAY_ADDRESS=127.0.0.1:9: no head of Ray answers",
        ),
        ("status RAY_ADDRESS=http://127.0.0.1:9", "set another address: RAY_ADDRESS=http://HOST"),
        ("status CLUSTER=slurm", "cluster=slurm has no job server; set CLUSTER=address"),
        ("sweep ablation RAY_ADDRESS=http://head:8265", "this is a job server; add --detach"),
        ("plan ablation CLUSTER=local RAY_ADDRESS=head:1", "CLUSTER=local takes no RAY_ADDRESS"),
    ],
)
@pytest.mark.usefixtures("no_token")
def test_what_cannot_be_submitted_is_one_line(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The environment names where jobs are taken, unless an address is typed."""
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    assert cli.main(words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "secret" not in error


@pytest.mark.parametrize("executor", [[], ["EXECUTOR=array"]], ids=["script", "array"])
def test_a_dry_run_starts_nothing_writes_nothing_and_tells_no_secret(
    programs: Programs,
    own_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    executor: list[str],
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, f"value-of-{name}-SECRET")
    programs.add("sbatch")
    assert cli.main(["sweep", "ablation", "CLUSTER=slurm", "--dry-run", *executor]) == 0
    assert "SECRET" not in capsys.readouterr().out.replace("AWS_SECRET_ACCESS_KEY", "")
    assert programs.calls("sbatch") == []
    assert list(own_folder.iterdir()) == [programs.folder]


def test_a_sweep_on_slurm_is_a_script_that_is_submitted(
    programs: Programs, own_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add("sbatch", 'echo "4711;cluster"')
    token = f"cluster.token={tmp_path / 'token'}"
    command = ["sweep", "ablation", "CLUSTER=slurm", token, "cluster.partition=big", "EPOCHS=2"]
    assert cli.main(command) == 0
    ((option, script),) = programs.calls("sbatch")
    text = Path(script).read_text()
    assert option == "--parsable"
    assert "#SBATCH --partition=big\n" in text
    assert f"cd {own_folder} " in text
    assert "sweep ablation --here" in text
    assert f"LEDGER={own_folder}/outputs/ledger" in text
    printed = capsys.readouterr().out
    assert "job 4711" in printed
    assert script.removesuffix(".sh") + "-4711*.log" in printed
    programs.add("sbatch", "echo 'invalid partition' >&2; exit 1")
    assert cli.main(command) == 2
    assert "sbatch refused" in capsys.readouterr().err


@pytest.mark.parametrize("bound", ["MAX_HOURS=8", "BUDGET=2h", "RERUN=always"])
def test_what_would_begin_anew_with_all_its_hours_is_run_once(
    capsys: pytest.CaptureFixture[str], bound: str
) -> None:
    command = ["sweep", "ablation", "--dry-run", "CLUSTER=slurm"]
    assert cli.main(command) == 0
    assert "#SBATCH --requeue\n" in capsys.readouterr().out
    assert cli.main([*command, bound]) == 0
    assert "#SBATCH --no-requeue\n" in capsys.readouterr().out
