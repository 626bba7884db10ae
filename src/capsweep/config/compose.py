"""From overrides to one checked configuration.

Hydra composes the groups once per choice of groups; values are then set on the result, because that
is what Hydra does too, a hundred times slower. What may be set, and to which type, is
what stands in conf/: the YAML is the schema.
"""

import contextlib
import importlib.metadata
import inspect
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from capsweep.config import bounds, package_files, places, validation
from capsweep.config import overrides as grammar
from capsweep.config.bounds import list_leaves
from capsweep.config.cell import SCIENCE, Cell, flat, get
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.storage import disk_cache
from capsweep.storage.files import hash_bytes

# Options that there were, and what is used instead.
CUT_OPTIONS = {
    "cluster=aws": "start one with `ray up docs/examples/aws.yaml`, then CLUSTER=address",
    "cluster=kuberay": "use `kubectl apply -f docs/examples/kuberay.yaml`",
}
# Presets are written at the root of the configuration, past Hydra's own check of keys.
PRESETS = ("recipe", "experiment", "debug")

# Sections that may be drawn from the environment, and what conf/cluster/address.yaml reads of it.
FROM_ENVIRONMENT = ("places.", "hydra.")
RAY_NAMES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
REFUSED = "ConfigError raised while resolving interpolation: "  # as OmegaConf hands it on
NO_DEFAULT = inspect.signature(oc.env).parameters["default"].default

WHOLE = re.compile(r"\$\{([\w.]+)\}")  # an interpolation of one absolute key

# What Hydra says of a group that no chosen file brings in, typed or overridden in a file.
UNTAKEN = re.compile(r"(In '(?P<file>[^']+)': )?Could not override '(?P<key>[^'@]+)'")


# No settings: what their file is.
FIXED_NAMES = ("name", "_partial_", "labels_per_image", "num_classes")


class Composition(NamedTuple):
    """The configuration of a choice of groups: for OmegaConf, as plain unresolved data, and its
    schema, which is leaf keys to default values.
    """

    config: DictConfig
    written: dict[str, Any]
    schema: dict[str, Any]


def cell(overrides: Iterable[str | Override]) -> Cell:
    """The cell that `capsweep train *overrides` runs.

    Raises ConfigError naming the key: unknown, of the wrong type, twice, or at odds with another.
    """
    overrides = list(overrides)
    parsed = grammar.parse_single(overrides)
    choices = [override for override in parsed if grammar.is_group(override.key)]
    for override in choices:
        _check_option(override)
    groups = tuple(override.text for override in choices)
    plain = _set_values(groups, [override for override in parsed if override not in choices])
    validation.check_config(plain)
    # Relative places start where the command was typed; a worker's current folder is another.
    plain["places"] = places.make_absolute(plain["places"])
    texts = (item if isinstance(item, str) else item.text for item in overrides)
    return Cell(config=validation.make_canonical(plain), overrides=tuple(texts))


def _set_values(groups: tuple[str, ...], values: Sequence[Override]) -> dict[str, Any]:
    """The plain configuration of a choice of groups, with values set.

    They are set on the shared configuration and taken back: copying it takes longer than all else.
    """
    config, written, schema = _compose_groups(groups)
    keys = []
    try:
        for override in values:
            _set_value(config, schema, override)
            keys.append(override.key)
        plain = _resolve_config(config)
    finally:
        for key in keys:
            OmegaConf.update(config, key, get(written, key), merge=False)
    bounds.fit_types(plain, keys, schema)
    return plain


def _check_option(override: Override) -> None:
    option = override.values[0]
    known = grammar.list_options(override.key)
    if option not in known:
        instead = CUT_OPTIONS.get(f"{override.key}={option}", f"have {', '.join(known)}")
        raise ConfigError(f"{override.key}={option}: no such option; {instead}")


@lru_cache(maxsize=256)
def _compose_groups(groups: tuple[str, ...]) -> Composition:
    """The configuration of a choice of groups. Hydra composes it once on a machine: that takes a
    fifth of a second.
    """
    key = f"{hash_of_composer()} {_environment_of_conf()} {groups}"
    written, schema = disk_cache.compute_once(
        "compositions", key, lambda: _compose_by_hydra(groups)
    )
    config = OmegaConf.create(written)
    assert isinstance(config, DictConfig)
    OmegaConf.set_struct(config, True)
    return Composition(config, written, schema)


@cache
def hash_of_composer() -> str:
    """A hash of what composes groups: conf/, the code here, and the libraries."""
    files = [
        *package_files.find_folder("conf").rglob("*.yaml"),
        *Path(__file__).parent.glob("*.py"),
    ]
    contents = [(str(path), path.read_text()) for path in sorted(files)]
    libraries = [importlib.metadata.version(name) for name in ("hydra-core", "omegaconf")]
    return hash_bytes(json.dumps([contents, libraries]).encode())


def _environment_of_conf() -> list[tuple[str, str | None]]:
    """The variables that conf/ reads, and their values: the schema holds what follows from them."""
    return [(name, os.environ.get(name)) for name in _variables_of_conf()]


@cache
def _variables_of_conf() -> list[str]:
    texts = [path.read_text() for path in package_files.find_folder("conf").rglob("*.yaml")]
    return sorted({name for text in texts for name in re.findall(r"oc\.env:(\w+)", text)})


def _compose_by_hydra(groups: tuple[str, ...]) -> list[Any]:
    with _hydra_of_our_own():
        config = _run_hydra(groups, return_hydra_config=True)
        choices = config.hydra.runtime.choices
        rest = [f"{g}={o}" for g, o in choices.items() if _is_ours(g) and g not in PRESETS]
        is_preset = any(choices.get(preset) for preset in PRESETS)
        plain = _run_hydra(rest) if is_preset else None
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    schema = list_leaves(_resolve_config(config if plain is None else plain))
    _drop_inapplicable(config, schema, choices.get("recipe"))
    _check_presets(config, schema, choices)
    return [OmegaConf.to_container(config, resolve=False), schema]


