"""`capsweep doctor`: versions and places, and what to do about each fault."""

import importlib.metadata
import json
import os
import platform
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from capsweep.config import compose, places
from capsweep.errors import UserError

ENOUGH_DISK = 5 * 2**30
LOOPBACK = ("127.0.0.1", "::1", "localhost")


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
        _token,
        _dashboard,
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


def _token() -> Iterator[Finding]:
    """Who may reach a Ray started from here: its ports listen on all interfaces."""
    mode = os.environ.get("RAY_AUTH_MODE")
    open_to_all = mode is not None and mode != "token"
    cure = "anybody who reaches Ray's ports runs code as you: export RAY_AUTH_MODE=token"
    told = f"RAY_AUTH_MODE={mode}" if mode else "RAY_AUTH_MODE is not set; capsweep sets token"
    yield Finding("ray access", told, cure if open_to_all else None)
    if os.environ.get("RAY_AUTH_TOKEN"):
        yield Finding("ray access", "the token is in RAY_AUTH_TOKEN")
        return
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        rights = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        yield Finding("ray access", f"no token at {path}; a Ray of this machine makes one")
        return
    except OSError as error:
        yield Finding("ray access", f"{path}: {error.strerror}", "make it readable for you alone")
        return
    cure = (
        f"others may read it, and so run code as you: chmod 600 {path}" if rights & 0o077 else None
    )
    # A note, since Ray itself makes it so that others may read it where their way there is open.
    yield Finding("ray access", f"the token is at {path}, mode {rights:o}", cure, fatal=False)


def _dashboard() -> Iterator[Finding]:
    """The dashboard takes jobs, and shows environments: it is for a tunnel's end on loopback."""
    address = os.environ.get("RAY_API_SERVER_ADDRESS")
    if not address:
        return
    host = urlsplit(address).hostname or ""
    cure = None if host in LOOPBACK else "keep it on the head's loopback, and open a tunnel to it"
    yield Finding("dashboard", f"RAY_API_SERVER_ADDRESS={address}", cure, fatal=False)


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
    yield Finding("data", here.data)
    yield Finding("ledger", here.ledger, _fault_of_ledger(here.ledger))


def _fault_of_ledger(ledger: str) -> str | None:
    from capsweep.storage.stores import open_store, prove_writable

    try:
        prove_writable(open_store(ledger))
    except UserError as error:
        return str(error)
    return None


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
    if not names and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        cure = "leave precision=32: bf16-mixed is emulated here, and many times slower"
        yield Finding("bfloat16", "this processor has no instructions for it", cure, fatal=False)


def _wandb() -> Iterator[Finding]:
    if _version("wandb") is None:
        yield Finding("wandb", "not installed", "install wandb, or use logger=csv")
        return
    from capsweep.tracking import mode as modes

    _, reason = modes.settle(compose.cell([]).config)
    yield Finding("wandb", f"wandb {_version('wandb')}; {reason}")
