"""`capsweep doctor`: check packages, folders and devices, and say how to fix each fault."""

import argparse
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from capsweep.config import compose, places
from capsweep.config.overrides import expand_word
from capsweep.config.words import BY_NAME
from capsweep.errors import UserError
from capsweep.storage.stores import open_store, prove_writable
from capsweep.tracking import mode as wandb_mode
from capsweep.training.provenance import find_version

PACKAGES = {  # each package that training needs, and what to do if it is missing
    **dict.fromkeys(("torch", "torchvision", "pytorch-lightning"), "run make setup"),
    "ray": "install ray[tune], or use EXECUTOR=local",
    "wandb": "install wandb, or use logger=csv",
}


class Finding(NamedTuple):
    """One printed line: a fact, and the cure if the fact is a fault."""

    subject: str  # what was checked
    fact: str  # what was found
    cure: str | None = None  # what is wrong and what to do; None if nothing is wrong
    fatal: bool = True  # whether a fault would stop a sweep


def run_doctor(parsed: argparse.Namespace) -> int:
    """Print all findings, and return 1 if one of them would stop a sweep."""
    findings = [
        *check_packages(),
        *check_ray(),
        *_report_error("places", check_places(parsed)),
        *check_devices(),
        *_report_error("wandb", check_wandb()),
    ]
    for subject, fact, cure, fatal in findings:
        mark = "ok" if cure is None else "FAIL" if fatal else "note"
        print(f"{mark:4} {subject}: {fact}{f'; {cure}' if cure else ''}")
    return int(any(finding.cure and finding.fatal for finding in findings))


def _report_error(subject: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings of a check; if the check raises an error, yield it as a fault."""
    try:
        yield from findings
    except UserError as error:
        fault, _, cure = str(error).rpartition("; ")
        yield Finding(subject, fault, cure)


def check_packages() -> Iterator[Finding]:
    """Check Python, and the packages that training needs."""
    yield Finding("python", platform.python_version())
    for name, cure in PACKAGES.items():
        version = find_version(name)
        yield Finding(name, version or "is missing", None if version else cure, name != "ray")


def check_ray() -> Iterator[Finding]:
    """Check that no other user can use a Ray cluster that is started on this machine."""
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    cure = "anybody who reaches Ray's ports can run code as you; type export RAY_AUTH_MODE=token"
    yield Finding("ray access", f"RAY_AUTH_MODE={mode}", None if mode == "token" else cure)
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if path.exists():  # Ray makes this file when it is started on this machine
        cure = f"others can read it, and then run code as you; type chmod 600 {path}"
        is_private = not path.stat().st_mode & 0o077
        # Not fatal, because Ray itself makes the file readable for others.
        yield Finding("ray access", f"token {path}", None if is_private else cure, fatal=False)


def check_places(parsed: argparse.Namespace) -> Iterator[Finding]:
    """Check that storage and ledger can be written on this machine, and list all places."""
    typed = [expand_word(n, value) for n, value in parsed.words.items() if BY_NAME[n].is_place]
    node_places = places.resolve(compose.cell(typed).config["places"])
    places.prepare(node_places)
    prove_writable(open_store(node_places.ledger))
    free = shutil.disk_usage(node_places.storage).free
    cure = "less than 5 GiB: set STORAGE=... to another disk" if free < 5 * 2**30 else None
    yield Finding("storage", f"{node_places.storage}, {free / 2**30:.0f} GiB free", cure)
    yield Finding("data", node_places.data)
    yield Finding("ledger", node_places.ledger)


def check_devices() -> Iterator[Finding]:
    """List the GPUs, and check that torch sees the GPU of this machine."""
    if find_version("torch") is None:
        return
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Finding("gpu", ", ".join(names) or "none; cells run on the CPU")
    if not names and Path("/dev/nvidia0").exists():
        cure = f"torch {torch.__version__} does not see it; install a CUDA build of torch"
        yield Finding("gpu", "this machine has an NVIDIA GPU", cure, fatal=False)


def check_wandb() -> Iterator[Finding]:
    """Check whether runs would be sent to W&B."""
    if find_version("wandb"):
        yield Finding("wandb", wandb_mode.decide_mode(compose.cell([]).config)[1])
