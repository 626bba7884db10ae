"""A small object store that speaks S3 over HTTP on this machine, as far as pyarrow asks.

It keeps objects in memory, counts what it is asked, and can be told to fail. Signatures are not
checked: what is asked without credentials has no Authorization, which is refused.
"""

import base64
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

DATE = "Sun, 01 Nov 2026 00:00:00 GMT"
READING = ("GET", "HEAD")
PAGE = 1000  # names in one answer of a listing

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test-key",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "no_proxy": "127.0.0.1",
}
# What is done to the body of an answer to GET of an object; None: an answer of this status.
Disturbance = Callable[[str, bytes], bytes | int]


class S3Server:
    """objects: content by `bucket/key`. asked: requests by (operation, `bucket/key`)."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: Counter[tuple[str, str]] = Counter()
        self.disturb: Disturbance | None = None
        self.refuses: int | None = None  # a status that answers everything
        self.readers: set[str] = set()  # access keys with which nothing can be written
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.port = 0

    def url(self, place: str) -> str:
        """What `places.*` is given for bucket/folder."""
        at = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://{place}?{at}"

    def count(self, operation: str, ending: str = "") -> int:
        """Requests of one kind for objects whose name has this ending."""
        with self.lock:
            pairs = list(self.asked.items())
        return sum(n for (kind, name), n in pairs if kind == operation and name.endswith(ending))

    @property
    def total(self) -> int:
        """All requests until now."""
        with self.lock:
            return sum(self.asked.values())

    def forget(self) -> None:
        """Count from here on."""
        with self.lock:
            self.asked.clear()

    def put(self, name: str, content: bytes) -> None:
        """An object, as somebody uploaded it before."""
        with self.lock:
            self.objects[name] = content

    def upload(self, folder: Path, place: str) -> None:
        """Copy a folder to bucket/folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{place}/{path.relative_to(folder).as_posix()}", path.read_bytes())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: S3Server

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test's terminal is not a server's log."""

    def handle_one_request(self) -> None:
        """A client that is killed in the middle is no fault of the server."""
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def do_GET(self) -> None:
        """An object or a part of it, or a listing."""
        name, query = self._begin("GET")
        if self._refused():
            return
        if "/" not in name or "list-type" in query:
            self._list(name.split("/")[0], query)
            return
        content = self.store.objects.get(name)
        if content is None:
            self._error(404, "NoSuchKey")
            return
        start, stop = self._range(len(content))
        part: bytes | int = content[start:stop]
        if self.store.disturb is not None:
            part = self.store.disturb(name, bytes(part))
        if isinstance(part, int):
            self._error(part, "SlowDown" if part == 503 else "AccessDenied")
            return
        partial = self.headers.get("Range") is not None
        self.send_response(206 if partial else 200)
        self._object_headers(content)
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(part)
        if len(part) < stop - start:
            self.close_connection = True  # a truncated answer ends with the connection

    def do_HEAD(self) -> None:
        """Whether a bucket or an object is there, and its bytes."""
        name, _ = self._begin("HEAD")
        if self._refused():
            return
        content = b"" if "/" not in name else self.store.objects.get(name)
        self.send_response(404 if content is None else 200)
        if content is not None:
            self._object_headers(content)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()

    def do_PUT(self) -> None:
        """An object, or a part of one."""
        name, query = self._begin("PUT")
        body = self._body()
        if self._refused():
            return
        if "uploadId" in query:
            self.store.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
        else:
            self.store.put(name, body)
        self._answer(200, ETag=etag(body))

    def do_POST(self) -> None:
        """Begin or end a multipart upload, or delete several objects."""
        name, query = self._begin("POST")
        body = self._body()
        if self._refused():
            return
        bucket, _, key = name.partition("/")
        head = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key>"
        if "uploads" in query:
            with self.store.lock:
                upload = f"upload-{len(self.store.uploads)}"
                self.store.uploads[upload] = {}
            text = f"{head}<UploadId>{upload}</UploadId>"
            self._xml("InitiateMultipartUploadResult", text)
        elif "uploadId" in query:
            parts = self.store.uploads[query["uploadId"][0]]
            content = b"".join(parts[number] for number in sorted(parts))
            self.store.put(name, content)
            text = f"{head}<ETag>{etag(content)}</ETag>"
            self._xml("CompleteMultipartUploadResult", text)
        else:
            for part in body.decode().split("<Key>")[1:]:
                self.store.objects.pop(f"{bucket}/{part.split('</Key>')[0]}", None)
            self._xml("DeleteResult", "")

    def do_DELETE(self) -> None:
        """Delete an object, or give up a multipart upload."""
        name, query = self._begin("DELETE")
        if self._refused():
            return
        if "uploadId" not in query:
            with self.store.lock:
                self.store.objects.pop(name, None)
        self.send_response(204)
        self.end_headers()

    def _begin(self, method: str) -> tuple[str, dict[str, list[str]]]:
        split = urlsplit(self.path)
        name = unquote(split.path).lstrip("/")
        query = parse_qs(split.query, keep_blank_values=True)
        kind = "LIST" if "list-type" in query else method
        with self.store.lock:
            self.store.asked[kind, name] += 1
        return name, query

    def _refused(self) -> bool:
        status, authorization = self.store.refuses, self.headers.get("Authorization", "")
        reads = any(f"Credential={key}/" in authorization for key in self.store.readers)
        if status is None and (not authorization or (reads and self.command not in READING)):
            status = 403
        if status is not None:
            self._error(status, {403: "AccessDenied", 503: "SlowDown"}.get(status, "Error"))
        return status is not None

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        most = min(int(query.get("max-keys", [str(PAGE)])[0]), PAGE)
        with self.store.lock:
            names = sorted(self.store.objects)
        keys = [name.removeprefix(f"{bucket}/") for name in names if name.startswith(f"{bucket}/")]
        listed: dict[str, bool] = {}  # name to whether it is a folder
        for key in keys:
            if key.startswith(prefix):
                below, cut, _ = key.removeprefix(prefix).partition(delimiter or "\0")
                listed[f"{prefix}{below}{cut}"] = bool(cut)
        rest = [name for name in listed if name > after]
        page = rest[:most]
        text = f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
        text += f"<KeyCount>{len(page)}</KeyCount><MaxKeys>{most}</MaxKeys>"
        text += f"<IsTruncated>{str(len(rest) > most).lower()}</IsTruncated>"
        if len(rest) > most:
            text += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        for name in page:
            if listed[name]:
                text += f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                continue
            size = len(self.store.objects.get(f"{bucket}/{name}", b""))
            text += f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size>"
            text += "<LastModified>2026-11-01T00:00:00.000Z</LastModified>"
            text += "<ETag>e</ETag><StorageClass>STANDARD</StorageClass></Contents>"
        self._xml("ListBucketResult", text)

    def _range(self, size: int) -> tuple[int, int]:
        asked = self.headers.get("Range")
        if asked is None:
            return 0, size
        first, _, last = asked.removeprefix("bytes=").partition("-")
        return int(first), min(int(last or size) + 1, size)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            return unchunked(body)
        return body

    def _object_headers(self, content: bytes) -> None:
        self.send_header("ETag", etag(content))
        self.send_header("Last-Modified", DATE)
        self.send_header("Accept-Ranges", "bytes")

    def _xml(self, root: str, text: str) -> None:
        self._answer(200, f'<?xml version="1.0" encoding="UTF-8"?><{root}>{text}</{root}>')

    def _error(self, status: int, code: str) -> None:
        text = "" if self.command == "HEAD" else f"<Error><Code>{code}</Code></Error>"
        self._answer(status, text)

    def _answer(self, status: int, text: str = "", **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/xml", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving() -> Iterator[S3Server]:
    """A server on a free port of this machine, until the end of the block."""
    store = S3Server()
    handler = type("Handler", (_Handler,), {"store": store})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    store.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def unchunked(body: bytes) -> bytes:
    """The content of S3's own chunks: size;signature CRLF bytes CRLF, then trailers."""
    content, rest = b"", body
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        content, rest = content + rest[:size], rest[size + 2 :]
    return content


def etag(content: bytes) -> str:
    """What an answer calls this content."""
    return f'"{base64.b16encode(hashlib.sha1(content).digest()).decode().lower()}"'
