"""One composed configuration, and cells made from it by setting values on plain copies.

OmegaConf needs milliseconds to copy and resolve a configuration, a plain copy microseconds. Only
values that nothing else is drawn from may be set in this way; which those are is read off the
interpolations, so that conf/ can change freely.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from capsweep.config.cell import plain_copy
from capsweep.config.overrides import Override

REFERENCE = re.compile(r"\$\{([^{}:]+)\}")
WHOLE = re.compile(r"\$\{([^{}:]+)\}\Z")
FIXED_NAMES = ("name", "_partial_")


class Template:
    """plain: the configuration, resolved and of the schema's types."""

    def __init__(
        self, config: DictConfig, plain: Mapping[str, Any], leaves: frozenset[str]
    ) -> None:
        self.plain, self.leaves = plain, leaves
        raw = OmegaConf.to_container(config, resolve=False)
        self.copies: dict[str, str] = {}  # a section that is drawn whole from another
        self.tied: set[str] = set()  # leaves that are drawn from others, or others from them
        self._read(raw, "")

    def _read(self, value: Any, path: str) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                self._read(item, f"{path}.{key}" if path else str(key))
        elif isinstance(value, list):
            for item in value:
                self._read(item, path)
        elif isinstance(value, str) and "${" in value:
            self._tie(path, value)

    def _tie(self, path: str, text: str) -> None:
        whole = WHOLE.match(text)
        if whole and whole[1] not in self.leaves:
            self.copies[path] = whole[1]
            return
        self.tied |= {path, *REFERENCE.findall(text)}

    def can_set(self, override: Override) -> bool:
        """Whether setting a plain copy is all there is to do for this override."""
        key = override.key
        return (
            key in self.leaves
            and key not in self.tied
            and key.rpartition(".")[2] not in FIXED_NAMES
            and not any(key.startswith(f"{path}.") for path in self.copies)
            and _is_plain(override.values[0])
        )

    def filled(self, values: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """A copy with some leaves set, and copied sections copied anew."""
        made = plain_copy(self.plain)
        for key, value in values:
            section, name = _section(made, key)
            section[name] = value
        for path, source in self.copies.items():
            section, name = _section(made, path)
            there, last = _section(made, source)
            section[name] = plain_copy(there[last])
        return made


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, dict) and not (isinstance(value, str) and "${" in value)


def _section(config: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *parents, name = path.split(".")
    for parent in parents:
        config = config[parent]
    return config, name
