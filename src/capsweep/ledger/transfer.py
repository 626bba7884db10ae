"""Ledgers that travel: an export is one tar file, an import merges it, verified.

For hosts without a network: train there, export there, import here. The first complete result of a
cell stands, so importing twice, or what is there already, changes nothing.
"""

import io
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from capsweep.config.cell import signature as signature_of
from capsweep.errors import DataError
from capsweep.files import sha256_of, write_atomically
from capsweep.ledger.ledger import EVALUATIONS, Ledger, folder_of

MANIFEST = "manifest.json"
FORMAT = 1
RESULT = "result.json"
CONFIG = "config.yaml"
WEIGHTS = "weights.ckpt"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # of a file in a cell's folder
MOST_VALUES = 100_000  # in a configuration; aliases of YAML make any number of a few lines


@dataclass(frozen=True)
class Imported:
    """How many cells were new, and how many were there already."""

    new: int
    known: int


def export(ledger: Ledger, signatures: Sequence[str], file: Path, weights: bool = True) -> int:
    """Write finished cells to a tar file with a manifest of hashes; returns how many bytes.

    One file is in memory at a time.
    """
    names = [
        (signature, name)
        for signature in signatures
        for name in _names(ledger, signature)
        if weights or name != WEIGHTS
    ]
    hashes = {f"{s}/{name}": sha256_of(_content(ledger, s, name)) for s, name in names}
    manifest = json.dumps({"format": FORMAT, "sha256": hashes}, indent=1).encode()

    def write(target: IO[bytes]) -> None:
        with tarfile.open(fileobj=target, mode="w") as tar:
            _add(tar, MANIFEST, manifest)
            for signature, name in names:
                _add(tar, f"{signature}/{name}", _content(ledger, signature, name))

    write_atomically(file, write)
    return file.stat().st_size


def _names(ledger: Ledger, signature: str) -> list[str]:
    """Names of the files of a finished cell: plain, and those of its evaluations."""
    paths = (path.split("/") for path, _ in ledger.store.files(folder_of(signature)))
    names = dict.fromkeys("/".join(parts[-1 - (parts[-2] == EVALUATIONS) :]) for parts in paths)
    return [name for name in names if not _plain(name).startswith(".")]


def _plain(name: str) -> str:
    """The name without the folder of evaluations, which alone a cell may have."""
    return name.removeprefix(f"{EVALUATIONS}/")


def _content(ledger: Ledger, signature: str, name: str) -> bytes:
    content = ledger.read(signature, name)
    if content is None:
        raise DataError(f"{signature}/{name} went away during the export; export again")
    return content


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def merge(ledger: Ledger, file: Path) -> Imported:
    """Add the cells of an export that the ledger lacks.

    Raises DataError naming the file when a hash is wrong, a file is missing, or a configuration
    does not have the signature of its folder. Nothing is written before all is verified.
    """
    cells = _verified(file)
    new = [signature for signature in cells if ledger.result(signature) is None]
    results: dict[str, bytes] = {}
    for path, content in _members(file):
        signature, _, name = path.partition("/")
        if signature in new and name == RESULT:
            results[signature] = content
        elif signature in new:
            ledger.store.write(f"{folder_of(signature)}/{name}", content)
    for signature, content in results.items():
        for stale in ("error.txt", "stopped.json", "resume.ckpt"):
            ledger.store.remove(f"{folder_of(signature)}/{stale}")
        result = json.loads(content)
        result.pop("attempt", None)  # where the exporting store had its files
        ledger.store.write(
            f"{folder_of(signature)}/{RESULT}", json.dumps(result, indent=2).encode()
        )
    return Imported(len(new), len(cells) - len(new))


def _verified(file: Path) -> dict[str, set[str]]:
    """The names of each cell's files, once all of them are as the manifest says."""
    hashes: dict[str, str] | None = None
    cells: dict[str, set[str]] = {}
    for path, content in _members(file):
        if hashes is None:
            hashes = _manifest(file, path, content)
            continue
        if path not in hashes:
            raise DataError(f"{file}: {path} is not as the manifest says; copy the file again")
        if sha256_of(content) != hashes.pop(path):
            raise DataError(f"{file}: {path} is altered; copy the file again")
        signature, _, name = path.partition("/")
        cells.setdefault(signature, set()).add(name)
        if name == CONFIG:
            _check_signature(file, signature, content)
        if name == RESULT:
            _check_result(file, signature, content)
    if hashes:
        missing = sorted(hashes)[0]
        raise DataError(f"{file}: {missing} is not as the manifest says; copy the file again")
    for signature, names in cells.items():
        _check_names(file, signature, names)
    return cells


def _manifest(file: Path, path: str, content: bytes) -> dict[str, str]:
    try:
        manifest = json.loads(content) if path == MANIFEST else {}
        hashes = dict(manifest["sha256"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: no {MANIFEST} of capsweep in it; export it again") from error
    if manifest.get("format") != FORMAT:
        raise DataError(f"{file}: format {manifest.get('format')}; this capsweep reads {FORMAT}")
    return hashes


def _members(file: Path) -> Iterator[tuple[str, bytes]]:
    """Plain files of the tar, one at a time, whatever their names say: nothing is unpacked.

    Compressed archives and sparse files, which may be any size when they are read, and links and
    devices, which export writes none of, are refused.
    """
    try:
        with tarfile.open(file, mode="r:") as tar:
            for member in tar:
                if not member.isreg() or member.issparse():
                    raise DataError(f"{file}: {member.name!r} is no plain file; export it again")
                stream = tar.extractfile(member)
                assert stream is not None
                content = stream.read()
                if len(content) != member.size:
                    raise DataError(f"{file}: {member.name!r} is cut short; copy the file again")
                yield member.name, content
    except FileNotFoundError as error:
        raise DataError(f"{file}: no such file") from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{file}: not a whole tar file ({error}); copy it again") from error


def _check_names(file: Path, signature: str, names: set[str]) -> None:
    if not all(NAME.fullmatch(plain) for plain in map(_plain, names)):
        raise DataError(f"{file}: cell {signature} has a file outside its folder")
    if not {RESULT, CONFIG} <= names:
        raise DataError(f"{file}: cell {signature} is not complete; export finished cells only")


def _check_signature(file: Path, signature: str, config: bytes) -> None:
    try:
        science = yaml.load(config, yaml.CSafeLoader)
        if not isinstance(science, dict) or _values(science, MOST_VALUES) < 0:
            raise ValueError("it is no configuration")
        found = signature_of(science)
    except (yaml.YAMLError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: config.yaml of cell {signature}: {reason}") from error
    if found != signature:
        raise DataError(
            f"{file}: the configuration of cell {signature} has the signature {found}; it was "
            "altered, or made by another version of capsweep"
        )


def _values(value: Any, left: int) -> int:
    """How many of `left` values remain when those of `value` are counted, below 0: too many."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    left -= 1
    for item in inner:
        if left < 0:
            break
        left = _values(item, left)
    return left


def _check_result(file: Path, signature: str, content: bytes) -> None:
    try:
        result = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{file}: {RESULT} of cell {signature} is no JSON; export it again"
        ) from error
    if not isinstance(result, dict) or not isinstance(result.get("metrics"), dict):
        raise DataError(f"{file}: {RESULT} of cell {signature} has no metrics; export it again")
