"""The override grammar: `group=option` and `key.path=value`, with lists of values as axes.

One grammar, Hydra's, for the command line, `make` variables and sweep files.

A group is a folder of conf/, of whose files one is chosen. A folder further down is a group where a
defaults list of conf/ names it: `defaults: [source: mnist]` in conf/dataset/multimnist.yaml makes
conf/dataset/source/ the group `dataset.source`. Any other folder only sorts options of the group
around it, such as `experiment=paper/mnist`. Inside, groups are written as keys are, with dots;
Hydra's overrides write them with slashes.
"""

import difflib
import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, RangeSweep
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.errors import HydraException

from capsweep.config import package_files
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
        names = value.filter(list(list_options(group))) if is_group(group) else []
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


@cache
def list_groups() -> Mapping[str, Sequence[str]]:
    """Every group, and the files of conf/ that bring it in: with them it can be chosen.

    A file that moves it to a package (`source@_here_: mnist`) has chosen for good, and one that
    overrides it needs another that brings it in; what they name is a group all the same.
    """
    conf = package_files.find_folder("conf")
    found: dict[str, list[str]] = {p.name: [] for p in sorted(conf.iterdir()) if p.is_dir()}
    for path in sorted(conf.rglob("*.yaml")):
        file = path.relative_to(conf).as_posix()
        for group, is_brought_in in _list_named_groups(path.read_text(), file):
            if (conf / group).is_dir():
                files = found.setdefault(group.replace("/", "."), [])
                files += [f"conf/{file}"] if is_brought_in else []
    return found


def _list_named_groups(text: str, file: str) -> Iterator[tuple[str, bool]]:
    """Groups in a file's defaults list, `group`, `override /group@package` or `optional group`, and
    whether it brings them in.
    """
    if "defaults" not in text:
        return
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"conf/{file}: not YAML: {' '.join(str(error).split())}") from error
    entries = content.get("defaults") if isinstance(content, Mapping) else None
    for entry in entries if isinstance(entries, list) else []:
        for key in entry if isinstance(entry, Mapping) else []:  # a text names one file, no choice
            *words, name = str(key).split(" ")
            name, is_moved, _ = name.partition("@")
            path = posixpath.normpath(posixpath.join("/", posixpath.dirname(file), name))
            yield path.lstrip("/"), not is_moved and "override" not in words


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
    """Every key of the groups that a run is made of, of all their options: no presets.

    Those of a group within a group stand in its package, and are those of the group around it.
    """
    conf = package_files.find_folder("conf")
    found: set[str] = set()
    for path in sorted(conf.glob("*/*.yaml")):
        text = path.read_text()
        if not text.startswith("# @package"):
            found |= _list_dotted_keys(yaml.safe_load(text), path.parent.name)
    return frozenset(found)


def _list_dotted_keys(value: object, prefix: str) -> set[str]:
    if not isinstance(value, Mapping) or not value:
        return {prefix}
    return {key for name in value for key in _list_dotted_keys(value[name], f"{prefix}.{name}")}


def describe_unknown_key(key: str, schema: Mapping[str, Any]) -> str:
    """What is said of a key that the schema does not have, with the nearest that it has."""
    group, _, folder = key.replace(".", "/").partition("/")
    if (
        folder
        and group in list_groups()
        and (package_files.find_folder("conf") / group / folder).is_dir()
    ):
        # Hydra's help lists it as a group.
        return f"{key}: no such group; write {group}={folder}/OPTION"
    typed = [known for known in (*schema, *list_groups()) if "._" not in known]
    close = difflib.get_close_matches(key, typed, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "`capsweep train --help` lists the keys"
    section = key.rpartition(".")[0]
    if not close and section and any(known.startswith(f"{section}.") for known in schema):
        hint = f"another choice of {section.replace('.', '/')} may have it; {hint}"
    return f"{key}: no such key; {hint}"
