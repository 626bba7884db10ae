"""Ray, started in one way by all that use it: quiet, and its ports closed to strangers.

Import this module before Ray, which reads some of its environment when it is imported.
"""

import ctypes
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new output prints a table even when silent
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
# Else a worker that ends kills what it started before that could tidy up. All that a cell starts
# ends by itself when its process is gone: after a SIGKILL nobody else does it.
os.environ.setdefault("RAY_kill_child_processes_on_worker_exit", "false")
os.environ.setdefault("RAY_AUTH_MODE", "token")  # who reaches Ray's ports runs code

import ray as ray
from ray import exceptions as exceptions
from ray._private import ray_constants, services
from ray._private import worker as ray_driver

# isort: split
import psutil  # pyright: ignore[reportMissingModuleSource]  # Ray brings it

from capsweep.errors import ConfigError
from capsweep.runtime import terminal

REFUSED_TOKEN = (
    "the cluster refuses the token of RAY_AUTH_TOKEN, or else of the file RAY_AUTH_TOKEN_PATH or "
    "~/.ray/auth_token; give the one that its head was started with"
)
CURE = (
    "where the machine is busy, try again later, set RAY_TMPDIR to a short path of a folder that "
    "can be written, or do without Ray (EXECUTOR=local)"
)
ANSWER_SECONDS = 10.0  # within which a host that is there answers
START_SECONDS = 180.0  # that a busy machine may take to start Ray; Ray itself waits 30
VITAL = ("gcs_server", "raylet")  # Ray waits for these, or trains on without them
PORT_WAIT, PRELOAD = "RAY_gcs_server_port_wait_time_s", "RAY_preload_python_modules"
LOOK_SECONDS, LEAVE_SECONDS = 0.1, 15.0  # between two looks at them; to leave a Ray that is lost


class RayLostError(KeyboardInterrupt):
    """The Ray that this process started is gone: its work ends as it does at Ctrl-C."""


@contextmanager
def connected(
    address: str | None,
    cpus: int | None = None,
    gpus: int | None = None,
    package: Path | None = None,
    imports: Sequence[str] = (),
) -> Iterator[None]:
    """Give a Ray to work with: the cluster at `address`; None: one of this machine, for the block.

    cpus, gpus: what a Ray of this machine is told that it has, None: what it finds. package: is
    sent to the cluster's workers, which need have no other. imports: modules that the workers of a
    Ray of this machine, which starts one for each core, import while they wait for work.
    Raises ConfigError naming RAY_ADDRESS where there is no cluster that can be joined, and
    RayLostError, after a line that says so, when a Ray of this machine is lost.
    """
    before = signal.getsignal(signal.SIGTERM)
    # A Ray of this machine listens on 127.0.0.1 alone, as Ray does by itself on macOS.
    joins, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, address is not None
    with ExitStack() as stack:
        stack.callback(setattr, ray_constants, "ENABLE_RAY_CLUSTER", joins)
        watch = None
        if address is None:
            if imports:
                os.environ[PRELOAD] = ",".join(imports)
                stack.callback(os.environ.pop, PRELOAD, None)
            watch = stack.enter_context(_RayWatch())
            stack.enter_context(_waiting_for_raylet())
        if PORT_WAIT not in os.environ:
            # Of a cluster: seconds for which Ray tries again, whatever went wrong, a wrong token
            # as well. A process may start a Ray of its own and later join a cluster.
            os.environ[PORT_WAIT] = "1" if address else f"{START_SECONDS:.0f}"
            stack.callback(os.environ.pop, PORT_WAIT, None)
        stack.callback(ray.shutdown)
        ray_driver._worker_logs_enabled = False  # the last lines of a lost raylet's log
        dashboard = _start_or_join(address, cpus, gpus, package).dashboard_url
        if dashboard:
            terminal.print_aside(f"Ray's dashboard: http://{dashboard}")
        if callable(before):  # Ray has put its own in the place of the caller's
            signal.signal(signal.SIGTERM, before)
        if watch is not None:
            stack.enter_context(watch.interrupting())
        yield


