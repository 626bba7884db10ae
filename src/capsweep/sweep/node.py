"""What a node must have to run the cells of a driver: its versions, and its ledger."""

import importlib.metadata
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capsweep.config import code_identity, places
from capsweep.errors import ConfigError, NodeError
from capsweep.files import write_text
from capsweep.object_store import is_url

CODE = "capsweep's code"
PACKAGES = ("torch", "pytorch-lightning", "ray")
SEEN, POLL = 10.0, 0.2  # seconds: a shared folder may show a new file late


def versions() -> dict[str, str]:
    """Of what decides the numbers here. Without what follows a `+`: builds for other devices of one
    version are the same code, and a result names its hardware.
    """
    return {CODE: code_identity.package(), **{name: _version(name) for name in PACKAGES}}


@contextmanager
def required(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What nodes are asked for by `check`, as plain data, while the block lasts.

    In a ledger that is a folder lies a file meanwhile, by which nodes tell it from another folder.
    """
    ledger = places.resolve(config["places"]).ledger
    wanted: dict[str, Any] = {"versions": versions(), "ledger": ledger, "file": None}
    if is_url(ledger):
        yield wanted
        return
    file = Path(ledger) / f".driver-{secrets.token_hex(8)}"
    write_text(file, "")
    try:
        yield {**wanted, "file": file.name}
    finally:
        file.unlink(missing_ok=True)


def check(wanted: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise NodeError, with the cure, where this node is not as its driver wants it.

    config: the `places` and the `cluster` of a cell.
    """
    _check_versions(wanted["versions"])
    try:
        ledger = places.on_node(config).ledger
    except ConfigError as error:
        raise NodeError(f"{_here()}: {error}") from error
    if wanted["file"] is not None and not _is_seen(ledger, wanted["file"]):
        raise NodeError(
            f"{_here()}: places.ledger: its {ledger} is not the driver's {wanted['ledger']}; give "
            "a folder that all nodes share (STORAGE=..., cluster.node.storage=... where nodes have "
            "it elsewhere), or an object store (STORAGE=s3://... or LEDGER=s3://...)"
        )


def _check_versions(wanted: Mapping[str, str]) -> None:
    found = versions()
    other = [name for name in wanted if found[name] != wanted[name]]
    if not other:
        return
    said = ", ".join(f"{name} {found[name]} and not the driver's {wanted[name]}" for name in other)
    packages = [f"{name}=={wanted[name]}" for name in other if name != CODE]
    cures = [f"install {' '.join(packages)} there"] if packages else []
    cures += ["take the other capsweep off its PYTHONPATH"] if CODE in other else []
    raise NodeError(f"{_here()} has {said}; {'; '.join(cures)}, or run the driver with the node's")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "(absent)"


def _is_seen(ledger: str, name: str) -> bool:
    if is_url(ledger):
        return False
    until = time.monotonic() + SEEN
    while not _is_there(Path(ledger), name):
        # What is no folder of many nodes' will not become one.
        if not Path(ledger).is_dir() or time.monotonic() > until:
            return False
        time.sleep(POLL)
    return True


def _is_there(folder: Path, name: str) -> bool:
    try:
        os.close(os.open(folder, os.O_RDONLY))  # has NFS ask its server anew
    except OSError:
        return False
    return (folder / name).exists()


def _here() -> str:
    return f"node {socket.gethostname()}"
