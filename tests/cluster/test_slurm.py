"""Slurm: the batch script is clean to shellcheck, and run for real with Slurm's programs stood in
for.
"""

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
from fake_programs import HOSTILE, Programs

from capsweep import cli
from capsweep.cluster import slurm as batch
from capsweep.config import compose
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger


def cluster(name: str, **keys: Any) -> dict[str, Any]:
    """The section of a file of conf/cluster; `array__parts=2` sets cluster.array.parts."""
    section = dict(compose.cell([f"cluster={name}"]).config["cluster"])
    for key, value in keys.items():
        outer, _, inner = key.partition("__")
        section[outer] = {**section[outer], inner: value} if inner else value
    return section


SHELLCHECK = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
KEYS: dict[str, Any] = {
    **{"partition": "big", "account": "lab", "qos": "high", "constraint": "a100|h100"},
    **{"nodes": 3, "cpus": 9, "gpus": 4, "memory": "64G", "time": "1-00:00:00"},
    **{"warn_seconds": 99, "requeues": 7, "exclusive": False},
    **{"setup": "modules.sh", "token": "/else/where"},
}
NOT_RENDERED = {*cluster("local"), "launcher", "array"}
DRIVER = shlex.join([sys.executable, "-m", "capsweep", "WORDS"])
# Stands for symmetric-run on one node: it runs what follows `--`.
SYMMETRIC = 'while [[ $1 != -- ]]; do shift; done; shift; exec "$@"'
SRUN = 'while [[ $1 == --* ]]; do shift; done; exec "$@"'
# It waits to be ended, and has nothing to do when it is run again.
WAITING = """
import os, signal, sys
from pathlib import Path
if Path("ended").exists():
    sys.exit(0)
def end(*_):
    Path("ended").touch()
    sys.exit(130)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
Path("begun").write_text(str(os.getppid()))
signal.pause()
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def render(*words: str, is_array: bool = False, **keys: Any) -> str:
    section = cluster("slurm", **keys)
    return batch.render_script(section, "ablation", words or ["WORDS"], Path("/logs"), is_array)[1]


@pytest.mark.parametrize("keys", [{}, KEYS, {"gpus": 0}, {"is_array": True}], ids=str)
def test_bash_and_shellcheck_find_nothing(keys: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    # Of a backslash before a quote shellcheck asks whether it is meant.
    words = [word for word in HOSTILE if not word.endswith("\\")]
    script.write_text(render("sweep", *words, **keys))
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert SHELLCHECK is not None
    checked = subprocess.run([SHELLCHECK, str(script)], capture_output=True, text=True)
    assert checked.stdout == ""


def test_every_option_changes_what_is_rendered() -> None:
    assert set(cluster("slurm")) - NOT_RENDERED == set(KEYS)
    page = (Path(__file__).parents[2] / "docs/how-to/cluster.md").read_text()
    assert [key for key in (*KEYS, "array") if f"`{key}`" not in page] == []
    assert [key for key in KEYS if render(**{key: KEYS[key]}) == render()] == []


@pytest.mark.parametrize("key", ["partition", "account", "qos", "constraint", "memory", "time"])
@pytest.mark.parametrize("value", ["x\ntouch broken", "$(touch broken)", "a'b", "a; b #"])
def test_a_value_that_sbatch_would_have_to_unquote_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"cluster\.{key}="):
        render(**{key: value})


class Slurm:
    """Slurm's programs on one node, and the job that runs there."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        programs.add("scontrol", 'if [[ $1 == show ]]; then echo "$3"; fi')
        programs.add("srun", SRUN)
        programs.add("ray", SYMMETRIC)
        self.programs, self.script, self.token = programs, folder / "job.sh", folder / "token"
        self.token.write_text("x")

    def start(
        self, words: list[str], job: int = 7, before_end: str = "", is_array: bool = False
    ) -> "subprocess.Popen[str]":
        """A job that drives `words`; before_end: shell in front of what ends the driver."""
        text = render(token=str(self.token), requeues=3, is_array=is_array)
        # The environment's own ray stands before the one that is stood in for.
        text = re.sub(r"(?m)^export PATH=.*\n", "", text)
        assert DRIVER in text
        text = text.replace(DRIVER, shlex.join(words))
        self.script.write_text(text.replace("end_driver() {", f"{before_end}end_driver() {{"))
        variables = {"SLURM_JOB_NODELIST": "here", "SLURM_JOB_NUM_NODES": "1"}
        variables |= {"SLURM_JOB_ID": str(job), "SLURM_ARRAY_TASK_ID": "2"}
        command, environment = ["bash", str(self.script)], variables | os.environ
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def run(self, words: list[str], job: int = 7, is_array: bool = False) -> tuple[int, str]:
        """The exit status, and what was printed."""
        started = self.start(words, job, is_array=is_array)
        printed, _ = started.communicate(timeout=60)
        return started.returncode, printed


@pytest.fixture
def slurm(programs: Programs, tmp_path: Path) -> Slurm:
    return Slurm(programs, tmp_path)


def test_the_driver_gets_its_words_the_token_and_the_address(slurm: Slurm, tmp_path: Path) -> None:
    names = "'RAY_AUTH_MODE', 'RAY_AUTH_TOKEN_PATH', 'RAY_ADDRESS'"
    show = f"import os, sys; print(sys.argv[1:], *map(os.environ.get, [{names}]))"
    text = f"{list(HOSTILE)} token {slurm.token} 127.0.0.1:10070\n"
    assert slurm.run([sys.executable, "-c", show, *HOSTILE]) == (0, text)
    part = "import sys; print(sys.argv[1:])"
    text = f"{[*HOSTILE, 'SHARD=2/8']}\n"
    assert slurm.run([sys.executable, "-c", part, *HOSTILE], is_array=True) == (0, text)
    assert not (tmp_path / "broken").exists()


