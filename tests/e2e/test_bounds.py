"""--max-hours and --max-gpu-hours with real processes: what runs leaves at an epoch's end, its
checkpoint kept; the same command goes on; no failure is in the ledger, also after a kill -9."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import shard_folders

from capsweep.shards.reader import declare_data_set

pytestmark = pytest.mark.slow

# So many epochs that none ends by itself, and no checkpoint but that of a cell that leaves.
LONG = ["epochs=100000", "limit_batches=1", "trainer.checkpoint_interval=86400", "logger=csv"]
HOURS = ("0.004", "0.01", "0.04")  # a busy machine may take most of the first to start


@pytest.fixture
def command(small_sweep: Path, tmp_path: Path) -> list[str]:
    """A sweep of one long CapsNet cell and the baseline's."""
    start = [sys.executable, "-m", "capsweep", "sweep", str(small_sweep), "--seeds", "1"]
    return [*start, "--routing", "3", "--recon", "off", "--storage", str(tmp_path), *LONG]


def epochs(storage: Path) -> dict[str, list[int]]:
    """The epochs in each cell's metrics.jsonl."""
    found = {}
    for path in storage.glob("ledger/*/*/metrics.jsonl"):
        lines = path.read_text().splitlines()
        found[path.parent.name] = [json.loads(line)["epoch"] for line in lines]
    return found


def trained(storage: Path) -> int:
    """Epochs of all cells together."""
    return sum(map(len, epochs(storage).values()))


def checkpoints(storage: Path) -> int:
    return len(list(storage.glob("ledger/*/*/resume.ckpt")))


def check_consistent(storage: Path) -> None:
    """No failure, no claim that is held, no epoch twice."""
    assert not list(storage.glob("ledger/*/*/error.txt"))
    assert not list(storage.glob("ledger/*/*/result.json"))
    for rows in epochs(storage).values():
        assert rows == list(range(len(rows)))


