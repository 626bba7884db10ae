"""Reads stored files; raises DamageError, one line with the file, the damage and the cure.

Whoever reads a file that an earlier process wrote reads it here: a disk, a copy or a person may
have changed it since.
"""

import json
import sys
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from capsweep.errors import DamageError
from capsweep.statistics.metric_format import FRACTIONS
from capsweep.storage.files import hash_bytes
from capsweep.storage.npz import open_npz

if TYPE_CHECKING:
    import numpy as np

RESULT = "result.json"
FAILURE = "error.txt"  # why a cell failed: the cause in the first line, then the traceback
DIGESTS = "sha256"  # key of a result: digests of the cell's files, and of the result itself
AGAIN = "the cell is run again"
REMOVE = "remove the cell (capsweep ledger rm) and run it again"


def damage_error(where: str, why: object, cure: str) -> DamageError:
    """The error for the damaged file at `where`: why it is damaged, and the cure."""
    return DamageError(f"{where} is damaged ({' '.join(str(why).split())}); {cure}")


def print_damage(error: DamageError) -> None:
    """Print that a damaged file is left out."""
    print(f"error: {error}", file=sys.stderr, flush=True)


def parse_json(content: bytes, where: str, cure: str, *needed: str) -> dict[str, Any]:
    """A JSON object with these keys; other keys may be there too. Raises DamageError."""
    try:
        value = json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise damage_error(where, error, cure) from error
    if not isinstance(value, dict):
        raise damage_error(where, "it is no object", cure)
    if absent := [key for key in needed if key not in value]:
        raise damage_error(where, f"{absent[0]} is absent", cure)
    return value


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def read_arrays(content: bytes, where: str, cure: str) -> "dict[str, np.ndarray]":
    """The arrays of an .npz. Pickled objects are refused. Raises DamageError."""
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


def digest_of(result: Mapping[str, Any]) -> str:
    """The digest of a result, without its own digest and its attempt, which a store adds."""
    digests = {name: digest for name, digest in result.get(DIGESTS, {}).items() if name != RESULT}
    plain = {key: value for key, value in result.items() if key != "attempt"}
    return hash_bytes(json.dumps(plain | {DIGESTS: digests}, sort_keys=True).encode())


def with_digests(result: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """The result with the digests of its cell's files, and its own."""
    plain = json.loads(json.dumps({**result, DIGESTS: digests}, allow_nan=False))
    plain[DIGESTS][RESULT] = digest_of(plain)
    return plain


def read_result(content: bytes, where: str, signature: str, cure: str = AGAIN) -> dict[str, Any]:
    """The result of the cell with that signature.

    Raises DamageError, also for the result of another cell, for an altered one, and for a value
    outside the range of its metric.
    """
    result = parse_json(content, where, cure, "metrics")
    metrics = result["metrics"]
    if not isinstance(metrics, dict) or any(type(v) not in (int, float) for v in metrics.values()):
        raise damage_error(where, "its metrics are no numbers", cure)
    for name, value in metrics.items():
        if name.rpartition("/")[2] in FRACTIONS and not 0 <= value <= 1:
            raise damage_error(where, f"metrics.{name} is {value}, no fraction of 0 to 1", cure)
    if result.get("signature", signature) != signature:
        raise damage_error(where, f"it is of cell {result['signature']}", cure)
    recorded = result.get(DIGESTS, {}).get(RESULT)
    if recorded is not None and recorded != digest_of(result):
        raise damage_error(where, "it was altered: its digest is another", cure)
    return result
