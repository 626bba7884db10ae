"""Ledgers that travel: an export is one tar file, an import merges it, verified.

For hosts without a network: train there, export there, import here. The first complete result of a
cell stands, so importing twice, or what is there already, changes nothing.
"""

import io
import json
import re
import secrets
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from capsweep.config import bounded_yaml
from capsweep.config.cell import signature as signature_of
from capsweep.errors import ConfigError, DataError, UserError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, Ledger, folder_of
from capsweep.ledger.stored_files import DIGESTS, RESULT
from capsweep.storage.files import hash_bytes, write_atomically

MANIFEST = "manifest.json"
FORMAT = 1
AGAIN = "export it again"
CONFIG = "config.yaml"
WEIGHTS = "weights.ckpt"
# Of a file in a cell's folder: shorter than a file system allows, which has a longer one meanwhile.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Imported:
    """How many cells were new, and how many were there already."""

    new: int
    known: int


def export_cells(
    ledger: Ledger, signatures: Sequence[str], file: Path, weights: bool = True
) -> int:
    """Write finished cells to a tar file with a manifest of hashes; returns how many bytes.

    One file is in memory at a time. Raises UserError where something else than an export is.
    """
    _check_replaceable(file)
    names = [
        (signature, name)
        for signature in signatures
        for name in _list_names(ledger, signature)
        if weights or name != WEIGHTS
    ]
    hashes = {f"{s}/{name}": hash_bytes(_read_content(ledger, s, name)) for s, name in names}
    manifest = json.dumps({"format": FORMAT, "sha256": hashes}, indent=1).encode()

    def write(target: IO[bytes]) -> None:
        with tarfile.open(fileobj=target, mode="w") as tar:
            _add_member(tar, MANIFEST, manifest)
            for signature, name in names:
                _add_member(tar, f"{signature}/{name}", _read_content(ledger, signature, name))

    write_atomically(file, write)
    return file.stat().st_size


def _check_replaceable(file: Path) -> None:
    """Raise UserError unless nothing is there, or a file that export wrote."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise UserError(f"{file} is no plain file; name another one")
        path, content = next(_read_members(file), ("", b""))
        _parse_manifest(file, path, content)
    except FileNotFoundError:
        return
    except DataError as error:
        raise UserError(f"{file} is there and is no export; name another file") from error


def _list_names(ledger: Ledger, signature: str) -> list[str]:
    """Names of the files of a finished cell: plain, and those of its evaluations."""
    paths = (path.split("/") for path, _ in ledger.store.list_files(folder_of(signature)))
    names = dict.fromkeys("/".join(parts[-1 - (parts[-2] == EVALUATIONS) :]) for parts in paths)
    return [name for name in names if not _without_evaluations(name).startswith(".")]


def _without_evaluations(name: str) -> str:
    """The name without the folder of evaluations, which alone a cell may have."""
    return name.removeprefix(f"{EVALUATIONS}/")


def _read_content(ledger: Ledger, signature: str, name: str) -> bytes:
    content = ledger.read(signature, name)
    if content is None:
        raise DataError(f"{signature}/{name} went away during the export; export again")
    return content


def _add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def import_cells(ledger: Ledger, file: Path) -> Imported:
    """Add the cells of an export that the ledger lacks, each whole or not at all.

    Raises DataError naming the file when a hash is wrong, a file is missing, or a configuration
    does not have the signature of its folder, and UserError for a cell that is being run here.
    Nothing is written before all is verified.
    """
    cells = _verify_export(file)
    entries = ledger.entries(cells)
    new = [signature for signature in cells if entries[signature].result is None]
    for signature in new:
        if (entry := entries[signature]).status == "running":
            raise UserError(f"{signature} is being run by {entry.owner}; import when it has ended")
    attempt = secrets.token_hex(8)
    staged = {signature: _staging_folder(ledger, signature, attempt) for signature in new}
    try:
        for path, content in _read_members(file):
            signature, _, name = path.partition("/")
            if signature in staged:
                ledger.store.write(f"{staged[signature]}/{name}", content)
        for signature in new:
            _put_in_place(ledger, signature, attempt)
            del staged[signature]
    except BaseException:
        for folder in staged.values():
            ledger.store.remove(folder)
        raise
    return Imported(len(new), len(cells) - len(new))


def _staging_folder(ledger: Ledger, signature: str, attempt: str) -> str:
    """Where a cell waits: beside its folder, or, without a rename, in it as every attempt does."""
    if ledger.disk is None:
        return f"{folder_of(signature)}/{attempt}"
    return f"{signature[:2]}/.{signature}.{attempt}.tmp"


def _put_in_place(ledger: Ledger, signature: str, attempt: str) -> None:
    """The cell is finished from here on. What an unfinished run left is gone."""
    folder, staged = folder_of(signature), _staging_folder(ledger, signature, attempt)
    result = json.loads(ledger.store.read(f"{staged}/{RESULT}") or b"{}")
    result.pop("attempt", None)  # where the exporting store had its files
    if ledger.disk is not None:
        ledger.store.write(f"{staged}/{RESULT}", _as_json(result))
        ledger.store.remove(folder)
        (ledger.disk / staged).rename(ledger.disk / folder)
        return
    for stale in ("error.txt", "stopped.json", "resume.ckpt"):
        ledger.store.remove(f"{folder}/{stale}")
    ledger.store.write(f"{folder}/{RESULT}", _as_json({**result, "attempt": attempt}))


def _as_json(result: dict[str, Any]) -> bytes:
    return json.dumps(result, indent=2).encode()


def _verify_export(file: Path) -> dict[str, dict[str, str]]:
    """Hashes of each cell's files by name, once all of them are as the manifest says."""
    hashes: dict[str, str] | None = None
    cells: dict[str, dict[str, str]] = {}
    results: dict[str, dict[str, Any]] = {}
    for path, content in _read_members(file):
        if hashes is None:
            hashes = _parse_manifest(file, path, content)
            continue
        if path not in hashes:
            raise DataError(f"{file}: {path} is not as the manifest says; copy the file again")
        found = hash_bytes(content)
        if found != hashes.pop(path):
            raise DataError(f"{file}: {path} is altered; copy the file again")
        signature, _, name = path.partition("/")
        cells.setdefault(signature, {})[name] = found
        if name == CONFIG:
            _check_signature(file, signature, content)
        if name == RESULT:
            where = f"{file}: {RESULT} of cell {signature}"
            results[signature] = stored_files.read_result(content, where, signature, AGAIN)
    if hashes:
        missing = sorted(hashes)[0]
        raise DataError(f"{file}: {missing} is not as the manifest says; copy the file again")
    for signature, names in cells.items():
        _check_names(file, signature, set(names))
        _check_digests(file, signature, names, results[signature])
    return cells


