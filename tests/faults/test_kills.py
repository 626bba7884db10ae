"""SIGKILL to a trial, to the driver, to a raylet, to parts of the Ray that a sweep starts itself,
at random times: the final answer is that of an undisturbed run, to the last bit of predictions."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator

import processes
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


def test_sigkill_to_the_raylet_of_the_default_ray(
    disturbed, undisturbed, chance: random.Random, note: dict, round_number: int
) -> None:
    _lose_ray(("raylet/raylet",), disturbed, undisturbed, chance, note)


def test_sigkill_to_the_gcs_of_the_default_ray(
    disturbed, undisturbed, chance: random.Random, note: dict, round_number: int
) -> None:
    _lose_ray(("gcs/gcs_server",), disturbed, undisturbed, chance, note)


def test_sigkill_to_all_of_the_default_ray_at_once(
    disturbed, undisturbed, chance: random.Random, note: dict, round_number: int
) -> None:
    _lose_ray(("/ray/", "ray::"), disturbed, undisturbed, chance, note)


def _lose_ray(
    signs: tuple[str, ...], disturbed, undisturbed, chance: random.Random, note: dict
) -> None:
    """Kill what has one of these signs in its command: the sweep ends as if it was interrupted, in
    a line, with nothing of it left, and the same command goes on.
    """
    process = disturbed.start("--max-hours", "1")  # with the actor that bounds are told by
    disturbed.wait_for_work()
    time.sleep(chance.uniform(0, 4))
    alive = disturbed.processes().items()
    victims = [pid for pid, said in alive if any(sign in said for sign in signs)]
    victims = [pid for pid in victims if pid != process.pid]
    for pid in victims:
        processes.kill(pid)
    hit = time.monotonic()
    note |= {"killed": len(victims), "finished_before": disturbed.finished()}
    said = ended(process)
    note |= {"ended_after": round(time.monotonic() - hit, 1), "left": len(disturbed.processes())}
    assert process.returncode == 130, said
    assert not disturbed.processes()
    assert said.count("the Ray of this machine is lost: ") == 1, said
    assert "the same command goes on" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert note["ended_after"] < 45  # 7 on an idle machine; Ray alone waits 60, or for ever
    again = disturbed.run()
    assert again.returncode == 0, again.stdout + again.stderr
    assert disturbed.answer() == undisturbed
    note["equal"] = True
