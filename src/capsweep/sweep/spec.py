"""A sweep: a question, and arms whose axes span the grid that answers it; read from its file.

`docs/how-to/write-a-sweep.md` shows the format. Sections of the file are read strictly: no key is
unknown, and none is missing.
"""

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
from capsweep.config.cell import suggest_name
from capsweep.config.overrides import Interval, Override
from capsweep.config.words import BY_NAME
from capsweep.errors import ConfigError
from capsweep.statistics.metric_format import measure_of
from capsweep.storage.checked import describe_fault
from capsweep.storage.files import hash_bytes

ZIP = "zip"
ROUTING = "routing"  # the group of routing variants; keys of a variant begin with it and a dot
MOST_LETTERS = 80  # of words in the name of a folder
Place: TypeAlias = tuple[Override, ...]  # one value of each axis

Text = Annotated[str, Field(strict=True, pattern=r"\S")]
OF_VALIDATION = Annotated[str, Field(strict=True, pattern="^val/")]  # no test examples
STRICT = ConfigDict(extra="forbid")
Texts = list[StrictStr]
UNKNOWN_KEY = "unexpected_keyword_argument"  # as pydantic has it


@checked(frozen=True, config=STRICT)
class Published:
    """Numbers from elsewhere, printed beside ours."""

    source: Text | Literal[""] = ""
    values: tuple[dict[StrictStr, Any], ...] = ()  # each `value`, and what it is of
    of: dict[StrictStr, Any] = field(default_factory=dict)  # what all of them are of


@checked(frozen=True, config=STRICT)
class Search:
    """How settings are chosen."""

    metric: OF_VALIDATION
    trials: Annotated[int, Field(strict=True, ge=1)]
    sampler: Literal["optuna", "random"] = "optuna"
    scheduler: Literal["asha", "none"] = "asha"  # asha: a trial may end early
    reduction_factor: Annotated[int, Field(strict=True, ge=2)] = (
        3  # of so many the best one goes on
    )


@checked(config=STRICT)
class ArmSection:
    """An arm, as a file has it."""

    fixed: Texts = field(default_factory=list)
    space: dict[StrictStr, Any] = field(default_factory=dict)
    matched: StrictBool = False


@checked(config=STRICT)
class TableSection:
    """A table, as a file has it."""

    rows: Texts
    columns: Texts
    metric: Text


@checked(config=STRICT, kw_only=True)
class SweepFile:
    """The sections that every sweep file has."""

    question: Text
    base: Texts
    seeds: Any  # `check_seeds` reads them
    arms: Annotated[dict[StrictStr, ArmSection | None], Field(min_length=1)]
    kind: str = "ablation"


@checked(config=STRICT, kw_only=True)
class SearchFile(SweepFile):
    """A file whose settings are drawn."""

    search: Search


@checked(config=STRICT, kw_only=True)
class AblationFile(SweepFile):
    """A file whose grid is run."""

    baseline: StrictStr
    table: TableSection
    published: Published = field(default_factory=Published)


KINDS = {"ablation": AblationFile, "search": SearchFile}
SECTIONS: dict[str, Any] = {"arms": ArmSection, "table": TableSection, "search": Search}


@dataclass(frozen=True)
class Arm:
    """One family of rows of a table."""

    name: str
    fixed: tuple[Override, ...]  # what holds in all its cells, also of all arms
    axes: tuple[Override, ...] = ()  # span its grid
    intervals: tuple[Interval, ...] = ()  # of a search
    coupled: tuple[tuple[str, ...], ...] = ()  # keys of axes that move together
    matched: bool = False  # training stops where the baseline is as good (`sweep/expand.py`)

    @property
    def keys(self) -> list[str]:
        """Every key that varies."""
        return [axis.key for axis in (*self.axes, *self.intervals)]

    @property
    def first_place(self) -> Place:
        """The first value of each axis, and the lower end of each interval."""
        lows = ((one.key, one.low) for one in self.intervals)
        firsts = ((axis.key, axis.value) for axis in self.axes)
        return tuple(Override(key, (value,)) for key, value in (*firsts, *lows))


@dataclass(frozen=True)
class Sweep:
    """A question and the grid that answers it."""

    name: str
    path: Path  # the file it was read from
    question: str
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]
    baseline: str = ""  # of a search none
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    metric: str = ""
    published: Published = field(default_factory=Published)
    search: Search | None = None
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


