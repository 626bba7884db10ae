"""A small object store that speaks S3 over HTTP on this machine, as far as pyarrow asks.

It keeps objects in memory, counts what it is asked, and can be told to fail. Signatures are not
checked: what is asked without credentials has no Authorization, which is refused.
"""

import hashlib
import io
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import http_servers

DATE = "Sun, 01 Nov 2026 00:00:00 GMT"
ERRORS = {403: "AccessDenied", 404: "NoSuchKey", 503: "SlowDown"}

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test-key",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "no_proxy": "127.0.0.1",
}
# What is done to the body of an answer to GET of an object; a number: an answer of this status.
Disturbance = Callable[[str, bytes], bytes | int]


class S3Server:
    """objects: content by `bucket/key`. asked: requests by (operation, `bucket/key`)."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: Counter[tuple[str, str]] = Counter()
        self.disturb: Disturbance | None = None
        self.refuses: int | None = None  # a status that answers everything
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.port = 0

    def url(self, place: str) -> str:
        """What `places.*` is given for bucket/folder."""
        at = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://{place}?{at}"

    def count(self, operation: str, ending: str = "") -> int:
        """Requests of one kind for objects whose name has this ending."""
        pairs = list(self.asked.items())
        return sum(n for (kind, name), n in pairs if kind == operation and name.endswith(ending))

    @property
    def total(self) -> int:
        """All requests until now."""
        return sum(self.asked.values())

    def upload(self, folder: Path, place: str) -> None:
        """Copy a folder to bucket/folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"{place}/{path.relative_to(folder)}"] = path.read_bytes()


class _Handler(http_servers.Handler):
    store: S3Server

    def answer_request(self) -> None:
        """Count it, and answer it unless it is refused."""
        split = urlsplit(self.path)
        name = unquote(split.path).lstrip("/")
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        kind = "LIST" if "list-type" in query else self.command
        answer = {"LIST": self._list, "PUT": self._put, "POST": self._post, "DELETE": self._delete}
        with self.store.lock:
            self.store.asked[kind, name] += 1
        body = self.read_body()
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            body = http_servers.read_chunks(io.BytesIO(body))
        status = self.store.refuses or (0 if self.headers.get("Authorization") else 403)
        if status:
            self._send_error(status)
        else:
            answer.get(kind, self._read)(name, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer_request

    def _read(self, name: str, *others: object) -> None:
        """An object or a part of it; of HEAD, whether a bucket or an object is there, its size."""
        is_head = self.command == "HEAD"
        content = b"" if is_head and "/" not in name else self.store.objects.get(name)
        if content is None:
            return self._send_error(404)
        start, stop, status = 0, len(content), 200
        headers = {"ETag": _name_content(content), "Last-Modified": DATE, "Accept-Ranges": "bytes"}
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or stop) + 1, stop)
            status, headers["Content-Range"] = 206, f"bytes {start}-{stop - 1}/{len(content)}"
        part: bytes | int = b"" if is_head else content[start:stop]
        if self.store.disturb is not None and not is_head:
            part = self.store.disturb(name, content[start:stop])
        if isinstance(part, int):
            return self._send_error(part)
        self.send_answer(status, part, {**headers, "Content-Length": str(stop - start)})
        if len(part) < stop - start and not is_head:
            self.close_connection = True  # a truncated answer ends with the connection

    def _put(self, name: str, query: dict[str, str], body: bytes) -> None:
        """An object, or a part of one."""
        if "uploadId" in query:
            self.store.uploads[query["uploadId"]][int(query["partNumber"])] = body
        else:
            self.store.objects[name] = body
        self.send_answer(200, b"", {"ETag": _name_content(body)})

    def _post(self, name: str, query: dict[str, str], body: bytes) -> None:
        """Begin or end a multipart upload, or delete several objects."""
        if "uploads" in query:
            upload = secrets.token_hex(4)
            self.store.uploads[upload] = {}
            self._send_xml("InitiateMultipartUploadResult", _write_tags(UploadId=upload))
        elif "uploadId" in query:
            parts = self.store.uploads[query["uploadId"]]
            content = b"".join(parts[number] for number in sorted(parts))
            self.store.objects[name] = content
            tags = _write_tags(ETag=_name_content(content))
            self._send_xml("CompleteMultipartUploadResult", tags)
        else:
            for part in body.decode().split("<Key>")[1:]:
                self.store.objects.pop(f"{name.strip('/')}/{part.split('</Key>')[0]}", None)
            self._send_xml("DeleteResult", "")

    def _delete(self, name: str, query: dict[str, str], body: bytes) -> None:
        """Delete an object, or give up a multipart upload."""
        if "uploadId" not in query:
            self.store.objects.pop(name, None)
        self.send_answer(204, b"", {})

    def _list(self, name: str, query: dict[str, str], body: bytes) -> None:
        """All names with a prefix, in one answer, where a real store gives a thousand at a time."""
        bucket, prefix = name.split("/")[0], query.get("prefix", "")
        start, listed = f"{bucket}/{prefix}", {}
        for key, content in sorted(self.store.objects.copy().items()):
            if key.startswith(start):
                below, cut, _ = key.removeprefix(start).partition(query.get("delimiter") or "\0")
                listed[f"{prefix}{below}{cut}"] = None if cut else len(content)
        text = _write_tags(KeyCount=len(listed), IsTruncated="false")
        for key, size in listed.items():
            if size is None:
                text += f"<CommonPrefixes>{_write_tags(Prefix=key)}</CommonPrefixes>"
            else:
                facts = _write_tags(Key=key, Size=size, LastModified="2026-11-01T00:00:00.000Z")
                text += f"<Contents>{facts}</Contents>"
        self._send_xml("ListBucketResult", text)

    def _send_xml(self, root: str, tags: str) -> None:
        body = f'<?xml version="1.0" encoding="UTF-8"?><{root}>{tags}</{root}>'.encode()
        self.send_answer(200, body, {"Content-Type": "application/xml"})

    def _send_error(self, status: int) -> None:
        code = _write_tags(Code=ERRORS.get(status, "Error"))
        body = b"" if self.command == "HEAD" else f"<Error>{code}</Error>".encode()
        self.send_answer(status, body, {})


@contextmanager
def serving_store() -> Iterator[S3Server]:
    """A server on a free port of this machine, until the end of the block."""
    store = S3Server()
    with http_servers.serving_http(_Handler, store=store) as store.port:
        yield store


def _name_content(content: bytes) -> str:
    """What tells this content from others."""
    return f'"{hashlib.sha1(content).hexdigest()}"'


def _write_tags(**texts: object) -> str:
    return "".join(f"<{name}>{escape(str(text))}</{name}>" for name, text in texts.items())
