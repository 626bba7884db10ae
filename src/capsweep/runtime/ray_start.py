"""The start of Ray for all code of capsweep. Ray prints nothing, and its ports need a token.

Import this module before Ray. The module sets environment variables that Ray reads when it is
imported.
"""

import ctypes
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new output prints a table even when silent
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
# Otherwise a worker that ends kills its child processes before they can clean up. Our child
# processes end by themselves when the worker is gone, even after a SIGKILL of the worker.
os.environ.setdefault("RAY_kill_child_processes_on_worker_exit", "false")
os.environ.setdefault("RAY_AUTH_MODE", "token")  # else any client of Ray's ports can run code

import ray as ray
from ray import exceptions as exceptions
from ray._private import ray_constants, services
from ray._private import worker as ray_driver

# isort: split
import psutil  # pyright: ignore[reportMissingModuleSource]  # Ray brings it

from capsweep.errors import ConfigError
from capsweep.runtime import terminal

REFUSED_TOKEN = (
    "the cluster refuses the token, which is read from RAY_AUTH_TOKEN, from the file "
    "RAY_AUTH_TOKEN_PATH, or from ~/.ray/auth_token; set the token that its head was started with"
)
CURE = (
    "try again when the machine is less busy, set RAY_TMPDIR to a writable folder with a short "
    "path, or do without Ray (EXECUTOR=local)"
)
ANSWER_SECONDS = 10.0  # time in which a host that exists must accept a connection
START_SECONDS = 180.0  # time in which Ray must start, even on busy machines; Ray's default is 30
VITAL = ("gcs_server", "raylet")  # processes without which Ray hangs
PORT_WAIT, PRELOAD = "RAY_gcs_server_port_wait_time_s", "RAY_preload_python_modules"
LOOK_SECONDS, LEAVE_SECONDS = 0.1, 15.0  # between two checks; to end the work after Ray has died


class RayLostError(KeyboardInterrupt):
    """The Ray that this process started has died. This exception ends the work like Ctrl-C."""


@contextmanager
def connected(
    address: str | None,
    cpus: int | None = None,
    gpus: int | None = None,
    package: Path | None = None,
    imports: Sequence[str] = (),
) -> Iterator[None]:
    """Join a Ray cluster, and leave it after the block; or start Ray here, and stop it afterwards.

    Args:
        address: Address of the cluster to join; None: start Ray on this machine.
        cpus: Number of CPUs that Ray on this machine may use; None: all CPUs that Ray detects.
        gpus: Number of GPUs that Ray on this machine may use; None: all GPUs that Ray detects.
        package: Folder of our package. The folder is sent to the workers of the cluster, so that
            the workers need no installed capsweep. None: nothing is sent.
        imports: Modules that workers on this machine import while they wait for work. Ray starts
            one worker for each core.

    Raises:
        ConfigError: No cluster can be joined at `address`, or Ray does not start on this machine.
        RayLostError: Ray on this machine has died. A message on standard error says which process
            of Ray has ended.
    """
    before = signal.getsignal(signal.SIGTERM)
    # Ray on this machine listens on 127.0.0.1 only, as it does by default on macOS.
    joins, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, address is not None
    with ExitStack() as stack:
        stack.callback(setattr, ray_constants, "ENABLE_RAY_CLUSTER", joins)
        watch = None
        if address is None:
            if imports:
                os.environ[PRELOAD] = ",".join(imports)
                stack.callback(os.environ.pop, PRELOAD, None)
            watch = stack.enter_context(_RayWatch())
            stack.callback(setattr, services, "get_node", services.get_node)
            until = time.monotonic() + START_SECONDS
            services.get_node = partial(_wait_for_node, services.get_node, until)
        if PORT_WAIT not in os.environ:
            # The seconds for which Ray retries after any fault, even after a wrong token. The
            # variable is removed again, because this process may later join a cluster.
            os.environ[PORT_WAIT] = "1" if address else f"{START_SECONDS:.0f}"
            stack.callback(os.environ.pop, PORT_WAIT, None)
        stack.callback(ray.shutdown)
        ray_driver._worker_logs_enabled = False  # else Ray prints the log of a raylet that died
        dashboard = _start_or_join(address, cpus, gpus, package).dashboard_url
        if dashboard:
            terminal.print_aside(f"Ray's dashboard: http://{dashboard}")
        if callable(before):  # Ray has replaced the caller's handler by its own
            signal.signal(signal.SIGTERM, before)
        if watch is not None:
            stack.enter_context(watch.interrupting())
        yield


