"""The override grammar: `group=option` and `key.path=value`, with lists of values as axes.

One grammar, Hydra's, for the command line, `make` variables and sweep files.

A group is a folder of conf/, of whose files one is chosen. A folder further down is a group too,
such as `dataset.source`, unless its files are presets (`# @package _global_`): then it only sorts
options of the group around it, such as `experiment=paper/mnist`. Inside, groups are written as keys
are, with dots; Hydra's overrides write them with slashes.
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, OverrideType, Sweep
from hydra.core.override_parser.types import Override as HydraOverride

from capsweep.config import package_files
from capsweep.config.cell import flat
from capsweep.config.words import BY_NAME
from capsweep.errors import ConfigError

PLAIN = re.compile(r"([A-Za-z_/]|\.{1,2}/)[A-Za-z0-9_/.\-]*")
MOST_VALUES = 10_000  # of an axis
MOST_LETTERS = 200  # of what was typed, in a message
MOST_HINTS = 3  # keys that are suggested for an unknown one
# No settings: what their file is.
FIXED_NAMES = ("name", "_partial_", "labels_per_image", "num_classes", "on_logits", "routes")
HELP_HINT = "`capsweep train --help` lists the keys"
PRESET = "# @package _global_"  # the first line of a preset
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
    """Read one override; `a=1,3`, `range()` and `choice()` give several values.

    Raises ConfigError naming the key for `+key`, `~key`, package overrides and intervals.
    """
    override = parse_axis(text)
    if isinstance(override, Interval):
        raise ConfigError(f"{text}: an interval has no finite list of values; write them out")
    return override


@lru_cache(maxsize=4096)
def parse_axis(text: str) -> Override | Interval:
    """As `parse`, for `interval()` too."""
    if re.search("[\0\ud800-\udfff]", text):  # neither files nor programs take these
        raise ConfigError(f"{text[:40]!r} is not an override: it has a character that is none")
    try:
        return _read_parsed(_make_parser().parse_override(text), text[:MOST_LETTERS])
    except ConfigError:
        raise
    except Exception as error:  # Hydra's, antlr's, decimal's, int's, too deep a recursion
        what = "is not an override like key=value (text may need quotes: a='x y')"
        reason = (str(error).splitlines() or [""])[0][:MOST_LETTERS] or type(error).__name__
        raise ConfigError(f"{text[:MOST_LETTERS]!r} {what}: {reason}") from error


def _read_parsed(parsed: HydraOverride, text: str) -> Override | Interval:
    """Return what Hydra's parser read. Raises ConfigError naming the key."""
    key, value = with_dots(parsed.key_or_group), parsed.value()
    if parsed.type is not OverrideType.CHANGE or parsed.package is not None:
        why = "keys of conf/ cannot be added, deleted or moved"
        raise ConfigError(f"{text}: {why}; write {key}=VALUE")
    if isinstance(value, IntervalSweep):
        return _make_interval(key, value, text)
    return Override(key, _list_values(parsed, text))


def _make_interval(key: str, value: IntervalSweep, text: str) -> Interval:
    low, high = value.start, value.end
    integer = isinstance(low, int) and isinstance(high, int)
    if low is None or high is None or not low < high or not math.isfinite(high - low):
        raise ConfigError(f"{text}: an interval needs two finite numbers, the lower first")
    log = value.tags == {"log"}
    if (value.tags and not log) or (log and low <= 0):
        raise ConfigError(f"{text}: log is the only tag of an interval, and for numbers above 0")
    return Interval(key, low, high, log, integer)


