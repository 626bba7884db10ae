"""Export cells of a ledger to a tar file, and import them into another ledger.

Exports are for hosts without a network: train and export on such a host, then import elsewhere. The
tar file is verified before the import. If the ledger already has a result for a cell, this result
stays valid, so importing a tar file twice changes nothing. For a failed cell, only config.yaml,
provenance.json and the cause are exported. A tar file with the suffix .xz is packed, that is,
compressed. The cells of a published table are stored in a packed file.
"""

import io
import json
import lzma
import os
import re
import secrets
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from capsweep.config.package_files import CHANGES
from capsweep.errors import DamageError, DataError, UserError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, STOPPED, Entry, Ledger, folder_of, is_damaged
from capsweep.ledger.records import Manifest
from capsweep.ledger.stored_files import CONFIG, DIGESTS, FAILURE, METRICS, POINTS, RESULT, RESUME
from capsweep.storage.files import hash_bytes, write_atomically

MANIFEST = "manifest.json"
FORMAT = 1
EXPORT_AGAIN = "export it again"
COPY_AGAIN = "copy the file again"
PACKED = ".xz"
LARGEST = 2**26  # maximum bytes of an unpacked archive; lzma itself has no limit

WEIGHTS = "weights.ckpt"
FAILED = {CONFIG, FAILURE, "provenance.json"}  # the files of a failed cell that are exported
RESULTS = {*FAILED, RESULT, METRICS}  # the files of a cell that tables need
# Files that may be left out of an export.
OPTIONAL = {WEIGHTS, RESUME, "predictions.npz", POINTS, CHANGES, "metrics.csv"}
FOLDER = re.compile(rb"(?<![\w./:<~-])/(?:[\w.-]+/)+([\w.-]*)")  # a path in a text
# The name of a file in a cell's folder. It is shorter than file systems allow, because an atomic
# write first creates a temporary file with a longer name.
NAME = rf"({EVALUATIONS}/)?(?!{EVALUATIONS}$)[A-Za-z0-9][A-Za-z0-9_.-]{{0,199}}"
MEMBER = re.compile(rf"[0-9a-f]{{16}}/{NAME}")

# The result of each cell of an export, by signature; None: the cell failed.
Results: TypeAlias = "dict[str, dict[str, Any] | None]"


def list_ended_cells(entries: Mapping[str, Entry]) -> list[str]:
    """List the cells that can be exported: cells with a result, and undamaged failed cells."""
    return [
        signature
        for signature, entry in entries.items()
        if entry.result is not None or (entry.status == "failed" and not is_damaged(entry))
    ]


def is_needed_by_tables(name: str) -> bool:
    """Return whether tables need a cell's file with this name. All such files are small."""
    return name in RESULTS or (name.startswith(f"{EVALUATIONS}/") and name.endswith(".json"))


def export_cells(
    ledger: Ledger,
    signatures: Sequence[str],
    file: Path,
    choose: Callable[[str], bool] = lambda name: True,
) -> int:
    """Write cells to a tar file with a manifest of hashes, and return the file's size in bytes.

    Each file of a cell is read twice, so that only one file is in memory at a time.

    Args:
        ledger: The ledger.
        signatures: The signatures of the cells. The cells must have ended.
        file: The tar file to write. A tar file with the suffix .xz is packed.
        choose: Returns whether a file of a cell is exported, given the file's name. By default, all
            files are exported.

    Raises:
        UserError: If the tar file exists already, if a packed tar file would be too large to be
            read, or if the name of a cell's file contains a character that is not allowed.
        DataError: If a file of a cell is damaged, or was removed during the export.
    """
    if os.path.lexists(file):
        raise UserError(f"{file} exists already; remove it, or name another file")
    listed = {signature: _list_names(ledger, signature) for signature in signatures}
    paths = [f"{s}/{name}" for s, names in listed.items() for name in filter(choose, names)]
    hashes, size = {}, 0
    for path in paths:
        content = _read_content(ledger, path)
        hashes[path] = hash_bytes(content)
        size += len(content)
    if file.suffix == PACKED and size > LARGEST:
        raise UserError(f"{file}: {size:,} bytes are too many to pack; leave {PACKED} out")
    manifest = json.dumps({"format": FORMAT, "sha256": hashes}, indent=1).encode()

    def write(target: IO[bytes]) -> None:
        mode = "w:xz" if file.suffix == PACKED else "w"
        with tarfile.open(fileobj=target, mode=mode) as tar:
            _add_member(tar, MANIFEST, manifest)
            for path in paths:
                _add_member(tar, path, _read_content(ledger, path))

    write_atomically(file, write)
    return file.stat().st_size


