"""The grammar of overrides such as `group=option` and `key.path=value`.

The command line, the words of `make` and sweep files all use Hydra's grammar. An override with
several values is an axis.

A group is a folder of conf/, and its options are the files of this folder. A preset is a file that
begins with `# @package _global_`. A folder inside a group is a group too, such as `dataset.source`.
But if all files of the inner folder are presets, they are options of the outer group, such as
`experiment=paper/mnist`. In this code, names of groups have dots, as keys have. In Hydra's
overrides, names of groups have slashes.
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
from hydra.core.override_parser import types as hydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from capsweep.config import package_files
from capsweep.config.cell import flatten
from capsweep.config.words import BY_NAME
from capsweep.errors import ConfigError

PLAIN = re.compile(r"([A-Za-z_/]|\.{1,2}/)[A-Za-z0-9_/.\-]*")
MOST_VALUES = 10_000  # largest number of values of one axis
MOST_LETTERS = 200  # a message quotes at most this number of letters of a typed text
MOST_HINTS = 3  # largest number of keys that a message suggests for an unknown key
# A key with one of these last parts cannot be set, because the key describes its own file.
FIXED_NAMES = ("name", "_partial_", "labels_per_image", "num_classes", "on_logits", "routes")
PRESET = "# @package _global_"  # the first line of a preset
PARSER = OverridesParser.create()
RESERVED = {"null", "true", "false", "nan", "inf"}


@dataclass(frozen=True)
class Interval:
    """A key and a range; a search draws the value of the key from this range."""

    key: str  # with dots
    low: float  # lower end of the range
    high: float  # upper end of the range
    log: bool  # True: the logarithm is drawn uniformly; False: the value itself
    integer: bool  # whether only whole numbers are drawn

    def split(self) -> "list[Override]":
        """Return a choice for each end of the range, the lower end first."""
        return [Override(self.key, (end,)) for end in (self.low, self.high)]


@dataclass(frozen=True)
class Override:
    """A key and its values: one value is a choice, several values are an axis."""

    key: str  # with dots, also for a group inside a group
    values: tuple[Any, ...]  # at least one

    @property
    def value(self) -> Any:
        """The only value of a choice, or the first value of an axis."""
        return self.values[0]

    @property
    def text(self) -> str:
        """The key with its first value, `key=value`, in the form that Hydra reads."""
        return render(with_slashes(self.key), self.value)

    def split(self) -> "list[Override]":
        """Split an axis into a choice for each of its values."""
        return [Override(self.key, (value,)) for value in self.values]


def parse(text: str) -> Override:
    """Read one override; `a=1,3`, `range()` and `choice()` give several values.

    Raises:
        ConfigError: If the text is an interval, if it is no override at all, or if it would add
            (`+key`), delete (`~key`) or move a key. The message quotes the text.
    """
    override = parse_axis(text)
    if isinstance(override, Interval):
        raise ConfigError(f"{text}: an interval has no finite list of values; write values out")
    return override


@lru_cache(maxsize=4096)
def parse_axis(text: str) -> Override | Interval:
    """Read one override, or one interval such as `lr=interval(0.1, 1)`.

    Raises:
        ConfigError: If the text is neither an override nor an interval, or if it would add
            (`+key`), delete (`~key`) or move a key. The message quotes the text.
    """
    if re.search("[\0\ud800-\udfff]", text):  # files and programs do not accept these characters
        raise ConfigError(f"{text[:40]!r} is not an override: it has an invalid character")
    try:
        return _read_parsed(PARSER.parse_override(text), text[:MOST_LETTERS])
    except ConfigError:
        raise
    except Exception as error:  # from Hydra, antlr, decimal, int, or deep recursion
        what = "is not an override like key=value"
        if re.fullmatch(r"[\w./-]*", text):
            cure = "it has no name; type NAME=value, such as DATASET=mnist, or key=value"
            raise ConfigError(f"{text[:MOST_LETTERS]!r} {what}: {cure}") from error
        reason = (str(error).splitlines() or [""])[0][:MOST_LETTERS] or type(error).__name__
        text = f"{text[:MOST_LETTERS]!r} {what} (text may need quotes: a='x y')"
        raise ConfigError(f"{text}: {reason}") from error


def _read_parsed(parsed: hydra.Override, text: str) -> Override | Interval:
    """Convert the result of Hydra's parser to an override or an interval.

    Raises:
        ConfigError: If the text would add, delete or move a key, or if a value is not allowed.
    """
    key, value = with_dots(parsed.key_or_group), parsed.value()
    if parsed.type is not hydra.OverrideType.CHANGE or parsed.package is not None:
        why = "keys of conf/ cannot be added, deleted or moved"
        raise ConfigError(f"{text}: {why}; write {key}=VALUE")
    if isinstance(value, hydra.IntervalSweep):
        return _make_interval(key, value, text)
    return Override(key, _list_values(parsed, text))


def _make_interval(key: str, value: hydra.IntervalSweep, text: str) -> Interval:
    low, high = value.start, value.end
    integer = isinstance(low, int) and isinstance(high, int)
    if low is None or high is None or not low < high or not math.isfinite(high - low):
        raise ConfigError(f"{text}: an interval needs two finite numbers, the lower first")
    log = value.tags == {"log"}
    if (value.tags and not log) or (log and low <= 0):
        raise ConfigError(f"{text}: an interval may have only the tag log, with numbers above 0")
    return Interval(key, low, high, log, integer)


def _list_values(parsed: hydra.Override, text: str) -> tuple[Any, ...]:
    value = parsed.value()
    if not parsed.is_sweep_override():
        return (_unquote_texts(value),)
    if isinstance(value, hydra.Glob):
        raise ConfigError(f"{text}: glob() is not supported; write the values out")
    values = tuple(map(_unquote_texts, islice(parsed.sweep_iterator(), MOST_VALUES + 1)))
    if not 0 < len(values) <= MOST_VALUES:
        raise ConfigError(f"{text}: gives no value, or more than {MOST_VALUES:,}")
    if any(isinstance(value, (hydra.Sweep, hydra.Glob)) for value in values):
        raise ConfigError(f"{text}: has an axis inside an axis; write its values out")
    return values


def _unquote_texts(value: Any) -> Any:
    """Replace Hydra's quoted strings by plain strings, also inside lists and sections."""
    if isinstance(value, list):
        return [_unquote_texts(item) for item in value]
    if isinstance(value, dict):
        return {str(_unquote_texts(key)): _unquote_texts(item) for key, item in value.items()}
    return value.text if hasattr(value, "text") else value


