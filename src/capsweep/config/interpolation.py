"""What `${...}` in a configuration may draw: places from each other and from the environment, every
other setting from others that are recorded with it.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.resolvers import oc

from capsweep.config.cell import get
from capsweep.config.overrides import one_line
from capsweep.errors import ConfigError

# Sections that say where a cell runs. They stand apart from all others, which are recorded and
# uploaded: neither draws values from the other.
HERE = ("places", "cluster")
# Nothing is drawn from the seed, so that `Cell.with_seed` has the cells of a place's other seeds.
SEED = ("seed",)
# Keys beside places that a variable of the environment may fill, and which.
FILLED = {"cluster.address": "RAY_ADDRESS", "cluster.jobs": "RAY_API_SERVER_ADDRESS"}
# Resolvers that Hydra brings, of the clock and of the process.
OUTSIDE = ("now", "hydra", "python_version")
# The sections of HERE, the seed, and all others, each a root of its own.
Parts: TypeAlias = tuple[DictConfig, DictConfig, DictConfig]


def _read_environment(name: str, *default: Any, _node_: Node) -> Any:
    """Return what `oc.env` gives. Raises ConfigError for a key that is recorded or uploaded."""
    key = _node_._get_full_key(None)
    if not key.startswith("places.") and FILLED.get(key) != name:
        raise ConfigError(
            f"{key} may not be drawn from the environment: it would be recorded or uploaded; write "
            "the value itself"
        )
    return oc.env(name, *default)


# OmegaConf itself says what draws on the environment, however that is spelled.
OmegaConf.register_new_resolver("oc.env", _read_environment, replace=True)


def split_parts(written: Mapping[str, Any]) -> Parts:
    """Return a configuration in parts, none of which can draw on another."""
    here, seed = ({name: written[name] for name in names} for names in (HERE, SEED))
    rest = {name: value for name, value in written.items() if name not in (*HERE, *SEED)}
    return DictConfig(here), DictConfig(seed), DictConfig(rest)


def part_of(parts: Parts, key: str) -> DictConfig:
    """Return the part in which a key stands."""
    here, seed, rest = parts
    root = key.partition(".")[0]
    return here if root in HERE else seed if root in SEED else rest


def resolve_parts(parts: Parts) -> dict[str, Any]:
    """Return all sections, resolved. Raises ConfigError naming the key and no variable's value."""
    here, seed, rest = map(_resolve_part, parts)
    for name, place in here["places"].items():
        if isinstance(place, (list, dict, bool)):
            raise ConfigError(f"places.{name} is no path; write one")
    return {**here, **seed, **rest}


def _resolve_part(part: DictConfig) -> dict[str, Any]:
    try:
        with one_line("conf/"):
            plain: Any = OmegaConf.to_container(part, resolve=True)
    except ConfigError as error:
        cause = error.__cause__
        key = getattr(cause, "full_key", None)
        if key is None:
            raise
        reason = str(cause).splitlines()[0]
        if key.startswith("places."):  # a reason may quote what a variable holds
            written: Any = OmegaConf.to_container(part, resolve=False)
            raise ConfigError(
                f"{key}={get(written, key)}: this gives no path; places are drawn from each other "
                "and from variables that are set, and not from what a cell is"
            ) from None
        if any(name in f"{key} {reason}" for name in HERE):
            reason += "; places and cluster are not drawn from other sections, nor these from them"
        if "'seed'" in reason or key in SEED:
            reason += "; nothing is drawn from the seed, nor the seed from anything"
        raise ConfigError(f"{key}: {reason}") from cause
    return plain
