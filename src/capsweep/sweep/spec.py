"""A sweep file, read and checked: `sweeps/README.md` shows the format."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from capsweep.config import groups, roots
from capsweep.config import overrides as grammar
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.sweep.axes import Space, read_exclusions, read_space

ALWAYS = ("question", "base", "seeds", "arms")
ABLATION = ("baseline", "table")
KINDS = ("ablation", "search")


@dataclass(frozen=True)
class Arm:
    """One row family: overrides that hold in all its cells, and axes that span a grid."""

    name: str
    fixed: tuple[Override, ...]
    space: Space


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
    typed: tuple[Mapping[str, Any], ...] = ()  # exclusions of the command line
    pinned: frozenset[str] = frozenset()  # keys set there; an exclusion of theirs may match nothing
    narrowed: bool = False  # there, arms or groups were chosen: any exclusion may match nothing


def load(name: str) -> Sweep:
    """Read `sweeps/NAME.yaml`, or the file `name` when it ends in .yaml.

    Raises ConfigError naming the file and the key.
    """
    path = Path(name) if name.endswith(".yaml") else roots.find("sweeps") / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in roots.find("sweeps").glob("*.yaml"))
        raise ConfigError(f"SWEEP={name}: no file {path.name}; have {', '.join(known)}")
    try:
        return _sweep(path, _read(path))
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error


class _StrictLoader(yaml.SafeLoader):
    """A YAML loader for which a key given twice is an error, not the last one's win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise ConfigError(f"{key} is given twice in the section at line {line}; keep one")
        return super().construct_mapping(node, deep)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        # A SafeLoader with one more check: it makes no objects.
        content = yaml.load(path.read_text(), _StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"the file must be a mapping with the keys {', '.join(ALWAYS)}")
    kind = content.get("kind", "ablation")
    if kind not in KINDS:
        raise ConfigError(f"kind: {kind}: have {', '.join(KINDS)}")
    own, optional = (ABLATION, ("kind", "exclude", "published"))
    if kind == "search":
        own, optional = (("search",), ("kind",))
    _check_keys("the file", content, required=(*ALWAYS, *own), optional=optional)
    return content


def _check_keys(
    where: str, section: Any, required: Sequence[str], optional: Sequence[str] = ()
) -> None:
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where} must be a mapping with the keys {', '.join(required)}")
    for key in section:
        if key not in (*required, *optional):
            close = difflib.get_close_matches(str(key), [*required, *optional], n=1)
            hint = f"did you mean {close[0]}?" if close else f"have {', '.join(required)}"
            raise ConfigError(f"{where}: {key}: no such key; {hint}")
    for key in required:
        if key not in section:
            raise ConfigError(f"{where}: {key} is missing")


def _sweep(path: Path, content: Mapping[str, Any]) -> Sweep:
    search = None if "search" not in content else _search(content["search"])
    table = content.get("table", {"rows": [], "columns": [], "metric": search and search.metric})
    _check_keys("table", table, required=("rows", "columns", "metric"))
    if not isinstance(content["arms"], Mapping) or not content["arms"]:
        raise ConfigError("arms must name at least one arm")
    base = _choices("base", content["base"])
    arms = tuple(
        _arm(str(name), arm, base, search is not None) for name, arm in content["arms"].items()
    )
    baseline = str(content.get("baseline", arms[0].name))
    if baseline not in {arm.name for arm in arms}:
        raise ConfigError(f"baseline: {baseline} is not an arm")
    return Sweep(
        name=path.stem,
        path=path,
        question=str(content["question"]),
        base=base,
        seeds=check_seeds("seeds", content["seeds"]),
        baseline=baseline,
        arms=arms,
        rows=_names("table.rows", table["rows"]),
        columns=_names("table.columns", table["columns"]),
        metric=str(table["metric"]),
        published=_published(content.get("published")),
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
    _check_keys("search", content, required=names[:2], optional=names[2:])
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


def _names(where: str, names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where} must be a list of keys such as [arm], got {names}")
    return tuple(map(groups.with_dots, names))


def _arm(name: str, content: Any, base: tuple[Override, ...], intervals: bool) -> Arm:
    where = f"arms.{name}"
    content = content or {}
    # A search draws its places one by one: it has no grid to leave places out of.
    optional = ("fixed", "space") if intervals else ("fixed", "space", "exclude")
    _check_keys(where, content, required=(), optional=optional)
    fixed = _choices(f"{where}.fixed", content.get("fixed", []))
    space = read_space(f"{where}.space", content.get("space", {}), intervals)
    keys = [override.key for override in (*base, *fixed)] + space.keys
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(
                f"{where}: {key} is set twice between base, fixed and space; keep one"
            )
        if key == "seed":
            raise ConfigError(f"{where}: seed is not an axis of an arm; list it under seeds")
    return Arm(name, fixed, space)


def _choices(where: str, texts: Any) -> tuple[Override, ...]:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where} must be a list of overrides such as [model=capsnet]")
    return tuple(grammar.parse_single(texts))


def check_seeds(where: str, seeds: Any) -> tuple[int, ...]:
    """Distinct seeds >= 0. Raises ConfigError otherwise."""
    whole = isinstance(seeds, (list, tuple, range)) and all(type(seed) is int for seed in seeds)
    if not whole or not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"{where} must be distinct whole numbers >= 0, got {seeds}")
    return tuple(seeds)


def _published(content: Any) -> Published:
    if content is None:
        return Published("", ())
    _check_keys("published", content, required=("source", "values"))
    if not isinstance(content["values"], list):
        raise ConfigError("published.values must be a list of numbers with their places")
    for value in content["values"]:
        if not isinstance(value, Mapping) or not isinstance(value.get("value"), float):
            raise ConfigError(f"published.values: {value} needs a `value` such as 0.0025")
    return Published(str(content["source"]), tuple(content["values"]))
