"""`capsweep doctor`: versions and places, and what to do about each fault."""

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from capsweep.cli.command import Commands, add_command, add_json
from capsweep.errors import UserError

ENOUGH_DISK = 5 * 2**30
SETUP = "run make setup"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor: a fact and, for a fault, its cure. fatal: a sweep would stop."""

    subject: str
    fact: str
    cure: str | None = None
    fatal: bool = True

    @property
    def mark(self) -> str:
        """ok, FAIL (a sweep would stop) or note."""
        return "ok" if self.cure is None else "FAIL" if self.fatal else "note"


def add_parser(commands: Commands) -> None:
    """Add `doctor` to the parser."""
    text = "print versions and places, and what to do about each fault"
    add_json(add_command(commands, "doctor", print_findings, text))


def print_findings(parsed: argparse.Namespace) -> int:
    """Print all findings; 1 when one of them would stop a sweep."""
    findings = [*check_packages(), *check_ray(), *check_places(), *check_devices(), check_wandb()]
    if parsed.json:
        keys = ("status", "subject", "found", "cure")
        values = [(f.mark, f.subject, f.fact, f.cure) for f in findings]
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in values], indent=1))
    for finding in [] if parsed.json else findings:
        cure = f"; {finding.cure}" if finding.cure else ""
        print(f"{finding.mark:4} {finding.subject}: {finding.fact}{cure}")
    return int(any(finding.mark == "FAIL" for finding in findings))


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_packages() -> Iterator[Finding]:
    """Python, torch with torchvision, and Lightning."""
    is_supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    cure = None if is_supported else "install Python 3.11 or 3.12"
    yield Finding("python", platform.python_version(), cure)
    torch, torchvision = _version_of("torch"), _version_of("torchvision")
    versions, cure = f"torch {torch} with torchvision {torchvision}", SETUP
    if torch and torchvision:
        from capsweep import torchvision_cure

        cure = None
        if torchvision_cure.LIBRARY is not None:
            versions += ", whose extension does not load (a CUDA wheel); it is not needed"
    yield Finding("torch", versions, cure)
    version = _version_of("pytorch-lightning")
    yield Finding("lightning", f"pytorch_lightning {version}", None if version else SETUP)
    if other := _version_of("lightning"):
        cure = "pip uninstall lightning: Ray's integration prefers it, and two do not mix"
        yield Finding("lightning", f"the package lightning {other} is installed too", cure)


def check_ray() -> Iterator[Finding]:
    """Ray, and who may reach one that is started here: its ports listen on all interfaces."""
    version = _version_of("ray")
    cure = None if version else "install ray[tune], or use EXECUTOR=local"
    yield Finding("ray", f"ray {version}", cure, fatal=False)
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    cure = "anybody who reaches Ray's ports runs code as you: export RAY_AUTH_MODE=token"
    yield Finding("ray access", f"RAY_AUTH_MODE={mode}", None if mode == "token" else cure)
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        rights = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:  # a Ray of this machine makes it
        yield Finding("ray access", f"no token at {path}: {error.strerror}")
        return
    cure = f"others may read it, and so run code as you: chmod 600 {path}"
    # A note, since Ray itself makes it so that others may read it where their way there is open.
    fact = f"the token is at {path}, mode {rights:o}"
    yield Finding("ray access", fact, cure if rights & 0o077 else None, fatal=False)


def check_places() -> Iterator[Finding]:
    """Storage, data and ledger of a cell that runs here."""
    from capsweep.config import compose, places
    from capsweep.storage.stores import open_store, prove_writable

    node_places = places.resolve(compose.cell([]).config["places"])
    try:
        places.prepare(node_places)
    except UserError as error:
        yield Finding("places", str(error), "see above")
        return
    free = shutil.disk_usage(node_places.storage).free
    cure = "less than 5 GiB: set STORAGE=... to another disk" if free < ENOUGH_DISK else None
    yield Finding("storage", f"{node_places.storage}, {free / 2**30:.0f} GiB free", cure)
    yield Finding("data", node_places.data)
    fault = None
    try:
        prove_writable(open_store(node_places.ledger))
    except UserError as error:
        fault = str(error)
    yield Finding("ledger", node_places.ledger, fault)


def check_devices() -> Iterator[Finding]:
    """GPUs, and whether the processor knows bfloat16 where there are none."""
    try:
        import torch
    except ImportError:
        return
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Finding("gpu", ", ".join(names) or "none; cells run on the CPU")
    if names:
        return
    if Path("/dev/nvidia0").exists():
        cure = f"torch {torch.__version__} does not see it; install a CUDA build of torch"
        yield Finding("gpu", "an NVIDIA device is here", cure, fatal=False)
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        cure = "leave precision=32: bf16-mixed is emulated here, and many times slower"
        yield Finding("bfloat16", "this processor has no instructions for it", cure, fatal=False)


def check_wandb() -> Finding:
    """W&B, and whether runs would be online."""
    if _version_of("wandb") is None:
        return Finding("wandb", "not installed", "install wandb, or use logger=csv")
    from capsweep.config import compose
    from capsweep.tracking import mode

    _, reason = mode.decide_mode(compose.cell([]).config)
    return Finding("wandb", f"wandb {_version_of('wandb')}; {reason}")
