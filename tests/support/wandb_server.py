"""A W&B server for tests, on loopback: it speaks as much as wandb 0.31's client asks for.

It is not W&B: what it cannot show is how the real server behaves where the client does not look.
"""

import base64
import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import http_servers
from wandb_cloud import Cloud

# fine: answers. slow: after `delay` seconds. hang: accepts and never answers. refuse: 401.
# broken: 500. dead: closes the connection without a word. full: 429. drip: answers byte by byte.
Mode = Literal["fine", "slow", "hang", "refuse", "broken", "dead", "full", "drip"]
KEY = "planted" + "0" * 33  # as long as W&B's own; a test may look for it where it must not be
STATUS = {"refuse": 401, "broken": 500, "full": 429}


class WandbServer:
    """Its `url` and `environment`, and in `cloud` what arrived.

    `mode` may be changed at any time; `switch_later(n, mode)` changes it after n more requests.
    """

    def __init__(self) -> None:
        self.mode: Mode = "fine"
        self.cloud, self.delay, self.port = Cloud(), 0.3, 0
        self.requests: list[str] = []
        self.loses = ""  # requests with this in their address: answered, and forgotten
        self.faults: list[str] = []  # of this server itself: a test that sees one is no proof
        self.closed = threading.Event()
        self._later: list[tuple[int, Mode]] = []
        self._lock = threading.Condition()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs in its environment to be logged in here."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def switch_later(self, requests: int, mode: Mode) -> None:
        """After so many more requests, behave like this; several may be planned."""
        with self._lock:
            self._later = sorted([*self._later, (len(self.requests) + requests, mode)])

    def wait_for(self, what: Callable[[Cloud], bool], seconds: float = 30.0) -> bool:
        """Wait until what has arrived is as asked; looked at with every request."""
        with self._lock:
            return self._lock.wait_for(lambda: what(self.cloud), seconds)

    def note_request(self, what: str) -> Mode:
        """Note a request; how to behave."""
        with self._lock:
            self.requests.append(what)
            self._lock.notify_all()
            while self._later and len(self.requests) > self._later[0][0]:
                self.mode = self._later.pop(0)[1]
            return self.mode


@contextmanager
def serving_wandb() -> Iterator[WandbServer]:
    """A server on a free port of this machine, until the end of the block."""
    server = WandbServer()
    with http_servers.serving_http(_Handler, wandb=server) as server.port:
        try:
            yield server
        finally:
            server.closed.set()


class _Handler(http_servers.Handler):
    wandb: WandbServer

    def answer_request(self) -> None:
        """As the server's mode has it."""
        body = self.read_body()
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        mode = self.wandb.note_request(f"{self.command} {self.path}")
        if mode == "slow":
            self.wandb.closed.wait(self.wandb.delay)
        if mode in ("hang", "dead", "drip"):
            self._keep_waiting(mode)
        elif self.wandb.loses and self.wandb.loses in self.path:
            self._reply_json({})
        elif mode in STATUS or not self._is_logged_in():
            self._reply_json({"errors": [{"message": mode}]}, STATUS.get(mode, 401))
        else:
            try:
                self._reply_json(self._answer_path(body))
            except (KeyError, ValueError, TypeError) as error:
                self.wandb.faults.append(f"{self.path}: {error!r}")
                self._reply_json({"errors": [{"message": repr(error)}]}, 400)

    do_GET = do_POST = do_PUT = answer_request

    def _keep_waiting(self, mode: Mode) -> None:
        """Give no whole answer, and close the connection in the end."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            if mode == "drip":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not self.wandb.closed.wait(0.2):
                    self.wfile.write(b" ")
            elif mode == "hang":
                self.wandb.closed.wait()
            self.connection.shutdown(socket.SHUT_RDWR)

    def _is_logged_in(self) -> bool:
        if self.path.startswith("/upload/"):  # W&B's own upload addresses carry their permission
            return True
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        return base64.b64decode(given) == f"api:{KEY}".encode()

    def _answer_path(self, body: bytes) -> Mapping[str, Any]:
        _, first, *rest = self.path.split("/")
        cloud = self.wandb.cloud
        if first == "graphql":
            asked = json.loads(body)
            variables = asked.get("variables") or {}
            return cloud.answer_query(asked["query"], variables, self.wandb.url)
        with cloud.lock:
            if first == "files" and rest[-1] == "file_stream":
                cloud.runs[(rest[1], rest[2])].add_lines(json.loads(body))
            elif first == "upload" and rest[0] == "artifacts":
                cloud.artifacts[rest[1]]["/".join(rest[2:])] = body
            elif first == "upload":
                cloud.runs[(rest[0], rest[1])].uploads["/".join(rest[2:])] += 1
            elif first != "sdk":  # telemetry of the client
                raise ValueError("this server does not know the address")
        return {}

    def _reply_json(self, answer: Mapping[str, Any], status: int = 200) -> None:
        self.send_answer(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})
