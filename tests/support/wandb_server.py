"""A W&B server for tests, on loopback: it speaks as much as wandb 0.31's client asks for.

It is not W&B: what it cannot show is how the real server behaves where the client does not look.
"""

import base64
import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal

from wandb_cloud import Cloud

# fine: answers. slow: after `delay` seconds. hang: accepts and never answers. refuse: 401.
# broken: 500. dead: closes the connection without a word. full: 429. drip: answers byte by byte.
Mode = Literal["fine", "slow", "hang", "refuse", "broken", "dead", "full", "drip"]
KEY = "planted" + "0" * 33  # as long as W&B's own; a test may look for it where it must not be
STATUS = {"refuse": 401, "broken": 500, "full": 429}


class WandbServer:
    """`with WandbServer() as server:`; its `url` and `environment`, and in `cloud` what arrived.

    `mode` may be changed at any time; `later(n, mode)` changes it after n more requests. A server
    that is opened with the `cloud` of another knows what that one knew.
    """

    def __init__(self, mode: Mode = "fine", cloud: Cloud | None = None, delay: float = 0.3) -> None:
        self.mode: Mode = mode
        self.cloud = Cloud() if cloud is None else cloud
        self.delay = delay
        self.requests: list[str] = []
        self.loses: str | None = (
            None  # requests with this in their address: answered, and forgotten
        )
        self.faults: list[str] = []  # of this server itself: a test that sees one is no proof
        self.closed = threading.Event()
        self._later: list[tuple[int, Mode]] = []
        self._lock = threading.Condition()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "WandbServer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs in its environment to be logged in here."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def later(self, requests: int, mode: Mode) -> None:
        """After so many more requests, behave like this; several may be planned."""
        with self._lock:
            self._later = sorted([*self._later, (len(self.requests) + requests, mode)])

    def wait_for(self, what: Callable[[Cloud], bool], seconds: float = 30.0) -> bool:
        """Wait until what has arrived is as asked; looked at with every request."""
        with self._lock:
            return self._lock.wait_for(lambda: what(self.cloud), seconds)

    def arrived(self, what: str) -> Mode:
        """Note a request; how to behave."""
        with self._lock:
            self.requests.append(what)
            self._lock.notify_all()
            while self._later and len(self.requests) > self._later[0][0]:
                self.mode = self._later.pop(0)[1]
            return self.mode


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a client connects often at once; a lost connection costs seconds

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no fault of the server; others are in `faults`."""


def _handler(server: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Silence: pytest shows what a test asserts."""

        def _any(self) -> None:
            body = self._body()
            mode = server.arrived(f"{self.command} {self.path}")
            if mode == "hang":
                server.closed.wait()
            if mode in ("hang", "dead"):
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                return
            if mode == "slow":
                server.closed.wait(server.delay)
            if mode == "drip":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                with contextlib.suppress(OSError):
                    while not server.closed.wait(0.2):
                        self.wfile.write(b" ")
                self.close_connection = True
                return
            if server.loses is not None and server.loses in self.path:
                self._reply({})
                return
            if mode in STATUS or not self._known():
                self._reply({"errors": [{"message": mode}]}, STATUS.get(mode, 401))
                return
            try:
                self._reply(self._answer(body))
            except (KeyError, ValueError, TypeError) as error:
                server.faults.append(f"{self.path}: {error!r}")
                self._reply({"errors": [{"message": repr(error)}]}, 400)

        do_GET = do_POST = do_PUT = _any

        def _known(self) -> bool:
            if self.path.startswith(
                "/upload/"
            ):  # W&B's own upload addresses carry their permission
                return True
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            return base64.b64decode(given) == f"api:{KEY}".encode()

        def _answer(self, body: bytes) -> Mapping[str, Any]:
            _, first, *rest = self.path.split("/")
            if first == "graphql":
                asked = json.loads(body)
                return server.cloud.answer(asked["query"], asked.get("variables") or {}, server.url)
            if first == "files" and rest[-1] == "file_stream":
                with server.cloud.lock:
                    server.cloud.runs[(rest[1], rest[2])].stream(json.loads(body))
            elif first == "upload":
                with server.cloud.lock:
                    self._keep(rest, body)
            elif first != "sdk":  # telemetry of the client
                raise ValueError("this server does not know the address")
            return {}

        def _keep(self, rest: list[str], body: bytes) -> None:
            if rest[0] == "artifacts":
                server.cloud.artifacts[rest[1]]["/".join(rest[2:])] = body
                return
            run, name = server.cloud.runs[(rest[0], rest[1])], "/".join(rest[2:])
            run.files[name] = body
            run.uploads[name] += 1

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                content = b"".join(iter(self._chunk, b""))
            else:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            zipped = self.headers.get("Content-Encoding") == "gzip"
            return gzip.decompress(content) if zipped else content

        def _chunk(self) -> bytes:
            length = int(self.rfile.readline(), 16)
            chunk = self.rfile.read(length)
            self.rfile.readline()
            return chunk

        def _reply(self, answer: Mapping[str, Any], status: int = 200) -> None:
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler
