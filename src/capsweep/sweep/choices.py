"""What the command line changes about a sweep: axes, values, seeds, variants."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from capsweep.config import overrides as grammar
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.sweep.spec import Arm, Sweep, check_axis, check_seeds

ITERATIONS = "routing.num_iters"


@dataclass(frozen=True)
class Choices:
    """As typed: `routing` "3", "1,3" or "dynamic"; `seeds` a count or a list; Hydra overrides."""

    routing: str | None = None
    seeds: str | None = None
    overrides: Sequence[str] = ()


def apply(sweep: Sweep, choices: Choices) -> tuple[Sweep, frozenset[str]]:
    """The sweep as chosen, and the routing variants to keep (none named: all).

    An override replaces the axis or value of its key where an arm has one, and is added to every
    arm where it has not. Raises ConfigError naming the variable.
    """
    iterations, variants = _routing(choices.routing)
    if iterations:
        sweep = _pin_iterations(sweep, iterations)
    seen: set[str] = set()
    for text in choices.overrides:
        override = grammar.parse(text)
        if override.key in seen:
            raise ConfigError(f"{override.key} is overridden twice; keep one of them")
        seen.add(override.key)
        sweep = _set_everywhere(sweep, check_axis(text, override))
    if choices.seeds is not None:
        sweep = replace(sweep, seeds=_seeds(choices.seeds))
    return sweep, variants


def _routing(text: str | None) -> tuple[tuple[int, ...], frozenset[str]]:
    known = grammar.options("routing")
    words = [] if text is None else [word.strip() for word in text.split(",")]
    for word in words:
        if not re.fullmatch(r"[0-9]+", word) and word not in known:
            raise ConfigError(
                f"ROUTING={text}: {word!r} is neither a number of routing iterations (>= 1) nor a "
                f"routing variant ({', '.join(known)})"
            )
        if word.isdigit() and int(word) < 1:
            raise ConfigError(f"ROUTING={text}: {ITERATIONS} must be >= 1; try ROUTING=3")
    iterations = tuple(int(word) for word in words if word.isdigit())
    check_axis(f"ROUTING={text}", Override(ITERATIONS, iterations))
    return iterations, frozenset(word for word in words if not word.isdigit())


def _pin_iterations(sweep: Sweep, iterations: tuple[int, ...]) -> Sweep:
    if not any(axis.key == ITERATIONS for arm in sweep.arms for axis in arm.space):
        raise ConfigError(f"ROUTING: no arm of {sweep.path.name} has the axis {ITERATIONS}")
    axis = Override(ITERATIONS, iterations)
    arms = (replace(arm, space=_replaced(arm.space, axis)) for arm in sweep.arms)
    return replace(sweep, arms=tuple(arms))


def _replaced(overrides: tuple[Override, ...], new: Override) -> tuple[Override, ...]:
    return tuple(new if old.key == new.key else old for old in overrides)


def _set_everywhere(sweep: Sweep, override: Override) -> Sweep:
    if override.key == "seed":
        raise ConfigError("seed is set by SEEDS: a count, or a list such as SEEDS=0,7")
    base = tuple(old for old in sweep.base if old.key != override.key)
    return replace(sweep, base=base, arms=tuple(_set_in(arm, override) for arm in sweep.arms))


def _set_in(arm: Arm, override: Override) -> Arm:
    fixed = tuple(old for old in arm.fixed if old.key != override.key)
    if any(axis.key == override.key for axis in arm.space):
        return replace(arm, fixed=fixed, space=_replaced(arm.space, override))
    if len(override.values) == 1:
        return replace(arm, fixed=(*fixed, override))
    return replace(arm, fixed=fixed, space=(*arm.space, override))


def _seeds(text: str) -> tuple[int, ...]:
    """A count n stands for the seeds 0 .. n-1, so that a larger count keeps the earlier cells."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"[0-9]+", word) for word in words) or words == ["0"]:
        raise ConfigError(f"SEEDS={text}: must be a count >= 1 or a list of seeds such as 0,1,7")
    numbers = [int(word) for word in words]
    return check_seeds(f"SEEDS={text}", numbers if len(numbers) > 1 else range(numbers[0]))
