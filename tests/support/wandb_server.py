"""A W&B server for tests, on loopback: it speaks as much as wandb 0.31's client asks for.

It is learnt from the queries that the client carries, and is not W&B: what it cannot show is how
the real server behaves where the client does not look.
"""

import base64
import contextlib
import gzip
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import http_servers

# fine: answers. slow: after `delay` seconds. hang: accepts and never answers. refuse: 401.
# broken: 500. dead: closes the connection without a word. drip: answers byte by byte.
Mode = Literal["fine", "slow", "hang", "refuse", "broken", "dead", "drip"]
KEY = "planted" + "0" * 33  # as long as W&B's own; a test may look for it where it must not be
STATUS = {"refuse": 401, "broken": 500}
ENTITY = "tester"
VIEWER = {
    **dict.fromkeys(("id", "entity", "username", "name"), ENTITY),
    **{"email": "", "flags": "{}", "admin": False, "teams": {"edges": []}},
}
# Answers that depend on nothing, by operation.
FIXED: dict[str, dict[str, Any]] = {
    "viewer": {"viewer": VIEWER},
    "getdefaultentity": {"viewer": VIEWER},
    "serverfeaturesquery": {"serverInfo": {"features": []}},
    "organizationcoreweaveorganizationid": {"entity": {"organization": None}},
    "artifacttype": {"project": {"artifact": None}},
}


@dataclass
class Run:
    """One run: its fields, the lines of its streams, and how often each file was put there."""

    name: str
    project: str
    fields: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, list[str]] = field(default_factory=dict)
    uploads: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    exit_code: int | None = None

    def lines(self, stream: str) -> list[str]:
        return self.streams.setdefault(stream, [])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every line of history as the client sent it, in the order of the lines."""
        return [json.loads(line) for line in self.lines("wandb-history.jsonl")]

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, without W&B's own key."""
        stored = json.loads(self.fields.get("config") or "{}")
        return {key: entry["value"] for key, entry in stored.items() if key != "_wandb"}

    @property
    def summary(self) -> dict[str, Any]:
        """The last summary, from the stream or from the file that ends a run."""
        return json.loads("".join(self.lines("wandb-summary.json")[-1:]) or "{}")

    @property
    def state(self) -> str:
        """As W&B shows it."""
        return {None: "running", 0: "finished"}.get(self.exit_code, "failed")

    def add_lines(self, sent: dict[str, Any]) -> None:
        """A request of the file stream: lines from an offset on replace what is there."""
        for name, chunk in (sent.get("files") or {}).items():
            lines, start = self.lines(name), chunk["offset"]
            if start > len(lines):
                raise ValueError(f"{name}: line {start} was sent, but {len(lines)} are here")
            lines[start : start + len(chunk["content"])] = chunk["content"]
        if sent.get("complete"):
            self.exit_code = sent.get("exitcode")

    def describe(self) -> dict[str, Any]:
        """The run as the public API reads it, and as a client that resumes does."""
        history, events = self.lines("wandb-history.jsonl"), self.lines("wandb-events.jsonl")
        names = ("displayName", "tags", "notes", "jobType")
        return {
            **{name: self.fields.get(name) for name in names},
            "id": f"bucket-{self.name}",
            "name": self.name,
            "state": self.state,
            "projectId": "1",
            "project": describe_project(self.project),
            "user": {"name": ENTITY, "username": ENTITY},
            "summaryMetrics": json.dumps(self.summary),
            "systemMetrics": "{}",
            "group": self.fields.get("groupName"),
            "historyKeys": {"lastStep": max((row["_step"] for row in self.rows), default=-1)},
            "logLineCount": len(self.lines("output.log")),
            "historyLineCount": len(history),
            "eventsLineCount": len(events),
            "historyTail": json.dumps(history[-1:]),
            "eventsTail": json.dumps(events[-1:]),
            "config": self.fields.get("config") or "{}",
            "wandbConfig": json.dumps({"t": 1}),
        }


def describe_project(name: str) -> dict[str, Any]:
    return {"id": f"project-{name}", "name": name, "entity": {"id": "entity", "name": ENTITY}}


