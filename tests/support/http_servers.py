"""HTTP on loopback, for stand-ins of servers."""

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO


class Handler(BaseHTTPRequestHandler):
    """Reads bodies and sends answers."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test's terminal is not a server's log."""

    def read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            return read_chunks(self.rfile)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send_answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Their Content-Length is the body's where headers have none."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a client connects often at once; a lost connection costs seconds

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or is killed in the middle, is no fault of the server."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def serving_http(handler: type[Handler], **attributes: object) -> Iterator[int]:
    """The free port at which the handler, with these attributes, answers within the block."""
    server = _Server(("127.0.0.1", 0), type("Handler", (handler,), attributes))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def read_chunks(file: BinaryIO) -> bytes:
    """The content of chunks, HTTP's or S3's own: size;signature CRLF bytes CRLF, then trailers."""
    content = b""
    while size := int(file.readline().split(b";")[0], 16):
        content += file.read(size)
        file.readline()
    while file.readline().strip():
        pass
    return content