def bounded_run(
    command: list[str], storage: Path, environment: dict[str, str], epochs_before: int = 0
) -> tuple[str, str]:
    """The command, within hours that let a cell get on; these, and what it said."""
    for hours in HOURS:
        ended = subprocess.run(
            [*command, "--max-hours", hours],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == 3, said
        if trained(storage) > epochs_before:
            return hours, said
    raise AssertionError(f"no cell got on in {HOURS[-1]} hours")


def test_a_bounded_sweep_ends_at_an_epoch_and_the_same_command_goes_on(
    command: list[str], tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    hours, first = bounded_run([*command, "--executor", "local"], tmp_path, clean_environment)
    assert f"--max-hours {hours}: what runs then leaves at its next epoch end" in first
    assert "left at the end of an epoch, its checkpoint kept" in first
    said = "--max-hours is reached: 0 of 2 cells are finished; the same command goes on"
    assert said in first
    assert "Traceback" not in first
    assert checkpoints(tmp_path) == 1
    check_consistent(tmp_path)
    before = trained(tmp_path)
    bounded_run([*command, "--executor", "local"], tmp_path, clean_environment, before)
    check_consistent(tmp_path)


def test_sigterm_is_a_notice_to_a_job_without_ray(
    command: list[str], tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    process = subprocess.Popen(
        [*command, "--executor", "array", "--shard", "1/1"],
        env=clean_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    processes.wait_until(lambda: any(len(rows) > 2 for rows in epochs(tmp_path).values()), 60)
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=30)
    assert process.returncode == 130, said + errors
    assert "left at the end of an epoch" in said
    assert checkpoints(tmp_path) == 1
    check_consistent(tmp_path)


SHARDS = """question: Does it leave in order?
base: [dataset=multimnist_shards, model=capsnet_small, batch_size=16, dataset.batches.workers=1]
seeds: [0]
baseline: capsnet
arms: {capsnet: {fixed: []}}
table: {rows: [arm], columns: [], metric: test/error}
"""


def test_a_sigterm_to_every_process_of_a_job_is_no_failure_of_its_cell(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    whole = shard_folders.make(tmp_path / "shards")
    (tmp_path / "shards.yaml").write_text(SHARDS)
    words = [*declare_data_set(whole.content), f"dataset.shards.folders=[{tmp_path / 'shards'}]"]
    words += ["dataset.batches.epoch_examples=60", "dataset.batches.test_examples=50"]
    words += ["trainer.accelerator=cpu", "model.conv.channels=8", "model.decoder.hidden=[16]"]
    words += [word for word in LONG if "limit_batches" not in word]
    start = [sys.executable, "-m", "capsweep", "sweep", str(tmp_path / "shards.yaml"), *words]
    process = subprocess.Popen(
        [*start, "--executor", "array", "--shard", "1/1", "--storage", str(tmp_path)],
        env=clean_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        processes.wait_until(lambda: any(len(rows) > 2 for rows in epochs(tmp_path).values()), 90)
        os.killpg(process.pid, signal.SIGTERM)
        said, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said + errors
    check_consistent(tmp_path)


# A driver whose hour is over when its cells have trained an epoch more than they had.
SOON_OVER = """
import sys, time
from pathlib import Path
from capsweep import cli
from capsweep.sweep.limits import Limits

def trained():
    files = Path(sys.argv[1]).glob("ledger/*/*/metrics.jsonl")
    return sum(path.read_bytes().count(b"\\n") for path in files)

before = trained()
Limits.__init__.__defaults__ = (None, lambda: time.monotonic() + 3600 * (trained() > before))
sys.exit(cli.main(sys.argv[2:]))
"""


def test_a_driver_killed_at_the_bound_leaves_a_ledger_that_goes_on(
    command: list[str], tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    words = command[command.index("sweep") :]
    bounded = [sys.executable, "-c", SOON_OVER, str(tmp_path), *words, "--max-hours", "1"]
    with subprocess.Popen(
        bounded, env=clean_environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:  # until a cell leaves
            processes.wait_until(
                lambda: checkpoints(tmp_path) > 0 or process.poll() is not None, 200
            )
        finally:
            family = processes.descendants(process.pid)
            trials = [pid for pid in family if "ray::ImplicitFunc" in processes.command(pid)]
            process.kill()
    # Trials train on until their Ray has ended. The next driver would count their epochs.
    processes.wait_until(lambda: not any(processes.is_alive(pid) for pid in trials), 60)
    assert checkpoints(tmp_path) > 0
    assert not list(tmp_path.glob("ledger/*/*/error.txt"))
    before = trained(tmp_path)
    again = subprocess.run(
        [*bounded, "--executor", "local"],
        env=clean_environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert again.returncode == 3, again.stdout + again.stderr
    assert "--max-hours is reached" in again.stdout
    assert trained(tmp_path) > before
    check_consistent(tmp_path)


SCRIPT = """
import sys, tempfile, time
from pathlib import Path
from capsweep.sweep.executors import ray_tune
from capsweep.config import compose
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.limits import Bounds, Limits
from capsweep.sweep.gpu_packing import Capacity
from capsweep.sweep.queue import JobQueue
from capsweep.tracking.labels import Labels

class Heard:
    begun = left = 0
    def on_start(self, signature): Heard.begun += 1
    def on_epoch(self, signature, row): pass
    def on_message(self, signature, what): print(what, file=sys.stderr)
    def on_end(self, signature, outcome): Heard.left += outcome.paused

class Unknown:
    def seconds(self, cell): return None
    def add(self, result): pass

def work(job, hooks):
    epoch = 0
    while not hooks.on_epoch({"epoch": epoch}):
        time.sleep(0.2)  # the epoch's work
        epoch += 1
    return Outcome(paused=True)

with tempfile.TemporaryDirectory() as folder:
    wanted = [(0, 4), (1, 1), (2, 1)]
    cells = [compose.cell([f"seed={s}", f"resources.gpu={gpu}"]) for s, gpu in wanted]
    limits = Limits(Bounds(gpu=10.0))
    queue = JobQueue([Job(c, Labels()) for c in cells], Ledger(folder), Heard(), Unknown(), limits)
    ray_tune.execute(queue, Path(folder), work=work, declared=Capacity(cpu=4, gpu=5))
print(limits.reached, Heard.begun, Heard.left, queue.count_left, limits.gpu_seconds)
"""


def test_gpu_hours_of_all_running_cells_bound_a_sweep_on_ray() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    reached, begun, left, waiting, taken = ended.stdout.split()[-5:]
    assert (reached, waiting) == ("--max-gpu-hours", "3")
    assert left == begun in ("1", "2")  # the worker of the second may begin after the bound
    assert 10 <= float(taken) < 10 + 5 * 8, (
        "five devices, for an epoch and what a busy machine takes"
    )
