"""A sweep file, read and checked: `sweeps/README.md` shows the format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from capsweep.config import package_files
from capsweep.config.groups import is_group, options
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.sweep import sections
from capsweep.sweep.arms import Arm, read_arm
from capsweep.sweep.axes import read_exclusions
from capsweep.sweep.sections import check_keys, read_names, read_overrides, read_text

ALWAYS = ("question", "base", "seeds", "arms")
ABLATION = ("baseline", "table")
KINDS = ("ablation", "search")
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Published:
    """Numbers from elsewhere, printed beside ours: coordinates and `value`."""

    source: str
    values: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Search:
    """How settings are chosen: `trials` of them, on a metric of the validation examples.

    scheduler asha: a trial may end early; grace_epochs: not before; reduction_factor: of how many
    the best one goes on.
    """

    metric: str
    trials: int
    mode: str = "min"
    sampler: str = "optuna"
    scheduler: str = "asha"
    seed: int = 0
    grace_epochs: int = 1
    reduction_factor: int = 3


@dataclass(frozen=True)
class Sweep:
    """A question and the grid that answers it; `path` is the file it was read from."""

    name: str
    path: Path
    question: str
    base: tuple[Override, ...]
    seeds: tuple[int, ...]
    baseline: str
    arms: tuple[Arm, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    metric: str
    published: Published
    table_file: str = "table.md"  # in the report's folder
    exclude: tuple[Mapping[str, Any], ...] = ()
    search: Search | None = None
    variants: frozenset[str] = frozenset()  # of routing, to keep; none: all
    typed: tuple[Mapping[str, Any], ...] = ()  # exclusions of the command line
    pinned: frozenset[str] = frozenset()  # keys set there; an exclusion of theirs may match nothing
    narrowed: bool = False  # there, arms or groups were chosen: any exclusion may match nothing
    checked: bool = False  # the file is checked, with optional arms that are left out since


def load(name: str) -> Sweep:
    """Read `sweeps/NAME.yaml`, or the file `name` when it ends in .yaml.

    Raises ConfigError naming the file and the key.
    """
    path = (
        Path(name)
        if name.endswith(".yaml")
        else package_files.find_folder("sweeps") / f"{name}.yaml"
    )
    try:
        is_there = path.is_file()
    except OSError as error:  # a name that no file can have
        raise ConfigError(f"SWEEP={name[:40]}...: {error.strerror}") from error
    if not is_there:
        known = sorted(file.stem for file in package_files.find_folder("sweeps").glob("*.yaml"))
        raise ConfigError(f"SWEEP={name}: no file {path.name}; have {', '.join(known)}")
    try:
        return _sweep(path, _read(path))
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error


def _read(path: Path) -> Mapping[str, Any]:
    content = sections.read(path)
    if not isinstance(content, Mapping):
        raise ConfigError(f"the file must be a mapping with the keys {', '.join(ALWAYS)}")
    kind = content.get("kind", "ablation")
    if kind not in KINDS:
        raise ConfigError(f"kind: {kind}: have {', '.join(KINDS)}")
    own, optional = (ABLATION, ("kind", "exclude", "published"))
    if kind == "search":
        own, optional = (("search",), ("kind",))
    check_keys("the file", content, required=(*ALWAYS, *own), optional=optional)
    return content


def _sweep(path: Path, content: Mapping[str, Any]) -> Sweep:
    search = None if "search" not in content else _search(content["search"])
    table = content.get("table", {"rows": [], "columns": [], "metric": search and search.metric})
    check_keys("table", table, required=("rows", "columns", "metric"))
    if not isinstance(content["arms"], Mapping) or not content["arms"]:
        raise ConfigError("arms must name at least one arm")
    base = read_overrides("base", content["base"])
    arms = tuple(
        read_arm(str(name), arm, base, search is not None) for name, arm in content["arms"].items()
    )
    baseline = str(content.get("baseline", arms[0].name))
    named = {arm.name: arm for arm in arms}
    if baseline not in named:
        raise ConfigError(f"baseline: {baseline} is not an arm")
    if named[baseline].optional:
        raise ConfigError(f"arms.{baseline}.optional: the baseline is always run; leave it out")
    if named[baseline].matched:
        raise ConfigError(f"arms.{baseline}.matched: others are matched to it; leave it out")
    return Sweep(
        name=path.stem,
        path=path,
        question=read_text("question", content["question"]),
        base=base,
        seeds=check_seeds("seeds", content["seeds"]),
        baseline=baseline,
        arms=arms,
        rows=read_names("table.rows", table["rows"]),
        columns=read_names("table.columns", table["columns"]),
        metric=read_text("table.metric", table["metric"]),
        published=_published(content.get("published"), [arm.name for arm in arms]),
        exclude=_exclusions(content),
        search=search,
    )


def _exclusions(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Those of the file, and those of each arm, which hold in that arm alone."""
    found = list(read_exclusions("exclude", content.get("exclude", [])))
    for name, arm in content["arms"].items():
        where = f"arms.{name}.exclude"
        inside = read_exclusions(where, (arm or {}).get("exclude", []))
        found += [{"arm": str(name), **one} for one in inside]
    return tuple(found)


def _search(content: Any) -> Search:
    names = [field.name for field in fields(Search)]
    check_keys("search", content, required=names[:2], optional=names[2:])
    found = Search(**content)
    allowed = {
        "mode": ("min", "max"),
        "sampler": ("optuna", "random"),
        "scheduler": ("asha", "none"),
    }
    for name, values in allowed.items():
        if getattr(found, name) not in values:
            raise ConfigError(f"search.{name} must be one of {', '.join(values)}")
    for name, low in {"trials": 1, "seed": 0, "grace_epochs": 1, "reduction_factor": 2}.items():
        value = getattr(found, name)
        if type(value) is not int or value < low:
            raise ConfigError(f"search.{name} must be a whole number >= {low}, got {value}")
    if not str(found.metric).startswith("val/"):
        raise ConfigError(
            f"search.metric: {found.metric}: settings are chosen on validation examples, such as "
            "val/error"
        )
    return found


def check_seeds(where: str, seeds: Any) -> tuple[int, ...]:
    """Distinct seeds >= 0. Raises ConfigError otherwise."""
    listed = isinstance(seeds, (list, tuple, range))
    if listed and len(seeds) > MOST_SEEDS:
        raise ConfigError(f"{where}: {len(seeds):,} seeds; at most {MOST_SEEDS:,}")
    whole = listed and all(type(seed) is int for seed in seeds)
    if not whole or not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"{where} must be distinct whole numbers >= 0, got {seeds}")
    return tuple(seeds)


def _published(content: Any, arms: Sequence[str]) -> Published:
    if content is None:
        return Published("", ())
    check_keys("published", content, required=("source", "values"))
    if not isinstance(content["values"], list):
        raise ConfigError("published.values must be a list of numbers with their places")
    for value in content["values"]:
        if not isinstance(value, Mapping) or not isinstance(value.get("value"), float):
            raise ConfigError(f"published.values: {value} needs a `value` such as 0.0025")
        for key, place in value.items():
            known = arms if key == "arm" else options(key) if is_group(str(key)) else [place]
            if place not in known:
                have = ", ".join(known)
                raise ConfigError(f"published.values: {key}: {place}: no such one; have {have}")
    return Published(read_text("published.source", content["source"]), tuple(content["values"]))
