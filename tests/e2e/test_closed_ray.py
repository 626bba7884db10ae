"""What others of this machine and its network see of a sweep with a Ray of its own: no credential
in a command line or a log, and no port beyond loopback."""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import processes
import pytest

pytestmark = pytest.mark.slow

CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SECURITY_TOKEN",
    "AWS_SESSION_TOKEN",
    "RAY_AUTH_TOKEN",
    "WANDB_API_KEY",
)
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
LISTENS = "0A"


@dataclass
class Seen:
    """Of all processes of a sweep, while it ran: command lines, and addresses listened on.

    written: every file that the sweep and its Ray left.
    """

    values: dict[str, str]
    commands: set[str] = field(default_factory=set)
    ports: set[tuple[str, str]] = field(default_factory=set)
    written: list[Path] = field(default_factory=list)

    def look(self, mark: str) -> None:
        """At what runs now."""
        sockets = _listening()
        for pid in processes.with_variable(mark):
            self.commands.add(command := processes.command(pid))
            for name in _open_sockets(pid) & sockets.keys():
                self.ports.add((sockets[name], command.strip()[-60:]))


@pytest.fixture(scope="module")
def seen(
    small_sweep: Path, tmp_path_factory: pytest.TempPathFactory, clean_environment: dict[str, str]
) -> Iterator[Seen]:
    """What is seen of a sweep whose environment holds every credential."""
    found = Seen({name: f"marker-{name}-{secrets.token_hex(8)}" for name in CREDENTIALS})
    storage = tmp_path_factory.mktemp("storage")
    command = [sys.executable, "-m", "capsweep", "sweep", str(small_sweep), "--routing", "3"]
    command += ["--storage", str(storage), "logger=csv", "--max-hours", "1"]
    with tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True) as logs:
        mark = {"CAPSWEEP_TEST_SEEN": secrets.token_hex(8)}
        environment = {**clean_environment, **found.values, **mark, "RAY_TMPDIR": logs}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        while process.poll() is None:
            found.look("=".join(*mark.items()))
            time.sleep(0.2)
        _, said = process.communicate()
        assert process.returncode == 0, said
        folders = (Path(logs), storage)
        found.written = [path for one in folders for path in one.rglob("*") if path.is_file()]
        assert any("ray::" in command for command in found.commands), "no worker was seen"
        assert any(path.suffix in (".log", ".out") for path in found.written), "no log was seen"
        yield found


@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_credential_of_the_environment_is_in_no_command_line_and_no_file(
    seen: Seen, name: str
) -> None:
    value = seen.values[name]
    assert [command for command in seen.commands if value in command] == []
    assert [path for path in seen.written if value.encode() in path.read_bytes()] == []


def test_all_ports_of_a_local_sweep_are_on_loopback(seen: Seen) -> None:
    assert seen.ports
    assert {port for port in seen.ports if port[0] not in LOOPBACK} == set()


def _listening() -> dict[str, str]:
    """The address of every socket of this machine that listens, by its name in /proc/PID/fd."""
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {f"socket:[{f[9]}]": f[1].partition(":")[0] for f in lines if f[3] == LISTENS}


def _open_sockets(pid: int) -> set[str]:
    found = set()
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            found.add(os.readlink(path))
    except OSError:  # it has ended, or closed what is looked at
        pass
    return found
