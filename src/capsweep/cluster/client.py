"""Jobs of a cluster: the one file that speaks to Ray's job server.

The token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token) goes along in the Authorization
header of every request.
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

os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "5")  # Ray's own 30 are long

from capsweep.runtime import ray_start  # before Ray: it sets what Ray reads when it is imported

# isort: split
from ray._private import ray_constants
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]  # compiled
from ray.job_submission import JobSubmissionClient

from capsweep.errors import ConfigError, UnreachableError

for _name in ("ray", "ray.dashboard.modules.dashboard_sdk"):  # the second sets its own
    logging.getLogger(_name).setLevel(logging.WARNING)

ANSWER_SECONDS = 5.0, 60.0  # to connect, and between two pieces of an answer
LOCAL_SERVER = "http://127.0.0.1:8265"  # Ray's own choice; a tunnel ends there too
KEY = "RAY_ADDRESS or cluster.jobs"
WORKER_COMMAND = "--python_worker_command="  # of a raylet
JOB_ID = re.compile(r"(?P<name>capsweep-(?P<sweep>.+)-[0-9a-f]{8})-(?P<number>[0-9]+)")


def is_url(address: str | None) -> bool:
    """Whether an address is where jobs are taken, and not that of Ray itself."""
    return address is not None and address.startswith(("http://", "https://"))


@dataclass(frozen=True)
class SweepJob:
    """Describes a sweep's job.

    name: of its command. number: of the run of that. details: what Ray says of it, a `JobDetails`.
    """

    id: str
    name: str
    sweep: str
    number: int
    details: Any

    @property
    def has_ended(self) -> bool:
        """Whether it will change no more."""
        return self.details.status.is_terminal()


class Jobs(JobSubmissionClient):
    """Submits, finds and stops the jobs of one cluster.

    Every method raises UnreachableError where nobody answers, and ConfigError naming the cure where
    the answer is no.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        os.environ["RAY_API_SERVER_ADDRESS"] = address  # Ray prefers it to the argument
        with _named_faults(address):
            super().__init__(address)

    def _do_request(self, method: str, endpoint: str, **rest: Any) -> Any:
        # Ray's would wait for an answer for ever: a tunnel that hangs says nothing.
        with _named_faults(self.address):
            return super()._do_request(method, endpoint, **{"timeout": ANSWER_SECONDS, **rest})

    def _raise_error(self, r: Any) -> NoReturn:
        raise ConfigError(f"{self.address}: {_choose_line(r.text)}")

    def list_sweeps(self) -> list[SweepJob]:
        """Return every sweep's job that the cluster knows, the newest last."""
        jobs = [_read_job(d) for d in self.list_jobs() if JOB_ID.fullmatch(d.submission_id or "")]
        return sorted(jobs, key=lambda job: (job.details.start_time or 0, job.id))

    def read_job(self, job_id: str) -> SweepJob:
        """Return a job as it is now."""
        return _read_job(self.get_job_info(job_id))

    def read_log(self, job_id: str) -> str:
        """Return all that the job has printed; nothing where its node is gone, or it had none."""
        try:
            return self.get_job_logs(job_id)
        except UnreachableError:
            raise
        except ConfigError:
            return ""

    def find_python(self) -> str:
        """Return the program that Ray runs its workers with on the head, else `python`."""
        nodes = self._do_request("GET", "/nodes?view=summary").json()["data"]["summary"]
        heads = [node.get("cmdline") or () for node in nodes if node["raylet"].get("isHeadNode")]
        starts = [word for words in heads for word in words if word.startswith(WORKER_COMMAND)]
        return shlex.split(starts[0].removeprefix(WORKER_COMMAND))[0] if starts else "python"


def open_jobs(cluster: Mapping[str, Any]) -> Jobs:
    """Return the jobs of a cluster: at `cluster.jobs`, else where its head says that it takes them.

    Raises ConfigError where there is no job server, or the URL has a password.
    """
    url, head = cluster["jobs"], cluster["address"]
    if cluster.get("launcher") is not None or url is head is None:
        raise ConfigError(
            f"cluster={cluster['name']} has no job server; set CLUSTER=address, or RAY_ADDRESS to "
            "that of a cluster"
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
    """Return where the cluster of a head takes jobs, as the head says. address: host:port.

    Raises ConfigError where it takes none.
    """
    try:
        ray_start.check_listening(address)  # Ray itself would try again for long
        with _named_faults(address):
            ensure_token_if_auth_enabled(create_token_if_missing=False)  # Ray's core would abort
            place = GcsClient(address=address).internal_kv_get(
                ray_constants.DASHBOARD_ADDRESS.encode(),
                ray_constants.KV_NAMESPACE_DASHBOARD,
                timeout=ANSWER_SECONDS[0],
            )
    except (OSError, ray_start.exceptions.RpcError) as error:
        raise ConfigError(
            f"RAY_ADDRESS={address}: no head of Ray answers there ({error}); correct it, or give "
            f"where it takes jobs, such as RAY_ADDRESS={LOCAL_SERVER}"
        ) from error
    if place is None:
        raise ConfigError(
            f"RAY_ADDRESS={address}: this cluster takes no jobs; start its head with ray[default] "
            "and its dashboard"
        )
    return f"http://{place.decode()}"


@contextmanager
def _named_faults(address: str) -> Iterator[None]:
    """Raise faults of Ray's clients in our words."""
    try:
        yield
    except ConfigError:
        raise  # ours
    except ray_start.exceptions.AuthenticationError as error:
        raise ConfigError(f"{address}: {ray_start.REFUSED_TOKEN}") from error
    except OSError as error:  # of sockets and `requests` alike
        raise UnreachableError(
            f"no job server of Ray answers at {address}; start the head with ray[default] and its "
            "dashboard, open the tunnel (ssh -L 8265:127.0.0.1:8265 HEAD), or name another place: "
            "RAY_ADDRESS=http://HOST:PORT, RAY_API_SERVER_ADDRESS or cluster.jobs"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"{address}: {_choose_line(str(error))}") from error


def _read_job(details: Any) -> SweepJob:
    """Return a job of capsweep's."""
    match = JOB_ID.fullmatch(details.submission_id)
    assert match is not None
    return SweepJob(match[0], match["name"], match["sweep"], int(match["number"]), details)


def _choose_line(text: str) -> str:
    """Return the line that matters of what Ray says.

    That is the first, which its manual follows, or the last of a traceback.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it says nothing"]
    return lines[-1 if "Traceback" in lines[0] else 0].rstrip(" .:")
