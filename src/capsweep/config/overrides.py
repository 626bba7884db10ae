"""The override grammar: `group=option` and `key.path=value`, with lists of values as axes.

One grammar, Hydra's, for the command line, `make` variables and sweep files.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, RangeSweep
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.errors import HydraException

from capsweep.config.groups import is_group, options, with_dots, with_slashes
from capsweep.errors import ConfigError

PLAIN = re.compile(r"([A-Za-z_/]|\.{1,2}/)[A-Za-z0-9_/.\-]*")
MOST_VALUES = 10_000  # of an axis
MOST_CHARACTERS = 100_000  # of an override
RESERVED = {"null", "true", "false", "nan", "inf"}


@dataclass(frozen=True)
class Interval:
    """One key and the range a search draws it from; log: uniformly in its logarithm."""

    key: str
    low: float
    high: float
    log: bool
    integer: bool


@dataclass(frozen=True)
class Override:
    """One key and the values it takes: one is a choice, several are an axis.

    The key of a group within a group is written with dots, as other keys are.
    """

    key: str
    values: tuple[Any, ...]

    @property
    def value(self) -> Any:
        """The value of a choice."""
        return self.values[0]

    @property
    def text(self) -> str:
        """A choice as Hydra reads it."""
        return render(with_slashes(self.key), self.value)

    def split(self) -> "list[Override]":
        """A choice for each value."""
        return [Override(self.key, (value,)) for value in self.values]


@cache
def _make_parser() -> OverridesParser:
    return OverridesParser.create()


@lru_cache(maxsize=4096)
def parse(text: str) -> Override:
    """Read one override; `a=1,3`, `range()`, `choice()` and `glob()` give several values.

    Raises ConfigError naming the key for `+key`, `~key`, package overrides and intervals.
    """
    override = parse_axis(text)
    if isinstance(override, Interval):
        raise ConfigError(f"{text}: an interval has no finite list of values; write them out")
    return override


@lru_cache(maxsize=4096)
def parse_axis(text: str) -> Override | Interval:
    """As `parse`, for `interval()` too."""
    # Files and programs take no NUL, and no half of a character.
    if len(text) > MOST_CHARACTERS or re.search("[\0\ud800-\udfff]", text):
        raise ConfigError(
            f"{text[:40]!r} is not an override: it is longer than {MOST_CHARACTERS:,} characters, "
            "or holds one that is none"
        )
    try:
        parsed = _make_parser().parse_override(text)
    except RecursionError as error:
        raise ConfigError(f"{text[:40]!r}...: an override has no so many brackets") from error
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{text!r} is not an override like key=value: {reason}") from error
    key = with_dots(parsed.key_or_group)
    if parsed.is_add() or parsed.is_force_add():
        raise ConfigError(f"{text}: keys cannot be added; {key!r} must already stand in conf/")
    if parsed.is_delete():
        raise ConfigError(f"{text}: keys cannot be deleted; choose another value or option")
    if parsed.package is not None:
        raise ConfigError(f"{text}: groups cannot be moved to another package; write {key}=option")
    value = parsed.value()
    if isinstance(value, IntervalSweep):
        return _make_interval(key, value, text)
    return Override(key, _list_values(parsed, text))


def _make_interval(key: str, value: IntervalSweep, text: str) -> Interval:
    low, high = value.start, value.end
    integer = isinstance(low, int) and isinstance(high, int)
    if low is None or high is None or not low < high or not math.isfinite(high - low):
        raise ConfigError(f"{text}: an interval needs two finite numbers, the lower first")
    if unknown := sorted(value.tags - {"log"}):
        raise ConfigError(f"{text}: {unknown[0]}: no such tag of an interval; have log")
    log = "log" in value.tags
    if log and low <= 0:
        raise ConfigError(f"{text}: a logarithmic interval must be above 0")
    return Interval(key, low, high, log, integer)


def _list_values(parsed: HydraOverride, text: str) -> tuple[Any, ...]:
    value, group = parsed.value(), parsed.key_or_group
    if not parsed.is_sweep_override():
        return (_unquote_texts(value),)
    if isinstance(value, Glob):
        names = value.filter(list(options(group))) if is_group(group) else []
        if not names:
            raise ConfigError(f"{text}: matches no option; glob() is for the files of a group")
        return tuple(names)
    if isinstance(value, RangeSweep):
        _check_range(value, text)
    parse_value = _make_parser().parse_override
    values = [parse_value(f"k={item}").value() for item in parsed.sweep_string_iterator()]
    if not values:
        raise ConfigError(f"{text}: gives no value; {group} needs at least one")
    return tuple(map(_unquote_texts, values))


def _check_range(value: RangeSweep, text: str) -> None:
    numbers = [n for n in (value.start, value.stop, value.step) if isinstance(n, (int, float))]
    if len(numbers) < 3 or not all(map(math.isfinite, numbers)) or not numbers[2]:
        raise ConfigError(f"{text}: a range needs a start, a stop and a step that is not 0")
    if (numbers[1] - numbers[0]) / numbers[2] > MOST_VALUES:
        raise ConfigError(f"{text}: a range of more than {MOST_VALUES:,} values")


def _unquote_texts(value: Any) -> Any:
    """Hydra's quoted strings as strings, all the way down."""
    if isinstance(value, list):
        return [_unquote_texts(item) for item in value]
    if isinstance(value, dict):
        return {str(_unquote_texts(key)): _unquote_texts(item) for key, item in value.items()}
    return value.text if hasattr(value, "text") else value


def parse_single(overrides: Iterable[str | Override]) -> list[Override]:
    """Read overrides of one run: no axes, and no key twice. Raises ConfigError naming the key."""
    choices: dict[str, Override] = {}
    for item in overrides:
        override = parse(item) if isinstance(item, str) else item
        if len(override.values) != 1:
            raise ConfigError(f"{item}: one run takes one value of {override.key}; use a sweep")
        if override.key in choices:
            raise ConfigError(f"{override.key} is overridden twice; keep one of them")
        choices[override.key] = override
    return list(choices.values())


def render(key: str, value: Any) -> str:
    """`key=value` in Hydra's grammar, quoted where it must be."""
    return f"{key}={_render_value(value)}"


def _render_value(value: Any) -> str:
    if isinstance(value, str):
        is_plain = PLAIN.fullmatch(value) and value.lower() not in RESERVED
        return value if is_plain else _quote_text(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_render_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_render_value(v)}" for k, v in value.items()) + "}"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _quote_text(text: str) -> str:
    """In Hydra's quotes a backslash is an escape only before a quote."""
    doubled = re.sub(r"(\\+)(?='|\Z)", r"\1\1", text)
    return "'" + doubled.replace("'", "\\'") + "'"