class WandbServer:
    """Its `url` and `environment`, and what arrived: `requests`, runs, artifacts, views.

    `mode` may be changed at any time; `switch_later(n, mode)` changes it after n more requests.
    Requests with `loses` in their address are answered, and forgotten. `faults` are of this server
    itself, as a query that it does not know: a test that sees one is no proof.
    """

    def __init__(self) -> None:
        self.mode: Mode = "fine"
        self.delay, self.port, self.loses = 0.3, 0, ""
        self.requests: list[str] = []
        self.faults: list[str] = []
        self.runs: dict[tuple[str, str], Run] = {}
        self.artifacts: list[dict[str, Any]] = []  # whose files it has already, so it says
        self.views: dict[str, dict[str, Any]] = {}
        self.closed = threading.Event()
        self._later: tuple[float, Mode] = (float("inf"), "fine")
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs in its environment to be logged in here."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def run(self, name: str) -> Run:
        """The one run of this name, in whichever project."""
        (found,) = [run for run in self.runs.values() if run.name == name]
        return found

    def switch_later(self, requests: int, mode: Mode) -> None:
        """After so many more requests, behave like this."""
        self._later = (len(self.requests) + requests, mode)

    def note_request(self, what: str) -> Mode:
        """Note a request; how to behave."""
        with self._lock:
            self.requests.append(what)
            if len(self.requests) > self._later[0]:
                self.mode = self._later[1]
            return self.mode

    def answer(self, path: str, body: bytes) -> Mapping[str, Any]:
        """The answer at an address. Raises KeyError or ValueError for what it does not know."""
        _, first, *rest = path.split("/")
        with self._lock:
            if first == "graphql":
                asked = json.loads(body)
                return {"data": self._answer_query(asked["query"], asked.get("variables") or {})}
            if first == "files" and rest[-1] == "file_stream":
                self.runs[(rest[1], rest[2])].add_lines(json.loads(body))
            elif first == "upload":
                self.runs[(rest[0], rest[1])].uploads["/".join(rest[2:])] += 1
            elif first != "sdk":  # telemetry of the client
                raise ValueError("this server does not know the address")
        return {}

    def _answer_query(self, query: str, asked: dict[str, Any]) -> dict[str, Any]:
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        operation = (found.group(1) if found else query.split()[0]).lower()
        if operation in FIXED:
            return FIXED[operation]
        if operation.startswith(("run", "upsertbucket")):
            return self._answer_run(operation, asked)
        if operation.startswith("upsertview"):
            self.views[asked["name"]] = asked
            view = {"id": f"view-{len(self.views)}", "name": asked["name"]}
            return {"upsertView": {"view": view, "inserted": True}}
        if operation == "createrunfiles":
            place = f"{self.url}/upload/{asked['project']}/{asked['run']}"
            files = [{"name": name, "uploadUrl": f"{place}/{name}"} for name in asked["files"]]
            made = {"runID": f"bucket-{asked['run']}", "uploadHeaders": [], "files": files}
            return {"createRunFiles": made}
        if operation == "createartifact":
            self.artifacts.append(asked["input"])
            known = {"state": "COMMITTED", "artifactSequence": {"latestArtifact": None}}
            return {"createArtifact": {"artifact": {"id": "artifact", **known}}}
        raise ValueError(f"this server does not know {operation}")

    def _answer_run(self, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
        key = (asked["project"], asked["name"])
        run = self.runs.get(key)
        if operation != "upsertbucket":
            known = None if run is None else run.describe()
            model = {**describe_project(asked["project"]), "bucket": known}
            return {"project": {"run": known}, "model": model}
        inserted, run = run is None, self.runs.setdefault(key, run or Run(*reversed(key)))
        run.fields |= {name: value for name, value in asked.items() if value is not None}
        if asked.get("displayName") is not None:  # an opening, not a later change of the config
            run.sessions += 1
        bucket = run.describe() | {"description": "", "sweepName": None}
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}


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
                self._reply_json(self.wandb.answer(self.path, body))
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

    def _reply_json(self, answer: Mapping[str, Any], status: int = 200) -> None:
        self.send_answer(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})
