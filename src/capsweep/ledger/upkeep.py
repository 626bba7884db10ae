"""Upkeep of a ledger: exports that travel, and what nobody needs any more.

An export is one tar file, for hosts without a network: train there, export there, import here. An
import is verified; the first complete result of a cell stands, so importing twice, or what is there
already, changes nothing.
"""

import io
import json
import os
import re
import secrets
import stat
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from capsweep.config import bounded_yaml
from capsweep.config.cell import signature as signature_of
from capsweep.errors import ConfigError, DataError, UserError
from capsweep.ledger import lease, stored_files
from capsweep.ledger.ledger import EVALUATIONS, Ledger, folder_of
from capsweep.ledger.stored_files import DIGESTS, RESULT
from capsweep.storage.files import hash_bytes, remove_path, write_atomically
from capsweep.storage.stores import Disk

MANIFEST = "manifest.json"
FORMAT = 1
AGAIN = "export it again"
COPY = "copy the file again"
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
            for cell, name in names:
                _add_member(tar, f"{cell}/{name}", _read_content(ledger, cell, name))

    write_atomically(file, write)
    return file.stat().st_size


def _check_replaceable(file: Path) -> None:
    if not os.path.lexists(file):
        return
    try:
        if file.is_symlink():
            raise DataError(f"{file} is a link")
        _parse_manifest(file, *next(_read_members(file), ("", b"")))
    except DataError as error:
        raise UserError(f"{file} is there and is no export; name another file") from error


def _list_names(ledger: Ledger, signature: str) -> list[str]:
    """Names of the files of a finished cell: plain, and those of its evaluations."""
    paths = (path.split("/") for path, _ in ledger.store.list_files(folder_of(signature)))
    names = dict.fromkeys("/".join(parts[-1 - (parts[-2] == EVALUATIONS) :]) for parts in paths)
    return [name for name in names if not name.removeprefix(f"{EVALUATIONS}/").startswith(".")]


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
    entries = ledger.entries(cells := _verify_export(file))
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
        ledger.store.write(f"{staged}/{RESULT}", json.dumps(result, indent=2).encode())
        ledger.store.remove(folder)
        (ledger.disk / staged).rename(ledger.disk / folder)
        return
    for stale in ("error.txt", "stopped.json", "resume.ckpt"):
        ledger.store.remove(f"{folder}/{stale}")
    content = json.dumps({**result, "attempt": attempt}, indent=2)
    ledger.store.write(f"{folder}/{RESULT}", content.encode())


def _verify_export(file: Path) -> list[str]:
    """The signatures of the cells, once all their files are as the manifest says."""
    members = _read_members(file)
    hashes = _parse_manifest(file, *next(members, ("", b"")))
    cells: dict[str, dict[str, str]] = {}
    results: dict[str, dict[str, Any]] = {}
    for path, content in members:
        found = hash_bytes(content)
        if path not in hashes:
            raise DataError(f"{file}: {path} is not as the manifest says; {COPY}")
        if found != hashes.pop(path):
            raise DataError(f"{file}: {path} is altered; {COPY}")
        signature, _, name = path.partition("/")
        cells.setdefault(signature, {})[name] = found
        if name == CONFIG:
            _check_signature(file, signature, content)
        if name == RESULT:
            where = f"{file}: {RESULT} of cell {signature}"
            results[signature] = stored_files.read_result(content, where, signature, AGAIN)
    if hashes:
        raise DataError(f"{file}: {min(hashes)} is not as the manifest says; {COPY}")
    for signature, names in cells.items():
        _check_files(file, signature, names, results.get(signature, {}))
    return list(cells)


def _check_files(
    file: Path, signature: str, found: Mapping[str, str], result: Mapping[str, Any]
) -> None:
    """Raise DataError for files that no cell can have, or that are not what it wrote; weights may
    stay behind.
    """
    plain = [name.removeprefix(f"{EVALUATIONS}/") for name in found]
    if EVALUATIONS in plain or not all(map(NAME.fullmatch, plain)):
        raise DataError(
            f"{file}: cell {signature} has a file outside its folder, or of a name too long"
        )
    if not {RESULT, CONFIG} <= found.keys():
        raise DataError(f"{file}: cell {signature} is not complete; export finished cells only")
    for name, digest in result.get(DIGESTS, {}).items():
        if name != RESULT and found.get(name, digest) != digest:
            raise DataError(f"{file}: {name} of cell {signature} was altered; {AGAIN}")
        if name != WEIGHTS and name not in found:
            raise DataError(f"{file}: {name} of cell {signature} is absent; {AGAIN}")


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
                    raise DataError(f"{file}: {member.name!r} is cut short; {COPY}")
                yield member.name, content
    except FileNotFoundError as error:
        raise DataError(f"{file}: no such file") from error
    except DataError:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: not a whole tar file ({error}); copy it again") from error


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


@dataclass(frozen=True)
class Garbage:
    """A file or folder that can go, why, and its bytes. name: in the ledger; a path: beside it."""

    name: str | Path
    why: str
    size: int


def find_garbage(ledger: Ledger) -> list[Garbage]:
    """All garbage of a ledger; nothing a result, a failure's cause or a resume depends on."""
    garbage = list(_find_spent_checkpoints(ledger))
    if ledger.disk is not None:
        garbage += [*_find_temporaries(ledger.disk), *_find_dead_claims(ledger.disk)]
        for name in ledger.store.list_names("superseded"):
            size = sum(size for _, size in ledger.store.list_files(f"superseded/{name}"))
            garbage.append(Garbage(f"superseded/{name}", "result that a later run replaced", size))
    return garbage


def _find_spent_checkpoints(ledger: Ledger) -> Iterator[Garbage]:
    for signature in ledger.list_signatures():
        files = dict(ledger.store.list_files(folder_of(signature)))
        spent = f"{folder_of(signature)}/resume.ckpt"
        if spent in files and f"{folder_of(signature)}/{RESULT}" in files:
            yield Garbage(spent, "checkpoint of a finished cell", files[spent])


def _find_temporaries(root: Path) -> Iterator[Garbage]:
    for path in root.rglob(".*.tmp"):
        status = path.stat()
        if time.time() - status.st_mtime > lease.SETTLED_SECONDS:
            yield Garbage(str(path.relative_to(root)), "half a write", status.st_size)


def _find_dead_claims(root: Path) -> Iterator[Garbage]:
    for signature, newest in lease.read_claims(root).items():
        if newest.owner.is_dead:
            for path in (root / "claims").glob(f"{signature}.*"):
                why = f"claim of {newest.owner}, which is gone"
                yield Garbage(str(path.relative_to(root)), why, path.stat().st_size)


def find_leftovers(storage: Path, temporary: Path) -> list[Garbage]:
    """What processes of this machine left beside the ledger when they were killed: half a cell of
    an object store, what Ray Tune writes, what W&B does, where several devices met.
    """
    places = (
        (storage / "scratch", "*-*"),
        (storage / "ray", "sweep-*"),
        (temporary, "capsweep-wandb-*"),
        (temporary, "capsweep-ranks-*"),
    )
    return [
        Garbage(folder, why, sum(size for _, size in Disk(folder).list_files("")))
        for parent, pattern in places
        for folder, why in lease.find_abandoned(parent, pattern)
    ]


def remove_garbage(ledger: Ledger, garbage: list[Garbage]) -> int:
    """Remove it; returns the bytes freed."""
    for item in garbage:
        if isinstance(item.name, Path):
            remove_path(item.name)
        else:
            ledger.store.remove(item.name)
    return sum(item.size for item in garbage)
