"""The composition of one checked configuration from overrides.

Hydra composes each choice of groups once. The values of overrides `key=value` are then set on a
copy of the result, because Hydra would be much slower. The YAML of conf/ is the schema: it says
which keys may be set, and which type each value has.

In conf/, `${key}` means the value of another key. The other key may not be in `places` or
`cluster`, because settings are recorded and uploaded. The other key may not be `seed`, because
`Cell.with_seed` changes only the seed. Only `places` and the keys of FILLED may read variables of
the environment. A value that the user types may not contain `${`.
"""

import copy
import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial, reduce
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from capsweep.config import bounded_yaml, package_files, places, validation
from capsweep.config import overrides as grammar
from capsweep.config.cell import SCIENCE, Cell, flatten, get, put, remove_key
from capsweep.config.overrides import Override
from capsweep.errors import ConfigError
from capsweep.storage.checked import compute_once
from capsweep.storage.files import hash_bytes

# Groups of presets. A preset sets keys at the root of the configuration, where Hydra does not check
# them.
PRESETS = ("recipe", "experiment", "debug")
# Keys outside `places` that may read a variable of the environment. conf/ must have these values.
FILLED = {
    "cluster.address": "${oc.env:RAY_ADDRESS,auto}",
    "cluster.jobs": "${oc.env:RAY_API_SERVER_ADDRESS,null}",
}


@dataclass(frozen=True)
class Composition:
    """The configuration that Hydra composes for a choice of groups."""

    written: Mapping[str, Any]  # plain data; interpolations are not resolved
    schema: Mapping[str, Any]  # each dotted key and its default value
    recipe: str | None  # name of the chosen recipe; None: no recipe


def cell(overrides: Iterable[str | Override]) -> Cell:
    """Compose the cell that `capsweep train *overrides` runs.

    Raises:
        ConfigError: If an override is invalid or has several values. Also if a key is unknown, is
            set twice, has a wrong type or value, or contradicts another key. The message names the
            key.
    """
    overrides = list(overrides)
    parsed = grammar.parse_single(overrides)
    values = [override for override in parsed if not grammar.is_group(override.key)]
    plain = _set_values(compose_files(parsed), values)
    validation.check_config(plain)
    # Relative places start at the folder of the command; a worker has another current folder.
    plain["places"] = places.make_absolute(plain["places"])
    texts = (item if isinstance(item, str) else item.text for item in overrides)
    return Cell(config=validation.make_canonical(plain), overrides=tuple(texts))


def _set_values(composed: Composition, values: Sequence[Override]) -> dict[str, Any]:
    """Set values in a copy of a composed configuration, and return the copy as plain data."""
    written = copy.deepcopy(dict(composed.written))
    for override in values:
        _check_key(written, override, composed.schema)
        put(written, override.key, override.value)
    plain = _resolve(written)
    validation.fit_types(plain, [override.key for override in values], composed.schema)
    return plain


def _resolve(written: Mapping[str, Any]) -> dict[str, Any]:
    """Replace interpolations by values; raise ConfigError with the key if this is impossible."""
    try:
        return OmegaConf.to_container(OmegaConf.create(dict(written)), resolve=True)  # pyright: ignore[reportReturnType]
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{error.full_key or 'conf/'}: {reason}") from error


def _check_drawn(written: Mapping[str, Any]) -> None:
    """Raise ConfigError if conf/ has an interpolation that is not allowed."""
    for key, value in flatten(written).items():
        rest = re.sub(r"\$\{(?!(seed|places|cluster)\b)[a-z_][\w.]*\}", "", str(value))
        if "${" in rest and not key.startswith("places.") and FILLED.get(key) != value:
            raise ConfigError(
                f"{key}={value}: ${{...}} may name only another key, but not places, cluster, seed "
                "or a variable of the environment; write the value itself"
            )


def compose_files(overrides: Iterable[Override]) -> Composition:
    """Compose the files that overrides `group=option` choose; overrides of keys are ignored.

    Raises:
        ConfigError: If a group does not have the chosen option, or if a file of conf/ has a fault.
    """
    choices = [override for override in overrides if grammar.is_group(override.key)]
    for key, option in ((override.key, override.value) for override in choices):
        if option not in (known := grammar.list_options(key)):
            raise ConfigError(f"{key}={option}: no such option; have {', '.join(known)}")
    return _compose_groups(tuple(override.text for override in choices))


def read_options(overrides: Iterable[str]) -> tuple[str | None, dict[str, Any]]:
    """Return the recipe that overrides choose, and the value of each key in the chosen files.

    If the recipe sets a key, the value is that of the recipe. Otherwise the value is that of the
    chosen option of the key's group. The recipe and options that an experiment chooses are used,
    but the values that the experiment sets are ignored. Overrides `key=value` are ignored too.

    Raises:
        ConfigError: If an override is invalid, if a group does not have the chosen option, or if a
            file of conf/ has a fault.
    """
    composed = compose_files(map(grammar.parse, overrides))
    recipe = {} if composed.recipe is None else _read_recipe(composed.recipe)
    return composed.recipe, {**composed.schema, **recipe}


