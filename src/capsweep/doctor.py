"""`capsweep doctor`: versions and places, and what to do about each fault."""

import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from capsweep.config import compose, places
from capsweep.errors import UserError

ENOUGH_DISK = 5 * 2**30


@dataclass(frozen=True)
class Finding:
    """One line of the doctor: what was found and, for a fault, the cure."""

    subject: str
    found: str
    cure: str | None = None
    fatal: bool = True

    @property
    def mark(self) -> str:
        """ok, FAIL (a sweep would stop) or note."""
        return "ok" if self.cure is None else "FAIL" if self.fatal else "note"


def main(as_json: bool = False) -> int:
    """Print all findings; 1 when one of them would stop a sweep. as_json: as a list of them."""
    findings = list(examine())
    if as_json:
        told = [{"status": f.mark, "subject": f.subject} | _said(f) for f in findings]
        print(json.dumps(told, indent=1))
    for finding in [] if as_json else findings:
        cure = f"; {finding.cure}" if finding.cure else ""
        print(f"{finding.mark:4} {finding.subject}: {finding.found}{cure}")
    return int(any(finding.cure and finding.fatal for finding in findings))


def _said(finding: Finding) -> dict[str, str | None]:
    return {"found": finding.found, "cure": finding.cure}


def examine() -> Iterator[Finding]:
    """All findings, in the order of what depends on what."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _torch,
        _lightning,
        _ray,
        _places,
        _gpu,
        _wandb,
    )
    for check in checks:
        yield from check()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Iterator[Finding]:
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Finding(
        "python", platform.python_version(), None if good else "install Python 3.11 or 3.12"
    )


def _torch() -> Iterator[Finding]:
    torch, torchvision = _version("torch"), _version("torchvision")
    if torch is None or torchvision is None:
        yield Finding("torch", f"torch {torch}, torchvision {torchvision}", "run make setup")
        return
    from capsweep import torchvision_cure

    cured = torchvision_cure.LIBRARY is not None
    note = "its extension cannot load here (a CUDA wheel beside a CPU torch); we go on without it"
    how = note if cured else "its extension loads"
    yield Finding("torch", f"torch {torch} with torchvision {torchvision}: {how}")


def _lightning() -> Iterator[Finding]:
    version = _version("pytorch-lightning")
    yield Finding(
        "lightning", f"pytorch_lightning {version}", None if version else "run make setup"
    )
    if other := _version("lightning"):
        cure = (
            "pip uninstall lightning: Ray's integration prefers it, and two Lightnings do not mix"
        )
        yield Finding("lightning", f"the package lightning {other} is installed too", cure)


def _ray() -> Iterator[Finding]:
    version = _version("ray")
    cure = None if version else "install ray[tune], or use EXECUTOR=local"
    yield Finding("ray", f"ray {version}", cure, fatal=False)
    if address := os.environ.get("RAY_ADDRESS"):
        yield Finding("ray", f"RAY_ADDRESS={address} (used when given to make)")
    shared = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").exists() else 0
    small = shared < 2**30
    cure = "Ray's object store wants 1 GiB of /dev/shm; it will use the disk" if small else None
    yield Finding("/dev/shm", f"{shared / 2**30:.1f} GiB free", cure, fatal=False)


def _places() -> Iterator[Finding]:
    here = places.resolve(compose.cell([]).config["places"])
    try:
        places.prepare(here)
    except UserError as error:
        yield Finding("places", str(error), "see above")
        return
    free = shutil.disk_usage(here.storage).free
    cure = "less than 5 GiB: set STORAGE=... to another disk" if free < ENOUGH_DISK else None
    yield Finding("storage", f"{here.storage}, {free / 2**30:.0f} GiB free", cure)
    yield Finding("data", str(here.data))


def _gpu() -> Iterator[Finding]:
    try:
        import torch
    except ImportError:
        return
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Finding("gpu", ", ".join(names) or "none; cells run on the CPU")
    driver = Path("/dev/nvidia0").exists()
    if driver and not names:
        cure = f"torch {torch.__version__} does not see it; install a CUDA build of torch"
        yield Finding("gpu", "an NVIDIA device is here", cure, fatal=False)


def _wandb() -> Iterator[Finding]:
    if _version("wandb") is None:
        yield Finding("wandb", "not installed", "install wandb, or use logger=csv")
        return
    from capsweep.tracking import mode as modes

    _, reason = modes.settle(compose.cell([]).config)
    yield Finding("wandb", f"wandb {_version('wandb')}; {reason}")
