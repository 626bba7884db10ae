"""Reads stored files; raises DamageError, one line with the file, the damage and the cure.

Whoever reads a file that an earlier process wrote reads it here: a disk, a copy or a person may
have changed it since.
"""

import json
import sys
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import from_json

from capsweep.config import bounded_yaml
from capsweep.config.cell import signature as signature_of
from capsweep.errors import ConfigError, DamageError
from capsweep.ledger import records
from capsweep.ledger.records import Point, Provenance, Record, Result, Row
from capsweep.storage.checked import open_npz
from capsweep.storage.files import hash_bytes

if TYPE_CHECKING:
    import numpy as np

Value = TypeVar("Value")

CONFIG, RESULT = "config.yaml", "result.json"
FAILURE = "error.txt"  # why a cell failed: the cause in the first line, then the traceback
DIGESTS = "sha256"  # key of a result: digests of the cell's files, and of the result itself
DATA = "data"  # key of a result: sha256 of the data that its cell used, by split
AGAIN = "the cell is run again"
PREDICTIONS = "predictions.npz"
METRICS, POINTS = "metrics.jsonl", "steps.jsonl"  # of a cell: rows of epochs, points inside them
ROWS: Mapping[str, type[Row]] = {METRICS: Row, POINTS: Point}
REMOVE = "remove the cell (capsweep ledger rm) and run it again"


def damage_error(where: str, why: object, cure: str) -> DamageError:
    """The error for the damaged file at `where`: why it is damaged, and the cure."""
    return DamageError(f"{where} is damaged ({' '.join(str(why).split())}); {cure}")


def print_damage(error: DamageError) -> None:
    """Print that a damaged file is left out."""
    print(f"error: {error}", file=sys.stderr, flush=True)


def read_if_sound(read: Callable[[], Value]) -> Value | None:
    """Return what is read; None, after a line that names the file, where it is damaged."""
    try:
        return read()
    except DamageError as error:
        print_damage(error)
        return None


def parse_json(
    content: bytes, where: str, cure: str, kind: type[Record] = Record
) -> dict[str, Any]:
    """Return the JSON object of a file, which has the types of `kind`; unknown keys are kept.

    Raises DamageError, which names the field.
    """
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise damage_error(where, error, cure) from error
    if (fault := records.find_fault(kind, value)) is not None:
        raise damage_error(where, fault, cure)
    return value


def read_arrays(content: bytes, where: str, cure: str) -> "dict[str, np.ndarray]":
    """Return the arrays of an .npz. Pickled objects are refused. Raises DamageError."""
    try:
        with open_npz(BytesIO(content)) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception as error:  # a damaged file can make numpy and zipfile raise anything
        raise damage_error(where, error, cure) from error


def read_predictions(content: bytes, where: str) -> "tuple[np.ndarray, np.ndarray]":
    """Scores [M, N] and labels, [M] or [M, L], of a predictions.npz. Raises DamageError."""
    arrays = read_arrays(content, where, REMOVE)
    for name, kinds, dimensions in (("scores", "f", (2,)), ("labels", "iu", (1, 2))):
        array = arrays.get(name)
        if array is None or array.dtype.kind not in kinds or array.ndim not in dimensions:
            raise damage_error(where, f"it has no array of {name}", REMOVE)
    return arrays["scores"], arrays["labels"]


def hash_result(result: Mapping[str, Any]) -> str:
    """The digest of a result, without its own digest and its attempt, which a store adds."""
    digests = {name: digest for name, digest in result.get(DIGESTS, {}).items() if name != RESULT}
    plain = {key: value for key, value in result.items() if key != "attempt"}
    return hash_bytes(json.dumps(plain | {DIGESTS: digests}, sort_keys=True).encode())


def with_digests(result: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """The result with the digests of its cell's files, and its own."""
    plain = json.loads(json.dumps({**result, DIGESTS: digests}, allow_nan=False))
    plain[DIGESTS][RESULT] = hash_result(plain)
    return plain


def read_result(content: bytes, where: str, signature: str, cure: str = AGAIN) -> dict[str, Any]:
    """Return the result of the cell with that signature.

    Raises DamageError, also for the result of another cell, for an altered one, and for a value
    that nobody can have measured.
    """
    result = parse_json(content, where, cure, Result)
    if (stated := result.get("signature", signature)) != signature:
        raise damage_error(where, f"it is of cell {stated}", cure)
    if result.get(DIGESTS, {}).get(RESULT) != hash_result(result):
        raise damage_error(where, "it was altered: its digest is absent or another", cure)
    return result


def read_provenance(
    content: bytes, where: str, signature: str, cure: str = REMOVE
) -> dict[str, Any]:
    """Return where the numbers of the cell with that signature come from. Raises DamageError."""
    made = parse_json(content, where, cure, Provenance)
    if (stated := made.get("signature", signature)) != signature:
        raise damage_error(where, f"it is of cell {stated}", cure)
    if "science" in made:
        _check_science(made["science"], where, signature, cure)
    return made


def read_science(content: bytes, where: str, signature: str, cure: str = REMOVE) -> dict[str, Any]:
    """Return the science configuration of the cell with that signature. Raises DamageError."""
    try:
        science = bounded_yaml.load_settings(content)
    except ConfigError as error:
        raise damage_error(where, error, cure) from error
    _check_science(science, where, signature, cure)
    return science


def _check_science(science: Mapping[str, Any], where: str, signature: str, cure: str) -> None:
    try:
        actual = signature_of(science)
    except ValueError as error:  # a number that is none
        raise damage_error(where, error, cure) from error
    if actual != signature:
        raise damage_error(
            where, f"its signature is {actual}; a cell has the signature of its settings", cure
        )


def read_rows(
    content: bytes, where: str, kind: type[Row], cure: str = REMOVE
) -> list[dict[str, Any]]:
    """Return the rows of a file that has one in each line.

    The last line may be torn: its writer was killed. Raises DamageError.
    """
    lines = content.split(b"\n")
    if not lines[-1].endswith(b"}"):
        lines.pop()
    return [
        parse_json(line, f"{where}, line {number},", cure, kind)
        for number, line in enumerate(lines, 1)
    ]


def check_content(name: str, content: bytes, where: str, signature: str, cure: str) -> None:
    """Raise DamageError for a file of a cell, by its name in there, that nobody could use."""
    if name == CONFIG:
        read_science(content, where, signature, cure)
    elif name == "provenance.json":
        read_provenance(content, where, signature, cure)
    elif name in ROWS:
        read_rows(content, where, ROWS[name], cure)
