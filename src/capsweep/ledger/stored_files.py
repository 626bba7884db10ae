"""Reads stored files; raises DamageError, one line with the file, the damage and the cure.

Whoever reads a file that an earlier process wrote reads it here: a disk, a copy or a person may
have changed it since. A check returns None for a good value, else a few words on what is wrong
with it, which begin with the name of a field, or with a blank where the value itself is wrong.
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

Check = Callable[[Any], str | None]
RESULT = "result.json"
DIGESTS = "sha256"  # key of a result: digests of the cell's files, and of the result itself
AGAIN = "the cell is run again"
REMOVE = "remove the cell (capsweep ledger rm) and run it again"
DEEPEST = 64  # levels of a JSON file
LARGEST = 1e100  # of a number: what is computed from it stays finite


def damage(where: str, why: object, cure: str) -> DamageError:
    """The error for the damaged file at `where`: why it is damaged, and the cure."""
    return DamageError(f"{where} is damaged ({' '.join(str(why).split())}); {cure}")


def print_damage(error: DamageError) -> None:
    """Print that a damaged file is left out."""
    print(f"error: {error}", file=sys.stderr, flush=True)


def parse_json(content: bytes, where: str, cure: str, check: Check) -> dict[str, Any]:
    """A JSON object that passes `check`. Raises DamageError."""
    try:
        value = json.loads(content.decode(), parse_constant=_refuse_constant)
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
        array = arrays.get(name)
        if array is None or array.dtype.kind not in kinds or array.ndim not in dimensions:
            raise damage(where, f"it has no array of {name}", REMOVE)
    return arrays["scores"], arrays["labels"]


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
    result = parse_json(content, where, cure, RESULT_CHECK)
    if result.get("signature", signature) != signature:
        raise damage(where, f"it is of cell {result['signature']}", cure)
    recorded = result.get(DIGESTS, {}).get(RESULT)
    if recorded is not None and recorded != digest_of(result):
        raise damage(where, "it was altered: its digest is another", cure)
    return result


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _is_deeper(value: Any, left: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(inner) and (left == 0 or any(_is_deeper(one, left - 1) for one in inner))


def check_fields(checks: Mapping[str, Check], needed: Collection[str] = ()) -> Check:
    """A check of an object whose named fields are good where they are present.

    needed: fields that must be present.
    """

    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return " is no object"
        for name, check_field in checks.items():
            if name not in value and name in needed:
                return f"{name} is absent"
            if name in value and (wrong := check_field(value[name])) is not None:
                return f"{name}{wrong}" if wrong.startswith(" ") else f"{name}.{wrong}"
        return None

    return check


def check_each(check_field: Callable[[str, Any], str | None]) -> Check:
    """A check of an object whose fields all pass one check of name and value."""

    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return " is no object"
        wrong = ((name, check_field(name, item)) for name, item in value.items())
        return next((f"{name}{text}" for name, text in wrong if text is not None), None)

    return check


def check_optional(check: Check) -> Check:
    """The same check, which null passes too."""
    return lambda value: None if value is None else check(value)


def _check_type(is_good: Callable[[Any], bool], kind: str) -> Check:
    """A check of a single value; `kind` says what one that fails is not."""
    return lambda value: None if is_good(value) else f" is {_shorten(value)}, {kind}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_list_of(is_good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_good, value))


check_text = _check_type(lambda value: isinstance(value, str), "no text")
check_texts = _check_type(_is_list_of(lambda value: isinstance(value, str)), "no list of texts")
check_bool = _check_type(lambda value: isinstance(value, bool), "not true or false")
check_object = _check_type(lambda value: isinstance(value, dict), "no object")
check_number = _check_type(lambda value: _is_number(value) and abs(value) <= LARGEST, "no number")


def check_amount(value: Any) -> str | None:
    """A finite number, 0 or more."""
    return check_number(value) or (None if value >= 0 else f" is {value}, below 0")


def check_count(value: Any) -> str | None:
    """A whole number, 0 or more."""
    wrong = check_amount(value)
    return wrong or (None if isinstance(value, int) else f" is {value}, no whole number")


check_counts = _check_type(
    _is_list_of(lambda value: check_count(value) is None), "no list of whole numbers"
)


def check_epoch_row(value: Any) -> str | None:
    """A row of metrics.jsonl: all fields are numbers, and infinity and NaN are allowed."""
    if (wrong := _check_epoch(value)) is not None:
        return wrong
    odd = (name for name, one in value.items() if not _is_number(one))
    return next((f"{name} is no number" for name in odd), None)


def _check_metric(name: str, value: Any) -> str | None:
    if name.rpartition("/")[2] in FRACTIONS and check_number(value) is None and not 0 <= value <= 1:
        return f" is {value}, no fraction of 0 to 1"
    return check_number(value)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


_check_epoch = check_fields({"epoch": check_count}, needed=("epoch",))
_TEXT = check_optional(check_text)
_EACH_BYTES = check_each(lambda _, value: None if value is None else check_count(value))
_CODE_TEXTS = dict.fromkeys(("commit", "numerics", "package", "capsweep"), _TEXT)
_CODE = check_fields({**_CODE_TEXTS, "dirty": check_optional(check_bool)})
RESULT_CHECK = check_fields(
    {
        **dict.fromkeys(("signature", "shape", "hardware", "attempt"), check_text),
        **dict.fromkeys(("epochs", "steps", "parameters", "devices"), check_count),
        **dict.fromkeys(("images_per_second", "gpu_hours"), check_amount),
        "metrics": check_each(_check_metric),
        "seconds": check_fields(
            {"fit": check_amount, "total": check_amount}, needed=("fit", "total")
        ),
        "peak_memory_bytes": _EACH_BYTES,
        "test_sha256": _TEXT,
        "code": _CODE,
        "first_activations": check_object,
        "estimate_seconds": check_optional(check_amount),
        "sha256": check_each(lambda _, value: check_text(value)),
    },
    needed=("metrics",),
)
_WANDB = {
    "name": check_text,
    "images": check_bool,
    **dict.fromkeys(("project", "entity", "mode"), _TEXT),
}
_HARDWARE = {"processor": _TEXT, "gpus": check_texts}
_HARDWARE |= dict.fromkeys(("cores", "memory_bytes"), check_optional(check_count))
_RUN_LABELS = dict.fromkeys(("group", "job_type", "notes"), check_text)
PROVENANCE = check_fields(
    {
        "command": check_text,
        "overrides": check_texts,
        "started": check_text,
        "code": _CODE,
        "versions": check_object,
        "hardware": check_fields(_HARDWARE),
        "implementations": check_object,
        "logistics": check_fields({"logger": check_fields(_WANDB)}),
        "tracking": check_fields(
            {**_WANDB, **_RUN_LABELS, "tags": check_texts, "columns": check_object}
        ),
    }
)
_OWNER = {"host": check_text, "machine": check_text, "pid": check_count, "started": check_text}
OWNER = check_fields(_OWNER, needed=_OWNER.keys())
CLAIM = check_fields({"owner": OWNER, "beat": check_count}, needed=("owner", "beat"))
_MEASURED = ("seconds_per_step", "evaluation_seconds_per_image", "startup_seconds")
_MEASUREMENT = {
    "shape": check_text,
    "hardware": check_text,
    **dict.fromkeys(_MEASURED, check_amount),
    "peak_memory_bytes": _EACH_BYTES,
    "steps": check_count,
    "utilisation": check_optional(check_amount),
    "device_memory_bytes": check_optional(check_count),
}
MEASUREMENT = check_fields(_MEASUREMENT, needed=_MEASUREMENT.keys())
ADDED_SEEDS = check_fields(
    {"looks": check_counts, "seeds": check_each(lambda _, value: check_counts(value))},
    needed=("looks", "seeds"),
)
MARK = check_fields({"digest": check_text, "server": check_text}, needed=("digest", "server"))
