"""Why a trial ended, as Ray 2.60 says it, in one line."""

import pytest

pytest.importorskip("ray")

from capsweep.ledger import causes
from capsweep.ledger.causes import CauseKind
from capsweep.sweep.executors import ends
from capsweep.sweep.losses import FRUITLESS, Losses

DIED = """Failure # 1 (occurred at 2026-11-22_04-50-58)
The actor died unexpectedly before finishing this task.
\tclass_name: ImplicitFunc
\tactor_id: 6a3f5c385429b87678d0376701000000
\tpid: 10354
\tnamespace: c34ab3b9-3f45-4251-bbee-f3e876f61696
\tip: 192.0.2.2
"""
WORKER = (
    "The actor is dead because its worker process has died. Worker exit type: {} Worker exit "
    "detail: {}"
)
KILLED = WORKER.format(
    "SYSTEM_ERROR",
    "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes "
    "include: (1) the process was killed by the OOM killer due to high memory usage",
)
NODE = (
    "The actor died because its node has died. Node Id: 651d99fe3cd68e80447343e2\n"
    "\tthe actor's node was terminated unexpectedly: health check failed due to missing too many "
    "heartbeats\nThe actor never ran - it was cancelled before it started running."
)
ENVIRONMENT = (
    "Failed to set up runtime environment.\nCould not create the actor because its associated "
    "runtime env failed to be created.\nOSError: [Errno 28] No space left on device"
)
CREATION = (
    "The actor died because of an error raised in its creation task, ray::ImplicitFunc.__init__() "
    "(pid=9, ip=192.0.2.2)\n  File x.py\nModuleNotFoundError: No module named 'torch'"
)
LOST = {
    DIED + KILLED: "its worker process on 192.0.2.2 was killed or crashed (SYSTEM_ERROR: Worker "
    "unexpectedly exits with a connection error code 2. End of file)",
    DIED + WORKER.format("USER_ERROR", "Worker exits with an exit code 3."): "its worker process "
    "on 192.0.2.2 ended (USER_ERROR: Worker exits with an exit code 3)",
    DIED + NODE: "its node 192.0.2.2 was lost: terminated unexpectedly: health check failed due to "
    "missing too many heartbeats",
    ENVIRONMENT: "its worker could not start: OSError: [Errno 28] No space left on device",
    CREATION: "its worker could not start: ModuleNotFoundError: No module named 'torch'",
    "": ends.GONE,
}


@pytest.mark.parametrize(
    ("said", "why"),
    LOST.items(),
    ids=["killed", "exit code", "node", "environment", "creation", "no word"],
)
def test_a_lost_worker_is_told_by_what_became_of_it(said: str, why: str) -> None:
    cause = ends.cause(said)
    assert cause == causes.describe_loss(why)
    assert causes.kind_of_cause(cause) == CauseKind.LOST


def test_a_node_without_memory_is_named_as_that() -> None:
    killed = "1 worker(s) were killed due to the node running low on memory. Memory on the node"
    cause = ends.cause(DIED + WORKER.format("NODE_OUT_OF_MEMORY", f"{killed} was 0.9GB used"))
    assert cause == causes.NODE_MEMORY
    assert causes.kind_of_cause(cause) == CauseKind.OUT_OF_MEMORY
    assert causes.is_loss(cause)


def test_what_ray_says_at_length_is_cut() -> None:
    assert len(ends.cause(f"{ENVIRONMENT}{'x' * 9999}")) < 400


def test_an_environment_that_cannot_be_set_up_is_not_tried_for_ever() -> None:
    losses, cause = Losses(), ends.cause(ENVIRONMENT)
    ended = [losses.lost("cell", cause) for _ in range(FRUITLESS)]
    assert ended[:-1] == [None] * (FRUITLESS - 1)
    assert "its worker could not start: OSError" in (ended[-1] or "")
