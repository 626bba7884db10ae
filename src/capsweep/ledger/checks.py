"""Checks of what a stored file holds, field by field.

A check returns None for a good value, else a few words on what is wrong with it. The words begin
with the name of a field, or with a blank where the value itself is wrong.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from capsweep.statistics.metric_format import FRACTIONS

Check = Callable[[Any], str | None]
LARGEST = 1e100  # of a number: what is computed from it stays finite


def fields(checks: Mapping[str, Check], needed: Collection[str] = ()) -> Check:
    """An object whose named fields are good where they are present.

    needed: fields that must be present.
    """

    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return " is no object"
        for name, one in checks.items():
            if name not in value and name in needed:
                return f"{name} is absent"
            if name in value and (wrong := one(value[name])) is not None:
                return f"{name}{wrong}" if wrong.startswith(" ") else f"{name}.{wrong}"
        return None

    return check


def each(one: Callable[[str, Any], str | None]) -> Check:
    """An object whose fields all pass one check, given the name and the value of a field."""

    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return " is no object"
        wrong = ((name, one(name, item)) for name, item in value.items())
        return next((f"{name}{text}" for name, text in wrong if text is not None), None)

    return check


def text(value: Any) -> str | None:
    """Text."""
    return None if isinstance(value, str) else f" is {_shown(value)}, no text"


def texts(value: Any) -> str | None:
    """A list of texts."""
    good = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return None if good else f" is {_shown(value)}, no list of texts"


def counts(value: Any) -> str | None:
    """A list of whole numbers, 0 or more."""
    good = isinstance(value, list) and all(count(one) is None for one in value)
    return None if good else f" is {_shown(value)}, no list of whole numbers"


def truth(value: Any) -> str | None:
    """True or false."""
    return None if isinstance(value, bool) else f" is {_shown(value)}, not true or false"


def number(value: Any) -> str | None:
    """A finite number."""
    return (
        None if _is_number(value) and abs(value) <= LARGEST else f" is {_shown(value)}, no number"
    )


def amount(value: Any) -> str | None:
    """A finite number, 0 or more."""
    return number(value) or (None if value >= 0 else f" is {value}, below 0")


def count(value: Any) -> str | None:
    """A whole number, 0 or more."""
    return amount(value) or (None if isinstance(value, int) else f" is {value}, no whole number")


def plain(value: Any) -> str | None:
    """An object with any fields."""
    return None if isinstance(value, dict) else f" is {_shown(value)}, no object"


def epoch(value: Any) -> str | None:
    """A row of metrics.jsonl: all fields are numbers, and infinity and NaN are allowed."""
    if (wrong := _numbered(value)) is not None:
        return wrong
    odd = (name for name, one in value.items() if not _is_number(one))
    return next((f"{name} is no number" for name in odd), None)


def maybe(check: Check) -> Check:
    """The same, or null."""
    return lambda value: None if value is None else check(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _metric(name: str, value: Any) -> str | None:
    if name.rpartition("/")[2] in FRACTIONS and number(value) is None and not 0 <= value <= 1:
        return f" is {value}, no fraction of 0 to 1"
    return number(value)


def _named_text(_: str, value: Any) -> str | None:
    return text(value)


def _bytes(_: str, value: Any) -> str | None:
    return None if value is None else count(value)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}..."


_numbered = fields({"epoch": count}, needed=("epoch",))
_text = maybe(text)
_CODE = fields(
    {"commit": _text, "dirty": maybe(truth), "numerics": _text, "package": _text, "capsweep": _text}
)
RESULT = fields(
    {
        "signature": text,
        "metrics": each(_metric),
        "epochs": count,
        "steps": count,
        "parameters": count,
        "devices": count,
        "seconds": fields({"fit": amount, "total": amount}, needed=("fit", "total")),
        "shape": text,
        "hardware": text,
        "images_per_second": amount,
        "gpu_hours": amount,
        "peak_memory_bytes": each(_bytes),
        "test_sha256": _text,
        "code": _CODE,
        "first_activations": plain,
        "estimate_seconds": maybe(amount),
        "attempt": text,
        "sha256": each(_named_text),
    },
    needed=("metrics",),
)
_WANDB = {"name": text, "project": _text, "entity": _text, "mode": _text, "images": truth}
_HARDWARE = {"processor": _text, "cores": maybe(count), "memory_bytes": maybe(count)}
PROVENANCE = fields(
    {
        "command": text,
        "overrides": texts,
        "started": text,
        "code": _CODE,
        "versions": plain,
        "hardware": fields(_HARDWARE | {"gpus": texts}),
        "implementations": plain,
        "logistics": fields({"logger": fields(_WANDB)}),
        "tracking": fields(
            _WANDB
            | dict.fromkeys(("group", "job_type", "notes"), text)
            | {"tags": texts, "columns": plain}
        ),
    }
)
_OWNER = {"host": text, "machine": text, "pid": count, "started": text}
OWNER = fields(_OWNER, needed=_OWNER.keys())
CLAIM = fields({"owner": OWNER, "beat": count}, needed=("owner", "beat"))
_MEASURED = dict.fromkeys(
    ("seconds_per_step", "evaluation_seconds_per_image", "startup_seconds"), amount
)
_MEASUREMENT = {"shape": text, "hardware": text, **_MEASURED}
_MEASUREMENT |= {"peak_memory_bytes": each(_bytes), "steps": count}
_MEASUREMENT |= {"utilisation": maybe(amount), "device_memory_bytes": maybe(count)}
MEASUREMENT = fields(_MEASUREMENT, needed=_MEASUREMENT.keys())
ADDED_SEEDS = fields(
    {"looks": counts, "seeds": each(lambda _, value: counts(value))}, needed=("looks", "seeds")
)
MARK = fields({"digest": text, "server": text}, needed=("digest", "server"))
KEPT_URL = fields({"url": text}, needed=("url",))
