"""What a node must have to run the cells of a driver: its versions, and its ledger."""

import importlib.metadata
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from capsweep.config import code_identity, places
from capsweep.errors import NodeError, UserError
from capsweep.storage.object_store import StoreError, shown
from capsweep.storage.stores import Disk, Store, open_store, prove_writable

CODE = "capsweep's code"
PACKAGES = ("torch", "pytorch-lightning", "ray")
SEEN, POLL = 10.0, 0.2  # seconds: a shared folder may show a new file late
RIGHTS = (
    "Give this node the right to it: cluster.instance_profile=... for machines that capsweep "
    "starts on AWS, credentials in the environment of the node for others"
)


def versions() -> dict[str, str]:
    """Of what decides the numbers here. Without what follows a `+`: builds for other devices of one
    version are the same code, and a result names its hardware.
    """
    return {CODE: code_identity.package(), **{name: _version(name) for name in PACKAGES}}


@contextmanager
def required(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What nodes are asked for by `check`, as plain data, while the block lasts.

    In the ledger lies a file meanwhile, by which nodes tell it from another one.
    """
    ledger = places.resolve(config["places"]).ledger
    store, file = open_store(ledger), f".driver-{secrets.token_hex(8)}"
    store.write(file, b"")
    try:
        yield {"versions": versions(), "ledger": shown(ledger), "file": file}
    finally:
        with suppress(OSError):  # a file that stays is no cell, and disturbs nobody
            store.remove(file)


def check(wanted: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise NodeError, with the cure, where this node is not as its driver wants it: it must read
    the driver's file in the ledger, and write there, as itself.

    config: the `places` and the `cluster` of a cell.
    """
    _check_versions(wanted["versions"])
    try:
        ledger = places.on_node(config).ledger
        store = open_store(ledger)
        if not _is_seen(store, wanted["file"]):
            raise NodeError(
                f"{_here()}: places.ledger: its {shown(ledger)} is not the driver's "
                f"{wanted['ledger']}; give a folder that all nodes share (STORAGE=..., "
                "cluster.node.storage=... where nodes have it elsewhere), or an object store "
                "(STORAGE=s3://... or LEDGER=s3://...)"
            )
        prove_writable(store, f"{wanted['file']}-{secrets.token_hex(4)}")
    except NodeError:
        raise
    except StoreError as error:
        raise NodeError(f"{_here()}: {error} {RIGHTS}") from error
    except UserError as error:
        raise NodeError(f"{_here()}: {error}") from error


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


def _is_seen(store: Store, name: str) -> bool:
    if not isinstance(store, Disk):
        return store.read(name) is not None
    until = time.monotonic() + SEEN
    while not _is_there(store.path, name):
        # What is no folder of many nodes' will not become one.
        if not store.path.is_dir() or time.monotonic() > until:
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
