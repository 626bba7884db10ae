"""The Ray that a command starts for itself: it is closed to strangers, ends as a whole when it
loses a vital process, and where it cannot be had, a line says so.
"""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import commands
import processes
import pytest

from capsweep.errors import ConfigError
from capsweep.runtime import ray_start
from capsweep.runtime.ray_start import psutil

CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SECURITY_TOKEN",
    "AWS_SESSION_TOKEN",
    "RAY_AUTH_TOKEN",
    "WANDB_API_KEY",
)
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
MARK = "CAPSWEEP_TEST_RAY"  # in the environment of all that a command starts


@pytest.mark.parametrize("address", ["silent", "head", "head:port", "127.0.0.1:70000"])
def test_no_cluster_at_an_address(address: str) -> None:
    if address == "silent":  # one of this machine at which nobody listens
        with socket.socket() as used:
            used.bind(("127.0.0.1", 0))
            address = "{}:{}".format(*used.getsockname())
    with (
        pytest.raises(ConfigError, match=f"^RAY_ADDRESS={address}: no cluster"),
        ray_start.connected(address),
    ):
        pass


def test_where_there_is_a_dashboard_its_address_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in ("10.0.0.1:8265", ""):  # "": of a Ray without one
        context = SimpleNamespace(dashboard_url=url)
        monkeypatch.setattr(ray_start, "_start_or_join", lambda *_, context=context: context)
        with ray_start.connected("head:6379"):
            pass
    assert capsys.readouterr().err == "Ray's dashboard: http://10.0.0.1:8265\n"


@pytest.mark.parametrize("folder", ["file/below", "long" * 25])
def test_a_folder_that_ray_cannot_use(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / folder))
    with (
        pytest.raises(ConfigError, match=r"^RAY_TMPDIR: Ray does not start \(.*short path"),
        ray_start.connected(None, cpus=1),
    ):
        pass


@pytest.mark.parametrize("kind", [ValueError, TimeoutError, Exception])
def test_other_faults_are_not_the_folders_and_imports_are_not_the_next_rays(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**options: object) -> None:
        raise kind(os.environ.get(ray_start.PRELOAD))

    monkeypatch.setattr(ray_start.ray, "init", fail)
    for imports, text in (["json"], "json"), ([], "None"):
        message = rf"^Ray does not start \({text}\); .*logs are in /"
        with pytest.raises(ConfigError, match=message), ray_start.connected(None, imports=imports):
            pass


# A Ray that answers at the fifth question; Ray, which reads the clock between two of them, would
# give up at the second. It is another process, since one that had a Ray of its own joins no other.
SLOW = """
import time
from itertools import count
from types import SimpleNamespace

from ray._private import node

from capsweep.runtime import ray_start

readings, get_node, asked = count(step=31), ray_start.services.get_node, []

def find_node(*place):
    asked.append(place)
    if len(asked) < 5:
        raise RuntimeError("Failed to get node info")
    return get_node(*place)

node.time = SimpleNamespace(**{**vars(time), "monotonic": lambda: next(readings)})
ray_start.services.get_node = find_node
with ray_start.connected(None, cpus=1):
    print(ray_start.ray.is_initialized())
print(len(asked) >= 5, ray_start.services.get_node is find_node)
"""


@pytest.mark.slow
def test_a_ray_that_is_slow_to_start_is_waited_for() -> None:
    process = commands.start(program=["-c", SLOW])
    assert commands.read_to_end(process).splitlines() == ["True", "True True"]


# A Ray of which no word comes, as of one that a busy machine does not get to start.
SILENT = """
from capsweep.runtime import ray_start
from capsweep.errors import ConfigError

def find_node(*place):
    raise RuntimeError("Failed to get node info")

ray_start.services.get_node, ray_start.START_SECONDS = find_node, 0.0
try:
    with ray_start.connected(None, cpus=1):
        pass
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_ray_that_does_not_start_is_one_line_and_leaves_no_process() -> None:
    mark = secrets.token_hex(8)
    environment = {**os.environ, MARK: mark, ray_start.PORT_WAIT: "60"}  # the first of its waits
    process = commands.start(env=environment, program=["-c", SILENT])
    (line,) = commands.read_to_end(process).splitlines()
    assert line.startswith(
        "Ray does not start (its raylet gives no sign); where the machine is busy"
    )
    assert processes.with_variable(f"{MARK}={mark}") == []


@dataclass
class Observer:
    """Of all processes with a mark: their command lines, and the addresses they listen on."""

    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    commands: set[str] = field(default_factory=set)
    ports: set[tuple[str, str]] = field(default_factory=set)

    def look_around(self) -> None:
        """At what runs now."""
        for pid in processes.with_variable(f"{MARK}={self.mark}"):
            command = processes.command(pid)
            self.commands.add(command)
            with suppress(psutil.Error):  # it has ended
                for socket in psutil.Process(pid).net_connections("inet"):
                    if socket.status == psutil.CONN_LISTEN:
                        self.ports.add((socket.laddr.ip, command.strip()[-60:]))


@pytest.mark.slow
def test_a_sweep_shows_no_credential_and_listens_on_loopback_alone(
    small_sweep: Path, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    """Neither in a command line nor in a file that the sweep or its Ray left."""
    values = {name: f"marker-{name}-{secrets.token_hex(8)}" for name in CREDENTIALS}
    command = [sys.executable, "-m", "capsweep", "sweep", str(small_sweep), "ROUTING=3"]
    command += [f"STORAGE={tmp_path}", "logger=csv", "MAX_HOURS=1"]
    observer = Observer()
    with tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True) as logs:
        environment = {**clean_environment, **values, MARK: observer.mark, "RAY_TMPDIR": logs}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        while process.poll() is None:
            observer.look_around()
            time.sleep(0.2)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        files = [p for folder in (Path(logs), tmp_path) for p in folder.rglob("*") if p.is_file()]
        contents = {path: path.read_bytes() for path in files}
    assert any("ray::" in command for command in observer.commands), "no worker was seen"
    assert any(path.suffix in (".log", ".out") for path in contents), "no log was seen"
    for value in values.values():
        assert [command for command in observer.commands if value in command] == []
        assert [path for path, content in contents.items() if value.encode() in content] == []
    assert observer.ports
    assert {port for port in observer.ports if port[0] not in LOOPBACK} == set()


# A task that runs until it is killed, and a child of it in a session of its own, as W&B's
# processes may be. Nobody waits for the 600 seconds: they are what the test must end.
WAITS = """
import subprocess, sys, time
from capsweep.runtime.ray_start import connected, ray

@ray.remote
def wait():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("begun", flush=True)
    time.sleep(600)

with connected(None, cpus=1):
    ray.get(wait.remote())
"""


@pytest.mark.slow
@pytest.mark.parametrize("vital", ["raylet/raylet", "gcs/gcs_server"])
def test_all_of_a_lost_ray_ends_and_work_that_waits_is_interrupted(vital: str) -> None:
    mark = secrets.token_hex(8)

    def find_processes(part: str = "") -> list[int]:
        marked = processes.with_variable(f"{MARK}={mark}")
        return [pid for pid in marked if part in processes.command(pid)]

    process = commands.start(env={**os.environ, MARK: mark}, program=["-c", WAITS])
    try:
        processes.wait_until(lambda: find_processes("sleep 600"), 120)
        for pid in find_processes(vital):
            processes.kill(pid)
        output, _ = process.communicate(timeout=120)
        assert "the Ray of this machine is lost" in output
        assert "RayLostError" in output.splitlines()[-1]
        assert not find_processes()
    finally:
        for pid in find_processes():
            processes.kill(pid)
