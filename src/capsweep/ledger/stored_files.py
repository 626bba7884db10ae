"""Reads stored files; raises DamageError, one line with the file, the damage and the cure.

Whoever reads a file that an earlier process wrote reads it here: a disk, a copy or a person may
have changed it since.
"""

import json
import sys
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from capsweep.errors import DamageError
from capsweep.statistics.metric_format import FRACTIONS
from capsweep.storage.files import hash_bytes

if TYPE_CHECKING:
    import numpy as np

RESULT = "result.json"
DIGESTS = "sha256"  # key of a result: digests of the cell's files, and of the result itself
AGAIN = "the cell is run again"
REMOVE = "remove the cell (capsweep ledger rm) and run it again"
LARGEST = 1e100  # of a number: what is computed from it stays finite


def damage_error(where: str, why: object, cure: str) -> DamageError:
    """The error for the damaged file at `where`: why it is damaged, and the cure."""
    return DamageError(f"{where} is damaged ({' '.join(str(why).split())}); {cure}")


def print_damage(error: DamageError) -> None:
    """Print that a damaged file is left out."""
    print(f"error: {error}", file=sys.stderr, flush=True)


# A kind of value of KINDS, with `?` where null is good too; or the schemas of an object's fields:
# a name with `!` must be there, and `*` is every field.
Schema = str | Mapping[str, Any]


def parse_json(content: bytes, where: str, cure: str, schema: Schema) -> dict[str, Any]:
    """A JSON object as the schema says; other fields may be there too. Raises DamageError."""
    try:
        value = json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise damage_error(where, error, cure) from error
    if (fault := find_fault(value, schema)) is not None:
        raise damage_error(where, fault, cure)
    return value


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def find_fault(value: Any, schema: Schema, name: str = "") -> str | None:
    """What is wrong with a value, in a few words; None: nothing."""
    if isinstance(schema, str):
        is_good, text = KINDS[schema.rstrip("?")]
        if (value is None and schema.endswith("?")) or is_good(value):
            return None
        shown = repr(value)
        return f"{name} is {shown if len(shown) <= 40 else f'{shown[:40]}...'}, {text}"
    if not isinstance(value, dict):
        return f"{name or 'it'} is no object"
    for field, inner in schema.items():
        needed = field.removesuffix("!")
        if needed != field and needed not in value:
            return f"{name}{'.' * bool(name)}{needed} is absent"
        for key in value if field == "*" else value.keys() & {needed}:
            if (fault := find_fault(value[key], inner, f"{name}.{key}".lstrip("."))) is not None:
                return fault
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= LARGEST


def _is_count(value: Any) -> bool:
    return _is_amount(value) and isinstance(value, int)


def _is_list_of(is_good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_good, value))


KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: isinstance(value, str), "no text"),
    "texts": (_is_list_of(lambda value: isinstance(value, str)), "no list of texts"),
    "bool": (lambda value: isinstance(value, bool), "not true or false"),
    "object": (lambda value: isinstance(value, dict), "no object"),
    "any number": (_is_number, "no number"),  # infinity and NaN too
    "number": (lambda value: _is_number(value) and abs(value) <= LARGEST, "no number"),
    "amount": (_is_amount, "no number of 0 or more"),
    "count": (_is_count, "no whole number of 0 or more"),
    "counts": (_is_list_of(_is_count), "no list of whole numbers of 0 or more"),
}


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
    result = parse_json(content, where, cure, RESULT_FIELDS)
    for name, value in result["metrics"].items():
        if name.rpartition("/")[2] in FRACTIONS and not 0 <= value <= 1:
            why = f"metrics.{name} is {value}, no fraction of 0 to 1"
            raise damage_error(where, why, cure)
    if result.get("signature", signature) != signature:
        raise damage_error(where, f"it is of cell {result['signature']}", cure)
    recorded = result.get(DIGESTS, {}).get(RESULT)
    if recorded is not None and recorded != digest_of(result):
        raise damage_error(where, "it was altered: its digest is another", cure)
    return result


EPOCH_ROW = {"epoch!": "count", "*": "any number"}
CODE = {**dict.fromkeys(("commit", "numerics", "package", "capsweep"), "text?"), "dirty": "bool?"}
RESULT_FIELDS = {
    "metrics!": {"*": "number"},
    **dict.fromkeys(("signature", "shape", "hardware", "attempt"), "text"),
    **dict.fromkeys(("epochs", "steps", "parameters", "devices"), "count"),
    **dict.fromkeys(("images_per_second", "gpu_hours"), "amount"),
    "seconds": {"fit!": "amount", "total!": "amount"},
    "peak_memory_bytes": {"*": "count?"},
    "test_sha256": "text?",
    "code": CODE,
    "first_activations": "object",
    "estimate_seconds": "amount?",
    "sha256": {"*": "text"},
}
WANDB = {"name": "text", "images": "bool", "project": "text?", "entity": "text?", "mode": "text?"}
PROVENANCE = {
    **dict.fromkeys(("command", "started"), "text"),
    **dict.fromkeys(("versions", "implementations"), "object"),
    "overrides": "texts",
    "code": CODE,
    "hardware": {
        "processor": "text?",
        "gpus": "texts",
        "cores": "count?",
        "memory_bytes": "count?",
    },
    "logistics": {"logger": WANDB},
    "tracking": {
        **WANDB,
        **dict.fromkeys(("group", "job_type", "notes"), "text"),
        "tags": "texts",
        "columns": "object",
    },
}
MEASUREMENT = {
    **dict.fromkeys(("shape!", "hardware!"), "text"),
    "seconds_per_step!": "amount",
    "evaluation_seconds_per_image!": "amount",
    "startup_seconds!": "amount",
    "peak_memory_bytes!": {"*": "count?"},
    "steps!": "count",
    "utilisation!": "amount?",
    "device_memory_bytes!": "count?",
}
ADDED_SEEDS = {"looks!": "counts", "seeds!": {"*": "counts"}}
MARK = {"digest!": "text", "server!": "text"}
