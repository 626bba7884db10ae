"""Reads stored files; raises DamageError, one line with the file, the damage and the cure.

Whoever reads a file that an earlier process wrote reads it here: a disk, a copy or a person may
have changed it since.
"""

import json
import sys
import zipfile
import zlib
from collections.abc import Collection, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from capsweep.errors import DamageError
from capsweep.ledger import checks
from capsweep.ledger.checks import Check
from capsweep.storage.files import hash_bytes

if TYPE_CHECKING:
    import numpy as np

RESULT = "result.json"
DIGESTS = "sha256"  # key of a result: digests of the cell's files, and of the result itself
AGAIN = "the cell is run again"
REMOVE = "remove the cell (capsweep ledger rm) and run it again"
DEEPEST = 64  # levels of a JSON file


def damage(where: str, why: object, cure: str) -> DamageError:
    """The error for the damaged file at `where`: why it is damaged, and the cure."""
    return DamageError(f"{where} is damaged ({' '.join(str(why).split())}); {cure}")


def parse(content: bytes, where: str, cure: str, check: Check) -> dict[str, Any]:
    """A JSON object that passes `check`. Raises DamageError."""
    try:
        value = json.loads(content.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise damage(where, error, cure) from error
    wrong = " is nested too deep" if _is_deeper(value, DEEPEST) else check(value)
    if wrong is not None:
        raise damage(where, wrong, cure)
    return value


def read_text(content: bytes, where: str, cure: str) -> str:
    """Text that is not empty. Raises DamageError."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise damage(where, error, cure) from error
    if not text.strip():
        raise damage(where, "it is empty", cure)
    return text


def read_arrays(
    content: bytes, where: str, cure: str, names: Collection[str] | None = None
) -> "dict[str, np.ndarray]":
    """The named arrays of an .npz, None: all. Pickled objects are refused. Raises DamageError."""
    import numpy as np

    faults = (ValueError, KeyError, EOFError, OSError, RuntimeError, TypeError, MemoryError)
    try:
        with np.load(BytesIO(content), allow_pickle=False) as stored:
            return {name: stored[name] for name in names or stored.files}
    except (*faults, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise damage(where, error, cure) from error


def read_predictions(content: bytes, where: str) -> "tuple[np.ndarray, np.ndarray]":
    """Scores [M, N] and labels, [M] or [M, L], of a predictions.npz. Raises DamageError."""
    arrays = read_arrays(content, where, REMOVE)
    for name, kinds, dimensions in (("scores", "f", (2,)), ("labels", "iu", (1, 2))):
        found = arrays.get(name)
        if found is None or found.dtype.kind not in kinds or found.ndim not in dimensions:
            raise damage(where, f"it has no array of {name}", REMOVE)
    return arrays["scores"], arrays["labels"]


def print_damage(error: DamageError) -> None:
    """Print that a damaged file is left out."""
    print(f"error: {error}", file=sys.stderr, flush=True)


def digest_of(result: Mapping[str, Any]) -> str:
    """The digest of a result, without its own digest and its attempt, which a store adds."""
    digests = {name: one for name, one in result.get(DIGESTS, {}).items() if name != RESULT}
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
    result = parse(content, where, cure, checks.RESULT)
    if result.get("signature", signature) != signature:
        raise damage(where, f"it is of cell {result['signature']}", cure)
    known = result.get(DIGESTS, {}).get(RESULT)
    if known is not None and known != digest_of(result):
        raise damage(where, "it was altered: its digest is another", cure)
    return result


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _is_deeper(value: Any, left: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(inner) and (left == 0 or any(_is_deeper(one, left - 1) for one in inner))
