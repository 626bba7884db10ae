"""`capsweep doctor`: versions and places, and what to do about each fault."""

import argparse
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from capsweep.config import compose, places
from capsweep.errors import UserError
from capsweep.storage.stores import open_store, prove_writable
from capsweep.tracking import mode

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


def run_doctor(_: argparse.Namespace) -> int:
    """Print all findings; 1 when one of them would stop a sweep."""
    findings = [*check_packages(), *check_ray(), *check_places(), *check_devices(), check_wandb()]
    for finding in findings:
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
    cure = None if torch and torchvision else SETUP
    yield Finding("torch", f"torch {torch} with torchvision {torchvision}", cure)
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
    if path.exists():  # a Ray of this machine makes it
        cure = f"others may read it, and so run code as you: chmod 600 {path}"
        is_open = bool(path.stat().st_mode & 0o077)
        # A note, since Ray makes it so that others may read it where their way there is open.
        yield Finding("ray access", f"token {path}", cure if is_open else None, fatal=False)


def check_places() -> Iterator[Finding]:
    """Storage, data and ledger of a cell that runs here."""
    node_places = places.resolve(compose.cell([]).config["places"])
    try:
        places.prepare(node_places)
        prove_writable(open_store(node_places.ledger))
    except UserError as error:
        yield Finding("places", str(error), "see above")
        return
    free = shutil.disk_usage(node_places.storage).free
    cure = "less than 5 GiB: set STORAGE=... to another disk" if free < ENOUGH_DISK else None
    yield Finding("storage", f"{node_places.storage}, {free / 2**30:.0f} GiB free", cure)
    yield Finding("data", node_places.data)
    yield Finding("ledger", node_places.ledger)


def check_devices() -> Iterator[Finding]:
    """GPUs, and whether the processor knows bfloat16 where there are none."""
    import torch

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
    _, reason = mode.decide_mode(compose.cell([]).config)
    return Finding("wandb", f"wandb {_version_of('wandb')}; {reason}")
