"""Tar files of named contents with a manifest of hashes: written at once, never unpacked to disk.

A file whose name ends in .xz is packed.
"""

import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from capsweep.errors import DamageError, DataError, UserError
from capsweep.ledger import stored_files
from capsweep.ledger.records import Manifest
from capsweep.storage.files import hash_bytes, write_atomically

MANIFEST = "manifest.json"
FORMAT = 1
AGAIN = "export it again"
COPY = "copy the file again"
PACKED = ".xz"
LARGEST = 2**26  # bytes to which a packed archive may unpack: nobody else bounds them


def write_archive(file: Path, names: Sequence[str], read: Callable[[str], bytes]) -> int:
    """Write the contents of these names, read twice, one in memory at a time; returns how many
    bytes the file has.

    Raises UserError where something is there already, and for a packed archive that would be too
    large to be read.
    """
    if os.path.lexists(file):
        raise UserError(f"{file} is there already; remove it, or name another file")
    hashes, size = {}, 0
    for name in names:
        content = read(name)
        hashes[name] = hash_bytes(content)
        size += len(content)
    if file.suffix == PACKED and size > LARGEST:
        raise UserError(f"{file}: {size:,} bytes are too many to be packed; leave {PACKED} out")
    manifest = json.dumps({"format": FORMAT, "sha256": hashes}, indent=1).encode()

    def write(target: IO[bytes]) -> None:
        mode = "w:xz" if file.suffix == PACKED else "w"
        with tarfile.open(fileobj=target, mode=mode) as tar:
            _add_member(tar, MANIFEST, manifest)
            for name in names:
                _add_member(tar, name, read(name))

    write_atomically(file, write)
    return file.stat().st_size


def _add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def read_members(file: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents, each compared with the manifest. Raises DataError naming the file where
    a hash is wrong, and at the end where a name is absent.
    """
    members = _read_tar(file)
    hashes = _parse_manifest(file, *next(members, ("", b"")))
    for name, content in members:
        if hashes.pop(name, None) != hash_bytes(content):
            raise DataError(f"{file}: {name} is not as the manifest says; {COPY}")
        yield name, content
    if hashes:
        raise DataError(f"{file}: {min(hashes)} is absent; {AGAIN}")


def _parse_manifest(file: Path, name: str, content: bytes) -> dict[str, str]:
    try:
        found = content if name == MANIFEST else b"{}"
        return stored_files.parse_json(found, MANIFEST, AGAIN, Manifest)["sha256"]
    except DamageError as error:
        raise DataError(f"{file}: no {MANIFEST} of this capsweep in it; {AGAIN}") from error


def _read_tar(file: Path) -> Iterator[tuple[str, bytes]]:
    """Plain files of the tar, one at a time, whatever their names say.

    Other compressed archives and sparse files, which may be any size when they are read, and links
    and devices, which `write_archive` writes none of, are refused.
    """
    if not file.is_file():  # a pipe would be waited for
        raise DataError(f"{file}: no such file, or no plain one; name one that export wrote")
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
                        raise DataError(f"{file}: {member.name!r} is no plain file; {AGAIN}")
                    yield member.name, stream.read()
    except DataError:
        raise
    except Exception as error:  # a damaged header can make lzma and tarfile raise anything
        reason = str(error) or type(error).__name__
        raise DataError(f"{file}: not a whole tar file ({reason}); {COPY}") from error


def _unpack(file: Path) -> IO[bytes]:
    """The tar in a packed file, of LARGEST bytes at most."""
    unpacking = lzma.LZMADecompressor(memlimit=LARGEST)
    content = unpacking.decompress(file.read_bytes(), LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"{file}: more than {LARGEST:,} bytes when unpacked; unpack it with xz -d")
    if not unpacking.eof:
        raise EOFError("its end is absent")
    return io.BytesIO(content)
