"""Upkeep of a ledger: exports that travel, and what nobody needs any more.

An export is one tar file, for hosts without a network: train there, export there, import here. An
import is verified; the first complete result of a cell stands, so importing twice, or what is there
already, changes nothing. An export whose name ends in .xz is packed: the cells behind a published
table are kept so.
"""

import io
import json
import lzma
import os
import re
import secrets
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from capsweep.config import bounded_yaml
from capsweep.config.cell import signature as signature_of
from capsweep.errors import ConfigError, DataError, UserError
from capsweep.ledger import lease, stored_files
from capsweep.ledger.ledger import EVALUATIONS, Ledger, folder_of
from capsweep.ledger.stored_files import DIGESTS, RESULT
from capsweep.storage.files import hash_bytes, write_atomically

MANIFEST = "manifest.json"
FORMAT = 1
AGAIN = "export it again"
COPY = "copy the file again"
CONFIG = "config.yaml"
WEIGHTS = "weights.ckpt"
OPTIONAL = {WEIGHTS, "predictions.npz", "steps.jsonl"}  # files that an export may leave out
PACKED = ".xz"
LARGEST = 2**26  # bytes to which a packed export may unpack: nobody else bounds them
# Of a file in a cell's folder: shorter than a file system allows, which has a longer one meanwhile.
NAME = re.compile(rf"({EVALUATIONS}/)?(?!{EVALUATIONS}$)[A-Za-z0-9][A-Za-z0-9_.-]{{0,199}}")


def is_result(name: str) -> bool:
    """Whether a file of a cell is small and says how the cell ended: what tables need."""
    in_evaluations = name.startswith(f"{EVALUATIONS}/")
    return name.endswith(".json") if in_evaluations else name not in OPTIONAL


def export_cells(
    ledger: Ledger,
    signatures: Sequence[str],
    file: Path,
    choose: Callable[[str], bool] = lambda name: True,
) -> int:
    """Write finished cells to a tar file with a manifest of hashes; returns how many bytes.

    choose: which files of a cell. One file is in memory at a time. Raises UserError where something
    is there already.
    """
    if os.path.lexists(file):
        raise UserError(f"{file} is there already; remove it, or name another file")
    names = [
        (signature, name)
        for signature in signatures
        for name in _list_names(ledger, signature)
        if choose(name)
    ]
    hashes = {f"{s}/{name}": hash_bytes(_read_content(ledger, s, name)) for s, name in names}
    manifest = json.dumps({"format": FORMAT, "sha256": hashes}, indent=1).encode()

    def write(target: IO[bytes]) -> None:
        mode = "w:xz" if file.suffix == PACKED else "w"
        with tarfile.open(fileobj=target, mode=mode) as tar:
            _add_member(tar, MANIFEST, manifest)
            for cell, name in names:
                _add_member(tar, f"{cell}/{name}", _read_content(ledger, cell, name))

    write_atomically(file, write)
    return file.stat().st_size


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


def import_cells(ledger: Ledger, file: Path) -> tuple[int, int]:
    """Add the cells of an export that the ledger lacks; a cell's result is written last.

    Returns how many were new, and how many were there already. Raises DataError naming the file
    when a hash is wrong, a file is missing, or a configuration does not have the signature of its
    folder, and UserError for a cell that is being run here; then nothing is written.
    """
    results = _verify_export(file)
    entries = ledger.entries(results)
    new = [signature for signature in results if entries[signature].result is None]
    for signature in new:
        if (entry := entries[signature]).status == "running":
            raise UserError(f"{signature} is being run by {entry.owner}; import when it has ended")
    attempt, written = secrets.token_hex(8), set[str]()
    for path, content in _read_members(file):
        signature, _, name = path.partition("/")
        if signature in new and name != RESULT:
            folder = folder_of(signature) + (f"/{attempt}" if ledger.disk is None else "")
            ledger.store.write(f"{folder}/{name}", content)
            written.add(f"{folder}/{name}")
    for signature in new:
        result = {k: v for k, v in results[signature].items() if k != "attempt"}
        if ledger.disk is None:
            result["attempt"] = attempt  # where its files are
        content = json.dumps(result, indent=2).encode()
        _remove_unfinished(ledger, signature, written)
        ledger.store.write(f"{folder_of(signature)}/{RESULT}", content)
    return len(new), len(results) - len(new)


def _remove_unfinished(ledger: Ledger, signature: str, written: set[str]) -> None:
    """Remove all but the files `written`; in an object store, other attempts stay."""
    folder = folder_of(signature)
    unfinished = {f"{folder}/{name}" for name in ("error.txt", "stopped.json", "resume.ckpt")}
    for path, _ in list(ledger.store.list_files(folder)):
        if path not in written and (ledger.disk is not None or path in unfinished):
            ledger.store.remove(path)


