"""Ray Jobs: the one file that speaks to the job server of a cluster.

The token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token) goes along in the Authorization
header of every request, and of the socket of the log.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from capsweep import ray_start  # before Ray: it sets what Ray reads when it is imported

# isort: split
from aiohttp import ClientError
from ray.job_submission import JobSubmissionClient

from capsweep.cluster import job_names
from capsweep.cluster.job_names import Name
from capsweep.cluster.job_server import NO_SERVER
from capsweep.errors import ConfigError

for chatty in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk"):
    logging.getLogger(f"ray.{chatty}").setLevel(logging.WARNING)
logging.getLogger("ray._private.runtime_env.packaging").setLevel(logging.WARNING)

ANSWERS = 5.0, 60.0  # seconds: to connect, and between two pieces of an answer
TAIL = 1000  # lines: a table at the end is shorter
MOST_NODES = 10_000  # lost ones included; Ray serves no more, and a hundred unless it is asked
CODE = "capsweep_code"  # in a job's metadata
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
OVERRULING = "RAY_API_SERVER_ADDRESS"  # what Ray prefers to the address that it is given


class UnreachableError(ConfigError):
    """Nobody answers: the cluster, its dashboard or the tunnel is not there."""


class TakenError(ConfigError):
    """Another submitter was given this id."""


@dataclass(frozen=True)
class SweepJob:
    """A sweep's job. since, until: seconds of the epoch. command: what its driver runs. code: of
    the package that it was sent with; None where it came with an image. node: Ray's id of that of
    its driver.
    """

    id: str
    name: Name
    state: str
    command: str
    message: str
    since: float | None
    until: float | None
    status: int | None
    code: str | None = None
    node: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it will change no more."""
        return self.state in ENDED


@dataclass(frozen=True)
class Nodes:
    """What a cluster has now. total, used: amounts by resource; used: None where it is not told."""

    count: int
    total: Mapping[str, float]
    used: Mapping[str, float] | None


class Jobs:
    """The jobs of one cluster. Every method raises UnreachableError where nobody answers and
    ConfigError naming the cure where the answer is no."""

    def __init__(self, address: str) -> None:
        self.address = address
        with self._told(), _preferred(address):
            self._client = _Client(address)

    def submit(self, name: Name, command: str, runtime_env: Mapping[str, Any], code: str) -> None:
        """Start a job. Raises TakenError when the id is in use."""
        with self._told(taken=name):
            self._client.submit_job(
                entrypoint=command,
                submission_id=str(name),
                runtime_env=dict(runtime_env),
                metadata={CODE: code},
            )

    def all(self) -> list[SweepJob]:
        """Every sweep's job that the cluster knows, the newest last."""
        with self._told():
            found = [_job(details) for details in self._client.list_jobs()]
        return sorted((job for job in found if job), key=lambda job: (job.since or 0, job.id))

    def of(self, submission_id: str) -> SweepJob:
        """One job as it is now."""
        with self._told():
            found = _job(self._client.get_job_info(submission_id))
        assert found is not None
        return found

    def stop(self, submission_id: str) -> None:
        """Ask a job to end: SIGTERM, and after a while SIGKILL."""
        with self._told():
            self._client.stop_job(submission_id)

    def log(self, submission_id: str) -> str:
        """All that the job has printed."""
        with self._told():
            return self._client.get_job_logs(submission_id)

    def end_of_log(self, job: SweepJob) -> str:
        """The last TAIL lines that a job has printed; none before it has a node."""
        if job.node is None:
            return ""
        with self._told():
            asked = f"/api/v0/logs/file?node_id={job.node}&submission_id={job.id}&lines={TAIL}"
            return self._client.read(asked).decode(errors="replace")

    def nodes(self) -> Nodes:
        """What the cluster has, and, some seconds old at most, what is in use of it."""
        with self._told():
            listed = json.loads(self._client.read(f"/api/v0/nodes?detail=1&limit={MOST_NODES}"))
            status = json.loads(self._client.read("/api/cluster_status"))
        try:
            return _nodes(listed, status)
        except (LookupError, TypeError, AttributeError) as error:
            told = f"{self.address}: tells its nodes in another way than this Ray"
            raise ConfigError(told) from error

    async def follow(self, submission_id: str) -> AsyncIterator[str]:
        """What the job has printed, from the beginning, and what it prints, to its end."""
        try:
            async for text in self._client.tail_job_logs(submission_id):
                yield text
        except (ClientError, OSError, RuntimeError) as error:
            raise UnreachableError(f"{self.address}: {_first(error)}") from error

    @contextmanager
    def _told(self, taken: Name | None = None) -> Iterator[None]:
        """Faults of Ray's client in our words."""
        try:
            yield
        except ray_start.exceptions.AuthenticationError as error:
            raise ConfigError(f"{self.address}: {ray_start.token_refused()}") from error
        except OSError as error:  # of sockets and `requests` alike
            raise UnreachableError(NO_SERVER.format(address=self.address)) from error
        except (RuntimeError, ValueError) as error:
            if taken is not None and "already exists" in str(error):
                raise TakenError(f"{taken}: another submitter was first") from error
            raise ConfigError(f"{self.address}: {_first(error)}") from error


class _Client(JobSubmissionClient):
    """Ray's, which would wait for an answer for ever: a tunnel that hangs says nothing."""

    def _do_request(self, method: str, endpoint: str, **rest: Any) -> Any:
        return super()._do_request(method, endpoint, **{"timeout": ANSWERS, **rest})

    def read(self, endpoint: str) -> bytes:
        """What the server has there. Raises RuntimeError with what it says instead."""
        answer = self._do_request("GET", endpoint)
        if answer.status_code != HTTPStatus.OK:
            raise RuntimeError(f"{endpoint.partition('?')[0]}: {answer.status_code}: {answer.text}")
        return answer.content


@contextmanager
def _preferred(address: str) -> Iterator[None]:
    """What RAY_ADDRESS and RAY_API_SERVER_ADDRESS are in this shell does not decide."""
    before = os.environ.get(OVERRULING)
    os.environ[OVERRULING] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[OVERRULING]
        else:
            os.environ[OVERRULING] = before


def _job(details: Any) -> SweepJob | None:
    name = job_names.read(details.submission_id or "")
    if name is None:
        return None
    return SweepJob(
        details.submission_id,
        name,
        str(details.status.value),
        details.entrypoint,
        details.message or "",
        details.start_time and details.start_time / 1000,
        details.end_time and details.end_time / 1000,
        details.driver_exit_code,
        (details.metadata or {}).get(CODE),
        details.driver_node_id,
    )


def _nodes(listed: Any, status: Any) -> Nodes:
    total: Counter[str] = Counter()
    alive = [node for node in listed["data"]["result"]["result"] if node["state"] == "ALIVE"]
    for node in alive:
        total.update(node["resources_total"])
    # Ray's first autoscaler leaves a report; its second, where that is chosen, does not.
    report = (status["data"]["clusterStatus"] or {}).get("loadMetricsReport") or {}
    used = {name: amounts[0] for name, amounts in report.get("usage", {}).items()}
    return Nodes(len(alive), total, used or None)


def _first(error: Exception) -> str:
    """The line that matters of what Ray says: the first, which its manual follows, or the last
    of a traceback.
    """
    text = str(error).strip(" .\n") or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1 if "Traceback" in lines[0] else 0].rstrip(" .:")