def load(name: str) -> Sweep:
    """Read `sweeps/NAME.yaml`, or the file `name` when it ends in .yaml.

    Raises ConfigError naming the file and the key.
    """
    folder = package_files.find_folder("sweeps")
    path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise ConfigError(f"SWEEP={name}: no file {path}; have {', '.join(known)}")
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
    kind = content.get("kind", "ablation") if isinstance(content, Mapping) else "ablation"
    if str(kind) not in KINDS:
        raise ConfigError(f"kind: {kind}: have {', '.join(KINDS)}")
    file = _check_file(KINDS[str(kind)], content)
    base, is_search = tuple(grammar.parse_single(file.base)), isinstance(file, SearchFile)
    sections = {name: arm or ArmSection() for name, arm in file.arms.items()}
    arms = tuple(_read_arm(*item, base, is_search) for item in sections.items())
    read = Sweep(path.stem, path, file.question, check_seeds("seeds", file.seeds), arms)
    if is_search:
        return replace(read, metric=file.search.metric, search=file.search)
    if file.baseline not in sections:
        raise ConfigError(f"baseline: {file.baseline} is not an arm")
    if sections[file.baseline].matched:
        raise ConfigError(f"arms.{file.baseline}.matched: never of the baseline; leave it out")
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
    """Return the content of a file as one of its kind. Raises ConfigError naming the key."""
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
            hint = suggest_name(str(fault["loc"][-1]), known) or f"have {', '.join(known)}"
            raise ConfigError(f"{key}: no such key; {hint}") from error
        raise ConfigError(describe_fault(error)) from error


def _read_arm(name: str, section: ArmSection, base: Sequence[Override], is_search: bool) -> Arm:
    """Return an arm of a file with this `base`. Raises ConfigError naming arm and key."""
    # A line break or an empty cell breaks each table that has the arm.
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"arms: {name!r} is no name of an arm; write one line of printable text")
    fixed, where = (*base, *grammar.parse_single(section.fixed)), f"arms.{name}.space"
    zipped = section.space.get(ZIP, {})
    is_zip = not is_search and isinstance(zipped, Mapping) and len(zipped) > 1
    if ZIP in section.space and not is_zip:
        raise ConfigError(
            f"{where}.zip must map two keys or more to lists of equal length; a search has no grid"
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
            f"arms.{name}: {key} is set twice between base, fixed and space; keep one"
        )
    if "seed" in keys:
        raise ConfigError(f"arms.{name}: seed is not an axis of an arm; list it under seeds")
    return Arm(
        name,
        fixed,
        tuple(axis for axis in axes if isinstance(axis, Override)),
        tuple(axis for axis in axes if isinstance(axis, Interval)),
        (tuple(axis.key for axis in axes[len(single) :]),) if zipped else (),
        section.matched,
    )


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


def check_axis(where: str, axis: Override) -> Override:
    """Return the axis. Raises ConfigError when it holds a value twice."""
    if (repeated := _find_repeated(axis.values)) is not None:
        raise ConfigError(f"{where}: {axis.key} has the value {repeated} twice; keep one")
    return axis


def check_seeds(where: str, seeds: Any) -> tuple[int, ...]:
    """Distinct seeds >= 0. Raises ConfigError otherwise."""
    is_list = isinstance(seeds, (list, tuple, range))
    are_whole = is_list and all(type(seed) is int for seed in seeds)
    if not are_whole or not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"{where} must be distinct whole numbers >= 0, got {seeds}")
    return tuple(seeds)


def _find_repeated(values: Iterable[Any]) -> str | None:
    """Return the first value that stands there twice; None when each stands once."""
    counts = Counter(map(repr, values))
    return next((text.strip("'") for text, count in counts.items() if count > 1), None)


def _check_published(value: Mapping[str, Any], arms: Sequence[str], metric: str) -> None:
    """Raise ConfigError naming the key where a published number, or what it is of, cannot be."""
    measure, number = measure_of(metric), value.get("value")
    low, high = measure.low, measure.high
    if not (isinstance(number, float) and math.isfinite(number) and low <= number <= high):
        bounds = f"from {low} to {high}; 2.5 % is 0.025"
        raise ConfigError(f"published.values: {value}: `value` must be a finite {metric} {bounds}")
    for key, name in value.items():
        known = arms if key == "arm" else [name]
        known = grammar.list_options(key) if grammar.is_group(key) else known
        if name not in known:
            have = ", ".join(known)
            raise ConfigError(f"published.values: {key}: {name}: no such one; have {have}")
