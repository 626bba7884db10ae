"""resume.ckpt: torch's file, and after it the SHA-256 of that, so that one rename writes both."""

import hashlib
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from capsweep.ledger import causes
from capsweep.ledger.causes import Kind
from capsweep.ledger.cell_directory import CellDirectory

DIGITS = 64  # of the digest, at the end of the file; torch reads a file with them as without
ANEW = "begun_anew"  # key of what says that, in provenance and result
CIRCUMSTANCES = ("code", "versions", "hardware", "implementations")


def seal(path: Path) -> None:
    """Append the digest of a file to it, and flush the file to the disk."""
    with path.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(digest.encode())
        file.flush()
        os.fsync(file.fileno())


def resumed(directory: CellDirectory, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What the checkpoint of a cell adds to its provenance.

    `earlier`: other versions and hardware, and other code with the same numerics, that trained
    epochs of it. A checkpoint that cannot be used is removed, with a line: `begun_anew`.
    """
    path = directory.resume_checkpoint
    if not path.exists():
        return {}
    made, fault = _trained_by(path, provenance["code"]["numerics"])
    if fault is None:
        return _earlier(made, provenance)
    path.unlink()
    said = f"{path} is dropped, and the cell begins anew: {fault}"
    print(said, file=sys.stderr, flush=True)
    return {ANEW: said}


def _trained_by(path: Path, code: str) -> tuple[dict[str, Any], str | None]:
    """The provenance that the recorder put into a checkpoint; or why the checkpoint is useless."""
    content = memoryview(path.read_bytes())
    if hashlib.sha256(content[:-DIGITS]).hexdigest().encode() != content[-DIGITS:]:
        return {}, "it is damaged, or older than digests of checkpoints"
    try:
        stored = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        (made,) = (one["provenance"] for one in stored["callbacks"].values() if "rows" in one)
        is_ours = made["code"]["numerics"] == code
    except Exception as error:  # a digest can be right of what never was a checkpoint
        if causes.kind(causes.of(error)) in (Kind.OUT_OF_MEMORY, Kind.STORAGE):
            raise  # of this moment: the checkpoint is kept
        return {}, f"it is no checkpoint of a cell ({type(error).__name__})"
    return made, None if is_ours else "other code than today's trained its epochs"


def _earlier(made: Mapping[str, Any], today: Mapping[str, Any]) -> dict[str, Any]:
    """All circumstances under which epochs of a checkpoint were trained, without today's."""
    known = [{name: today.get(name) for name in CIRCUMSTANCES}]
    for one in [*made.get("earlier", []), {name: made.get(name) for name in CIRCUMSTANCES}]:
        known += [one] if one not in known else []
    return {"earlier": known[1:]} if known[1:] else {}