def _read_recipe(name: str) -> dict[str, Any]:
    file = package_files.find_folder("conf") / "recipe" / f"{name}.yaml"
    return flatten(yaml.safe_load(file.read_bytes()))


@lru_cache(maxsize=256)
def _compose_groups(groups: tuple[str, ...]) -> Composition:
    """Compose a choice of groups, or read the composition from the user's cache.

    The cache is used because Hydra takes 0.2 s.
    """
    key, compose = f"{hash_composer()} {groups}", partial(_compose_by_hydra, groups)
    return Composition(*compute_once("compositions", key, compose))


@cache
def hash_composer() -> str:
    """Hash all that decides a composition: conf/, `capsweep.config`, and versions of libraries."""
    conf, package = package_files.find_folder("conf"), Path(__file__).parent
    paths = [*sorted(conf.rglob("*.yaml")), *sorted(package.glob("*.py"))]
    texts = [(str(path), path.read_text(encoding="utf-8")) for path in paths]
    libraries = [importlib.metadata.version(name) for name in ("hydra-core", "omegaconf")]
    return hash_bytes(json.dumps([texts, libraries]).encode())


def _compose_by_hydra(groups: tuple[str, ...]) -> list[Any]:
    """Compose a choice of groups, and return the fields of a `Composition`."""
    with initialize_config_dir(str(package_files.find_folder("conf")), version_base="1.3"):
        written, choices = _run_hydra(groups)
        _check_meanings(choices)
        apart = ("hydra/", *PRESETS)
        rest = [f"{g}={o}" for g, o in choices.items() if not g.startswith(apart)]
        is_preset = any(choices.get(preset) for preset in PRESETS)
        plain = _run_hydra(rest)[0] if is_preset else written
    _check_drawn(written)
    schema = flatten(_resolve(plain))
    dropped = _list_inapplicable(groups, written, schema, choices.get("recipe"))
    written = reduce(remove_key, dropped, written)
    for key in flatten(_resolve(written)):
        if key not in schema:
            where = ", ".join(f"conf/{g}/{choices[g]}.yaml" for g in PRESETS if choices.get(g))
            text = grammar.describe_unknown_key(key, schema)
            raise ConfigError(f"{where or 'conf/'}: {text}")
    return [written, schema, choices.get("recipe")]


def _check_meanings(choices: Mapping[str, Any]) -> None:
    """Raise ConfigError if text in a chosen file means another value on the command line."""
    conf = package_files.find_folder("conf")
    for group, option in choices.items():
        path = conf / group.partition("@")[0] / f"{option}.yaml"
        try:
            if path.is_file():
                yaml.load(path.read_bytes(), bounded_yaml.PlainLoader)
        except ConfigError as error:
            raise ConfigError(f"{path.relative_to(conf.parent)}: {error}") from error


def _run_hydra(groups: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration of a choice of groups, unresolved, and the option of each group."""
    try:
        config = hydra_compose("train", overrides=list(groups), return_hydra_config=True)
        written: Any = OmegaConf.to_container(config, resolve=False)
        return written, written.pop("hydra")["runtime"]["choices"]
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        text = " ".join(str(error).split()).partition(" Did you mean")[0]
        text = text.replace("Could not override", "no chosen file has the group")
        raise ConfigError(f"conf/: {text}") from error


def _list_inapplicable(
    groups: Sequence[str], written: Mapping[str, Any], schema: Mapping[str, Any], recipe: str | None
) -> list[str]:
    """List the keys of presets that do not apply to the chosen network or routing.

    A recipe may set keys of capsules, and a CNN has no such keys. A preset may choose a routing and
    set keys of this routing. If the user types another routing, that routing may lack the keys.
    The caller removes the listed keys. A key that no file of conf/ has is not listed, so that the
    key is refused later.
    """
    is_typed = any(group.startswith("routing=") for group in groups)
    keys = [*flatten(written.get("routing") or {}, "routing")] if is_typed else []
    if recipe is not None:
        keys += _read_recipe(recipe)
    return [key for key in keys if key not in schema and key in grammar.list_known_keys()]


def _check_key(written: Mapping[str, Any], override: Override, schema: Mapping[str, Any]) -> None:
    """Raise ConfigError if an override cannot be set in a composed configuration."""
    key, value = override.key, override.value
    group, _, name = key.partition(".")
    if key not in schema:
        inner = [known for known in schema if known.startswith(f"{key}.")]
        if inner:
            raise ConfigError(f"{key} is a section; set its keys one by one, such as {inner[0]}")
        raise ConfigError(grammar.describe_unknown_key(key, schema))
    if isinstance(value, dict):
        raise ConfigError(f"{key} is one value, not a section; got {value}")
    validation.check_resolved(key, value)
    drawn = re.search(r"\$\{([\w.]+)\}", str(get(written, key)))
    if drawn is not None and isinstance(get(written, key), str) and group in SCIENCE:
        raise ConfigError(f"{key} takes its value from {drawn[1]}; set {drawn[1]} or a group")
    if name.rpartition(".")[2] in grammar.FIXED_NAMES:
        raise ConfigError(f"{key} belongs to its file; choose another file of conf/{group}")
