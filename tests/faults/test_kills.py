"""SIGKILL to a trial, to the driver, to a raylet, to parts of the Ray that a sweep starts itself,
at random times: the final answer is that of an undisturbed run, to the last bit of predictions.
"""

import random
import time
from collections.abc import Callable, Iterator

import processes
import pytest
from commands import read_to_end

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Hit = Callable[[Callable[[], list[int]]], None]
# Parts of the Ray that a sweep starts, and what their commands have in them.
PARTS = {
    "the_raylet": ["raylet/raylet"],
    "the_gcs": ["gcs/gcs_server"],
    "all": ["/ray/", "ray::"],
}


@pytest.fixture
def hit(disturbed, chance: random.Random, note: dict) -> Hit:
    """Kills the processes that a function finds, at a random moment of a sweep that works."""

    def kill_victims(find_victims: Callable[[], list[int]]) -> None:
        disturbed.wait_for_work()
        time.sleep(chance.uniform(0, 5))
        victims = find_victims()
        for pid in victims:
            processes.kill(pid)
        note.update(killed=len(victims), finished_before=disturbed.count_finished())

    return kill_victims


def test_sigkill_to_a_trial(disturbed, undisturbed, hit: Hit, note: dict) -> None:
    process = disturbed.start()
    hit(lambda: [pid for pid in disturbed.list_owners() if pid != process.pid][:1])
    read_to_end(process)
    assert disturbed.read_answer() == undisturbed
    note["equal"] = True


def test_sigkill_to_the_driver(disturbed, undisturbed, hit: Hit, note: dict) -> None:
    process = disturbed.start()
    hit(lambda: [process.pid])
    process.communicate()
    read_to_end(disturbed.start())
    assert disturbed.read_answer() == undisturbed
    note["equal"] = True


@pytest.fixture
def cluster() -> Iterator:
    """Two nodes on this machine, of one CPU each."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "num_gpus": 0, "include_dashboard": False},
    )
    nodes.second = nodes.add_node(num_cpus=1, num_gpus=0)
    nodes.wait_for_nodes()
    yield nodes
    nodes.shutdown()


def test_sigkill_to_a_raylet(disturbed, undisturbed, cluster, hit: Hit, note: dict) -> None:
    process = disturbed.start(f"RAY_ADDRESS={cluster.address}")
    raylet = cluster.second.all_processes["raylet"][0].process
    hit(lambda: [raylet.pid])
    raylet.wait()  # a zombie would pass for a living parent
    read_to_end(process)
    assert disturbed.read_answer() == undisturbed
    note["equal"] = True


@pytest.mark.parametrize("part", PARTS)
def test_sigkill_of_the_default_ray(
    disturbed, undisturbed, hit: Hit, note: dict, part: str
) -> None:
    """The sweep ends as if it was interrupted, in a line, with nothing of it left, and the same
    command goes on.
    """
    note["fault"] = f"sigkill_to_{part}_of_the_default_ray"
    process = disturbed.start("MAX_HOURS=1")

    def find_victims() -> list[int]:
        commands = {k: v for k, v in disturbed.find_processes().items() if k != process.pid}
        return [pid for pid, text in commands.items() if any(sign in text for sign in PARTS[part])]

    hit(find_victims)
    hit_at = time.monotonic()
    output = read_to_end(process, 130)
    seconds, left = round(time.monotonic() - hit_at, 1), disturbed.find_processes()
    note |= {"ended_after": seconds, "left": len(left)}
    assert not left
    assert output.count("Ray on this machine has died: ") == 1, output
    assert "type the same command again to continue" in output.splitlines()[-1]
    assert "Traceback" not in output
    read_to_end(disturbed.start())
    assert disturbed.read_answer() == undisturbed
    note["equal"] = True
