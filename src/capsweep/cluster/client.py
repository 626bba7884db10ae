"""A client for the jobs of a Ray cluster. Only this file sends requests to Ray's job server.

Every request has an Authorization header with the token of the cluster. The token is read from
RAY_AUTH_TOKEN, from the file RAY_AUTH_TOKEN_PATH, or from ~/.ray/auth_token.
"""

import logging
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "5")  # Ray's default is 30

from capsweep.runtime import ray_start  # before Ray: sets variables that Ray reads on import

# isort: split
from ray._private import ray_constants
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]  # compiled
from ray.job_submission import JobSubmissionClient

from capsweep.errors import ConfigError, UnreachableError

for _name in ("ray", "ray.dashboard.modules.dashboard_sdk"):  # the second sets its own level
    logging.getLogger(_name).setLevel(logging.WARNING)

ANSWER_SECONDS = 5.0, 60.0  # timeouts: to connect; between two parts of an answer
LOCAL_SERVER = "http://127.0.0.1:8265"  # Ray's default; also for ssh tunnels
KEY = "RAY_ADDRESS or cluster.jobs"
WORKER_COMMAND = "--python_worker_command="  # an option of a raylet
JOB_ID = re.compile(r"(?P<name>capsweep-(?P<sweep>.+)-[0-9a-f]{8})-(?P<number>[0-9]+)")


def is_url(address: str | None) -> bool:
    """Return whether an address is a URL. A job server has a URL; Ray itself has host:port."""
    return address is not None and address.startswith(("http://", "https://"))


@dataclass(frozen=True)
class SweepJob:
    """A job that runs a sweep on a cluster.

    Attributes:
        id: Ray's id of the job: `name`, a hyphen and `number`.
        name: Name of the job's command, in the form `capsweep-SWEEP-HASH`. Equal commands have
            equal names.
        sweep: Name of the sweep, with `-` in place of characters that a URL cannot have.
        number: 1 for the first run of the command, 2 for the second, and so on.
        details: Ray's `JobDetails`, such as status and start time.
    """

    id: str
    name: str
    sweep: str
    number: int
    details: Any

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended: it succeeded, failed or was stopped."""
        return self.details.status.is_terminal()


class Jobs(JobSubmissionClient):
    """A client that submits, finds and stops the jobs of one cluster.

    The methods raise UnreachableError if nothing answers at the address. If the server refuses a
    request, the methods raise ConfigError with Ray's reason.

    Args:
        address: URL of the job server.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        os.environ["RAY_API_SERVER_ADDRESS"] = address  # Ray reads this before the argument
        with _named_faults(address):
            ray_start.check_listening(urlsplit(address).netloc)  # Ray would first miss a token
            super().__init__(address)

    def _do_request(self, method: str, endpoint: str, **rest: Any) -> Any:
        # Ray itself sets no timeout, and would wait for ever at a tunnel that hangs.
        with _named_faults(self.address):
            return super()._do_request(method, endpoint, **{"timeout": ANSWER_SECONDS, **rest})

    def _raise_error(self, r: Any) -> NoReturn:
        raise ConfigError(f"{self.address}: {_choose_line(r.text)}")

    def list_sweeps(self) -> list[SweepJob]:
        """Return the jobs that run or ran sweeps on the cluster, the newest last."""
        jobs = [_read_job(d) for d in self.list_jobs() if JOB_ID.fullmatch(d.submission_id or "")]
        return sorted(jobs, key=lambda job: (job.details.start_time or 0, job.id))

    def read_job(self, job_id: str) -> SweepJob:
        """Ask the server for a job, and return the job in its present state."""
        return _read_job(self.get_job_info(job_id))

    def read_log(self, job_id: str) -> str:
        """Return the output of a job so far; empty if the log or the node of the job is missing."""
        try:
            return self.get_job_logs(job_id)
        except UnreachableError:
            raise
        except ConfigError:
            return ""

    def find_python(self) -> str:
        """Return the path of the Python that Ray uses on the head node; `python` if unknown."""
        nodes = self._do_request("GET", "/nodes?view=summary").json()["data"]["summary"]
        heads = [node.get("cmdline") or () for node in nodes if node["raylet"].get("isHeadNode")]
        starts = [word for words in heads for word in words if word.startswith(WORKER_COMMAND)]
        return shlex.split(starts[0].removeprefix(WORKER_COMMAND))[0] if starts else "python"


