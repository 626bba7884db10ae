"""Real nodes of a Ray cluster on this machine, with token authentication on, each ended by the ids
of its processes. Never by `ray stop`, which ends every Ray there is."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import commands
import processes
import pytest

MARK = "CAPSWEEP_TEST_NODE"  # in the environment of all that a node starts
ENDS = 30.0  # seconds, within which a node that is told to end has ended
STORE = 100 * 2**20  # bytes of the object store


@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine on which Ray has never made a token."""
    from ray._raylet import AuthenticationTokenLoader  # capsweep must be imported before Ray

    with monkeypatch.context() as changed:
        changed.setenv("HOME", str(tmp_path))
        AuthenticationTokenLoader.instance().reset_cache()
        yield
    AuthenticationTokenLoader.instance().reset_cache()


@dataclass(frozen=True)
class Node:
    """One `ray start --block` and what it started.

    token: the file that RAY_AUTH_TOKEN_PATH names. jobs: where Ray takes jobs, None without a
    dashboard.
    """

    process: subprocess.Popen[str]
    mark: str
    address: str
    token: Path
    jobs: str | None

    def list_processes(self) -> list[int]:
        """All that is alive of this node, workers included."""
        return processes.with_variable(f"{MARK}={self.mark}")

    def make_environment(self, token: str | Path | None = None) -> dict[str, str]:
        """The environment of a driver; token: another text or file than the cluster's."""
        chosen = self.token if token is None else token
        named = "RAY_AUTH_TOKEN_PATH" if isinstance(chosen, Path) else "RAY_AUTH_TOKEN"
        return {**plain_environment(), named: str(chosen)}


@contextmanager
def running_head(folder: Path, dashboard: bool = False, **options: Any) -> Iterator[Node]:
    """The first node of a cluster, of a new token in a file of `folder`.

    options: of `_running_node`.
    """
    file = folder / "ray-token"
    file.write_text(secrets.token_hex(32))
    file.chmod(0o600)
    port, jobs = free_port(), free_port() if dashboard else None
    words = ["--head", f"--port={port}", f"--ray-client-server-port={free_port()}"]
    words += [f"--include-dashboard={dashboard}"]
    if jobs is not None:
        words += ["--dashboard-host=127.0.0.1", f"--dashboard-port={jobs}"]
    served = None if jobs is None else f"http://127.0.0.1:{jobs}"
    with _running_node(words, f"127.0.0.1:{port}", file, served, **options) as first:
        yield first


@contextmanager
def running_node(first: Node, **options: Any) -> Iterator[Node]:
    """A further node of the cluster that `first` is the head of; options: of `_running_node`."""
    words = [f"--address={first.address}"]
    with _running_node(words, first.address, first.token, first.jobs, **options) as further:
        yield further


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def plain_environment(*hidden: str) -> dict[str, str]:
    """Return this process's environment without what Ray reads or sets, but with tokens asked for
    and workers of normal priority.
    """
    names = [name for name in os.environ if not name.startswith("RAY_") and name not in hidden]
    plain = {name: os.environ[name] for name in names}
    return {**plain, "RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0"}


@contextmanager
def _running_node(
    words: Sequence[str],
    address: str,
    token: Path,
    jobs: str | None,
    cpus: int = 2,
    python: str | Path = sys.executable,
    environment: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> Iterator[Node]:
    """A node of so many processors.

    python: the interpreter of its workers, which see no PYTHONPATH. environment: further variables.
    within: the words before `python`, as `ip netns exec NAME`.
    """
    mark = secrets.token_hex(8)
    variables = {
        **plain_environment("PYTHONPATH"),
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        MARK: mark,
        **(environment or {}),
    }
    with tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True) as short:
        variables.setdefault("RAY_TMPDIR", short)  # where the address for "auto" is left
        start = [*within, str(python), "-m", "ray.scripts.scripts", "start", "--block"]
        start += ["--disable-usage-stats", f"--temp-dir={short}", f"--object-store-memory={STORE}"]
        start += [f"--num-cpus={cpus}", "--num-gpus=0", "--node-ip-address=127.0.0.1"]
        start += [f"--dashboard-agent-listen-port={free_port()}", *words]
        process = subprocess.Popen(
            start, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started = Node(process, mark, address, token, jobs)
        try:
            commands.read_to(process, "Ray runtime started")
            yield started
        finally:
            _end_node(started)


def _end_node(node: Node) -> None:
    """Tell a node to end; raises AssertionError where one of its processes does not."""
    node.process.send_signal(signal.SIGTERM)
    try:
        processes.wait_until(lambda: not node.list_processes(), ENDS)
    finally:
        for pid in node.list_processes():
            processes.kill(pid)
        node.process.communicate()


def make_bare_python(folder: Path) -> Path:
    """The interpreter of a new environment in `folder`, with all that capsweep needs and no
    capsweep; skips where capsweep would come along.
    """
    venv.create(folder, symlinks=True)
    libraries = next((folder / "lib").glob("python*/site-packages"))
    # Further .pth files in the folder that it names, as of an editable capsweep, are not read.
    (libraries / "libraries.pth").write_text(f"{distribution('torch').locate_file('')}\n")
    python = folder / "bin" / "python"
    sees = [python, "-I", "-c", "import torch, ray, capsweep.cli"]
    said = subprocess.run(sees, capture_output=True, text=True, cwd=folder).stderr
    if "No module named 'capsweep" not in said:
        pytest.skip(f"capsweep is installed beside the libraries, not in a checkout: {said}")
    return python
