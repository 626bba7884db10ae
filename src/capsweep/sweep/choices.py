"""What the command line changes about a sweep: axes, values, seeds, arms, variants."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from capsweep.config import compose
from capsweep.config import overrides as grammar
from capsweep.config.cell import LOGISTICS, LOGISTICS_INSIDE, get
from capsweep.config.overrides import Override, render, with_dots
from capsweep.errors import ConfigError
from capsweep.sweep import expand, spec, variants
from capsweep.sweep.arms import CONTROL, ITERATIONS, Arm, join_arms
from capsweep.sweep.spec import Published, Sweep, check_axis, check_seeds

RECONSTRUCTION = "loss.reconstruction.weight"
# Groups whose keys are parts of a network, which the network of another arm may not have.
PARTS = ("model", "routing", "loss")


@dataclass(frozen=True)
class Choices:
    """As typed. routing: "3", "1,3", "dynamic" or "control"; recon: "off", "on,off" or weights;
    seeds: a count or a list; model: for every arm but a baseline of another network; arms: to keep;
    baseline: another arm; zips: "KEY,KEY"; excludes: "a=1 b=2"; metric: of the table; overrides:
    Hydra's.
    """

    routing: str | None = None
    recon: str | None = None
    seeds: str | None = None
    model: str | None = None
    arms: str | None = None
    baseline: str | None = None
    zips: Sequence[str] = ()
    excludes: Sequence[str] = ()
    metric: str | None = None
    overrides: Sequence[str] = ()


def load_sweep(name: str, choices: Choices) -> Sweep:
    """The sweep of a file as chosen.

    Raises ConfigError: what is wrong with the file, as it is written, comes first.
    """
    sweep = spec.load(name)
    points = expand.check_file(sweep) if sweep.search is None else []
    typed = [grammar.parse(text).key for text in choices.overrides]
    # Of these two a table says more: what they make of the data set.
    seen = ("limit_batches", "dataset.source")
    keys = [key for key in typed if not is_logistics(key) and key not in seen]
    own = {
        place: {key: point.coordinate(key) for key in keys}
        for point in points
        for place in (point.arm, (point.arm, point.coordinate("model")))
    }
    variation = describe_choices(sweep, choices)
    return replace(apply_choices(sweep, choices), variation=variation, own=own)


def describe_choices(sweep: Sweep, choices: Choices) -> tuple[str, ...]:
    """What was typed that the file does not say itself, as it was typed but for spaces, quotes and
    the order of arms and seeds, sorted: `epochs 1`, `routing 3`. Where cells run and what they are
    stored in is none of it.
    """
    texts = {
        name: getattr(choices, name) for name in ("routing", "recon", "model", "arms", "baseline")
    }
    typed = {name: text.replace(" ", "").split(",") for name, text in texts.items() if text}
    words = [
        f"{name} {','.join(sorted(each) if name == 'arms' else each)}"
        for name, each in typed.items()
    ]
    for override in map(grammar.parse, choices.overrides):
        if not is_logistics(override.key) and override not in sweep.base:
            values = (render(override.key, value).partition("=")[2] for value in override.values)
            values = (re.sub(r"^'([0-9.]+)'$", r"\1", value) for value in values)
            # ROUTING and `routing=` mean different things.
            words.append(f"{override.key}{'=' if override.key in texts else ' '}{','.join(values)}")
    seeds = sweep.seeds if choices.seeds is None else _read_seeds(choices.seeds)
    if (ordered := sorted(seeds)) != sorted(sweep.seeds):
        is_count = ordered == list(range(len(seeds)))
        words.append(f"seeds {len(seeds) if is_count else ','.join(map(str, ordered))}")
    if choices.metric not in (None, sweep.metric):
        words.append(f"metric {choices.metric}")
    words += [f"zip {text}" for text in choices.zips]
    words += [f"exclude {text}" for text in choices.excludes]
    return tuple(sorted(words))


def is_logistics(key: str) -> bool:
    """Whether a key decides where or how a cell runs, and nothing that a table shows."""
    names = {*LOGISTICS, *LOGISTICS_INSIDE} - {"dataset.source"}
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def apply_choices(sweep: Sweep, choices: Choices) -> Sweep:
    """Return the sweep as chosen. Raises ConfigError naming the variable.

    An override replaces the axis or value of its key where an arm has one, and is added where it
    has not; of a part of the network, to the arms that can take it.
    """
    iterations, names = _read_routing(choices.routing)
    of_grids = names, choices.zips, choices.excludes, choices.metric, choices.baseline
    if sweep.search is not None and any(of_grids):
        raise ConfigError(
            f"{sweep.path.name} is a search: without a grid and a table it takes no ZIP, EXCLUDE, "
            "METRIC, BASELINE or variant as ROUTING"
        )
    new = variants.list_new_variants(sweep, names)
    names -= {CONTROL} if new else set()  # it is always beside these
    sweep = _keep_arms(sweep, choices, names, bool(new))
    if choices.seeds is not None:
        sweep = replace(sweep, seeds=_read_seeds(choices.seeds))
    if choices.model is not None:
        sweep = _set_model(sweep, grammar.parse(f"model={choices.model}"))
    typed = [check_axis(text, grammar.parse(text)) for text in choices.overrides]
    if len({override.key for override in typed}) < len(typed):
        raise ConfigError(f"{' '.join(choices.overrides)}: a key is overridden twice; keep one")
    if new:  # a variant may need a network that is typed
        others = [override for override in typed if override.key.partition(".")[0] != "routing"]
        sweep = _set_typed(sweep, others)
        typed = [override for override in typed if override not in others]
        sweep = variants.place_variants(sweep, new, names, choices.arms is not None)
    sweep = variants.keep_arms(replace(sweep, variants=names))
    if iterations is not None:
        sweep = _set_axis(sweep, "ROUTING", iterations)
    if choices.recon is not None:
        sweep = _set_axis(sweep, "RECON", _read_reconstruction(choices.recon))
    sweep = _set_typed(sweep, typed)
    for text in choices.zips:
        sweep = _couple_axes(sweep, text)
    if choices.metric is not None and choices.metric != sweep.metric:
        # What was published is of the file's metric.
        sweep = replace(sweep, metric=choices.metric, published=Published("", ()))
    if choices.baseline is not None:
        sweep = _set_baseline(sweep, choices.baseline)
    places = [grammar.parse_single(text.split()) for text in choices.excludes]
    if not all(places):
        raise ConfigError("EXCLUDE is empty; write settings such as EXCLUDE='a=1 b=2'")
    excluded = tuple({override.key: override.value for override in place} for place in places)
    return replace(sweep, excluded=excluded)


def _read_routing(text: str | None) -> tuple[Override | None, frozenset[str]]:
    """The axis of iterations that is typed, and the names of variants."""
    words = [] if text is None else [word.strip() for word in text.split(",")]
    numbers = [word for word in words if re.fullmatch("[0-9]{1,18}", word)]
    variants = frozenset(words) - set(numbers)
    known = [*grammar.list_options("routing"), CONTROL]
    for word in sorted(variants - set(known)):
        raise ConfigError(
            f"ROUTING={text}: {word!r} is neither a number of routing iterations (>= 1) nor a "
            f"routing variant ({', '.join(known)})"
        )
    if not numbers:
        return None, variants
    axis = Override(ITERATIONS, tuple(map(int, numbers)))
    return check_axis(f"ROUTING={text}", axis), variants


def _read_reconstruction(text: str) -> Override:
    """off is 0, on the weight that stands in conf/; numbers are themselves."""
    names = {"off": 0.0, "on": get(compose.cell([]).config, RECONSTRUCTION)}
    weights: list[float] = []
    for word in map(str.strip, text.split(",")):
        try:
            weights.append(names[word] if word in names else float(word))
        except ValueError:
            raise ConfigError(f"RECON={text}: {word!r} is neither on, off nor a weight") from None
    return check_axis(f"RECON={text}", Override(RECONSTRUCTION, tuple(weights)))


def _keep_arms(sweep: Sweep, choices: Choices, variants: frozenset[str], has_new: bool) -> Sweep:
    """The arms that are named; without a name, those that are not optional.

    has_new: one of the variants is new to the file, and needs a control.
    """
    arms = sweep.arms
    if choices.arms is not None:
        names = {word.strip() for word in choices.arms.split(",")}
        known = [arm.name for arm in arms]
        for name in sorted(names - set(known)):
            raise ConfigError(f"ARMS={choices.arms}: {name!r} is no arm; have {', '.join(known)}")
        names |= {sweep.baseline, CONTROL} if has_new else {sweep.baseline}
        arms = tuple(arm for arm in arms if arm.name in names)
    elif not variants:
        arms = tuple(arm for arm in arms if not arm.optional)
    kept = [arm.name for arm in arms]
    if CONTROL in variants and CONTROL not in kept:
        have = f"{sweep.path.name} has no arm {CONTROL}; have {', '.join(kept)}"
        raise ConfigError(f"ROUTING={choices.routing}: {have}")
    return replace(sweep, arms=arms)


def _set_axis(sweep: Sweep, variable: str, axis: Override) -> Sweep:
    """Replace an axis in the arms that have it."""
    if not any(axis.key in arm.space.keys for arm in sweep.arms):
        raise ConfigError(f"{variable}: no arm of {sweep.path.name} has the axis {axis.key}")
    return _set_override(sweep, axis, lambda arm: axis.key in arm.space.keys)


def _set_model(sweep: Sweep, override: Override) -> Sweep:
    """In every arm but a baseline of another network, which is there to be compared to."""
    networks: set[str] = set()
    if sweep.search is None:
        points = expand.expand_sweep(replace(sweep, seeds=sweep.seeds[:1]))
        networks = {point.cell.config["model"]["name"] for point in points}
    kept = sweep.baseline if len(networks) > 1 else None
    return _set_override(sweep, override, lambda arm: arm.name != kept)


def _set_typed(sweep: Sweep, typed: Sequence[Override]) -> Sweep:
    """Set typed keys: those of PARTS in the arms that can take them, all others everywhere.

    Raises ConfigError for a value that no arm can take.
    """
    keys = {override.key for override in typed}
    if "seed" in keys:
        raise ConfigError("seed is set by SEEDS: a count, or a list such as SEEDS=0,7")
    sweep = reduce(_add_coordinate, typed, sweep.move_to_arms(keys.__contains__))
    parts = [override for override in typed if override.key.partition(".")[0] in PARTS]
    rest = [override for override in typed if override not in parts]
    for part in parts:  # each value will be that of some arm
        expand.check_count(sweep, len(part.values))
    fits = [_fit_parts(sweep, reduce(Arm.set_override, rest, arm), parts) for arm in sweep.arms]
    for choice in itertools.chain(*(part.split() for part in parts)):
        if all(choice.text in faults for _, faults in fits):
            reasons = join_arms((arm.name, f": {faults[choice.text]}") for arm, faults in fits)
            raise ConfigError(f"{sweep.path.name}: {'; '.join(reasons)}")
    notes = join_arms(_describe_faults(parts, fits))
    return replace(sweep, arms=tuple(arm for arm, _ in fits), notes=(*sweep.notes, *notes))


def _fit_parts(sweep: Sweep, arm: Arm, parts: Sequence[Override]) -> tuple[Arm, dict[str, str]]:
    """An arm with the values that it can take, and why it cannot take the others.

    One that cannot be composed either way gets all: the error is said where its cells are.
    """
    whole = reduce(Arm.set_override, parts, arm)  # values may need one another
    if all(expand.find_fault(sweep, whole, part.key) is None for part in parts):
        arm = whole
    elif expand.find_fault(sweep, arm) is not None:
        return whole, {}
    faults: dict[str, str | None] = {}
    for part in (*parts, *parts):  # twice: a value may need that of a later key
        for c in part.split():
            faults[c.text] = expand.find_fault(sweep, arm.set_override(c), c.key)
        if values := tuple(c.value for c in part.split() if faults[c.text] is None):
            arm = arm.set_override(Override(part.key, values))
    return arm, {text: fault for text, fault in faults.items() if fault is not None}


def _describe_faults(
    parts: Sequence[Override], fits: Iterable[tuple[Arm, Mapping[str, str]]]
) -> Iterator[tuple[str, str]]:
    """The name of an arm and what it cannot take: each value, or a key of which it takes none."""
    for part, (arm, faults) in itertools.product(parts, fits):
        refused = [choice.text for choice in part.split() if choice.text in faults]
        is_whole = len(refused) == len(part.values)
        for text in refused[:1] if is_whole else refused:
            reason = faults[text].partition(";")[0]
            yield arm.name, f" cannot take {part.key if is_whole else text}: {reason}"


def _set_override(sweep: Sweep, override: Override, is_chosen: Callable[[Arm], bool]) -> Sweep:
    """Set a key in some arms."""
    arms = [arm.set_override(override) if is_chosen(arm) else arm for arm in sweep.arms]
    return _add_coordinate(replace(sweep, arms=tuple(arms)), override)


def _add_coordinate(sweep: Sweep, override: Override) -> Sweep:
    """A new axis becomes a coordinate of the table: a column where its group is one
    (dataset.source), else a row.
    """
    is_new = len(override.values) > 1 and override.key not in (*sweep.rows, *sweep.columns)
    if not is_new or sweep.search is not None:
        return sweep
    # Rows are compared to the baseline of their own column: data with the same data.
    if any(override.key.startswith(f"{column}.") for column in sweep.columns):
        return replace(sweep, columns=(*sweep.columns, override.key))
    return replace(sweep, rows=(*sweep.rows, override.key))


def _set_baseline(sweep: Sweep, name: str) -> Sweep:
    """Differences are to this arm; the file's baseline stays in the table."""
    known = [arm.name for arm in sweep.arms]
    if name not in known:
        raise ConfigError(f"BASELINE={name}: no such arm; have {', '.join(known)}")
    if any(arm.matched for arm in sweep.arms) and name != sweep.baseline:
        raise ConfigError(
            f"BASELINE={name}: arms of {sweep.path.name} stop where {sweep.baseline} is as good"
        )
    return replace(sweep, baseline=name)


