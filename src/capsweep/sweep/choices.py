"""What the command line changes about a sweep: axes, values, seeds, arms, variants."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capsweep.config import compose
from capsweep.config import overrides as grammar
from capsweep.config.cell import LOGISTICS, get
from capsweep.config.groups import with_dots
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.sweep import expand, spec
from capsweep.sweep.arms import CONTROL, ITERATIONS, Arm
from capsweep.sweep.axes import Space, check_axis
from capsweep.sweep.spec import Published, Sweep, check_seeds

RECONSTRUCTION = "loss.reconstruction.weight"


@dataclass(frozen=True)
class Choices:
    """As typed. routing: "3", "1,3", "dynamic" or "control"; recon: "off", "on,off" or weights;
    seeds: a count or a list; model: for every arm but a baseline of another network; arms: to keep;
    zips: "KEY,KEY"; excludes: "a=1 b=2"; metric: of the table; overrides: Hydra's.
    """

    routing: str | None = None
    recon: str | None = None
    seeds: str | None = None
    model: str | None = None
    arms: str | None = None
    zips: Sequence[str] = ()
    excludes: Sequence[str] = ()
    metric: str | None = None
    overrides: Sequence[str] = ()


def load_sweep(name: str, choices: Choices) -> Sweep:
    """The sweep of a file as chosen. Raises ConfigError."""
    return apply_choices(spec.load(name), choices)


def apply_choices(sweep: Sweep, choices: Choices) -> Sweep:
    """The sweep as chosen.

    An override replaces the axis or value of its key where an arm has one, and is added to every
    arm where it has not. Raises ConfigError naming the variable.
    """
    iterations, variants = _routing(choices.routing)
    if choices.arms is not None:
        sweep = _keep_arms(sweep, choices.arms)
    elif not variants:
        sweep = _without_optional(sweep)
    if CONTROL in variants and CONTROL not in (names := [arm.name for arm in sweep.arms]):
        told = f"{sweep.path.name} has no arm {CONTROL}; have {', '.join(names)}"
        raise ConfigError(f"ROUTING={choices.routing}: {told}")
    if iterations:
        sweep = _pin(sweep, "ROUTING", Override(ITERATIONS, iterations))
    if choices.recon is not None:
        sweep = _pin(sweep, "RECON", _reconstruction(choices.recon))
    if choices.model is not None:
        sweep = _set_model(sweep, grammar.parse(f"model={choices.model}"))
    seen: set[str] = set()
    for text in choices.overrides:
        override = grammar.parse(text)
        if override.key in seen:
            raise ConfigError(f"{override.key} is overridden twice; keep one of them")
        seen.add(override.key)
        sweep = _set_everywhere(sweep, check_axis(text, override))
    _check_grid(sweep, choices, variants)
    for text in choices.zips:
        sweep = _couple(sweep, text)
    if choices.seeds is not None:
        sweep = replace(sweep, seeds=_seeds(choices.seeds))
    if choices.metric is not None and choices.metric != sweep.metric:
        sweep = _of_metric(sweep, choices.metric)
    pinned = seen | ({ITERATIONS} if iterations else set())
    pinned |= {RECONSTRUCTION} if choices.recon is not None else set()
    groups = any(grammar.is_group(key) and key not in LOGISTICS for key in seen)
    return replace(
        sweep,
        typed=tuple(_exclusion(text) for text in choices.excludes),
        pinned=frozenset(pinned),
        narrowed=bool(choices.arms or choices.model or variants or groups),
        variants=variants,
    )


def _of_metric(sweep: Sweep, metric: str) -> Sweep:
    """Another table than the file's, in a file of its own; what was published is of the file's."""
    file = f"table-{metric.replace('/', '-')}.md"
    return replace(sweep, metric=metric, table_file=file, published=Published("", ()))


def _check_grid(sweep: Sweep, choices: Choices, variants: frozenset[str]) -> None:
    """A search draws its places one by one: it has no grid of which places are left out."""
    if sweep.search is not None:
        grid = {"ZIP": choices.zips, "EXCLUDE": choices.excludes, "METRIC": choices.metric}
        grid["ROUTING"] = ", ".join(sorted(variants))
        for variable, typed in grid.items():
            if typed:
                name = sweep.path.name
                raise ConfigError(f"{variable}: {name} is a search, which has no grid and no table")


def _routing(text: str | None) -> tuple[tuple[int, ...], frozenset[str]]:
    known = [*grammar.options("routing"), CONTROL]
    words = [] if text is None else [word.strip() for word in text.split(",")]
    for word in words:
        if not re.fullmatch(r"[0-9]{1,18}", word) and word not in known:
            raise ConfigError(
                f"ROUTING={text}: {word!r} is neither a number of routing iterations (>= 1) nor a "
                f"routing variant ({', '.join(known)})"
            )
        if word.isdigit() and int(word) < 1:
            raise ConfigError(f"ROUTING={text}: {ITERATIONS} must be >= 1; try ROUTING=3")
    iterations = tuple(int(word) for word in words if word.isdigit())
    check_axis(f"ROUTING={text}", Override(ITERATIONS, iterations))
    return iterations, frozenset(word for word in words if not word.isdigit())


def _reconstruction(text: str) -> Override:
    """off is 0, on the weight that stands in conf/; numbers are themselves."""
    usual = get(compose.cell([]).config, RECONSTRUCTION)
    values = []
    for word in (word.strip() for word in text.split(",")):
        known = {"off": 0.0, "on": usual}.get(word)
        try:
            values.append(float(word) if known is None else known)
        except ValueError:
            raise ConfigError(f"RECON={text}: {word!r} is neither on, off nor a weight") from None
    return check_axis(f"RECON={text}", Override(RECONSTRUCTION, tuple(values)))


def _pin(sweep: Sweep, variable: str, axis: Override) -> Sweep:
    """Replace an axis in the arms that have it."""
    if not any(axis.key in arm.space.keys for arm in sweep.arms):
        raise ConfigError(f"{variable}: no arm of {sweep.path.name} has the axis {axis.key}")
    arms = tuple(replace(arm, space=_replaced(arm.space, axis)) for arm in sweep.arms)
    return replace(sweep, arms=arms)


def _replaced(space: Space, new: Override) -> Space:
    axes = tuple(new if old.key == new.key else old for old in space.axes)
    intervals = tuple(old for old in space.intervals if old.key != new.key)
    added = (new,) if len(intervals) < len(space.intervals) else ()
    return replace(space, axes=(*axes, *added), intervals=intervals)


def _keep_arms(sweep: Sweep, text: str) -> Sweep:
    wanted = {word.strip() for word in text.split(",")}
    known = [arm.name for arm in sweep.arms]
    for word in sorted(wanted):
        if word not in known:
            raise ConfigError(f"ARMS={text}: {word!r} is no arm; have {', '.join(known)}")
    kept = tuple(a for a in sweep.arms if a.name in wanted or a.name == sweep.baseline)
    return replace(sweep, arms=kept)


def _without_optional(sweep: Sweep) -> Sweep:
    """What is run when nothing is named; what the file says of the other arms is checked first."""
    standing = tuple(arm for arm in sweep.arms if not arm.optional)
    if len(standing) == len(sweep.arms):
        return sweep
    expand.expand_sweep(replace(sweep, seeds=sweep.seeds[:1]))
    return replace(sweep, arms=standing, checked=True)


def _set_model(sweep: Sweep, override: Override) -> Sweep:
    """In every arm but a baseline of another network, which is there to be compared to."""
    alike = sweep.search is not None or len(_networks(sweep)) == 1
    return _set(sweep, override, lambda arm: alike or arm.name != sweep.baseline)


def _networks(sweep: Sweep) -> set[str]:
    points = expand.expand_sweep(replace(sweep, seeds=sweep.seeds[:1], checked=True))
    return {point.cell.config["model"]["name"] for point in points}


def _set_everywhere(sweep: Sweep, override: Override) -> Sweep:
    if override.key == "seed":
        raise ConfigError("seed is set by SEEDS: a count, or a list such as SEEDS=0,7")
    has_control = any(arm.name == CONTROL for arm in sweep.arms)
    if has_control and override.key == ITERATIONS and override.values != (1,):
        typed = ",".join(map(str, override.values))
        raise ConfigError(
            f"{ITERATIONS}={typed}: the arm {CONTROL} keeps one iteration; write ROUTING={typed} "
            "for the other arms"
        )
    base = tuple(old for old in sweep.base if old.key != override.key)
    return _set(replace(sweep, base=base), override, lambda arm: True)


def _set(sweep: Sweep, override: Override, chosen: Callable[[Arm], bool]) -> Sweep:
    """Set a key in some arms; a new axis becomes a coordinate of the table: a column where its
    group is one (dataset.source), else a row.
    """
    arms = tuple(_set_in(arm, override) if chosen(arm) else arm for arm in sweep.arms)
    is_new = len(override.values) > 1 and override.key not in (*sweep.rows, *sweep.columns)
    if not is_new or sweep.search is not None:
        return replace(sweep, arms=arms)
    # Rows are compared to the baseline of their own column: data with the same data.
    if any(override.key.startswith(f"{column}.") for column in sweep.columns):
        return replace(sweep, arms=arms, columns=(*sweep.columns, override.key))
    return replace(sweep, arms=arms, rows=(*sweep.rows, override.key))


def _set_in(arm: Arm, override: Override) -> Arm:
    fixed = tuple(old for old in arm.fixed if old.key != override.key)
    if override.key in arm.space.keys:
        return replace(arm, fixed=fixed, space=_replaced(arm.space, override))
    if len(override.values) == 1:
        return replace(arm, fixed=(*fixed, override))
    return replace(arm, fixed=fixed, space=replace(arm.space, axes=(*arm.space.axes, override)))


def _couple(sweep: Sweep, text: str) -> Sweep:
    """Make axes move together in the arms that have all of them."""
    keys = tuple(with_dots(word.strip()) for word in text.split(","))
    if len(set(keys)) < 2 or not all(keys):
        raise ConfigError(f"ZIP={text}: name two axes or more, such as ZIP=epochs,batch_size")
    arms = [_coupled(arm, keys) for arm in sweep.arms]
    if all(new is old for new, old in zip(arms, sweep.arms, strict=True)):
        raise ConfigError(f"ZIP={text}: no arm of {sweep.path.name} has all of these axes")
    return replace(sweep, arms=tuple(arms))


def _coupled(arm: Arm, keys: tuple[str, ...]) -> Arm:
    axes = {axis.key for axis in arm.space.axes}
    if not axes.issuperset(keys):
        return arm
    return replace(arm, space=replace(arm.space, coupled=(*arm.space.coupled, keys)))


def _exclusion(text: str) -> Mapping[str, Any]:
    parsed = grammar.parse_single(text.split())
    if not parsed:
        raise ConfigError("EXCLUDE is empty; write settings such as EXCLUDE='a=1 b=2'")
    return {override.key: override.values[0] for override in parsed}


def _seeds(text: str) -> tuple[int, ...]:
    """A count n stands for the seeds 0 .. n-1, so that a larger count keeps the earlier cells."""
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if re.fullmatch(r"[0-9]{1,18}", word)]
    if len(numbers) < len(words) or (len(words) == 1 and numbers[0] == 0):
        raise ConfigError(f"SEEDS={text}: must be a count >= 1 or a list of seeds such as 0,1,7")
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"SEEDS={text}: names a seed twice; keep one")
    return check_seeds(f"SEEDS={text}", numbers if len(numbers) > 1 else range(numbers[0]))
