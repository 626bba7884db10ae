"""Recipes: the training of a paper as a whole, laid over any network."""

from collections.abc import Mapping
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from capsweep.config import roots
from capsweep.config.cell import flat
from capsweep.config.groups import known_keys


def drop_inapplicable(config: DictConfig, schema: Mapping[str, Any], recipe: str | None) -> None:
    """A recipe speaks of capsule networks; of another network, what that has not is left out.

    A key that no file of conf/ has stays, to be refused.
    """
    if recipe is None:
        return
    file = roots.find("conf") / "recipe" / f"{recipe}.yaml"
    for key in flat(yaml.safe_load(file.read_text())):
        if key not in schema and key in known_keys():
            _remove(config, key)


def _remove(config: DictConfig, key: str) -> None:
    """Take a key out, and its section if that is then empty."""
    section, _, name = key.rpartition(".")
    holder = OmegaConf.select(config, section)
    del holder[name]
    if section and not holder:
        _remove(config, section)