def _check_digests(
    file: Path, signature: str, found: Mapping[str, str], result: Mapping[str, Any]
) -> None:
    """Raise DataError for a file that is not what its cell wrote; weights may stay behind."""
    for name, digest in result.get(DIGESTS, {}).items():
        if name not in (RESULT, WEIGHTS, *found):
            raise DataError(f"{file}: {name} of cell {signature} is absent; {AGAIN}")
        if name != RESULT and found.get(name, digest) != digest:
            raise DataError(f"{file}: {name} of cell {signature} was altered; {AGAIN}")


def _parse_manifest(file: Path, path: str, content: bytes) -> dict[str, str]:
    try:
        manifest = json.loads(content) if path == MANIFEST else {}
        hashes = dict(manifest["sha256"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: no {MANIFEST} of capsweep in it; {AGAIN}") from error
    if manifest.get("format") != FORMAT:
        found = repr(manifest.get("format"))[:20]
        raise DataError(f"{file}: format {found}; this capsweep reads {FORMAT}")
    return hashes


def _read_members(file: Path) -> Iterator[tuple[str, bytes]]:
    """Plain files of the tar, one at a time, whatever their names say: nothing is unpacked.

    Compressed archives and sparse files, which may be any size when they are read, and links and
    devices, which export writes none of, are refused.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would be waited for
            raise DataError(f"{file} is no plain file; name one that export wrote")
        with tarfile.open(file, mode="r:") as tar:
            for member in tar:
                if not member.isreg() or member.issparse():
                    raise DataError(f"{file}: {member.name!r} is no plain file; {AGAIN}")
                stream = tar.extractfile(member)
                assert stream is not None
                content = stream.read()
                if len(content) != member.size:
                    raise DataError(f"{file}: {member.name!r} is cut short; copy the file again")
                yield member.name, content
    except FileNotFoundError as error:
        raise DataError(f"{file}: no such file") from error
    except DataError:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: not a whole tar file ({error}); copy it again") from error


def _check_names(file: Path, signature: str, names: set[str]) -> None:
    plain = [_without_evaluations(name) for name in names]
    if EVALUATIONS in plain or not all(map(NAME.fullmatch, plain)):
        raise DataError(
            f"{file}: cell {signature} has a file outside its folder, or of a name too long"
        )
    if not {RESULT, CONFIG} <= names:
        raise DataError(f"{file}: cell {signature} is not complete; export finished cells only")


def _check_signature(file: Path, signature: str, config: bytes) -> None:
    try:
        found = signature_of(bounded_yaml.load_settings(config))
    except ConfigError as error:
        raise DataError(f"{file}: config.yaml of cell {signature}: {error}") from error
    if found != signature:
        raise DataError(
            f"{file}: the configuration of cell {signature} has the signature {found}; it was "
            "altered, or made by another version of capsweep"
        )
