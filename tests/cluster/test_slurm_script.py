"""The batch script: clean to shellcheck, and run for real with Slurm's programs stood in for."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from configured_clusters import cluster
from fake_programs import HOSTILE, Programs

from capsweep.cluster import slurm as batch
from capsweep.errors import ConfigError

SHELLCHECK = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
KEYS: dict[str, Any] = {
    "partition": "big",
    "account": "lab",
    "qos": "high",
    "constraint": "a100|h100",
    "nodes": 3,
    "cpus": 9,
    "gpus": 4,
    "memory": "64G",
    "time": "1-00:00:00",
    "warn_seconds": 99,
    "requeues": 7,
    "exclusive": False,
    "setup": "modules.sh",
    "token": "/else/where",
}
NOT_RENDERED = {*cluster("local"), "launcher", "array"}
# Stands for symmetric-run on one node: it runs what follows `--`.
SYMMETRIC = 'while [[ $1 != -- ]]; do shift; done; shift; exec "$@"'


def rendered(*words: str, **keys: Any) -> str:
    section = cluster("slurm", **keys)
    return batch.render_script(section, "ablation", words or ["sweep"], Path("/logs"))[1]


@pytest.mark.parametrize("keys", [{}, KEYS, {"gpus": 0}], ids=["defaults", "all", "no GPU"])
def test_bash_and_shellcheck_find_nothing(keys: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    # Of a backslash before a quote shellcheck asks whether it is meant.
    words = [word for word in HOSTILE if not word.endswith("\\")]
    script.write_text(rendered("sweep", *words, **keys))
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert SHELLCHECK is not None
    checked = subprocess.run([SHELLCHECK, str(script)], capture_output=True, text=True)
    assert checked.stdout == ""


def test_every_option_changes_what_is_rendered() -> None:
    assert set(cluster("slurm")) - NOT_RENDERED == set(KEYS)
    assert [key for key in KEYS if rendered(**{key: KEYS[key]}) == rendered()] == []


def test_directives_stand_before_the_first_command_one_to_a_line() -> None:
    lines = rendered(**KEYS).splitlines()
    directives = [i for i, line in enumerate(lines) if line.startswith("#SBATCH ")]
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(directives) < first
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[i]) for i in directives)


@pytest.mark.parametrize("key", ["partition", "account", "qos", "constraint", "memory", "time"])
@pytest.mark.parametrize("value", ["x\ntouch broken", "$(touch broken)", "a'b", "a; b #"])
def test_a_value_that_sbatch_would_have_to_unquote_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"cluster\.{key}="):
        rendered(**{key: value})


class Slurm:
    """Slurm's programs on one node, and the job that runs there."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        programs.add("scontrol", 'if [[ $1 == show ]]; then echo "$3"; fi')
        programs.add("srun", 'while [[ $1 == --* ]]; do shift; done; exec "$@"')
        programs.add("ray", SYMMETRIC)
        self.programs, self.folder = programs, folder
        self.token = folder / "token"
        self.token.write_text("x")

    def script(self, words: list[str], **keys: Any) -> Path:
        """A rendered script whose driver is `words` instead of capsweep's own."""
        section = cluster("slurm", token=str(self.token), **keys)
        _, text = batch.render_script(section, "ablation", ["WORDS"], self.folder)
        # The environment's own ray stands before the one that is stood in for.
        text = re.sub(r"(?m)^export PATH=.*\n", "", text)
        driver = shlex.join([sys.executable, "-m", "capsweep", "WORDS"])
        assert driver in text
        script = self.folder / "job.sh"
        script.write_text(text.replace(driver, shlex.join(words)))
        return script

    def start(self, script: Path, job: int = 7, **environment: str) -> "subprocess.Popen[str]":
        variables = {
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_NODELIST": "here",
            "SLURM_JOB_NUM_NODES": "1",
            **environment,
        }
        return subprocess.Popen(
            ["bash", str(script)], env=os.environ | variables, stdout=subprocess.PIPE, text=True
        )

    def run(self, script: Path, job: int = 7) -> int:
        """The exit status."""
        started = self.start(script, job)
        started.communicate(timeout=60)
        return started.returncode