@contextlib.contextmanager
def _hydra_of_our_own() -> Iterator[None]:
    """A Hydra on conf/, also inside a Hydra application, which has the global one."""
    outer = GlobalHydra.get_state()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(package_files.find_folder("conf")), version_base="1.3"):
            yield
    finally:
        GlobalHydra.set_state(outer)


def _is_ours(group: str) -> bool:
    return not group.startswith("hydra/")


def _run_hydra(groups: Sequence[str], return_hydra_config: bool = False) -> DictConfig:
    try:
        return hydra_compose(
            "train", overrides=list(groups), return_hydra_config=return_hydra_config
        )
    except (HydraException, OmegaConfBaseException) as error:
        if untaken := UNTAKEN.match(str(error)):
            key = untaken["key"].replace("/", ".")
            where = f"conf/{untaken['file']}.yaml: " if untaken["file"] else ""
            takers = ", ".join(grammar.list_groups().get(key, ())) or "none"
            text = f"{where}{key}: taken by none of the chosen files; by {takers}"
            raise ConfigError(text) from error
        raise ConfigError(f"conf/: {' '.join(str(error).split())}") from error


def _drop_inapplicable(config: DictConfig, schema: Mapping[str, Any], recipe: str | None) -> None:
    """Recipes are written for capsule networks: keys that another network lacks are skipped.

    A key that no file of conf/ has stays, to be refused.
    """
    if recipe is None:
        return
    file = package_files.find_folder("conf") / "recipe" / f"{recipe}.yaml"
    for key in flat(yaml.safe_load(file.read_text())):
        if key not in schema and key in grammar.list_known_keys():
            _remove_key(config, key)


def _remove_key(config: DictConfig, key: str) -> None:
    """Take a key out, and its section if that is then empty."""
    section, _, name = key.rpartition(".")
    holder = OmegaConf.select(config, section)
    del holder[name]
    if section and not holder:
        _remove_key(config, section)


def _check_presets(config: DictConfig, schema: dict[str, Any], choices: DictConfig) -> None:
    where = ", ".join(f"conf/{g}/{choices[g]}.yaml" for g in PRESETS if choices.get(g))
    where = where or "conf/"
    for key in list_leaves(_resolve_config(config)):
        if key not in schema:
            raise ConfigError(f"{where}: {grammar.describe_unknown_key(key, schema)}")
    for choice, option in choices.items():
        group = str(choice).partition("@")[0]
        written = OmegaConf.select(config, group.replace("/", ".")) if "/" in group else option
        if isinstance(written, str) and written != option:  # a name alone, and another's files
            told = f"{group.replace('/', '.')}={written} is a choice"
            raise ConfigError(f"{where}: {told}; write `override /{group}: {written}` in defaults")


def _set_value(config: DictConfig, schema: dict[str, Any], override: Override) -> None:
    key, value = override.key, override.values[0]
    if key not in schema:
        inner = [known for known in schema if known.startswith(f"{key}.")]
        if inner:
            raise ConfigError(f"{key} is a section; set its keys one by one, such as {inner[0]}")
        raise ConfigError(grammar.describe_unknown_key(key, schema))
    if isinstance(value, dict):
        raise ConfigError(f"{key} is one value, not a section; got {value}")
    _check_not_wired(config, key)
    OmegaConf.update(config, key, value, merge=False)


def _check_not_wired(config: DictConfig, key: str) -> None:
    """Raise ConfigError for a key that is drawn from another one, which is to be set instead."""
    section, names = config, key.split(".")
    for position, name in enumerate(names):
        if OmegaConf.is_interpolation(section, name):
            is_last = position == len(names) - 1
            if is_last and names[0] not in SCIENCE:  # logistics may leave their source
                return
            written = str(OmegaConf.to_container(section, resolve=False)[name])  # pyright: ignore
            source = WHOLE.fullmatch(written)
            if source is None:
                raise ConfigError(f"{key} is drawn from {written}; set what that names")
            there = ".".join([source[1], *names[position + 1 :]])
            if is_last:
                raise ConfigError(f"{key} is drawn from {there}; set that, or choose its group")
            raise ConfigError(f"{key} is wired to {there}; set {there}")
        section = section[name]
    if names[-1] in FIXED_NAMES:
        raise ConfigError(f"{key} belongs to its file; choose another file of conf/{names[0]}")


def _read_environment(name: str, default: Any = NO_DEFAULT, *, _node_: Node) -> Any:
    """`oc.env` for places alone: what a key is drawn from is recorded, printed and uploaded."""
    key = _node_._get_full_key(None)
    of_ray = key.startswith("cluster.") and name in RAY_NAMES
    if not key.startswith(FROM_ENVIRONMENT) and not of_ray:
        raise ConfigError(
            f"{key}: ${{oc.env:{name}}} would be recorded with every cell; the environment is read "
            "below places alone: write the value itself"
        )
    return oc.env(name, default)


OmegaConf.register_new_resolver("oc.env", _read_environment, replace=True)


def _resolve_config(config: DictConfig) -> dict[str, Any]:
    with _config_errors():
        plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@contextlib.contextmanager
def _config_errors() -> Iterator[None]:
    """OmegaConf's errors as ConfigError, naming the key."""
    try:
        yield
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        if reason.startswith(REFUSED):
            raise ConfigError(reason.removeprefix(REFUSED)) from error
        raise ConfigError(f"{getattr(error, 'full_key', None) or 'conf/'}: {reason}") from error
