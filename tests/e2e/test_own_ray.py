"""The Ray that a command starts for itself: it is closed to strangers, ends as a whole when it
loses a vital process, and where it cannot be had, a line says so.
"""

import os
import secrets
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import commands
import processes
import pytest
from ray_nodes import no_token as no_token  # a fixture

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


@pytest.mark.usefixtures("no_token")  # Ray must not miss it first
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


@pytest.mark.parametrize("folder", ["file/below", "long" * 25])
def test_a_folder_that_ray_cannot_use(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / folder))
    message = r"^Ray does not start \(.*; .*set RAY_TMPDIR to a writable folder"
    with pytest.raises(ConfigError, match=message), ray_start.connected(None, cpus=1):
        pass


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
    assert line.startswith("Ray does not start (its raylet does not answer); try again when")
    assert processes.with_variable(f"{MARK}={mark}") == []


def look_around(mark: str, lines: set[str], ports: set[tuple[str, str]]) -> None:
    """Note the command lines of all processes with a mark, and the addresses they listen on."""
    for pid in processes.with_variable(f"{MARK}={mark}"):
        lines.add(line := processes.command(pid))
        with suppress(psutil.Error):  # it has ended
            for socket in psutil.Process(pid).net_connections("inet"):
                if socket.status == psutil.CONN_LISTEN:
                    ports.add((socket.laddr.ip, line.strip()[-60:]))


@pytest.mark.slow
def test_a_sweep_shows_no_credential_and_listens_on_loopback_alone(
    small_sweep: Path, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    """Neither in a command line nor in a file that the sweep or its Ray left."""
    values = {name: f"marker-{name}-{secrets.token_hex(8)}" for name in CREDENTIALS}
    words = ["sweep", str(small_sweep), "ROUTING=3", f"STORAGE={tmp_path}", "logger=csv"]
    mark, lines, ports = secrets.token_hex(8), set[str](), set[tuple[str, str]]()
    with tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True) as logs:
        environment = {**clean_environment, **values, MARK: mark, "RAY_TMPDIR": logs}
        process = commands.start(*words, "MAX_HOURS=1", env=environment)
        while process.poll() is None:
            look_around(mark, lines, ports)
            time.sleep(0.2)
        commands.read_to_end(process)
        files = [p for folder in (Path(logs), tmp_path) for p in folder.rglob("*") if p.is_file()]
        contents = {path: path.read_bytes() for path in files}
    assert any("ray::" in line for line in lines), "no worker was seen"
    assert any(path.suffix in (".log", ".out") for path in contents), "no log was seen"
    for value in values.values():
        assert [line for line in lines if value in line] == []
        assert [path for path, content in contents.items() if value.encode() in content] == []
    assert ports
    assert {port for port in ports if port[0] not in LOOPBACK} == set()
