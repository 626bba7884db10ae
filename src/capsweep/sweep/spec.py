"""The sweep file: a question, and the arms and axes that span the grid of its cells.

`docs/how-to/write-a-sweep.md` shows the format. An unknown key is an error, and so is a
missing key that the format requires.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, StrictBool, StrictStr, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from capsweep.config import bounded_yaml, package_files
from capsweep.config import overrides as grammar
from capsweep.config.overrides import Interval, Override
from capsweep.config.words import BY_NAME
from capsweep.errors import ConfigError
from capsweep.statistics.metric_format import measure_of
from capsweep.storage.checked import describe_fault
from capsweep.storage.files import hash_bytes

ZIP = "zip"
ROUTING = "routing"  # the configuration group of routings; keys of a routing begin with `routing.`
MOST_LETTERS = 80  # largest number of characters of typed words in the name of a report's folder
Place: TypeAlias = tuple[Override, ...]  # one value of each axis

Text = Annotated[str, Field(strict=True, pattern=r"\S")]
STRICT = ConfigDict(extra="forbid")
Texts = list[StrictStr]
UNKNOWN_KEY = "unexpected_keyword_argument"  # pydantic's name of the error for an unknown key


@checked(frozen=True, config=STRICT)
class Published:
    """Published numbers, which the table prints beside the measured numbers.

    Attributes:
        source: The paper.
        values: The numbers. Each has a `value`, and the coordinates of its field in the table.
        of: Coordinates that all numbers share.
    """

    source: Text | Literal[""] = ""
    values: tuple[dict[StrictStr, Any], ...] = ()
    of: dict[StrictStr, Any] = field(default_factory=dict)


@checked(frozen=True, config=STRICT)
class Search:
    """The section `search` of a file: how settings are drawn and chosen."""

    metric: StrictStr  # the metric that ranks trials
    trials: Annotated[int, Field(strict=True, ge=1)]  # number of trials to draw
    sampler: Literal["optuna", "random"] = "optuna"  # optuna: TPE; random: random search
    scheduler: Literal["asha", "none"] = "asha"  # asha: stops trials that are behind other trials
    reduction_factor: Annotated[int, Field(strict=True, ge=2)] = 3  # with 3, asha continues 1 of 3


@checked(config=STRICT)
class ArmSection:
    """An entry of the section `arms` of a file."""

    fixed: Texts = field(default_factory=list)  # overrides of all its cells
    space: dict[StrictStr, Any] = field(default_factory=dict)  # the values of each axis, by key
    matched: StrictBool = False  # whether training stops at the accuracy of the baseline


@checked(config=STRICT)
class TableSection:
    """The section `table` of a file, which says what the table of results shows."""

    rows: Texts  # keys whose values name a row
    columns: Texts  # keys whose values name a column
    metric: Text  # the metric that the fields show


@checked(config=STRICT, kw_only=True)
class SweepFile:
    """The sections that every sweep file has."""

    question: Text  # what the sweep answers
    base: Texts  # overrides of all arms
    seeds: Any  # a list, which `check_seeds` checks
    arms: Annotated[dict[StrictStr, ArmSection | None], Field(min_length=1)]  # by name
    kind: str = "ablation"  # "ablation" or "search"


@checked(config=STRICT, kw_only=True)
class SearchFile(SweepFile):
    """A sweep file of `kind: search`, whose settings are drawn."""

    search: Search  # how settings are drawn and chosen


@checked(config=STRICT, kw_only=True)
class AblationFile(SweepFile):
    """A sweep file of `kind: ablation`, whose whole grid is run."""

    baseline: StrictStr  # the arm with which the others are compared
    table: TableSection  # what its table shows
    published: Published = field(default_factory=Published)  # numbers of a paper


KINDS = {"ablation": AblationFile, "search": SearchFile}
SECTIONS: dict[str, Any] = {"arms": ArmSection, "table": TableSection, "search": Search}


@dataclass(frozen=True)
class Arm:
    """An arm of a sweep: a named group of cells that share overrides."""

    name: str  # its key in the sweep file
    fixed: tuple[Override, ...]  # overrides of all its cells; the overrides of `base` come first
    axes: tuple[Override, ...] = ()  # each a key and its values; together they span the grid
    intervals: tuple[Interval, ...] = ()  # ranges from which a search draws
    coupled: tuple[tuple[str, ...], ...] = ()  # the keys of paired axes, one tuple for each pairing
    matched: bool = False  # whether training stops at the baseline's accuracy (`sweep/expand.py`)

    @property
    def keys(self) -> list[str]:
        """The keys of the arm's axes and intervals."""
        return [axis.key for axis in (*self.axes, *self.intervals)]

    @property
    def first_place(self) -> Place:
        """The first value of each axis, and the lower end of each interval."""
        return tuple(axis.split()[0] for axis in (*self.axes, *self.intervals))


