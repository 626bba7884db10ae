"""What a W&B server keeps, as far as W&B's client asks for it: runs, their lines, files, artifacts.

Learnt from what wandb 0.31 asks, with the queries it carries; the real server was not seen.
"""

import json
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

ENTITY = "tester"
HISTORY, EVENTS, SUMMARY = "wandb-history.jsonl", "wandb-events.jsonl", "wandb-summary.json"


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

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every line of history as the client sent it, in the order of the lines."""
        return [json.loads(line) for line in self.streams.get(HISTORY, [])]

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, without W&B's own key."""
        stored = json.loads(self.fields.get("config") or "{}")
        return {key: entry["value"] for key, entry in stored.items() if key != "_wandb"}

    @property
    def summary(self) -> dict[str, Any]:
        """The last summary, from the stream or from the file that ends a run."""
        lines = self.streams.get(SUMMARY, [])
        return json.loads(lines[-1]) if lines else {}

    def add_lines(self, sent: dict[str, Any]) -> None:
        """A request of the file stream: lines from an offset on replace what is there."""
        for name, chunk in (sent.get("files") or {}).items():
            lines, start = self.streams.setdefault(name, []), chunk["offset"]
            if start > len(lines):
                raise ValueError(f"{name}: line {start} was sent, but {len(lines)} are here")
            lines[start : start + len(chunk["content"])] = chunk["content"]
        if sent.get("complete"):
            self.exit_code = sent.get("exitcode")

    @property
    def state(self) -> str:
        """As W&B shows it."""
        if self.exit_code is None:
            return "running"
        return "failed" if self.exit_code else "finished"

    def describe_run(self) -> dict[str, Any]:
        """The run as the public API reads it, and as a client that resumes does."""
        history, events = self.streams.get(HISTORY, []), self.streams.get(EVENTS, [])
        last = max((row["_step"] for row in self.rows), default=-1)
        return {
            "id": f"bucket-{self.name}",
            "name": self.name,
            "state": self.state,
            "projectId": "1",
            "project": describe_project(self.project),
            "user": {"name": ENTITY, "username": ENTITY},
            "summaryMetrics": json.dumps(self.summary),
            "systemMetrics": "{}",
            "displayName": self.fields.get("displayName"),
            "group": self.fields.get("groupName"),
            "jobType": self.fields.get("jobType"),
            "historyKeys": {"lastStep": last},
            "logLineCount": len(self.streams.get("output.log", [])),
            "historyLineCount": len(history),
            "eventsLineCount": len(events),
            "historyTail": json.dumps(history[-1:]),
            "eventsTail": json.dumps(events[-1:]),
            "config": self.fields.get("config") or "{}",
            "tags": self.fields.get("tags"),
            "notes": self.fields.get("notes"),
            "wandbConfig": json.dumps({"t": 1}),
        }


class Cloud:
    """The state of a server, which survives its death, and its answers to GraphQL."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], Run] = {}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.unknown: list[str] = []
        self.lock = threading.RLock()

    def run(self, name: str) -> Run:
        """The one run of this name, in whichever project."""
        (found,) = [run for run in self.runs.values() if run.name == name]
        return found

    def answer_query(self, query: str, variables: dict[str, Any], url: str) -> dict[str, Any]:
        """The answer to a query; what is not known is noted in `unknown`, and is an error."""
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        operation = found.group(1) if found else query.split()[0]
        with self.lock:
            method = getattr(self, f"_{_to_snake(operation)}", None)
            if method is None:
                self.unknown.append(query)
                return {"errors": [{"message": f"this server does not know {operation}"}]}
            return {"data": method(variables, url)}

    def _viewer(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        names = dict.fromkeys(("id", "entity", "username", "name"), ENTITY)
        return {
            "viewer": {**names, "email": "", "flags": "{}", "admin": False, "teams": {"edges": []}}
        }

    _get_default_entity = _viewer

    def _server_features_query(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def _organization_core_weave_organization_id(self, *asked: Any) -> dict[str, Any]:
        return {"entity": {"organization": None}}

    def _run_resume_status(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        run = self.runs.get((asked["project"], asked["name"]))
        bucket = None if run is None else run.describe_run()
        return {"model": {**describe_project(asked["project"]), "bucket": bucket}}

    def _upsert_bucket(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        key = (asked["project"], asked["name"])
        inserted = key not in self.runs
        run = self.runs.setdefault(key, Run(asked["name"], asked["project"]))
        run.fields |= {name: value for name, value in asked.items() if value is not None}
        if asked.get("displayName") is not None:  # an opening, not a later change of the config
            run.sessions += 1
        bucket = run.describe_run() | {"description": "", "sweepName": None}
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _create_run_files(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        place = f"{url}/upload/{asked['project']}/{asked['run']}"
        files = [{"name": name, "uploadUrl": f"{place}/{name}"} for name in asked["files"]]
        made = {"runID": f"bucket-{asked['run']}", "uploadHeaders": [], "files": files}
        return {"createRunFiles": made}

    def _run(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        run = self.runs.get((asked["project"], asked["name"]))
        return {"project": {"run": None if run is None else run.describe_run()}}

    _run_history_keys = _run

    def _upsert_view2(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        name = asked["name"]
        inserted = asked.get("id") is None
        self.views[name] = asked
        view = {"id": asked.get("id") or f"view-{len(self.views)}", "name": name}
        return {"upsertView": {"view": view, "inserted": inserted}}

    def _view(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        view = self.views.get(asked["viewName"])
        if view is None:
            return {"project": {"allViews": {"edges": []}}}
        node = {"id": "view-1", "displayName": view["displayName"], "spec": view["spec"]}
        return {"project": {"allViews": {"edges": [{"node": node}]}}}

    def _artifact_type(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        return {"project": {"artifact": None}}

    def _create_artifact(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        name = f"artifact-{len(self.artifacts)}"
        self.artifacts[name] = {"of": asked["input"]}
        made = {"id": name, "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
        return {"createArtifact": {"artifact": made}}

    def _create_artifact_manifest(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        name = asked["artifactID"]
        place = f"{url}/upload/artifacts/{name}/manifest"
        file = {"id": name, "uploadUrl": place, "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": name, "file": file}}}

    def _create_artifact_files(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        edges = []
        for file in asked["input"]["artifactFiles"]:
            of, name = file["artifactID"], file["name"]
            node = {"storagePath": f"{of}/{name}", "uploadHeaders": [], "uploadMultipartUrls": None}
            node |= {"uploadUrl": f"{url}/upload/artifacts/{of}/{name}", "artifact": {"id": of}}
            edges.append({"node": node})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _commit_artifact(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        artifact = self.artifacts[asked["artifactID"]]
        made = {"id": asked["artifactID"], "digest": artifact["of"]["digest"]}
        return {"commitArtifact": {"artifact": made}}


def describe_project(name: str) -> dict[str, Any]:
    return {"id": f"project-{name}", "name": name, "entity": {"id": "entity", "name": ENTITY}}


def _to_snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