@pytest.fixture
def slurm(programs: Programs, tmp_path: Path) -> Slurm:
    return Slurm(programs, tmp_path)


def test_the_driver_gets_its_words_the_token_and_the_address(slurm: Slurm) -> None:
    names = "'RAY_AUTH_MODE', 'RAY_AUTH_TOKEN_PATH', 'RAY_ADDRESS'"
    show = f"import os, sys; print(sys.argv[1:], *map(os.environ.get, [{names}]))"
    job = slurm.start(slurm.script([sys.executable, "-c", show, *HOSTILE]))
    printed, _ = job.communicate(timeout=60)
    assert printed == f"{list(HOSTILE)} token {slurm.token} 127.0.0.1:10070\n"
    assert job.returncode == 0
    assert not (slurm.folder / "broken").exists()


def test_two_jobs_of_one_node_share_no_port(slurm: Slurm) -> None:
    script = slurm.script(["bash", "-c", "exit 3"])
    for job in (123456, 123457):
        assert slurm.run(script, job) == 3, "the driver's status is the job's"
    ports = [
        {int(port) for word in call for port in re.findall(r"(?:-port=|:)(\d{4,})$", word)}
        for call in slurm.programs.calls("ray")
    ]
    assert [len(each) for each in ports] == [4, 4]
    assert ports[0].isdisjoint(ports[1])
    assert all(1024 < port < 32768 for each in ports for port in each), "below ephemeral ports"


WAITING = """
import signal, sys
from pathlib import Path
def end(*_):
    Path("ended").touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
print("driving", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("number", "restarts", "queued"),
    [(signal.SIGUSR1, 2, True), (signal.SIGUSR1, 3, False), (signal.SIGTERM, 0, False)],
)
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_warning_ends_the_driver_alone_and_queues_the_job_again(
    slurm: Slurm,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    restarts: int,
    queued: bool,
    is_slow: bool,
) -> None:
    """is_slow: the driver has ended before the shell looks again."""
    monkeypatch.chdir(slurm.folder)
    script = slurm.script([sys.executable, "-c", WAITING], requeues=3)
    if is_slow:
        wait = 'kill() { builtin kill "$@" && until ! builtin kill -0 "$1"; do sleep 0.1; done; }\n'
        script.write_text(script.read_text().replace("end_driver() {", f"{wait}end_driver() {{"))
    job = slurm.start(script, SLURM_RESTART_COUNT=str(restarts))
    assert job.stdout.readline() == "driving\n"
    job.send_signal(number)
    job.communicate(timeout=60)
    assert (slurm.folder / "ended").exists(), "it was told, and could keep its checkpoints"
    assert (["requeue", "7"] in slurm.programs.calls("scontrol")) is queued
    assert job.returncode == (0 if queued else 130)


def test_a_ray_that_does_not_start_fails_the_job_and_keeps_its_log(slurm: Slurm) -> None:
    slurm.programs.add("ray")  # symmetric-run ends with 0 then
    assert slurm.run(slurm.script(["true"])) == 1
    assert len(slurm.programs.calls("srun")) == 1, "the second would remove the log"


def test_a_node_that_does_not_see_the_token_says_so(slurm: Slurm) -> None:
    slurm.token.unlink()
    assert slurm.run(slurm.script(["true"])) == 2
    assert slurm.programs.calls("ray") == []


def test_a_token_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    token = tmp_path / "below" / "token"
    batch.ensure_token(str(token), print)
    assert token.stat().st_mode & 0o777 == 0o600
    token.chmod(0o644)
    batch.ensure_token(str(token), print)
    assert token.stat().st_mode & 0o777 == 0o600
    token.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        batch.ensure_token(str(token), print)
