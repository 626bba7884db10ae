"""What was typed here is driven there: the same cells, by absolute places, and nothing twice; its
job, whose log is read over connections that come and go, and why none began.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from ray.job_submission import JobDetails

from capsweep.cli import program
from capsweep.cluster import driver
from capsweep.cluster.client import JOB_ID, SweepJob
from capsweep.errors import ConfigError, UnreachableError
from capsweep.sweep import choices, expand, spec
from capsweep.sweep.expand import Point

TYPED = (
    "SEEDS=2 STORAGE=results batch_size=8,16 ROUTING=1,3 RETRY=failed "
    "'EXCLUDE=arm=cnn batch_size=8' RAY_ADDRESS=127.0.0.1:6379 cluster.grows_to.cpu=4"
)


def load_points(*words: str) -> list[Point]:
    """The points of a sweep that these words choose."""
    parsed = program.parse_arguments(words)
    sweep = choices.load_sweep(parsed.sweep, parsed.words, parsed.overrides, parsed.here)
    return expand.expand_sweep(sweep)


def make_inner(text: str, sweep: str = "ablation", staged: bool = True) -> list[str]:
    words = shlex.split(text)
    config = load_points("sweep", sweep, *words)[0].cell.config
    return driver.make_inner_command(sweep, words, config, staged)


def test_the_page_of_a_running_sweep_is_that_of_its_cells_and_places(tmp_path: Path) -> None:
    words = ("SEEDS=2", "epochs=2,4", "EXECUTOR=local", "BUDGET=9m", f"STORAGE={tmp_path}")
    typed = load_points("sweep", "ablation", *words)
    command = driver.make_report_command("ablation", words, typed[0].cell.config)
    parsed = program.parse_arguments(command)
    again = expand.expand_sweep(choices.load_sweep("ablation", parsed.words, parsed.overrides))
    assert parsed.live
    assert [p.cell.signature for p in again] == [p.cell.signature for p in typed]
    assert again[0].cell.config["places"] == typed[0].cell.config["places"]


def test_the_cells_and_their_places_are_those_that_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = load_points("sweep", "ablation", *shlex.split(TYPED))
    inner = make_inner(TYPED)
    monkeypatch.chdir("/")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # as Ray tells its jobs
    parsed = program.parse_arguments(inner)
    again = load_points(*inner)
    assert [p.cell.signature for p in again] == [p.cell.signature for p in typed]
    config = again[0].cell.config
    assert config["places"] == typed[0].cell.config["places"]
    assert config["places"]["storage"] == str(tmp_path / "results")
    assert config["cluster"]["address"] == "10.0.0.1:6379"
    assert (config["cluster"]["name"], config["cluster"]["grows_to"]["cpu"]) == ("address", 4)
    assert (parsed.here, parsed.retry) == (True, "failed")


def test_one_choice_is_one_command_in_whatever_order_it_is_typed() -> None:
    one = "SEEDS=2 EPOCHS=3 CLUSTER=address", "CLUSTER=address EPOCHS=3 SEEDS=2"
    texts = (*one, "SEEDS=2 EPOCHS=3 RAY_ADDRESS=head:6379", "SEEDS=3 EPOCHS=3")
    first, *same, other = [driver.name_command("ablation", make_inner(text)) for text in texts]
    assert same == [first, first]
    assert other != first


def test_a_sweep_file_of_elsewhere_is_named_as_it_is_staged(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(spec.load("ablation").path.read_text())
    assert make_inner("", str(file))[:3] == ["sweep", "mine", "--here"]
    assert make_inner("", str(file), staged=False)[1] == str(file)


WORDS = ["sweep", "table1_mnist", "--here", "SEEDS=3"]
NAME = driver.name_command("table1-mnist.v2", WORDS)


def make_job(**details: Any) -> SweepJob:
    """The first run of the command, of which Ray says so much."""
    said = {"type": "SUBMISSION", "status": "RUNNING", "entrypoint": "exec python", **details}
    return SweepJob(f"{NAME}-1", NAME, "table1-mnist.v2", 1, JobDetails(**said))


JOB = make_job()
LOG = "plan\none: 1 %\ntwo: 2 %\ntable\n"


def test_an_id_names_the_sweep_and_is_the_same_for_the_same_command() -> None:
    assert re.fullmatch(r"capsweep-table1-mnist\.v2-[0-9a-f]{8}", NAME)
    match = JOB_ID.fullmatch(JOB.id)
    assert match.group("name", "sweep", "number") == (NAME, JOB.sweep, "1")
    assert driver.name_command("my sweep/ü", WORDS).startswith("capsweep-my-sweep---")
    for other in ("raysubmit_4LamXRuQpYdSMg7J", "capsweep-x", ""):
        assert JOB_ID.fullmatch(other) is None


class JobServer:
    """A job server with jobs; one of them has printed so much at each look, None: it is silent."""

    address = "http://127.0.0.1:8265"

    def __init__(self, jobs: list[SweepJob], logs: list[str | None] | None = None) -> None:
        self.jobs = jobs
        self.logs: Iterator[str | None] = iter(logs or [])
        self.submitted: list[str] = []
        self.log = ""

    def list_sweeps(self) -> list[SweepJob]:
        return self.jobs

    def find_python(self) -> str:
        return "/opt/env/bin/python"

    def submit_job(self, **job: Any) -> None:
        self.submitted.append(job["submission_id"])
        self.command, self.code = job["entrypoint"], job["metadata"][driver.CODE]

    def read_job(self, job_id: str) -> SweepJob:
        log = next(self.logs, None)
        if log is None:
            raise UnreachableError("nobody")
        self.log = log
        return make_job(status="SUCCEEDED", driver_exit_code=0) if log == LOG else JOB

    def read_log(self, job_id: str) -> str:
        return self.log


def test_a_command_that_runs_is_not_doubled_and_its_next_run_has_another_number(tmp_path) -> None:
    ended = replace(make_job(status="FAILED"), number=7)
    other = replace(JOB, name=driver.name_command(JOB.sweep, ["sweep"]))
    file = tmp_path / "table1-mnist.v2.yaml"
    file.touch()
    running = JobServer([other, ended, JOB])
    assert driver.submit_sweep(running, file, WORDS) == (JOB, False)
    server = JobServer([other, ended], [""])
    assert driver.submit_sweep(server, file, WORDS)[1]
    assert server.submitted == [f"{NAME}-8"]
    assert server.command.startswith("exec /opt/env/bin/python -m capsweep sweep ")


def test_another_sweep_file_is_other_code(tmp_path: Path) -> None:
    server, file = JobServer([], [""]), tmp_path / "mine.yaml"
    file.touch()
    driver.submit_sweep(server, file, WORDS)
    job = make_job(metadata={driver.CODE: server.code})
    assert not driver.runs_other_code(job, file)
    file.write_text("question: Another?")
    assert driver.runs_other_code(job, file)
    assert not driver.runs_other_code(JOB, file), "it came with an image, whose code nobody knows"


def test_a_job_is_found_by_its_id_or_its_sweep_the_running_one_first() -> None:
    ended = replace(make_job(status="STOPPED"), id="capsweep-old")
    server = JobServer([JOB, ended])
    assert driver.find_job(server, "table1-mnist.v2") == JOB
    assert driver.find_job(server, "capsweep-old") == ended
    with pytest.raises(ConfigError, match=r"no job of this sweep at .*; have table1-mnist\.v2"):
        driver.find_job(server, "nothing")
    server.jobs.append(replace(JOB, id="capsweep-other"))
    with pytest.raises(ConfigError, match=f"running; name one of {JOB.id}, capsweep-other"):
        driver.find_job(server, "table1-mnist.v2")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LOOK_SECONDS", 0.0)


def test_what_a_job_prints_is_printed_once_also_after_a_lost_connection() -> None:
    written: list[str] = []
    said: list[str] = []
    server = JobServer([], ["", LOG[:7], None, None, LOG[:5], LOG[:9], LOG])
    ended = driver.follow_job(server, JOB, written.append, said.append)
    assert ("".join(written), ended.details.driver_exit_code) == (LOG, 0)
    (line,) = said
    assert "the sweep continues" in line


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        ("exec 'my python' -m capsweep sweep x", 127, "no program my python; set cluster.python"),
        ("sweep x", None, "exit status: no runtime env; type the same command again to continue"),
    ],
)
def test_why_a_job_did_not_begin_is_said_with_the_cure(
    command: str, status: int | None, text: str
) -> None:
    said = {"status": "FAILED", "entrypoint": command, "message": "no runtime\nenv"}
    assert text in str(driver.find_obstacle(make_job(driver_exit_code=status, **said)))
    assert driver.find_obstacle(make_job(driver_exit_code=1, **said)) is None