def open_jobs(cluster: Mapping[str, Any]) -> Jobs:
    """Return a client for the jobs of a cluster.

    The URL of the job server is the first of these that applies:

    - `cluster.address`, if it is a URL;
    - `cluster.jobs`, if it is set;
    - LOCAL_SERVER, if `cluster.address` is `auto`;
    - the URL that the head at `cluster.address` gives.

    Args:
        cluster: The section `cluster` of the configuration.

    Raises:
        ConfigError: The cluster has no job server, no head answers at the address, the URL is
            invalid or has a password, or the server refuses the request.
        UnreachableError: Nothing answers at the URL.
    """
    url, head = cluster["jobs"], cluster["address"]
    if cluster.get("launcher") is not None or url is head is None:
        raise ConfigError(
            f"cluster={cluster['name']} has no job server; set CLUSTER=address, or RAY_ADDRESS to "
            "the address of a Ray cluster"
        )
    if is_url(head):
        url = head
    elif url is None:
        url = LOCAL_SERVER if head == "auto" else _find_server(head)
    if not is_url(url):
        raise ConfigError(f"{KEY}={url}: must be a URL, such as http://127.0.0.1:8265")
    if "@" in (place := urlsplit(url).netloc):
        raise ConfigError(
            f"{KEY}: credentials in the URL of {place.rpartition('@')[2]} would be printed and "
            "recorded; leave them out, and set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        )
    return Jobs(url)


def _find_server(address: str) -> str:
    """Ask the head of a cluster for the URL of the job server, and return the URL.

    Args:
        address: Address of the head, as host:port.

    Raises:
        ConfigError: No head answers at the address, the head refuses the token, or the cluster has
            no job server.
    """
    try:
        ray_start.check_listening(address)  # Ray itself would retry for many minutes
        with _named_faults(address):
            ensure_token_if_auth_enabled(create_token_if_missing=False)  # else Ray's core aborts
            place = GcsClient(address=address).internal_kv_get(
                ray_constants.DASHBOARD_ADDRESS.encode(),
                ray_constants.KV_NAMESPACE_DASHBOARD,
                timeout=ANSWER_SECONDS[0],
            )
    except (OSError, ray_start.exceptions.RpcError) as error:
        raise ConfigError(
            f"RAY_ADDRESS={address}: no head of Ray answers there ({error}); correct the address, "
            f"or name a job server, such as RAY_ADDRESS={LOCAL_SERVER}"
        ) from error
    if place is None:
        raise ConfigError(
            f"RAY_ADDRESS={address}: this cluster has no job server; install ray[default] on its "
            "head, and start it with the dashboard"
        )
    return f"http://{place.decode()}"


@contextmanager
def _named_faults(address: str) -> Iterator[None]:
    """Replace errors of Ray's clients inside the block by ConfigError or UnreachableError.

    The messages of the new errors name `address`.
    """
    try:
        yield
    except ConfigError:
        raise  # already an error of capsweep, with a message for the user
    except ray_start.exceptions.AuthenticationError as error:
        raise ConfigError(f"{address}: {ray_start.REFUSED_TOKEN}") from error
    except OSError as error:  # errors of sockets and of `requests` are OSErrors
        raise UnreachableError(
            f"no job server of Ray answers at {address}; start the head with ray[default] and its "
            "dashboard, open the tunnel (ssh -L 8265:127.0.0.1:8265 HEAD), or set another address: "
            "RAY_ADDRESS=http://HOST:PORT, RAY_API_SERVER_ADDRESS or cluster.jobs"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"{address}: {_choose_line(str(error))}") from error


def _read_job(details: Any) -> SweepJob:
    """Make a SweepJob from Ray's details of the job."""
    match = JOB_ID.fullmatch(details.submission_id)
    assert match is not None
    return SweepJob(match[0], match["name"], match["sweep"], int(match["number"]), details)


def _choose_line(text: str) -> str:
    """Return the line with the cause from a message of Ray.

    A traceback has the cause in the last line. Other messages have the cause in the first line;
    advice follows.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["Ray gives no reason"]
    return lines[-1 if "Traceback" in lines[0] else 0].rstrip(" .:")
