"""Read and check the stored files of a cell.

A file that an earlier process wrote is checked whenever it is read, because a disk, a copy or a
person may have changed the file. If a check fails, DamageError is raised. The message is one line
with the file, the damage and the cure.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from capsweep.config import bounded_yaml
from capsweep.config.cell import hash_science
from capsweep.errors import DamageError
from capsweep.ledger.records import Point, Provenance, Record, Result, Row
from capsweep.storage.checked import describe_fault, open_npz
from capsweep.storage.files import hash_bytes

if TYPE_CHECKING:
    import numpy as np

Value = TypeVar("Value")

CONFIG, RESULT = "config.yaml", "result.json"
FAILURE = "error.txt"  # why a cell failed: the cause in the first line, then the traceback
DIGESTS = "sha256"  # key of a result: digests of the cell's files, and of the result itself
DATA = "data"  # key of a result: sha256 of each split of the data that the cell used
AGAIN = "the cell is run again"
PREDICTIONS = "predictions.npz"
RESUME = "resume.ckpt"  # the last checkpoint: weights, state of the optimiser, rows
METRICS, POINTS = "metrics.jsonl", "steps.jsonl"  # one row per epoch; several rows per epoch
ROWS: Mapping[str, type[Row]] = {METRICS: Row, POINTS: Point}
REMOVE = "remove the cell (capsweep ledger rm) and run it again"


def damage_error(where: str, why: object, cure: str) -> DamageError:
    """Return the error for a damaged file.

    Args:
        where: The path or URL of the file.
        why: How the file is damaged.
        cure: What the user can do, or what the program will do.
    """
    return DamageError(f"{where} is damaged ({' '.join(str(why).split())}); {cure}")


@contextmanager
def report_damage(where: str, cure: str) -> Iterator[None]:
    """Convert each ValueError of a `with` block to a DamageError.

    Args:
        where: The path or URL of the file that the block reads.
        cure: What the user can do, or what the program will do.
    """
    try:
        yield
    except ValueError as error:
        why = describe_fault(error) if isinstance(error, ValidationError) else error
        raise damage_error(where, why, cure) from error


def read_if_sound(read: Callable[..., Value], *arguments: Any) -> Value | None:
    """Return the value of `read(*arguments)`, or None if the call raises DamageError.

    The error is printed to stderr.
    """
    try:
        return read(*arguments)
    except DamageError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return None


def parse_json(content: bytes, where: str, cure: str, kind: type[Record]) -> dict[str, Any]:
    """Parse the JSON object of a file; unknown keys are kept.

    Args:
        content: The content of the file.
        where: The path or URL of the file, for the message.
        cure: What the user can do, for the message.
        kind: The model that the object must fit.

    Raises:
        DamageError: If the content is not JSON, or if a field does not fit the model. The message
            names the field.
    """
    with report_damage(where, cure):
        value = from_json(content, allow_inf_nan=False)
        kind.model_validate(value)
    return value


def read_arrays(content: bytes, where: str, cure: str) -> "dict[str, np.ndarray]":
    """Read the arrays of an .npz file; pickled objects are refused.

    Raises:
        DamageError: If the file cannot be read.
    """
    try:
        with open_npz(BytesIO(content)) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception as error:  # for a damaged file, numpy and zipfile can raise any error
        raise damage_error(where, error, cure) from error


def read_predictions(content: bytes, where: str) -> "tuple[np.ndarray, np.ndarray]":
    """Read the scores and the labels of test examples from predictions.npz.

    Returns:
        Scores [M, N] and labels [M] or [M, L], for M test examples, N classes and L classes per
        image.

    Raises:
        DamageError: If one of the two arrays is absent, or has a wrong type or a wrong number of
            dimensions.
    """
    arrays = read_arrays(content, where, REMOVE)
    for name, kinds, dimensions in (("scores", "f", (2,)), ("labels", "iu", (1, 2))):
        array = arrays.get(name)
        if array is None or array.dtype.kind not in kinds or array.ndim not in dimensions:
            raise damage_error(where, f"it has no valid array {name}", REMOVE)
    return arrays["scores"], arrays["labels"]


def hash_result(result: Mapping[str, Any]) -> str:
    """Compute the digest of a result.

    The digest covers the whole result with two exceptions: the digest itself, and the key
    `attempt`, because only object stores add this key.
    """
    digests = {name: digest for name, digest in result.get(DIGESTS, {}).items() if name != RESULT}
    plain = {key: value for key, value in result.items() if key != "attempt"}
    return hash_bytes(json.dumps(plain | {DIGESTS: digests}, sort_keys=True).encode())


def with_digests(result: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """Return a result with added digests of the cell's files and of the result itself."""
    plain = json.loads(json.dumps({**result, DIGESTS: digests}, allow_nan=False))
    plain[DIGESTS][RESULT] = hash_result(plain)
    return plain