def parse_single(overrides: Iterable[str | Override]) -> list[Override]:
    """Read the overrides of one run.

    Raises:
        ConfigError: If a text is not an override, if an override is an axis, or if two overrides
            have the same key. The message names the key or quotes the text.
    """
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
    """Return the override that a word such as `EPOCHS=5` stands for; a path is quoted if needed.

    Args:
        name: The name of a word that sets a key of conf/.
        value: The value that the user typed.
    """
    word = BY_NAME[name]
    return render(word.key, value) if word.is_place else f"{word.key}={value}"


def render(key: str, value: Any) -> str:
    """Write `key=value` in Hydra's grammar; texts that need quotes get quotes."""
    return f"{key}={_render_value(value)}"


def _render_value(value: Any) -> str:
    if isinstance(value, str):
        is_plain = PLAIN.fullmatch(value) and value.lower() not in RESERVED
        return value if is_plain else hydra.QuotedString(value, hydra.Quote.single).with_quotes()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_render_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_render_value(v)}" for k, v in value.items()) + "}"
    return repr(value) if isinstance(value, float) else json.dumps(value)


@cache
def list_groups() -> Sequence[str]:
    """List the names of all groups of conf/, with dots; groups inside other groups come last."""
    conf = package_files.find_folder("conf")
    folders = {path.parent for path in conf.glob("*/**/*.yaml")}
    groups = [path for path in folders if path.parent == conf or not _sorts_presets(path)]
    groups.sort(key=lambda path: (path.parent != conf, path))
    return [path.relative_to(conf).as_posix().replace("/", ".") for path in groups]


def _sorts_presets(folder: Path) -> bool:
    """Return whether all files of a folder are presets.

    If the folder is inside a group, it is then no group itself.
    """
    return all(path.read_bytes().startswith(PRESET.encode()) for path in folder.glob("*.yaml"))


def is_group(key: str) -> bool:
    """Return whether a key, written with dots or slashes, is the name of a group."""
    return key.replace("/", ".") in list_groups()


def with_dots(key: str) -> str:
    """Write a group with dots, such as `dataset.source`; return other keys unchanged."""
    return key.replace("/", ".") if is_group(key) else key


def with_slashes(key: str) -> str:
    """Write a group with slashes for Hydra: `dataset/source`; return other keys unchanged."""
    return key.replace(".", "/") if is_group(key) else key


@cache
def list_options(group: str) -> Sequence[str]:
    """List the options of a group in sorted order, without the options of inner groups."""
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
    """List every key of conf/train.yaml and of all groups, without the keys of presets.

    Files of inner groups are not read, because files of the outer group have the same keys.
    """
    conf = package_files.find_folder("conf")
    root = yaml.safe_load((conf / "train.yaml").read_bytes())
    keys = {*flatten({key: root[key] for key in root if key not in ("defaults", "hydra")})}
    for path in conf.glob("*/*.yaml"):
        if not (text := path.read_text(encoding="utf-8")).startswith(PRESET):
            keys |= flatten(yaml.safe_load(text) or {}, path.parent.name).keys()
    return frozenset(keys)


def describe_unknown_key(key: str, schema: Mapping[str, Any]) -> str:
    """Write the message for a key that the schema does not have.

    If another file of conf/ has the key, the message says so. Otherwise the message suggests known
    keys, at most MOST_HINTS: those whose last part is most similar to the last part of `key`. Keys
    of the schema come first, then names of groups, then keys of other files of conf/.
    """
    if key in list_known_keys():
        return f"{key}: no such key here; another file of conf/{key.partition('.')[0]} has it"
    lasts = {  # each key that may be set, and its last part
        known: known.rpartition(".")[2]
        for known in (*schema, *list_groups(), *sorted(list_known_keys()))
        if "._" not in known and known.rpartition(".")[2] not in FIXED_NAMES
    }
    near = difflib.get_close_matches(key.rpartition(".")[2], sorted({*lasts.values()}), 1, 0.7)
    keys = [known for known in lasts if lasts[known] in near]
    hint = f"did you mean {' or '.join(keys[:MOST_HINTS])}?"
    return f"{key}: no such key; {hint if keys else '`capsweep train --help` lists the keys'}"