def _add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _list_names(ledger: Ledger, signature: str) -> list[str]:
    """List the names of a cell's files to export, including the files of evaluations."""
    names, failed = ledger.list_files(signature), ledger.read_result(signature) is None
    if failed:
        return [name for name in names if name in FAILED]
    visible = {name for name in names if not name.startswith(".")} - {EVALUATIONS, FAILURE, RESUME}
    evaluations = (name for name in ledger.list_files(signature, EVALUATIONS) if name[0] != ".")
    return [*sorted(visible | {RESULT}), *(f"{EVALUATIONS}/{name}" for name in evaluations)]


def _read_content(ledger: Ledger, path: str) -> bytes:
    signature, _, name = path.partition("/")
    if MEMBER.fullmatch(path) is None:
        raise UserError(
            f"{path}: an export takes only names of letters, digits, '_', '-', '.'; rename the file"
        )
    content, where = ledger.read_located(signature, name)
    if content is None:
        raise DataError(f"{path} was removed during the export; export again")
    stored_files.check_content(name, content, where, signature, stored_files.REMOVE)
    # Of error.txt, only the cause is exported. The traceback and the names of folders are left out,
    # because they belong to this machine.
    return FOLDER.sub(rb"\1", content.partition(b"\n")[0]) if name == FAILURE else content


def import_cells(ledger: Ledger, file: Path) -> tuple[int, int]:
    """Import those cells of an export that add something to the ledger.

    A finished cell is imported if the ledger has no result for the cell. A failed cell is imported
    only if the ledger has nothing about the cell. For each imported cell, the file
    that says how the cell ended (result.json or error.txt) is written last. If one of the errors
    below is raised, no file was written.

    Returns:
        The number of imported cells, and the number of the other cells of the export.

    Raises:
        DataError: If a file is damaged or absent, or if the signature of a configuration is not
            the name of its folder. The message names the file.
        UserError: If a process runs one of the cells in this ledger.
    """
    results = verify_export(file)
    entries = ledger.read_entries(results)
    # The imported cells, each with the name of the file that says how the cell ended.
    ends = {
        signature: FAILURE if result is None else RESULT
        for signature, result in results.items()
        if (entry := entries[signature]).status == "missing" or (result and not entry.result)
    }
    for signature in ends:
        if (entry := entries[signature]).status == "running":
            raise UserError(f"cell {signature} is being run by {entry.owner}; import it later")
    for signature, name in ends.items():
        if name == RESULT:
            _remove_unfinished(ledger, signature)
    attempt, contents = secrets.token_hex(8), dict[str, bytes]()
    for path, content in read_members(file):
        signature, _, name = path.partition("/")
        if name == ends.get(signature):
            contents[signature] = content
        elif signature in ends and name != FAILURE:
            is_apart = ledger.disk is None and results[signature] is not None
            folder = folder_of(signature) + (f"/{attempt}" if is_apart else "")
            ledger.store.write(f"{folder}/{name}", content)
    for signature, name in ends.items():
        content, result = contents[signature], results[signature]
        if result is not None and ledger.disk is None:  # `attempt` names the folder with the files
            content = json.dumps(result | {"attempt": attempt}, indent=2).encode()
        ledger.store.write(f"{folder_of(signature)}/{name}", content)
    return len(ends), len(results) - len(ends)


def _remove_unfinished(ledger: Ledger, signature: str) -> None:
    """Remove the files of an unfinished run of a cell.

    On a disk, the whole folder of the cell is removed. In an object store, only error.txt,
    stopped.json and resume.ckpt are removed.
    """
    names = (FAILURE, STOPPED, RESUME)
    parts = [""] if ledger.disk is not None else [f"/{name}" for name in names]
    for part in parts:
        ledger.store.remove(f"{folder_of(signature)}{part}")