def read_result(content: bytes, where: str, signature: str, cure: str = AGAIN) -> dict[str, Any]:
    """Parse the result.json of a cell, and check the digest and the signature in the file.

    Raises:
        DamageError: If the result was altered, belongs to another cell, or has an impossible value.
    """
    result = parse_json(content, where, cure, Result)
    with report_damage(where, cure):
        _check_owner(result, signature)
        if result.get(DIGESTS, {}).get(RESULT) != hash_result(result):
            raise ValueError("it was altered: its digest is absent or wrong")
    return result


def _check_owner(record: Mapping[str, Any], signature: str) -> None:
    """Raise ValueError if a result or a provenance names another cell."""
    if (stated := record.get("signature", signature)) != signature:
        raise ValueError(f"it belongs to cell {stated}")


def _check_science(science: Mapping[str, Any], signature: str) -> None:
    """Raise ValueError if settings have another signature, or a number that is not finite."""
    if (actual := hash_science(science)) != signature:
        raise ValueError(f"its settings have the signature {actual}, not {signature}")


def read_provenance(
    content: bytes, where: str, signature: str, cure: str = REMOVE
) -> dict[str, Any]:
    """Parse the provenance.json of a cell, and check the signature in the file.

    Raises:
        DamageError: If the file is damaged, or belongs to another cell.
    """
    provenance = parse_json(content, where, cure, Provenance)
    with report_damage(where, cure):
        _check_owner(provenance, signature)
        if "science" in provenance:
            _check_science(provenance["science"], signature)
    return provenance


def read_science(content: bytes, where: str, signature: str, cure: str = REMOVE) -> dict[str, Any]:
    """Parse the config.yaml of a cell, and check that its settings have the cell's signature.

    Raises:
        DamageError: If the file is damaged, or belongs to another cell.
    """
    with report_damage(where, cure):
        science = bounded_yaml.load_settings(content)
        _check_science(science, signature)
    return science


def read_rows(name: str, content: bytes, where: str, cure: str = REMOVE) -> list[dict[str, Any]]:
    """Read the rows of metrics.jsonl or steps.jsonl, which have one JSON object per line.

    An incomplete last line is left out, because a killed process may leave such a line.

    Raises:
        DamageError: If another line is damaged.
    """
    lines, kind = content.split(b"\n"), ROWS[name]
    if not lines[-1].endswith(b"}"):
        lines.pop()
    numbered = enumerate(lines, 1)
    return [parse_json(line, f"{where}, line {n},", cure, kind) for n, line in numbered]


def check_content(name: str, content: bytes, where: str, signature: str, cure: str) -> None:
    """Raise DamageError if a file of a cell is damaged.

    Only predictions.npz and the text files of a run are checked.

    Args:
        name: The name of the file in the cell's folder.
        content: The content of the file.
        where: The path or URL of the file, for the message.
        signature: The signature of the cell.
        cure: What the user can do, for the message.
    """
    if name == CONFIG:
        read_science(content, where, signature, cure)
    elif name == "provenance.json":
        read_provenance(content, where, signature, cure)
    elif name == PREDICTIONS:
        read_predictions(content, where)
    elif name in ROWS:
        read_rows(name, content, where, cure)