def _verify_export(file: Path) -> dict[str, dict[str, Any]]:
    """The result of each cell by its signature, once all files are as the manifest says."""
    members = _read_members(file)
    hashes = _parse_manifest(file, *next(members, ("", b"")))
    cells: dict[str, set[str]] = {}
    results: dict[str, dict[str, Any]] = {}
    for path, content in members:
        if hashes.pop(path, None) != hash_bytes(content):
            raise DataError(f"{file}: {path} is not as the manifest says; {COPY}")
        signature, _, name = path.partition("/")
        if NAME.fullmatch(name) is None:
            raise DataError(f"{file}: {path[:80]!r} leads out of its folder, or is no name")
        cells.setdefault(signature, set()).add(name)
        if name == CONFIG:
            _check_signature(file, signature, content)
        if name == RESULT:
            where = f"{file}: {RESULT} of cell {signature}"
            results[signature] = stored_files.read_result(content, where, signature, AGAIN)
    for signature, names in cells.items():
        needed = {CONFIG, RESULT, *results.get(signature, {}).get(DIGESTS, {})} - OPTIONAL
        hashes.update((f"{signature}/{name}", "") for name in needed - names)
    if hashes:
        raise DataError(f"{file}: {min(hashes)} is absent; {AGAIN}")
    return results


def _parse_manifest(file: Path, path: str, content: bytes) -> dict[str, str]:
    try:
        manifest = json.loads(content) if path == MANIFEST else {}
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}")
        return dict(manifest["sha256"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: no {MANIFEST} of this capsweep in it; {AGAIN}") from error


def _read_members(file: Path) -> Iterator[tuple[str, bytes]]:
    """Plain files of the tar, one at a time, whatever their names say: nothing is unpacked.

    Other compressed archives and sparse files, which may be any size when they are read, and links
    and devices, which export writes none of, are refused.
    """
    if not file.is_file():  # a pipe would be waited for
        raise DataError(f"{file}: no such file, or no plain one; name one that export wrote")
    try:
        content = _unpack(file) if file.suffix == PACKED else None
        with tarfile.open(file, mode="r:", fileobj=content) as tar:
            for member in tar:
                is_plain = member.isreg() and not member.issparse()
                if (stream := tar.extractfile(member) if is_plain else None) is None:
                    raise DataError(f"{file}: {member.name!r} is no plain file; {AGAIN}")
                yield member.name, stream.read()
    except DataError:
        raise
    except (
        tarfile.TarError,
        lzma.LZMAError,
        EOFError,
        OSError,
        ValueError,
        RecursionError,
    ) as error:
        raise DataError(f"{file}: not a whole tar file ({error}); {COPY}") from error


def _unpack(file: Path) -> IO[bytes]:
    """The tar in a packed file, of LARGEST bytes at most."""
    with lzma.open(file) as packed:
        content = packed.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"{file}: more than {LARGEST:,} bytes when unpacked; unpack it with xz -d")
    return io.BytesIO(content)


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
    """A file or folder of the ledger that can go, why, and its bytes."""

    name: str
    why: str
    size: int


def find_garbage(ledger: Ledger) -> list[Garbage]:
    """All garbage of a ledger; nothing a result, a failure's cause or a resume depends on."""
    garbage = list(_find_spent_checkpoints(ledger))
    if ledger.disk is not None:
        garbage += _find_temporaries(ledger.disk)
        for name in ledger.store.list_names("superseded"):
            size = sum(size for _, size in ledger.store.list_files(f"superseded/{name}"))
            garbage.append(Garbage(f"superseded/{name}", "result that a later run replaced", size))
    return garbage


def _find_spent_checkpoints(ledger: Ledger) -> Iterator[Garbage]:
    if ledger.disk is None:  # a result and the checkpoint of its rerun stand side by side there
        return
    for signature in ledger.list_signatures():
        files = dict(ledger.store.list_files(folder_of(signature)))
        spent = f"{folder_of(signature)}/resume.ckpt"
        if spent in files and f"{folder_of(signature)}/{RESULT}" in files:
            yield Garbage(spent, "checkpoint of a finished cell", files[spent])


def _find_temporaries(root: Path) -> Iterator[Garbage]:
    for path in root.rglob(".*.tmp"):
        with suppress(FileNotFoundError):  # it has its name by now
            status = path.stat()
            if time.time() - status.st_mtime > lease.SETTLED_SECONDS:
                yield Garbage(str(path.relative_to(root)), "half a write", status.st_size)
