"""What a small object store keeps, what it was asked, and how it is told to fail."""

import base64
import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

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
