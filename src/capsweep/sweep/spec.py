"""A sweep file, read and checked: `sweeps/README.md` shows the format.

Sections of the file are read strictly: no key is unknown, and none is missing.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from capsweep.config import bounded_yaml, package_files
from capsweep.config import overrides as grammar
from capsweep.config.cell import name_nearest
from capsweep.config.overrides import Interval, Override
from capsweep.config.words import BY_NAME
from capsweep.errors import ConfigError
from capsweep.statistics.metric_format import measure_of
from capsweep.storage.files import hash_bytes
from capsweep.sweep.arms import Arm, Space

ZIP = "zip"
MOST_LETTERS = 80  # of words in the name of a folder


@dataclass(frozen=True)
class Published:
    """Numbers from elsewhere, printed beside ours: `value`, and what it is of."""

    source: str
    values: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Search:
    """How settings are chosen: `trials` of them, on a metric of the validation examples.

    scheduler asha: a trial may end early; reduction_factor: of how many the best one goes on.
    """

    metric: str
    trials: int
    sampler: str = "optuna"
    scheduler: str = "asha"
    reduction_factor: int = 3


SEARCH_WORDS = {"sampler": ("optuna", "random"), "scheduler": ("asha", "none")}
SEARCH_NUMBERS = {"trials": 1, "reduction_factor": 2}  # the least


@dataclass(frozen=True)
class Sweep:
    """A question and the grid that answers it."""

    name: str
    path: Path  # the file it was read from
    question: str
    base: tuple[Override, ...]
    seeds: tuple[int, ...]
    baseline: str  # empty for a search
    arms: tuple[Arm, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    metric: str
    published: Published
    search: Search | None = None
    exclude: tuple[Mapping[str, Any], ...] = ()  # places that the file leaves out
    excluded: tuple[Mapping[str, Any], ...] = ()  # places that the command line leaves out
    words: tuple[str, ...] = ()  # what was typed that the file does not say, such as EPOCHS=1
    command: str = ""  # what prints its table again
    notes: tuple[str, ...] = ()  # lines below its table

    @property
    def report_name(self) -> str:
        """The folder of its report, another one for other words: `ablation-EPOCHS=1`."""
        if not self.words:
            return self.name
        text = "-".join(self.words).replace(" ", "-").replace("/", "-")
        safe = re.sub("[^A-Za-z0-9_.,=-]", "", text)[:MOST_LETTERS]
        rest = "" if safe == text else f"-{hash_bytes(text.encode())[:8]}"
        return f"{self.name}-{safe}{rest}"

    @property
    def typed_keys(self) -> list[str]:
        """The keys of conf/ that its words set."""
        names = [word.partition("=")[0] for word in self.words]
        keys = [BY_NAME[name].key if name in BY_NAME else name for name in names]
        return [key for key in keys if key]

    def move_to_arms(self, is_moved: Callable[[str], bool]) -> "Sweep":
        """Return the sweep with the overrides of some keys in each arm and not in the base."""
        moved = tuple(override for override in self.base if is_moved(override.key))
        base = tuple(override for override in self.base if override not in moved)
        arms = tuple(replace(arm, fixed=(*moved, *arm.fixed)) for arm in self.arms)
        return replace(self, base=base, arms=arms)


def load(name: str) -> Sweep:
    """Read `sweeps/NAME.yaml`, or the file `name` when it ends in .yaml.

    Raises ConfigError naming the file and the key.
    """
    folder = package_files.find_folder("sweeps")
    path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    try:
        is_there = path.is_file()
    except OSError as error:  # a name that no file can have
        raise ConfigError(f"SWEEP={name[:40]}...: {error.strerror}") from error
    if not is_there:
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise ConfigError(f"SWEEP={name}: no file {path.name}; have {', '.join(known)}")
    if not re.fullmatch(r"\w[\w.+-]*", path.stem):  # it names the folder of the report
        raise ConfigError(
            f"SWEEP: {path.name!r} is no name of a sweep's file; give it letters, digits, _, -, + "
            "and dots, the first a letter or digit"
        )
    try:
        return _read_sweep(path, bounded_yaml.load_file(path))
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error


def _read_sweep(path: Path, content: Any) -> Sweep:
    _check_sections(content)
    search = _read_search(content["search"]) if "search" in content else None
    table = content.get("table", {"rows": [], "columns": [], "metric": search and search.metric})
    _check_keys("table", table, required=("rows", "columns", "metric"))
    base = _read_overrides("base", content["base"])
    arms = tuple(_read_arm(k, v, base, search is not None) for k, v in content["arms"].items())
    if (twice := _find_repeated([arm.name for arm in arms])) is not None:
        raise ConfigError(f"arms: two arms are called {twice}; give each a name of its own")
    baseline = str(content.get("baseline", ""))
    if search is None:
        _check_baseline(baseline, arms)
    return Sweep(
        name=path.stem,
        path=path,
        question=_read_text("question", content["question"]),
        base=base,
        seeds=check_seeds("seeds", content["seeds"]),
        baseline=baseline,
        arms=arms,
        rows=_read_names("table.rows", table["rows"]),
        columns=_read_names("table.columns", table["columns"]),
        metric=_read_text("table.metric", table["metric"]),
        published=_read_published(
            content.get("published"), [arm.name for arm in arms], str(table["metric"])
        ),
        exclude=_read_exclusions(content.get("exclude", [])),
        search=search,
    )


def _check_sections(content: Any) -> None:
    kind = content.get("kind", "ablation") if isinstance(content, Mapping) else "ablation"
    sections = {
        "ablation": (("baseline", "table"), ("kind", "exclude", "published")),
        "search": (("search",), ("kind",)),
    }
    if str(kind) not in sections:
        raise ConfigError(f"kind: {kind}: have {', '.join(sections)}")
    own, optional = sections[str(kind)]
    _check_keys("the file", content, ("question", "base", "seeds", "arms", *own), optional)
    if not isinstance(content["arms"], Mapping) or not content["arms"]:
        raise ConfigError("arms must name at least one arm")


def _read_exclusions(places: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(places, list) or not all(isinstance(p, Mapping) and p for p in places):
        raise ConfigError("exclude must be a list of settings, such as [{arm: cnn, epochs: 4}]")
    for place in places:
        _check_names("exclude", place)
    return tuple(places)


def _check_names(where: str, settings: Mapping[Any, Any]) -> None:
    for key in settings:
        if not isinstance(key, str):
            raise ConfigError(f"{where}: {key!r} is no key; write the name of one")


def _check_baseline(baseline: str, arms: Sequence[Arm]) -> None:
    arm = next((arm for arm in arms if arm.name == baseline), None)
    if arm is None:
        raise ConfigError(f"baseline: {baseline} is not an arm")
    if arm.matched:
        raise ConfigError(f"arms.{baseline}.matched: never of the baseline; leave it out")


def _read_arm(key: Any, content: Any, base: Sequence[Override], is_search: bool) -> Arm:
    """An arm of a file with this `base`. Raises ConfigError naming arm and key."""
    name = str(key)
    # A line break or an empty cell breaks each table that has the arm.
    if key is None or not name.strip() or not name.isprintable():
        raise ConfigError(f"arms: {key!r} is no name of an arm; write one line of printable text")
    where = f"arms.{name}"
    content = {} if content is None else content
    flags = () if is_search else ("matched",)
    _check_keys(where, content, required=(), optional=("fixed", "space", *flags))
    matched = content.get("matched", False)
    if not isinstance(matched, bool):
        raise ConfigError(f"{where}.matched must be true or false, got {matched}")
    fixed = _read_overrides(f"{where}.fixed", content.get("fixed", []))
    space = _read_space(f"{where}.space", content.get("space", {}), is_search)
    keys = [override.key for override in (*base, *fixed)] + space.keys
    if (key := _find_repeated(keys)) is not None:
        raise ConfigError(f"{where}: {key} is set twice between base, fixed and space; keep one")
    if "seed" in keys:
        raise ConfigError(f"{where}: seed is not an axis of an arm; list it under seeds")
    return Arm(name, fixed, space, matched)


def _read_space(where: str, content: Any, is_search: bool) -> Space:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where} must map keys to lists of values, got {content}")
    coupled = content.get(ZIP, {})
    if ZIP in content and (is_search or not isinstance(coupled, Mapping) or len(coupled) < 2):
        raise ConfigError(
            f"{where}.zip must map two keys or more to lists of equal length; a search has no grid"
        )
    pairs = [(k, v) for k, v in content.items() if k != ZIP] + list(coupled.items())
    axes = [_read_axis(where, str(key), values, is_search) for key, values in pairs]
    space = Space(
        tuple(axis for axis in axes if isinstance(axis, Override)),
        tuple(axis for axis in axes if isinstance(axis, Interval)),
        (tuple(grammar.with_dots(str(key)) for key in coupled),) if coupled else (),
    )
    for group in space.list_groups():
        check_axis(where, *group)
    return space


def _read_axis(where: str, key: str, values: Any, is_search: bool) -> Override | Interval:
    if not isinstance(values, str):
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}.{key} must be a list of values")
        return Override(grammar.with_dots(key), tuple(values))
    axis = grammar.parse_axis(f"{key}={values}")
    if is_search or isinstance(axis, Override):
        return axis
    raise ConfigError(
        f"{where}.{key}: an interval has no finite list of values; write them out, or set "
        "kind: search"
    )


def check_axis(where: str, axis: Override, *coupled: Override) -> Override:
    """The axis itself. Raises ConfigError when it holds a value twice, with the same values of the
    axes that are `coupled` to it.
    """
    values = zip(axis.values, *(other.values for other in coupled), strict=False)
    if (repeated := _find_repeated(list(values))) is not None:
        keys = ", ".join(one.key for one in (axis, *coupled))
        text = ", ".join(map(str, repeated))
        raise ConfigError(f"{where}: {keys} has the value {text} twice; keep one")
    return axis


def check_seeds(where: str, seeds: Any) -> tuple[int, ...]:
    """Distinct seeds >= 0. Raises ConfigError otherwise."""
    is_list = isinstance(seeds, (list, tuple, range))
    are_whole = is_list and all(type(seed) is int for seed in seeds)
    if not are_whole or not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"{where} must be distinct whole numbers >= 0, got {seeds}")
    return tuple(seeds)


def _find_repeated(values: Sequence[Any]) -> Any:
    """The first value that stood there before; None when each stands once."""
    known: set[str] = set()
    for value in values:
        if repr(value) in known:
            return value
        known.add(repr(value))
    return None


def _read_search(content: Any) -> Search:
    names = [field.name for field in fields(Search)]
    _check_keys("search", content, required=names[:2], optional=names[2:])
    search = Search(**content)
    for name, words in SEARCH_WORDS.items():
        if getattr(search, name) not in words:
            raise ConfigError(f"search.{name} must be one of {', '.join(words)}")
    for name, low in SEARCH_NUMBERS.items():
        value = getattr(search, name)
        if type(value) is not int or value < low:
            raise ConfigError(f"search.{name} must be a whole number >= {low}, got {value}")
    if not str(search.metric).startswith("val/"):
        raise ConfigError(
            f"search.metric: {search.metric}: settings are chosen on validation examples, such as "
            "val/error"
        )
    return search


def _read_published(content: Any, arms: Sequence[str], metric: str) -> Published:
    if content is None:
        return Published("", ())
    _check_keys("published", content, required=("source", "values"), optional=("of",))
    shared, values = content.get("of", {}), content["values"]
    if not isinstance(shared, Mapping):
        raise ConfigError("published.of must be what the numbers are of, such as {model: capsnet}")
    values = values if isinstance(values, list) else [values]
    for value in values:
        if not isinstance(value, Mapping) or not isinstance(value.get("value"), float):
            raise ConfigError(f"published.values: {value} needs a `value` such as 0.0025")
    measure = measure_of(metric)
    values = [{**shared, **value} for value in values]
    for value in values:
        _check_names("published", value)
        number = value["value"]
        if not (math.isfinite(number) and measure.low <= number <= measure.high):
            percent = "; 2.5 % is 0.025" if measure.high == 1 else ""
            raise ConfigError(
                f"published.values: {number} is no {metric}: a finite number from {measure.low} to "
                f"{measure.high}{percent}"
            )
        for key, name in value.items():
            known = arms if key == "arm" else [name]
            known = grammar.list_options(key) if grammar.is_group(str(key)) else known
            if key in ("epochs", "members") and (type(name) is not int or name < 1):
                raise ConfigError(f"published: {key} must be a whole number >= 1, got {name}")
            if name not in known:
                have = ", ".join(known)
                raise ConfigError(f"published.values: {key}: {name}: no such one; have {have}")
    return Published(_read_text("published.source", content["source"]), tuple(values))


def _check_keys(
    where: str, section: Any, required: Sequence[str], optional: Sequence[str] = ()
) -> None:
    """Raise ConfigError unless a section is a mapping that has the keys it must, and no others."""
    known = [*required, *optional]
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where} must be a mapping with the keys {', '.join(known)}")
    for key in section:
        if key not in known:
            hint = name_nearest(str(key), known) or f"have {', '.join(known)}"
            raise ConfigError(f"{where}: {key}: no such key; {hint}")
    for key in required:
        if key not in section:
            raise ConfigError(f"{where}: {key} is missing")


def _read_overrides(where: str, texts: Any) -> tuple[Override, ...]:
    """Overrides of one run. Raises ConfigError naming the section, or a key set twice."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where} must be a list of overrides such as [model=capsnet]")
    return tuple(grammar.parse_single(texts))


def _read_names(where: str, names: Any) -> tuple[str, ...]:
    """Keys of a table, groups with dots."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where} must be a list of keys such as [arm], got {names}")
    return tuple(map(grammar.with_dots, names))


def _read_text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where} must be text, got {ascii(value)[:60]}")
    return value