def verify_export(file: Path) -> Results:
    """Verify all files of an export, and return the result of each cell.

    Returns:
        The results by signature; None for a failed cell.

    Raises:
        DataError: If a file is damaged or absent, or if the signature of a configuration is not
            the name of its folder. The message names the file.
    """
    cells: dict[str, dict[str, str]] = {}
    results: Results = {}
    for path, content in read_members(file):
        signature, _, name = path.partition("/")
        if MEMBER.fullmatch(path) is None:
            raise DataError(f"{file}: {path[:80]!r} leads out of its folder, or is not valid")
        cells.setdefault(signature, {})[name] = hash_bytes(content)
        where = f"{file}: {name} of cell {signature}"
        if name == RESULT:
            results[signature] = stored_files.read_result(content, where, signature, EXPORT_AGAIN)
        else:
            stored_files.check_content(name, content, where, signature, EXPORT_AGAIN)
    for signature, hashes in cells.items():
        if FAILURE in hashes:
            results.setdefault(signature, None)
        result = results.get(signature, {})
        known = {} if result is None else result.get(DIGESTS, {})
        needed = {FAILURE} if result is None else {CONFIG, RESULT, *known} - OPTIONAL
        if absent := needed - hashes.keys():
            raise DataError(f"{file}: {signature}/{min(absent)} is absent; {EXPORT_AGAIN}")
        for name in sorted((hashes.keys() & known) - {RESULT}):  # `read_result` checked this one
            if hashes[name] != known[name]:
                why = f"is not the file that the cell's {RESULT} names"
                raise DataError(f"{file}: {signature}/{name} {why}; {EXPORT_AGAIN}")
    return results


def read_members(file: Path) -> Iterator[tuple[str, bytes]]:
    """Check each file of an export against the manifest, and yield the file's name and content.

    Raises:
        DataError: If the tar file is damaged, if the hash of a file is wrong, or if a file of the
            manifest is absent. An absent file is noticed only after the last file was yielded. The
            message names the file.
    """
    members = _read_tar(file)
    name, content = next(members, ("", b""))
    try:
        manifest = content if name == MANIFEST else b"{}"
        hashes = stored_files.parse_json(manifest, MANIFEST, EXPORT_AGAIN, Manifest)["sha256"]
    except DamageError as error:
        raise DataError(f"{file}: it has no {MANIFEST} of this version; {EXPORT_AGAIN}") from error
    for name, content in members:
        if hashes.pop(name, None) != hash_bytes(content):
            raise DataError(f"{file}: {name} differs from the manifest; {COPY_AGAIN}")
        yield name, content
    if hashes:
        raise DataError(f"{file}: {min(hashes)} is absent; {EXPORT_AGAIN}")


def _read_tar(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file of a tar file, one at a time.

    The caller must check the names of the files. Only plain tar files and tar files packed with xz
    are read. With another compression, or with sparse files, the content could be much larger than
    the tar file. Links and devices are refused too, because no export contains them.

    Raises:
        DataError: If the tar file is damaged, or contains something that is not a regular file.
    """
    if not file.is_file():  # opening a pipe would wait for its writer
        raise DataError(f"{file}: no such file, or no regular file; name one that export wrote")
    try:
        with _unpack(file) if file.suffix == PACKED else file.open("rb") as content:
            length = content.seek(0, os.SEEK_END)
            content.seek(0)
            with tarfile.open(mode="r:", fileobj=content) as tar:
                for member in tar:
                    is_plain = member.isreg() and not member.issparse()
                    if is_plain and not 0 <= member.size <= length - member.offset_data:
                        raise EOFError(f"{member.name!r} declares {member.size:,} bytes")
                    if (stream := tar.extractfile(member) if is_plain else None) is None:
                        raise DataError(
                            f"{file}: {member.name!r} is not a regular file; {EXPORT_AGAIN}"
                        )
                    yield member.name, stream.read()
    except DataError:
        raise
    except Exception as error:  # for a damaged header, lzma and tarfile can raise any error
        reason = str(error) or type(error).__name__
        raise DataError(f"{file}: not a complete tar file ({reason}); {COPY_AGAIN}") from error


def _unpack(file: Path) -> IO[bytes]:
    """Unpack a packed tar file into memory.

    Raises:
        DataError: If the unpacked content has more than LARGEST bytes.
        EOFError: If the packed file is incomplete.
        lzma.LZMAError: If the packed file is damaged.
    """
    unpacking = lzma.LZMADecompressor(memlimit=LARGEST)
    content = unpacking.decompress(file.read_bytes(), LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"{file}: more than {LARGEST:,} bytes when unpacked; unpack it with xz -d")
    if not unpacking.eof:
        raise EOFError("its end is missing")
    return io.BytesIO(content)
