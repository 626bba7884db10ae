"""From overrides to one checked configuration.

Hydra composes the groups once per choice of groups; values are then set on a copy of the result,
because that is what Hydra does too, a hundred times slower. What may be set, and to which type, is
what stands in conf/: the YAML is the schema.
"""

import contextlib
import copy
import importlib.metadata
import inspect
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from capsweep.config import overrides as grammar
from capsweep.config import places, recipes, roots, rules
from capsweep.config.cell import SCIENCE, Cell
from capsweep.config.groups import groups as known_groups
from capsweep.config.overrides import Override
from capsweep.config.references import references
from capsweep.config.schema import fit, fit_types, leaves, unknown
from capsweep.config.template import FIXED_NAMES, Template
from capsweep.errors import ConfigError
from capsweep.storage import disk_cache
from capsweep.storage.files import hash_bytes

# Presets are written at the root of the configuration, past Hydra's own check of keys.
PRESETS = ("recipe", "experiment", "debug")

# Sections that may be drawn from the environment, and what conf/cluster/address.yaml reads of it.
FROM_ENVIRONMENT = ("places.", "hydra.")
RAY_NAMES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
REFUSED = "ConfigError raised while resolving interpolation: "  # as OmegaConf hands it on
NO_DEFAULT = inspect.signature(oc.env).parameters["default"].default

# What Hydra says of a group that no chosen file brings in, typed or overridden in a file.
UNTAKEN = re.compile(r"(In '(?P<file>[^']+)': )?Could not override '(?P<key>[^'@]+)'")


def cell(texts: Sequence[str]) -> Cell:
    """The cell that `capsweep train *texts` runs.

    Raises ConfigError naming the key: unknown, of the wrong type, twice, or at odds with another.
    """
    parsed = grammar.parse_single(texts)
    groups = tuple(text for o in parsed if grammar.is_group(o.key) for text in o.texts())
    values = [o for o in parsed if not grammar.is_group(o.key)]
    plain = _filled(parsed, groups, values)
    rules.check(plain)
    # Relative places start where the command was typed; a worker's current folder is another.
    plain["places"] = places.typed(plain["places"])
    return Cell(config=rules.canonical(plain), overrides=tuple(texts))


def _filled(
    parsed: Sequence[Override], groups: tuple[str, ...], values: Sequence[Override]
) -> dict[str, Any]:
    """The plain configuration: on the quick road where it is the same as Hydra's."""
    for override in parsed:
        if grammar.is_group(override.key):
            _check_option(override)
    environment = frozenset(os.environ.items())  # places are drawn from it
    template, schema = _template(groups, (), environment)
    quick = list(values)
    # A value set on the slow road may itself be drawn from others, which then go there as well.
    while any(not template.can_set(o) for o in quick):
        quick = [o for o in quick if template.can_set(o)]
        tied = tuple(text for o in values if o not in quick for text in o.texts())
        template, schema = _template(groups, tied, environment)
    typed = [(o.key, fit(o.key, o.values[0], schema[o.key])) for o in quick]
    return template.filled(typed)


@lru_cache(maxsize=256)
def _template(
    groups: tuple[str, ...], values: tuple[str, ...], environment: frozenset[tuple[str, str]]
) -> tuple[Template, dict[str, Any]]:
    """The configuration of a choice of groups and of values that others are drawn from."""
    config, schema = _compose_groups(groups)
    config = copy.deepcopy(config)
    overrides = [grammar.parse(text) for text in values]
    for override in overrides:
        _set(config, schema, override)
    plain = _resolve(config)
    fit_types(plain, [override.key for override in overrides], schema)
    return Template(config, plain, frozenset(schema)), schema


def _check_option(override: Override) -> None:
    option = override.values[0]
    known = grammar.options(override.key)
    if option not in known:
        raise ConfigError(f"{override.key}={option}: no such option; have {', '.join(known)}")


@lru_cache(maxsize=256)
def _compose_groups(groups: tuple[str, ...]) -> tuple[DictConfig, dict[str, Any]]:
    """The configuration of a choice of groups, and its schema: leaf keys to default values.

    Hydra composes it once on a machine: that takes a fifth of a second.
    """
    key = f"{hash_of_composer()} {_environment_of_conf()} {groups}"
    written, schema = disk_cache.compute_once(
        "compositions", key, lambda: _compose_by_hydra(groups)
    )
    config = OmegaConf.create(written)
    assert isinstance(config, DictConfig)
    OmegaConf.set_struct(config, True)
    return config, schema


@cache
def hash_of_composer() -> str:
    """A hash of what composes groups: conf/, the code here, and the libraries."""
    files = [*roots.find("conf").rglob("*.yaml"), *Path(__file__).parent.glob("*.py")]
    contents = [(str(path), path.read_text()) for path in sorted(files)]
    libraries = [importlib.metadata.version(name) for name in ("hydra-core", "omegaconf")]
    return hash_bytes(json.dumps([contents, libraries]).encode())


def _environment_of_conf() -> list[tuple[str, str | None]]:
    """The variables that conf/ reads, and their values: the schema holds what follows from them."""
    return [(name, os.environ.get(name)) for name in _variables_of_conf()]


@cache
def _variables_of_conf() -> list[str]:
    texts = [path.read_text() for path in roots.find("conf").rglob("*.yaml")]
    return sorted({name for text in texts for name in re.findall(r"oc\.env:(\w+)", text)})


