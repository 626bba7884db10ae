"""From overrides to one checked configuration.

Hydra composes the groups once per choice of groups; values are then set on the result, because that
is what Hydra does too, a hundred times slower. What may be set, and to which type, is
what stands in conf/: the YAML is the schema.
"""

import importlib.metadata
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial, reduce
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from capsweep.config import bounds, package_files, places, validation
from capsweep.config import overrides as grammar
from capsweep.config.cell import SCIENCE, Cell, flat, get, without
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

# An environment variable: places alone may be drawn from one, since other values are uploaded.
ENVIRONMENT = re.compile(r"oc\.env:(\w+)")


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
        _check_places(config, plain, [override.text for override in values])
    finally:
        for key in keys:
            OmegaConf.update(config, key, get(written, key), merge=False)
    bounds.fit_types(plain, keys, schema)
    return plain


def _check_places(config: DictConfig, plain: Mapping[str, Any], typed: Sequence[str]) -> None:
    """Raise ConfigError for a place that depends on what a cell is: one sweep has one storage."""
    sections = ("places", "cluster")
    texts = [text for text in typed if "$" in text and text.startswith(sections)]
    if not texts:
        return
    alone = {name: OmegaConf.to_container(config[name], resolve=False) for name in sections}
    try:
        is_same = _resolve_config(DictConfig(alone)) == {name: plain[name] for name in sections}
    except ConfigError:
        is_same = False
    if not is_same:
        raise ConfigError(
            f"{texts[0]}: a place is the same for all cells; write it without what a cell is"
        )


def _check_option(override: Override) -> None:
    option = override.values[0]
    known = grammar.list_options(override.key)
    if option not in known:
        instead = CUT_OPTIONS.get(f"{override.key}={option}", f"have {', '.join(known)}")
        raise ConfigError(f"{override.key}={option}: no such option; {instead}")


@lru_cache(maxsize=256)
def _compose_groups(
    groups: tuple[str, ...],
) -> tuple[DictConfig, dict[str, Any], dict[str, Any]]:
    """The configuration of a choice of groups: for OmegaConf, as plain unresolved data, and its
    schema, which is leaf keys to default values. Hydra composes it once on a machine: that takes a
    fifth of a second.
    """
    key, compose = f"{hash_composer()} {groups}", partial(_compose_by_hydra, groups)
    written, schema = disk_cache.compute_once("compositions", key, compose)
    config = OmegaConf.create(written)
    assert isinstance(config, DictConfig)
    OmegaConf.set_struct(config, True)
    return config, written, schema


@cache
def _read_composer() -> tuple[str, list[str]]:
    """A hash of what composes groups, which is conf/, the code here, and the libraries; and the
    environment variables that conf/ reads.
    """
    conf, package = package_files.find_folder("conf"), Path(__file__).parent
    texts = [(str(path), path.read_text()) for path in sorted(conf.rglob("*.yaml"))]
    texts += [(path.name, path.read_text()) for path in sorted(package.glob("*.py"))]
    libraries = [importlib.metadata.version(name) for name in ("hydra-core", "omegaconf")]
    content = json.dumps([texts, libraries])
    return hash_bytes(content.encode()), sorted(set(ENVIRONMENT.findall(content)))


def hash_composer() -> str:
    """A hash of what composes groups, and of the environment variables that conf/ reads."""
    composer, variables = _read_composer()
    values = [os.environ.get(name) for name in variables]
    return hash_bytes(json.dumps([composer, values]).encode())


def _compose_by_hydra(groups: tuple[str, ...]) -> list[Any]:
    with initialize_config_dir(str(package_files.find_folder("conf")), version_base="1.3"):
        config = _run_hydra(groups, return_hydra_config=True)
        choices = config.hydra.runtime.choices
        apart = ("hydra/", *PRESETS)
        rest = [f"{g}={o}" for g, o in choices.items() if not g.startswith(apart)]
        is_preset = any(choices.get(preset) for preset in PRESETS)
        plain = _run_hydra(rest) if is_preset else None
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    schema = flat(_resolve_config(config if plain is None else plain))
    written: Any = OmegaConf.to_container(config, resolve=False)
    dropped = _list_inapplicable(groups, written, schema, choices.get("recipe"))
    written = reduce(without, dropped, written)
    for key in flat(_resolve_config(DictConfig(written))):
        if key not in schema:
            where = ", ".join(f"conf/{g}/{choices[g]}.yaml" for g in PRESETS if choices.get(g))
            text = grammar.describe_unknown_key(key, schema)
            raise ConfigError(f"{where or 'conf/'}: {text}")
    return [written, schema]


def _run_hydra(groups: Sequence[str], return_hydra_config: bool = False) -> DictConfig:
    try:
        return hydra_compose(
            "train", overrides=list(groups), return_hydra_config=return_hydra_config
        )
    except (HydraException, OmegaConfBaseException) as error:
        text = " ".join(str(error).split()).partition(" Did you mean")[0]
        text = text.replace("Could not override", "no chosen file has the group")
        raise ConfigError(f"conf/: {text}") from error


def _list_inapplicable(
    groups: Sequence[str], written: Mapping[str, Any], schema: Mapping[str, Any], recipe: str | None
) -> list[str]:
    """Keys of a recipe that another network lacks, and of any preset that a typed routing lacks:
    recipes are written for capsule networks, presets for the routing that they choose.

    A key that no file of conf/ has is not among them, and is refused.
    """
    is_typed = any(group.startswith("routing=") for group in groups)
    keys = [*flat(written.get("routing") or {}, "routing")] if is_typed else []
    if recipe is not None:
        file = package_files.find_folder("conf") / "recipe" / f"{recipe}.yaml"
        keys += flat(yaml.safe_load(file.read_text()))
    return [key for key in keys if key not in schema and key in grammar.list_known_keys()]


def _set_value(config: DictConfig, schema: dict[str, Any], override: Override) -> None:
    key, value = override.key, override.values[0]
    if key not in schema:
        inner = [known for known in schema if known.startswith(f"{key}.")]
        if inner:
            raise ConfigError(f"{key} is a section; set its keys one by one, such as {inner[0]}")
        raise ConfigError(grammar.describe_unknown_key(key, schema))
    if isinstance(value, dict):
        raise ConfigError(f"{key} is one value, not a section; got {value}")
    if ENVIRONMENT.search(str(value)) and not key.startswith("places."):
        raise ConfigError(
            f"{key}={value}: would be recorded with every cell; write the value itself"
        )
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
            written = OmegaConf.to_container(section, resolve=False)[name]  # pyright: ignore
            (first, *_) = re.findall(r"\$\{([^{}]+)\}", str(written))
            source = ".".join([first, *names[position + 1 :]])
            raise ConfigError(f"{key} is drawn from {source}; set that, or choose its group")
        section = section[name]
    if names[-1] in grammar.FIXED_NAMES:
        raise ConfigError(f"{key} belongs to its file; choose another file of conf/{names[0]}")


def _resolve_config(config: DictConfig) -> dict[str, Any]:
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{getattr(error, 'full_key', None) or 'conf/'}: {reason}") from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
