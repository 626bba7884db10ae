"""Ledgers that travel: an export is one tar file, an import merges it, verified.

For hosts without a network: train there, export there, import here. The first complete result of a
cell stands, so importing twice, or what is there already, changes nothing.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from capsweep.config.cell import signature as signature_of
from capsweep.errors import DataError
from capsweep.files import write_atomically
from capsweep.ledger.ledger import Ledger, folder_of

MANIFEST = "manifest.json"
FORMAT = 1
RESULT = "result.json"
WEIGHTS = "weights.ckpt"


@dataclass(frozen=True)
class Imported:
    """How many cells were new, and how many were there already."""

    new: int
    known: int


def export(ledger: Ledger, signatures: Sequence[str], file: Path, weights: bool = True) -> int:
    """Write finished cells to a tar file with a manifest of hashes; returns how many bytes."""
    contents: dict[str, bytes] = {}
    for signature in signatures:
        for name, content in _files(ledger, signature).items():
            if weights or name != WEIGHTS:
                contents[f"{signature}/{name}"] = content
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest = json.dumps({"format": FORMAT, "sha256": hashes}, indent=1).encode()

    def write(target) -> None:
        with tarfile.open(fileobj=target, mode="w") as tar:
            for name, content in [(MANIFEST, manifest), *contents.items()]:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))

    write_atomically(file, write)
    return sum(map(len, contents.values()))


def _files(ledger: Ledger, signature: str) -> dict[str, bytes]:
    """Every file of a finished cell by its plain name."""
    found = {}
    for path, _ in ledger.store.files(folder_of(signature)):
        name = path.rpartition("/")[2]
        content = None if name.startswith(".") else ledger.read(signature, name)
        if content is not None:
            found[name] = content
    return found


def merge(ledger: Ledger, file: Path) -> Imported:
    """Add the cells of an export that the ledger lacks.

    Raises DataError naming the file when a hash is wrong, a file is missing, or a configuration
    does not have the signature of its folder. Nothing is written before all is verified.
    """
    cells = _verified(file)
    new = 0
    for signature, contents in cells.items():
        if ledger.result(signature) is not None:
            continue
        new += 1
        folder = folder_of(signature)
        result = json.loads(contents.pop(RESULT))
        result.pop("attempt", None)  # where the exporting store had its files
        for name, content in contents.items():
            ledger.store.write(f"{folder}/{name}", content)
        for stale in ("error.txt", "stopped.json", "resume.ckpt"):
            ledger.store.remove(f"{folder}/{stale}")
        ledger.store.write(f"{folder}/{RESULT}", json.dumps(result, indent=2).encode())
    return Imported(new, len(cells) - new)


def _verified(file: Path) -> dict[str, dict[str, bytes]]:
    contents = _contents(file)
    try:
        manifest = json.loads(contents.pop(MANIFEST))
        hashes = manifest["sha256"]
    except (KeyError, ValueError) as error:
        raise DataError(f"{file}: no {MANIFEST} of capsweep in it; export it again") from error
    if manifest.get("format") != FORMAT:
        raise DataError(f"{file}: format {manifest.get('format')}; this capsweep reads {FORMAT}")
    if contents.keys() != hashes.keys():
        missing = sorted(hashes.keys() ^ contents.keys())
        raise DataError(f"{file}: {missing[0]} is not as the manifest says; copy the file again")
    cells: dict[str, dict[str, bytes]] = {}
    for path, content in contents.items():
        if hashlib.sha256(content).hexdigest() != hashes[path]:
            raise DataError(f"{file}: {path} is altered; copy the file again")
        signature, _, name = path.partition("/")
        cells.setdefault(signature, {})[name] = content
    for signature, found in cells.items():
        _check_cell(file, signature, found)
    return cells


def _contents(file: Path) -> dict[str, bytes]:
    """Plain files of the tar, whatever their names say: nothing is unpacked to disk."""
    try:
        with tarfile.open(file) as tar:
            return {
                member.name: stream.read()
                for member in tar.getmembers()
                if (stream := tar.extractfile(member)) is not None
            }
    except FileNotFoundError as error:
        raise DataError(f"{file}: no such file") from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{file}: not a whole tar file ({error}); copy it again") from error


def _check_cell(file: Path, signature: str, contents: dict[str, bytes]) -> None:
    if any("/" in name or name.startswith(".") for name in contents):
        raise DataError(f"{file}: cell {signature} has a file outside its folder")
    if not {RESULT, "config.yaml"} <= contents.keys():
        raise DataError(f"{file}: cell {signature} is not complete; export finished cells only")
    science = yaml.load(contents["config.yaml"], yaml.CSafeLoader)
    if signature_of(science) != signature:
        raise DataError(
            f"{file}: the configuration of cell {signature} has the signature "
            f"{signature_of(science)}; it was altered, or made by another version of capsweep"
        )