def test_two_jobs_of_one_node_share_no_port(slurm: Slurm) -> None:
    for job in (123456, 123457):
        assert slurm.run(["bash", "-c", "exit 3"], job)[0] == 3, "the driver's status is the job's"
    ports = [
        {int(port) for word in call for port in re.findall(r"(?:-port=|:)(\d{4,})$", word)}
        for call in slurm.programs.calls("ray")
    ]
    assert [len(each) for each in ports] == [4, 4]
    assert ports[0].isdisjoint(ports[1])
    assert all(1024 < port < 32768 for each in ports for port in each), "below ephemeral ports"


@pytest.mark.parametrize(
    ("number", "restarts", "queued"),
    [(signal.SIGUSR1, 2, True), (signal.SIGUSR1, 3, False), (signal.SIGTERM, 0, False)],
)
@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("is_array", [False, True])
def test_a_warning_ends_the_driver_alone_and_queues_the_job_again(
    slurm: Slurm,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    restarts: int,
    queued: bool,
    is_slow: bool,
    is_array: bool,
) -> None:
    """is_slow: the driver has ended before the shell looks again."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    wait = 'kill() { builtin kill "$@" && until ! builtin kill -0 "$1"; do sleep 0.1; done; }\n'
    os.mkfifo("begun")
    job = slurm.start([sys.executable, "-c", WAITING], 7, wait if is_slow else "", is_array)
    Path("begun").read_text()  # waits until it runs
    job.send_signal(number)
    job.communicate(timeout=60)
    assert Path("ended").exists(), "it was told, and could keep its checkpoints"
    assert (["requeue", "7"] in slurm.programs.calls("scontrol")) is queued
    assert job.returncode == (0 if queued else 130)


def test_a_ray_that_does_not_start_fails_the_job_and_keeps_its_log(slurm: Slurm) -> None:
    slurm.programs.add("ray")  # symmetric-run ends with 0 then
    assert slurm.run(["true"])[0] == 1
    assert len(slurm.programs.calls("srun")) == 1, "the second would remove the log"


def test_a_token_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    token = tmp_path / "below" / "token"
    for _ in range(2):
        batch.ensure_token(str(token))
        assert token.stat().st_mode & 0o777 == 0o600
        token.chmod(0o644)
    token.write_text(" \n")
    with pytest.raises(ConfigError, match="empty file; remove it"):
        batch.ensure_token(str(token))


# With a real Ray, on a node of its own: `ray symmetric-run` ends every Ray of its node. It has
# processes, files and network that nobody else sees.
NODE = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--net")
BEGIN = "mount -t proc proc /proc && ip link set lo up && bash "
DRIVES = """
import os, ray
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
print("driven with", int(ray.cluster_resources()["CPU"]), "CPU")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of its own need root")
def test_a_job_starts_its_ray_drives_and_leaves_nothing(programs: Programs, tmp_path: Path) -> None:
    programs.add("scontrol", 'echo "$3"')
    programs.add("srun", SRUN)
    (tmp_path / "token").write_text("0" * 64)
    text = render(cpus=1, gpus=0, token=str(tmp_path / "token"))
    text = text.replace(DRIVER, shlex.join([sys.executable, "-c", DRIVES]))
    text = text.replace("--temp-dir=", "--object-store-memory=100000000 --temp-dir=")
    # Behind the environment's own folder of programs, which has the real ray.
    script = tmp_path / "job.sh"
    script.write_text(text)
    job = os.getpid()  # it names Ray's folder; the tests above remove those of their own jobs
    told = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "here", "SLURM_JOB_NUM_NODES": "1"}
    look = f"ls /tmp/ray-0-{job} 2> /dev/null; ps -eo args | grep -c '[r]aylet'"
    begin = f"{BEGIN}{shlex.quote(str(script))}; status=$?; {look}; exit $status"
    ran = subprocess.run(
        [*NODE, "bash", "-c", begin],
        env=os.environ | told | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "driven with 1 CPU\n" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("\n0\n"), "no process of Ray, no folder of its own"


def test_an_array_has_a_job_for_each_part_that_may_run_beside_others() -> None:
    script = render(is_array=True, **KEYS, array__parts=3, array__parallel=2)
    assert "#SBATCH --array=1-3%2\n" in script
    assert "%A_%a.log\n" in script
    assert "#SBATCH --nodes=1\n" in script
    assert "singleton" not in script


SMALL = """\
question: Does an array run it?
base: [epochs=1, limit_batches=1, batch_size=4, trainer.accelerator=cpu, model=cnn_tiny]
seeds: [0, 1]
baseline: cnn
arms: {cnn: {fixed: []}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""


@pytest.mark.slow
def test_an_array_runs_every_cell_of_a_sweep_once(programs: Programs) -> None:
    Path("small.yaml").write_text(SMALL)
    run_parts = 'for i in 1 2; do SLURM_ARRAY_TASK_ID=$i bash "${@: -1}" || exit; done; echo 4711'
    programs.add("sbatch", f"exec 3>&1; ({run_parts}) | tail -n 1")
    words = ["sweep", "small.yaml", "CLUSTER=slurm", "EXECUTOR=array", "logger=csv"]
    assert cli.main([*words, "cluster.array.parts=2", "cluster.token=token"]) == 0
    ledger = Ledger("outputs/ledger")
    statuses = [ledger.read_result(each)["status"] for each in ledger.list_signatures()]
    assert statuses == ["finished"] * 2