def _list_values(parsed: HydraOverride, text: str) -> tuple[Any, ...]:
    value = parsed.value()
    if not parsed.is_sweep_override():
        return (_unquote_texts(value),)
    if isinstance(value, Glob):
        raise ConfigError(f"{text}: glob() is not read; write the values out")
    values = tuple(map(_unquote_texts, islice(parsed.sweep_iterator(), MOST_VALUES + 1)))
    if not 0 < len(values) <= MOST_VALUES:
        raise ConfigError(f"{text}: gives no value, or more than {MOST_VALUES:,}")
    if any(isinstance(value, (Sweep, Glob)) for value in values):
        raise ConfigError(f"{text}: an axis within an axis; write its values out")
    return values


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
            typed = item[:MOST_LETTERS] if isinstance(item, str) else item.key
            raise ConfigError(f"{typed}: one run takes one value of {override.key}; use a sweep")
        if override.key in choices:
            raise ConfigError(f"{override.key} is overridden twice; keep one of them")
        choices[override.key] = override
    return list(choices.values())


def expand_word(name: str, value: str) -> str:
    """Return the override that a short name with a key stands for; a path is quoted as it must."""
    word = BY_NAME[name]
    return render(word.key, value) if word.is_place else f"{word.key}={value}"


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


@cache
def list_groups() -> Sequence[str]:
    """Every group of conf/."""
    conf = package_files.find_folder("conf")
    folders = sorted({path.parent for path in conf.glob("*/**/*.yaml")})
    inner = [folder for folder in folders if folder.parent != conf and not _sorts_presets(folder)]
    outer = [folder for folder in folders if folder.parent == conf]
    return [path.relative_to(conf).as_posix().replace("/", ".") for path in (*outer, *inner)]


def _sorts_presets(folder: Path) -> bool:
    return all(path.read_bytes().startswith(PRESET.encode()) for path in folder.glob("*.yaml"))


def is_group(key: str) -> bool:
    """Whether `key`, with dots or slashes, is a group, so that its value is the name of a file."""
    return key.replace("/", ".") in list_groups()


def with_dots(key: str) -> str:
    """A group as it is written inside: `dataset/source` is `dataset.source`; other keys as is."""
    return key.replace("/", ".") if is_group(key) else key


def with_slashes(key: str) -> str:
    """A group as Hydra's overrides write it: `dataset.source` is `dataset/source`."""
    return key.replace(".", "/") if is_group(key) else key


@cache
def list_options(group: str) -> Sequence[str]:
    """The names that can be chosen in a group, sorted; those of groups inside it are not."""
    conf, outer = package_files.find_folder("conf"), group.replace("/", ".")
    folder = conf / with_slashes(outer)
    inner = [conf / with_slashes(name) for name in list_groups() if name.startswith(f"{outer}.")]
    return sorted(
        path.relative_to(folder).with_suffix("").as_posix()
        for path in folder.rglob("*.yaml")
        if not any(path.is_relative_to(other) for other in inner)
    )


@cache
def list_known_keys() -> frozenset[str]:
    """Return every key of a run, of all options of its groups: no presets.

    Those of a group within a group stand in its package, and are those of the group around it.
    """
    conf = package_files.find_folder("conf")
    root = yaml.safe_load((conf / "train.yaml").read_bytes())
    keys = {*flat({key: root[key] for key in root if key not in ("defaults", "hydra")})}
    for path in conf.glob("*/*.yaml"):
        if not (text := path.read_text(encoding="utf-8")).startswith(PRESET):
            keys |= flat(yaml.safe_load(text) or {}, path.parent.name).keys()
    return frozenset(keys)


def describe_unknown_key(key: str, schema: Mapping[str, Any]) -> str:
    """What is said of a key that the schema does not have, with those of the same last part, or of
    the nearest; those of the schema before those of other files.
    """
    if key in list_known_keys():
        return f"{key}: no such key here; another file of conf/{key.partition('.')[0]} has it"
    lasts = {  # of each key that may be set its last part
        known: known.rpartition(".")[2]
        for known in (*schema, *list_groups(), *sorted(list_known_keys()))
        if "._" not in known and known.rpartition(".")[2] not in FIXED_NAMES
    }
    names = sorted({*lasts.values()})
    near = difflib.get_close_matches(key.rpartition(".")[2], names, 1, cutoff=0.7)
    keys = [known for known in lasts if lasts[known] in near]
    hint = f"did you mean {' or '.join(keys[:MOST_HINTS])}?" if keys else HELP_HINT
    return f"{key}: no such key; {hint}"
