"""SIGKILL to a trial, to the driver, to a raylet, at random times: the final answer is that of an
undisturbed run, to the last bit of every prediction."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def ended(process: subprocess.Popen[str]) -> str:
    """What a process said until its end."""
    said, _ = process.communicate(timeout=240)
    return said


def test_sigkill_to_a_trial(
    disturbed, undisturbed, chance: random.Random, note: dict, round_number: int
) -> None:
    process = disturbed.start()
    disturbed.wait_for_work()
    time.sleep(chance.uniform(0, 5))
    victims = [pid for pid in disturbed.owners() if pid != process.pid]
    for pid in victims[:1]:
        os.kill(pid, signal.SIGKILL)
    note |= {"killed": len(victims[:1]), "finished_before": disturbed.finished()}
    said = ended(process)
    assert process.returncode == 0, said
    assert disturbed.answer() == undisturbed
    note["equal"] = True


def test_sigkill_to_the_driver(
    disturbed, undisturbed, chance: random.Random, note: dict, round_number: int
) -> None:
    process = disturbed.start()
    disturbed.wait_for_work()
    time.sleep(chance.uniform(0, 5))
    process.kill()
    process.communicate()
    note |= {"killed": 1, "finished_before": disturbed.finished()}
    again = disturbed.run()
    assert again.returncode == 0, again.stdout + again.stderr
    assert disturbed.answer() == undisturbed
    note["equal"] = True


@pytest.fixture
def cluster() -> Iterator:
    """Two nodes on this machine, of one CPU each."""
    os.environ["RAY_AUTH_MODE"] = "token"
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "num_gpus": 0, "include_dashboard": False},
    )
    nodes.second = nodes.add_node(num_cpus=1, num_gpus=0)
    nodes.wait_for_nodes()
    yield nodes
    nodes.shutdown()


def test_sigkill_to_a_raylet(
    disturbed, undisturbed, cluster, chance: random.Random, note: dict, round_number: int
) -> None:
    process = disturbed.start("--address", cluster.address)
    disturbed.wait_for_work()
    time.sleep(chance.uniform(0, 5))
    raylet = cluster.second.all_processes["raylet"][0].process
    raylet.kill()
    raylet.wait()  # a zombie would pass for a living parent
    note |= {"killed": 1, "finished_before": disturbed.finished()}
    said = ended(process)
    assert process.returncode == 0, said
    assert disturbed.answer() == undisturbed
    note["equal"] = True