def _compose_by_hydra(groups: tuple[str, ...]) -> list[Any]:
    with _hydra_of_our_own():
        config = _hydra(groups, return_hydra_config=True)
        choices = config.hydra.runtime.choices
        rest = [f"{g}={o}" for g, o in choices.items() if _ours(g) and g not in PRESETS]
        is_preset = any(choices.get(preset) for preset in PRESETS)
        plain = _hydra(rest) if is_preset else None
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    schema = leaves(_resolve(config if plain is None else plain))
    recipes.drop_inapplicable(config, schema, choices.get("recipe"))
    _check_presets(config, schema, choices)
    return [OmegaConf.to_container(config, resolve=False), schema]


@contextlib.contextmanager
def _hydra_of_our_own() -> Iterator[None]:
    """A Hydra on conf/, also inside a Hydra application, which has the global one."""
    outer = GlobalHydra.get_state()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(roots.find("conf")), version_base="1.3"):
            yield
    finally:
        GlobalHydra.set_state(outer)


def _ours(group: str) -> bool:
    return not group.startswith("hydra/")


def _hydra(groups: Sequence[str], return_hydra_config: bool = False) -> DictConfig:
    try:
        return hydra_compose(
            "train", overrides=list(groups), return_hydra_config=return_hydra_config
        )
    except (HydraException, OmegaConfBaseException) as error:
        if untaken := UNTAKEN.match(str(error)):
            key = untaken["key"].replace("/", ".")
            where = f"conf/{untaken['file']}.yaml: " if untaken["file"] else ""
            takers = ", ".join(known_groups().get(key, ())) or "none"
            text = f"{where}{key}: taken by none of the chosen files; by {takers}"
            raise ConfigError(text) from error
        raise ConfigError(f"conf/: {' '.join(str(error).split())}") from error


def _check_presets(config: DictConfig, schema: dict[str, Any], choices: DictConfig) -> None:
    where = ", ".join(f"conf/{g}/{choices[g]}.yaml" for g in PRESETS if choices.get(g))
    where = where or "conf/"
    for key in leaves(_resolve(config)):
        if key not in schema:
            raise ConfigError(f"{where}: {unknown(key, schema)}")
    for choice, option in choices.items():
        group = str(choice).partition("@")[0]
        written = OmegaConf.select(config, group.replace("/", ".")) if "/" in group else option
        if isinstance(written, str) and written != option:  # a name alone, and another's files
            told = f"{group.replace('/', '.')}={written} is a choice"
            raise ConfigError(f"{where}: {told}; write `override /{group}: {written}` in defaults")


def _set(config: DictConfig, schema: dict[str, Any], override: Override) -> None:
    key, value = override.key, override.values[0]
    if key not in schema:
        inner = [known for known in schema if known.startswith(f"{key}.")]
        if inner:
            raise ConfigError(f"{key} is a section; set its keys one by one, such as {inner[0]}")
        raise ConfigError(unknown(key, schema))
    if isinstance(value, dict):
        raise ConfigError(f"{key} is one value, not a section; got {value}")
    _check_not_wired(config, key)
    OmegaConf.update(config, key, value, merge=False)


def _check_not_wired(config: DictConfig, key: str) -> None:
    """A section that is drawn from another one is set there."""
    section, names = config, key.split(".")
    for position, name in enumerate(names[:-1]):
        if OmegaConf.is_interpolation(section, name):
            written = OmegaConf.to_container(section, resolve=False)
            assert isinstance(written, dict)
            path = ".".join(names[: position + 1])
            sources = references(config, path, written[name])
            if sources is None or len(sources) != 1:
                raise ConfigError(f"{key} is drawn from {written[name]}; set what that names")
            there = ".".join([*sources, *names[position + 1 :]])
            raise ConfigError(f"{key} is wired to {there}; set {there}")
        section = section[name]
    if names[0] in SCIENCE and OmegaConf.is_interpolation(section, names[-1]):
        written = OmegaConf.to_container(section, resolve=False)
        assert isinstance(written, dict)
        sources = references(config, key, written[names[-1]])
        there = f"{', '.join(sources)}; set that" if sources else "another key; set that one"
        raise ConfigError(f"{key} is drawn from {there}, or choose its group")
    if names[-1] in FIXED_NAMES:
        raise ConfigError(f"{key} belongs to its file; choose another file of conf/{names[0]}")


def _environment(name: str, default: Any = NO_DEFAULT, *, _node_: Node) -> Any:
    """`oc.env` for places alone: what a key is drawn from is recorded, printed and uploaded."""
    key = _node_._get_full_key(None)
    of_ray = key.startswith("cluster.") and name in RAY_NAMES
    if not key.startswith(FROM_ENVIRONMENT) and not of_ray:
        raise ConfigError(
            f"{key}: ${{oc.env:{name}}} would be recorded with every cell; the environment is read "
            "below places alone: write the value itself"
        )
    return oc.env(name, default)


OmegaConf.register_new_resolver("oc.env", _environment, replace=True)


def _resolve(config: DictConfig) -> dict[str, Any]:
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        if reason.startswith(REFUSED):
            raise ConfigError(reason.removeprefix(REFUSED)) from error
        raise ConfigError(f"{getattr(error, 'full_key', None) or 'conf/'}: {reason}") from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