class _RayWatch:
    """Ends the Ray that this process starts, all of it, when its raylet or its GCS is gone.

    Ray itself would wait for a raylet without end, and for a GCS until it ends this process.
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
        if not self._vital:  # it did not start, and nobody else ends what began
            self._kill_all()
        signal.signal(signal.SIGUSR2, self._before)
        _adopt_orphans(False)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """End the block with RayLostError when the Ray that was started is lost."""
        node: Any = ray_driver._global_node
        self._vital = [(name, node.all_processes[name][0].process) for name in VITAL]
        threading.Thread(target=self._watch_processes, name="watch-ray", daemon=True).start()
        try:
            yield
        except (Exception, KeyboardInterrupt):
            # What Ray says of it may come sooner than a look; of a signal it makes its own error.
            if self._find_loss():
                raise RayLostError from None
            raise
        finally:
            self._is_leaving.set()

    def _interrupt(self, *_: object) -> None:
        if self._is_lost and not self._is_leaving.is_set():
            raise RayLostError

    def _watch_processes(self) -> None:
        while not self._find_loss():
            if self._is_leaving.wait(LOOK_SECONDS):
                return
        for _ in range(int(LEAVE_SECONDS)):
            # Again and again: Python drops an exception that a signal raises at a bad moment.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
            if self._has_left.wait(1.0):
                return
        terminal.print_aside(
            "stopped without waiting for Ray; run the same command again to continue"
        )
        os._exit(130)  # as at Ctrl-C

    def _find_loss(self) -> bool:
        """Whether Ray is lost; if so, its remaining processes are killed."""
        with self._lock:
            gone = [name for name, process in self._vital if process.poll() is not None]
            if gone and not self._is_lost and not self._is_leaving.is_set():
                self._is_lost = True
                terminal.print_aside(f"the Ray of this machine is lost: its {gone[0]} ended")
                self._kill_all()
            return self._is_lost

    def _kill_all(self) -> None:
        """Kill all processes of this Ray; children of a killed one are adopted, and found next."""
        for _ in range(int(ANSWER_SECONDS)):
            rest = [child for child in _list_descendants() if child.pid not in self._others]
            for process in rest:
                process.kill()
            psutil.wait_procs(rest, timeout=1.0)


def _list_descendants() -> list[Any]:
    """Return all processes below this one; also zombies that it adopted."""
    return psutil.Process().children(recursive=True)


def _adopt_orphans(is_on: bool) -> None:
    ctypes.CDLL(None).prctl(36, int(is_on), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _start_or_join(
    address: str | None, cpus: int | None, gpus: int | None, package: Path | None
) -> Any:
    runtime_env = None  # a driver that is a job came with its package, which its workers get
    if package is not None and "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
        runtime_env = {"py_modules": [str(package), str(package.with_name("data_prep"))]}
    try:
        if address is not None:
            check_listening(address)
        return ray.init(
            # Without an address Ray would join whatever cluster this machine, or RAY_ADDRESS, last
            # had, and wait for it when it is gone; the caller decides.
            address=address or "local",
            include_dashboard=None if address else False,
            num_cpus=cpus,
            num_gpus=gpus,
            runtime_env=runtime_env,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray's own, of the class Exception among them
        text = " ".join(str(error).split()) or type(error).__name__
        if address is None:
            logs = f"{os.environ.get('RAY_TMPDIR', '/tmp')}/ray/session_latest/logs"
            raise ConfigError(f"Ray does not start ({text}); {CURE}; its logs: {logs}") from error
        # Ray makes other errors of a refused token, which quote it or were raised from it.
        chain = "".join(traceback.format_exception(error))
        if "AuthenticationError" in chain or "InvalidAuthToken" in chain:
            raise ConfigError(f"RAY_ADDRESS={address}: {REFUSED_TOKEN}") from error
        raise ConfigError(
            f"RAY_ADDRESS={address}: no cluster of Ray can be joined there ({text}); start one, "
            "correct the address, or leave it out for a Ray of this machine"
        ) from error


@contextmanager
def _waiting_for_raylet() -> Iterator[None]:
    """Let Ray wait for its raylet for as long as that runs; by itself it waits 30 s."""
    get_node, until = services.get_node, time.monotonic() + START_SECONDS

    def wait_for_node(*place: Any) -> Any:
        while True:
            try:
                return get_node(*place)
            except RuntimeError as error:
                if time.monotonic() > until or not _has_raylet():
                    raise TimeoutError("its raylet gives no sign") from error
                time.sleep(LOOK_SECONDS)

    services.get_node = wait_for_node
    try:
        yield
    finally:
        services.get_node = get_node


def _has_raylet() -> bool:
    with suppress(psutil.NoSuchProcess):
        processes = _list_descendants()
        return any(p.name() == "raylet" and p.status() != psutil.STATUS_ZOMBIE for p in processes)
    return True  # some process ended meanwhile: it is looked for again


def check_listening(address: str) -> None:
    """Raise OSError where nobody listens, which Ray would try again for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "://" not in address and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