def _couple_axes(sweep: Sweep, text: str) -> Sweep:
    """Make axes move together in the arms that have all of them."""
    keys = tuple(with_dots(word.strip()) for word in text.split(","))
    if len(set(keys)) < 2 or not all(keys):
        raise ConfigError(f"ZIP={text}: name two axes or more, such as ZIP=epochs,batch_size")
    arms = tuple(replace(arm, space=arm.space.couple_axes(keys)) for arm in sweep.arms)
    if arms == sweep.arms:
        raise ConfigError(f"ZIP={text}: no arm of {sweep.path.name} has all of these axes")
    return replace(sweep, arms=arms)


def _read_seeds(text: str) -> tuple[int, ...]:
    """A count n stands for the seeds 0 .. n-1, so that a larger count keeps the earlier cells."""
    words = [word.strip() for word in text.split(",")]
    digits = "[0-9]{1,4}" if len(words) == 1 else "[0-9]{1,18}"  # a count is of cells
    numbers = [int(word) for word in words if re.fullmatch(digits, word)]
    if len(numbers) < len(words) or numbers == [0]:
        raise ConfigError(
            f"SEEDS={text}: must be a count of 1 to 9999 or a list of seeds such as 0,1,7"
        )
    return check_seeds(f"SEEDS={text}", numbers if len(numbers) > 1 else range(numbers[0]))