class _RayWatch:
    """A watch over the Ray that this process starts.

    When the raylet or the gcs_server has died, the watch kills all other processes of this Ray.
    Without the watch, Ray would wait for ever after the death of the raylet. After the death of the
    gcs_server, Ray would wait until a timeout ends this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vital: list[tuple[str, Any]] = []
        self._is_lost = False
        self._is_leaving, self._has_left = threading.Event(), threading.Event()

    def __enter__(self) -> "_RayWatch":
        self._others = {child.pid for child in _list_descendants()}
        _adopt_orphans(True)
        self._before = signal.signal(signal.SIGUSR2, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self._has_left.set()
        if not self._vital:  # Ray did not start completely; nothing else ends its processes
            self._kill_all()
        signal.signal(signal.SIGUSR2, self._before)
        _adopt_orphans(False)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise RayLostError inside the block if the Ray that this process started dies."""
        node: Any = ray_driver._global_node
        self._vital = [(name, node.all_processes[name][0].process) for name in VITAL]
        threading.Thread(target=self._watch_processes, name="watch-ray", daemon=True).start()
        try:
            yield
        except (Exception, KeyboardInterrupt):
            # Ray may raise its own error before the next check, or in place of RayLostError.
            if self._find_loss():
                raise RayLostError from None
            raise
        finally:
            self._is_leaving.set()

    def _interrupt(self, *_: object) -> None:
        if self._is_lost and not self._is_leaving.is_set():
            raise RayLostError

    def _watch_processes(self) -> None:
        """Wait until Ray dies or the block of `interrupting` ends.

        If Ray dies, interrupt the main thread. If the work does not stop, end this process.
        """
        while not self._find_loss():
            if self._is_leaving.wait(LOOK_SECONDS):
                return
        for _ in range(int(LEAVE_SECONDS)):
            # The signal is repeated, because Python can drop an exception of a signal handler.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
            if self._has_left.wait(1.0):
                return
        terminal.print_aside("stopped: Ray does not end; type the same command again to continue")
        os._exit(130)  # the exit status of Ctrl-C

    def _find_loss(self) -> bool:
        """Return whether Ray has died.

        The first call after Ray's death prints a message and kills the other processes of Ray.
        """
        with self._lock:
            gone = [name for name, process in self._vital if process.poll() is not None]
            if gone and not self._is_lost and not self._is_leaving.is_set():
                self._is_lost = True
                terminal.print_aside(f"Ray on this machine has died: its {gone[0]} ended")
                self._kill_all()
            return self._is_lost

    def _kill_all(self) -> None:
        """Kill all processes of this Ray.

        Children of a killed process become children of this process, so the next round of the loop
        finds them.
        """
        for _ in range(int(ANSWER_SECONDS)):
            rest = [child for child in _list_descendants() if child.pid not in self._others]
            for process in rest:
                process.kill()
            psutil.wait_procs(rest, timeout=1.0)


def _list_descendants() -> list[Any]:
    """Return all descendant processes of this process, including adopted zombies."""
    return psutil.Process().children(recursive=True)


def _adopt_orphans(is_on: bool) -> None:
    """Set whether this process adopts descendants that become orphans (only on Linux)."""
    ctypes.CDLL(None).prctl(36, int(is_on), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _start_or_join(
    address: str | None, cpus: int | None, gpus: int | None, package: Path | None
) -> Any:
    """Start Ray or join a cluster, and return what `ray.init` returns.

    Raises:
        ConfigError: Ray does not start, or no cluster can be joined at `address`.
    """
    runtime_env = None  # a job of Ray already brings the package to its driver and its workers
    if package is not None and "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
        runtime_env = {"py_modules": [str(package), str(package.with_name("data_prep"))]}
    try:
        if address is not None:
            check_listening(address)
        return ray.init(
            # With no address at all, Ray would join the cluster of RAY_ADDRESS or the last cluster
            # of this machine, and would wait even if that cluster is gone. "local" starts Ray here.
            address=address or "local",
            include_dashboard=None if address else False,
            num_cpus=cpus,
            num_gpus=gpus,
            runtime_env=runtime_env,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray raises many types, plain Exception among them
        text = " ".join(str(error).split()) or type(error).__name__
        if address is None:
            logs = f"{os.environ.get('RAY_TMPDIR', '/tmp')}/ray/session_latest/logs"
            raise ConfigError(f"Ray does not start ({text}); {CURE}; its logs: {logs}") from error
        # If a token is refused, Ray raises different types of errors. The text of the error or of
        # its cause then has the name of an authentication error.
        chain = "".join(traceback.format_exception(error))
        if "AuthenticationError" in chain or "InvalidAuthToken" in chain:
            raise ConfigError(f"RAY_ADDRESS={address}: {REFUSED_TOKEN}") from error
        raise ConfigError(
            f"RAY_ADDRESS={address}: no cluster of Ray can be joined there ({text}); start one, "
            "correct the address, or leave it out to use Ray on this machine"
        ) from error


def _wait_for_node(get_node: Callable[..., Any], until: float, *place: Any) -> Any:
    """Wait for a running raylet until START_SECONDS have passed; Ray itself would wait 30 s.

    Args:
        get_node: Ray's function, which raises RuntimeError while the raylet does not answer.
        until: The time at which to stop, on the clock `time.monotonic`.
        *place: The arguments of `get_node`.
    """
    while True:
        try:
            return get_node(*place)
        except RuntimeError as error:
            if time.monotonic() > until or not _has_raylet():
                raise TimeoutError("its raylet does not answer") from error
            time.sleep(LOOK_SECONDS)


def _has_raylet() -> bool:
    with suppress(psutil.NoSuchProcess):
        processes = _list_descendants()
        return any(p.name() == "raylet" and p.status() != psutil.STATUS_ZOMBIE for p in processes)
    return True  # a process ended during the search; the caller tries again


def check_listening(address: str) -> None:
    """Raise OSError if nothing listens at `address`, or if its port is not a number.

    Only addresses of the form host:port are checked. Without this check, Ray would try to connect
    for many minutes.
    """
    host, colon, port = address.rpartition(":")
    if colon and "://" not in address:
        if not port.isdecimal():
            raise OSError(f"the port must be a number, not {port}")
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