@dataclass(frozen=True)
class Sweep:
    """A question and the arms that answer it, read from a file and changed by typed words."""

    name: str  # the name of its file without .yaml
    path: Path  # its file
    question: str  # what it answers
    seeds: tuple[int, ...]  # the seeds of each place of the grid
    arms: tuple[Arm, ...]  # in the order of the file
    baseline: str = ""  # the arm with which others are compared; empty for a search
    rows: tuple[str, ...] = ()  # keys whose values name a row of the table
    columns: tuple[str, ...] = ()  # keys whose values name a column of the table
    metric: str = ""  # the metric of the table or of the search
    published: Published = field(default_factory=Published)  # numbers of a paper
    search: Search | None = None  # how settings are drawn; None for an ablation
    excluded: tuple[Mapping[str, Any], ...] = ()  # settings of the cells that EXCLUDE leaves out
    words: tuple[str, ...] = ()  # typed choices that differ from the file, such as EPOCHS=1
    command: str = ""  # the command that prints its table
    notes: tuple[str, ...] = ()  # lines below its table

    @property
    def report_name(self) -> str:
        """The name of the report's folder: sweep and words, as in `ablation-EPOCHS=1`."""
        if not self.words:
            return self.name
        text = "-".join(self.words).replace(" ", "-").replace("/", "-")
        safe = re.sub("[^A-Za-z0-9_.,=-]", "", text)[:MOST_LETTERS]
        rest = "" if safe == text else f"-{hash_bytes(text.encode())[:8]}"
        return f"{self.name}-{safe}{rest}"

    @property
    def typed_keys(self) -> list[str]:
        """The configuration keys that the typed words set."""
        names = [word.partition("=")[0] for word in self.words]
        keys = [BY_NAME[name].key if name in BY_NAME else name for name in names]
        return [key for key in keys if key]


def load(name: str) -> Sweep:
    """Read the sweep file sweeps/NAME.yaml, or the file at the path `name` if it ends in .yaml.

    Raises:
        ConfigError: The file is missing or not valid; the message names the file and the key.
    """
    folder = package_files.find_folder("sweeps")
    path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise ConfigError(f"SWEEP={name}: there is no file {path}; have {', '.join(known)}")
    if not re.fullmatch(r"\w[\w.+-]*", path.stem):  # the stem names the folder of the report
        raise ConfigError(
            f"SWEEP: the file name {path.name!r} is not allowed; rename the file: letters, digits, "
            "_, -, + and dots, and first a letter or digit"
        )
    try:
        return _read_sweep(path, bounded_yaml.load_file(path))
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error


def _read_sweep(path: Path, content: Any) -> Sweep:
    """Return the sweep that the content of a file describes."""
    if not isinstance(content, Mapping):
        raise ConfigError("no keys; a sweep file begins with `question:` (make new ARGS='sweep X')")
    kind = content.get("kind", "ablation")
    if str(kind) not in KINDS:
        raise ConfigError(f"kind: {kind}: must be one of {', '.join(KINDS)}")
    file = _check_file(KINDS[str(kind)], content)
    base, is_search = tuple(grammar.parse_single(file.base)), isinstance(file, SearchFile)
    sections = {name: arm or ArmSection() for name, arm in file.arms.items()}
    arms = tuple(_read_arm(*item, base, is_search) for item in sections.items())
    read = Sweep(path.stem, path, file.question, check_seeds("seeds", file.seeds), arms)
    if is_search:
        if not file.search.metric.startswith("val/"):
            raise ConfigError("search.metric: must begin with val/ (never choose on test data)")
        return replace(read, metric=file.search.metric, search=file.search)
    if file.baseline not in sections:
        raise ConfigError(f"baseline: {file.baseline}: no such arm; have {', '.join(sections)}")
    if sections[file.baseline].matched:
        raise ConfigError(f"arms.{file.baseline}.matched: not allowed for the baseline; remove it")
    values = tuple({**file.published.of, **value} for value in file.published.values)
    for value in values:
        _check_published(value, list(sections), file.table.metric)
    return replace(
        read,
        baseline=file.baseline,
        rows=tuple(map(grammar.with_dots, file.table.rows)),
        columns=tuple(map(grammar.with_dots, file.table.columns)),
        metric=file.table.metric,
        published=Published(file.published.source, values),
    )


def _check_file(kind: Any, content: Any) -> Any:
    """Check the content of a sweep file, and return it as an object of the class `kind`.

    Raises:
        ConfigError: A key is missing, unknown or not valid; the message names it.
    """
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        fault = min(error.errors(), key=lambda each: each["type"] != UNKNOWN_KEY)
        key = ".".join(map(str, fault["loc"]))
        if fault["type"] == "missing":
            raise ConfigError(f"{key} is missing") from error
        if fault["type"] == UNKNOWN_KEY:
            section = SECTIONS.get(str(fault["loc"][0]), Published) if fault["loc"][1:] else kind
            known = [each.name for each in fields(section)]
            close = difflib.get_close_matches(str(fault["loc"][-1]), known, 1, 0.5)
            hint = f"did you mean {close[0]}?" if close else f"have {', '.join(known)}"
            raise ConfigError(f"{key}: no such key; {hint}") from error
        raise ConfigError(describe_fault(error)) from error


