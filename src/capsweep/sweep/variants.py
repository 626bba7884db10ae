"""A routing variant that no arm of a sweep names takes the place of the routing of its arms, beside
the baseline and a control of the same network.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from capsweep.config import compose
from capsweep.config.cell import flat
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.sweep import expand
from capsweep.sweep.arms import CONTROL, ITERATIONS, Arm, join_arms
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep
from capsweep.training.size import network_size


def list_new_variants(sweep: Sweep, typed: frozenset[str]) -> list[str]:
    """The typed variants that no arm of a sweep has."""
    variants = typed - {CONTROL}
    return sorted(variants - _list_names(_compose_points(sweep), "routing")) if variants else []


def place_variants(
    sweep: Sweep, new: Sequence[str], typed: frozenset[str], all_arms: bool
) -> Sweep:
    """Return the sweep with arms of new variants in the place of those that can take them.

    An arm whose own variant is among those `typed`, and the baseline, stay beside. all_arms: try
    optional ones too; else only for a variant that no other arm can take.
    Raises ConfigError for a variant that no arm can take, with the reason of each.
    """
    points = _compose_points(sweep)
    sweep = sweep.move_to_arms(lambda key: key.partition(".")[0] == "routing")
    routings = {arm.name: _list_names(points, "routing", arm.name) for arm in sweep.arms}
    stays = {name for name, own in routings.items() if name == sweep.baseline or own & typed}
    places: dict[str, list[Arm]] = {}
    notes: list[str] = []
    taken = [*routings]
    for variant in new:
        taking, faults = _try_arms(sweep, variant, all_arms)
        for arm, other in taking.items():
            names = [variant] if len(taking) == 1 else []
            taken.append(name := _choose_name([*names, f"{arm}_{variant}"], taken))
            places.setdefault(arm, []).append(replace(other, name=name))
            verb = "stands beside" if arm in stays else "takes the place of"
            notes.append(
                f"routing={variant} {verb} {', '.join(sorted(routings[arm]))} in arm {arm}"
            )
        notes += join_arms(
            (arm, f" cannot take routing={variant}: {fault.partition(';')[0]}")
            for arm, fault in faults.items()
            if not fault.endswith(expand.NOT_ROUTED)
        )
    # What the file leaves out of an arm is left out of those in its place.
    exclude = [
        {**place, "arm": new.name}
        for place in sweep.exclude
        for new in places.get(place.get("arm", ""), ())
    ]
    sweep = replace(sweep, notes=(*sweep.notes, *notes), exclude=(*sweep.exclude, *exclude))
    return _insert_arms(sweep, places, stays, points)


def keep_arms(sweep: Sweep) -> Sweep:
    """The sweep without the arms that have no cell of its variants."""
    if not sweep.variants:
        return sweep
    names = {point.arm for point in expand.keep_variants(sweep, _compose_points(sweep))}
    return replace(sweep, arms=tuple(arm for arm in sweep.arms if arm.name in names))


def _compose_points(sweep: Sweep) -> list[Point]:
    return expand.compose_points(replace(sweep, seeds=sweep.seeds[:1]))


def _list_names(points: Sequence[Point], group: str, arm: str | None = None) -> set[str]:
    """The options of a group that some points have."""
    names = (point.coordinate(group) for point in points if arm in (None, point.arm))
    return {name for name in names if name is not None}


def _list_networks(points: Sequence[Point], arm: str) -> set[str]:
    """What an arm routes on: data sets and networks, as text."""
    configs = [point.cell.config for point in points if point.arm == arm]
    return {f"{config['dataset']['name']} {config['model']}" for config in configs}


def _try_arms(sweep: Sweep, variant: str, all_arms: bool) -> tuple[dict[str, Arm], dict[str, str]]:
    """By the name of an arm, the arm with another routing; and why others cannot take it."""
    section = compose.cell([Override("routing", (variant,))]).config["routing"]
    if section["name"] != variant:
        cure = f"name must be {variant}, got {section['name']}"
        raise ConfigError(f"conf/routing/{variant}.yaml: {cure}")
    taking: dict[str, Arm] = {}
    faults: dict[str, str] = {}
    arms = [arm for arm in sweep.arms if not arm.is_control]
    for tried in ([arm for arm in arms if all_arms or not arm.optional], arms):
        for arm in tried:
            other = _set_routing(arm, variant, [*flat(section, "routing")])
            fault = _find_fault(sweep, other)
            if fault is None and other in taking.values():
                fault = "it differs in its routing alone from an arm that does"
            if fault is None:
                taking[arm.name] = other
            else:
                faults[arm.name] = fault
        if taking:
            return taking, faults
    reasons = join_arms((arm, f": {fault}") for arm, fault in faults.items())
    text = f"no arm of {sweep.path.name} can take it: {'; '.join(reasons)}"
    raise ConfigError(f"ROUTING={variant}: {text}")


def _set_routing(arm: Arm, variant: str, known: Sequence[str]) -> Arm:
    """An arm with another routing, without axes and values that this does not know, and unnamed."""

    def is_dropped(key: str) -> bool:
        return key.partition(".")[0] == "routing" and key not in known

    fixed = (override for override in arm.fixed if not is_dropped(override.key))
    routing = Override("routing", (variant,))
    space = arm.space.drop_axes(is_dropped)
    return replace(arm, name="", fixed=(*fixed, routing), space=space, optional=False)


def _find_fault(sweep: Sweep, arm: Arm) -> str | None:
    """Why the network of an arm cannot be had with its routing; None: it can."""
    fault = expand.find_fault(sweep, arm, "routing")
    if fault is not None:
        return fault
    point = expand.make_point(sweep, arm, arm.space.first_place(), sweep.seeds[0])
    try:
        network_size(point.cell.config)
    except ConfigError as error:
        return str(error)
    except Exception as error:  # the code of a variant can raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _insert_arms(
    sweep: Sweep, places: Mapping[str, Sequence[Arm]], stays: set[str], points: Sequence[Point]
) -> Sweep:
    """New arms in the places of others, each network with a control."""
    networks = {arm.name: _list_networks(points, arm.name) for arm in sweep.arms}
    own = networks.pop(CONTROL, set())  # of the control of the file, where that stays
    if CONTROL not in stays and not any(networks[name] <= own for name in places):
        own = set()
    # Of arms that leave, too: what is said of them shall not seem to be of others.
    taken = [arm.name for arm in (*sweep.arms, *itertools.chain(*places.values()))]
    controlled, arms, notes = set(own), [], []
    for arm in sweep.arms:
        if own if arm.name == CONTROL else arm.name in stays or arm.name not in places:
            arms.append(arm)
        if arm.name in places and not networks[arm.name] <= controlled:
            if any(p.arm == arm.name and p.coordinate(ITERATIONS) is None for p in points):
                notes.append(f"arm {arm.name} has no control: its routing has no {ITERATIONS}")
            else:
                names = [] if controlled else [CONTROL]
                taken.append(name := _choose_name([*names, f"{CONTROL}_{arm.name}"], taken))
                controlled |= networks[arm.name]
                arms.append(_make_control(arm, name))
                notes.append(f"arm {name} is {arm.name} with one iteration: equal couplings")
        arms += places.get(arm.name, ())
    sweep = _keep_published(sweep, [arm.name for arm in arms if arm in sweep.arms])
    return replace(sweep, arms=tuple(arms), notes=(*sweep.notes, *notes))


def _choose_name(names: Sequence[str], taken: Sequence[str]) -> str:
    """Return the first of some names that no arm has, else the last one with a number."""
    numbered = (f"{names[-1]}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(names, numbered) if name not in taken)


def _keep_published(sweep: Sweep, arms: Sequence[str]) -> Sweep:
    """The sweep, what was published beside the arms of its file alone: the table names arms."""
    values = tuple(
        {**value, "arm": arm}
        for value in sweep.published.values
        for arm in arms
        if value.get("arm", arm) == arm
    )
    rows = sweep.rows if "arm" in (*sweep.rows, *sweep.columns) else ("arm", *sweep.rows)
    return replace(sweep, rows=rows, published=replace(sweep.published, values=values))


def _make_control(arm: Arm, name: str) -> Arm:
    """An arm of one iteration, its other axes kept."""
    space = arm.space.drop_axes(lambda key: key == ITERATIONS)
    control = replace(arm, name=name, space=space, optional=False)
    return control.set_override(Override(ITERATIONS, (1,)))
