"""A sweep file, read and checked: `sweeps/README.md` shows the format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from capsweep.config import bounded_yaml, package_files
from capsweep.config import overrides as grammar
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.sweep.arms import Arm, check_keys, read_arm, read_overrides

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


SEARCH_WORDS = {
    "mode": ("min", "max"),
    "sampler": ("optuna", "random"),
    "scheduler": ("asha", "none"),
}
SEARCH_NUMBERS = {"trials": 1, "seed": 0, "grace_epochs": 1, "reduction_factor": 2}  # the least


@dataclass(frozen=True)
class Sweep:
    """A question and the grid that answers it; `path` is the file it was read from.

    variants: of routing, to keep; none: all. excluded: places that the command line leaves out.
    """

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
    variants: frozenset[str] = frozenset()
    excluded: tuple[Mapping[str, Any], ...] = ()


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
    try:
        return _read_sweep(path, bounded_yaml.load_file(path))
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error


def _read_sweep(path: Path, content: Any) -> Sweep:
    _check_sections(content)
    search = _read_search(content["search"]) if "search" in content else None
    table = content.get("table", {"rows": [], "columns": [], "metric": search and search.metric})
    check_keys("table", table, required=("rows", "columns", "metric"))
    base = read_overrides("base", content["base"])
    arms = tuple(
        read_arm(str(name), arm, base, search is not None) for name, arm in content["arms"].items()
    )
    baseline = str(content.get("baseline", arms[0].name))
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
        published=_read_published(content.get("published"), [arm.name for arm in arms]),
        exclude=_read_exclusions(content),
        search=search,
    )


def _check_sections(content: Any) -> None:
    kind = content.get("kind", "ablation") if isinstance(content, Mapping) else "ablation"
    sections = {
        "ablation": (("baseline", "table"), ("kind", "exclude", "published")),
        "search": (("search",), ("kind",)),
    }
    if kind not in sections:
        raise ConfigError(f"kind: {kind}: have {', '.join(sections)}")
    own, optional = sections[kind]
    check_keys("the file", content, ("question", "base", "seeds", "arms", *own), optional)
    if not isinstance(content["arms"], Mapping) or not content["arms"]:
        raise ConfigError("arms must name at least one arm")


def _check_baseline(baseline: str, arms: Sequence[Arm]) -> None:
    arm = next((arm for arm in arms if arm.name == baseline), None)
    if arm is None:
        raise ConfigError(f"baseline: {baseline} is not an arm")
    if arm.optional:
        raise ConfigError(f"arms.{baseline}.optional: the baseline is always run; leave it out")
    if arm.matched:
        raise ConfigError(f"arms.{baseline}.matched: others are matched to it; leave it out")


def _read_search(content: Any) -> Search:
    names = [field.name for field in fields(Search)]
    check_keys("search", content, required=names[:2], optional=names[2:])
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


def check_seeds(where: str, seeds: Any) -> tuple[int, ...]:
    """Distinct seeds >= 0. Raises ConfigError otherwise."""
    is_list = isinstance(seeds, (list, tuple, range))
    if is_list and len(seeds) > MOST_SEEDS:
        raise ConfigError(f"{where}: {len(seeds):,} seeds; at most {MOST_SEEDS:,}")
    are_whole = is_list and all(type(seed) is int for seed in seeds)
    if not are_whole or not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"{where} must be distinct whole numbers >= 0, got {seeds}")
    return tuple(seeds)


def _read_exclusions(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Places to leave out: of the file, and of each arm, which hold in that arm alone."""
    sections = [("exclude", content, {})]
    for name, arm in content["arms"].items():
        sections.append((f"arms.{name}.exclude", arm or {}, {"arm": str(name)}))
    exclusions: list[Mapping[str, Any]] = []
    for where, section, arm in sections:
        places = section.get("exclude", [])
        if not isinstance(places, list) or not all(isinstance(p, Mapping) and p for p in places):
            example = "[{routing.num_iters: 1}]"
            raise ConfigError(f"{where} must be a list of settings such as {example}")
        exclusions += [arm | {grammar.with_dots(str(k)): v for k, v in p.items()} for p in places]
    return tuple(exclusions)


def _read_published(content: Any, arms: Sequence[str]) -> Published:
    if content is None:
        return Published("", ())
    check_keys("published", content, required=("source", "values"))
    values = content["values"]
    for value in values if isinstance(values, list) else [values]:
        if not isinstance(value, Mapping) or not isinstance(value.get("value"), float):
            raise ConfigError(f"published.values: {value} needs a `value` such as 0.0025")
        for key, name in value.items():
            known = arms if key == "arm" else [name]
            known = grammar.list_options(key) if grammar.is_group(str(key)) else known
            if name not in known:
                have = ", ".join(known)
                raise ConfigError(f"published.values: {key}: {name}: no such one; have {have}")
    return Published(_read_text("published.source", content["source"]), tuple(values))


def _read_names(where: str, names: Any) -> tuple[str, ...]:
    """Keys of a table, groups with dots."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where} must be a list of keys such as [arm], got {names}")
    return tuple(map(grammar.with_dots, names))


def _read_text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where} must be text, got {ascii(value)[:60]}")
    return value