def _read_arm(name: str, section: ArmSection, base: Sequence[Override], is_search: bool) -> Arm:
    """Return an arm of a sweep file.

    Args:
        name: The name of the arm, which is its key in the section `arms`.
        section: The entry of the arm in this section.
        base: The overrides that all arms share.
        is_search: Whether the file is a search, in which an axis may be an interval.

    Raises:
        ConfigError: The entry is not valid; the message names the arm and the key.
    """
    # A line break or an empty name would break every table that has the arm.
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"arms: {name!r} cannot name an arm; write one line of printable text")
    fixed, where = (*base, *grammar.parse_single(section.fixed)), f"arms.{name}.space"
    zipped = section.space.get(ZIP, {})
    is_zip = not is_search and isinstance(zipped, Mapping) and len(zipped) > 1
    if ZIP in section.space and not is_zip:
        raise ConfigError(
            f"{where}.zip must map two keys or more to lists of equal length; a search has no zip"
        )
    single = [(key, values) for key, values in section.space.items() if key != ZIP]
    pairs = (*single, *zipped.items())
    axes = [_read_axis(where, str(key), values, is_search) for key, values in pairs]
    for axis in axes[: len(single)]:
        if isinstance(axis, Override):
            check_axis(where, axis)
    keys = [each.key for each in (*fixed, *axes)]
    if (key := _find_repeated(keys)) is not None:
        raise ConfigError(
            f"arms.{name}: {key} is set twice, in base, fixed or space; keep one of the two"
        )
    if "seed" in keys:
        raise ConfigError(f"arms.{name}: seed cannot be an axis; list seeds in the section seeds")
    return Arm(
        name,
        fixed,
        tuple(axis for axis in axes if isinstance(axis, Override)),
        tuple(axis for axis in axes if isinstance(axis, Interval)),
        (tuple(axis.key for axis in axes[len(single) :]),) if zipped else (),
        section.matched,
    )


def _read_axis(where: str, key: str, values: Any, is_search: bool) -> Override | Interval:
    """Return the axis of a key: a list of values or, in a search, an interval."""
    if not isinstance(values, str):
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}.{key} must be a list of values")
        return Override(grammar.with_dots(key), tuple(values))
    axis = grammar.parse_axis(f"{key}={values}")
    if is_search or isinstance(axis, Override):
        return axis
    raise ConfigError(
        f"{where}.{key}: an ablation cannot run an interval; list its values, or set kind: search"
    )


def check_axis(where: str, axis: Override) -> Override:
    """Return the axis if its values are distinct.

    Args:
        where: The beginning of the error message, such as a word or a section.
        axis: A key and its values.

    Raises:
        ConfigError: A value occurs twice.
    """
    if (repeated := _find_repeated(axis.values)) is not None:
        raise ConfigError(f"{where}: {axis.key} has the value {repeated} twice; keep one")
    return axis


def check_seeds(where: str, seeds: Any) -> tuple[int, ...]:
    """Return seeds as a tuple if they are distinct whole numbers >= 0.

    Args:
        where: The beginning of the error message, such as a word or a section.
        seeds: The seeds as read from a file or a word, of any type.

    Raises:
        ConfigError: The seeds are not distinct whole numbers >= 0.
    """
    is_list = isinstance(seeds, (list, tuple, range))
    are_whole = is_list and all(type(seed) is int for seed in seeds)
    if not are_whole or not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"{where} must be distinct whole numbers >= 0, got {seeds}")
    return tuple(seeds)


def _find_repeated(values: Iterable[Any]) -> str | None:
    """Return the text of the first repeated value, or None if all values are distinct."""
    counts = Counter(map(repr, values))
    return next((text.strip("'") for text, count in counts.items() if count > 1), None)


def _check_published(value: Mapping[str, Any], arms: Sequence[str], metric: str) -> None:
    """Raise ConfigError if a published number is out of range, or its arm or option is unknown."""
    measure, number = measure_of(metric), value.get("value")
    low, high = measure.low, measure.high
    if not (isinstance(number, float) and math.isfinite(number) and low <= number <= high):
        bounds = f"from {low} to {high}; 2.5 % is 0.025"
        raise ConfigError(f"published.values: {value}: `value` must be a {metric} {bounds}")
    for key, name in value.items():
        known = arms if key == "arm" else [name]
        known = grammar.list_options(key) if grammar.is_group(key) else known
        if name not in known:
            have = ", ".join(known)
            raise ConfigError(f"published.values: {key}: {name} is unknown; have {have}")
