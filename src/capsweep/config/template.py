"""One composed configuration, and cells made from it by setting values on plain copies.

OmegaConf needs milliseconds to copy and resolve a configuration, a plain copy microseconds. Only
values that nothing else is drawn from may be set in this way; which those are is read off the
interpolations, so that conf/ can change freely.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from capsweep.config.cell import plain_copy
from capsweep.config.overrides import Override
from capsweep.config.references import references

WHOLE = re.compile(r"\$\{[^{}:]+\}")
# No settings: what their file is.
FIXED_NAMES = ("name", "_partial_", "labels_per_image", "num_classes")


class Template:
    """plain: the configuration, resolved and of the schema's types."""

    def __init__(
        self, config: DictConfig, plain: Mapping[str, Any], leaves: frozenset[str]
    ) -> None:
        self.plain, self.leaves = plain, leaves
        self.sections = _around(leaves)
        self.copies: dict[str, str] = {}  # a section that is drawn whole from another
        self.tied: set[str] = set()  # keys that are drawn from others, or others from them
        self.is_told = True  # whether all that values are drawn from is known
        for path, text in _interpolations(OmegaConf.to_container(config, resolve=False), ""):
            self._tie(path, text, references(config, path, text))
        self._settle_copies()
        self.around_tied = _around(self.tied)

    def _tie(self, path: str, text: str, drawn_from: list[str] | None) -> None:
        if drawn_from is None or "" in drawn_from:
            self.is_told = False
        elif WHOLE.fullmatch(text) and {path, *drawn_from} <= self.sections:
            self.copies[path] = drawn_from[0]
        else:
            self.tied |= {path, *drawn_from}

    def _settle_copies(self) -> None:
        """Tie copies of copies, and whatever tied keys are drawn from through a copy."""
        for path, source in list(self.copies.items()):
            if any(_holds(source, copy) or _holds(copy, source) for copy in self.copies):
                self.tied |= {path, source}
        waiting = list(self.tied)
        while waiting:
            key = waiting.pop()
            for copy, source in self.copies.items():
                drawn = source + key.removeprefix(copy) if _holds(copy, key) else source
                if (_holds(copy, key) or _holds(key, copy)) and drawn not in self.tied:
                    self.tied.add(drawn)
                    waiting.append(drawn)
        self.copies = {path: of for path, of in self.copies.items() if path not in self.tied}

    def can_set(self, override: Override) -> bool:
        """Whether setting a plain copy is all there is to do for this override."""
        key = override.key
        return (
            self.is_told
            and key in self.leaves
            and key not in self.tied
            and key not in self.around_tied
            and self.tied.isdisjoint(_around([key]))
            and key.rpartition(".")[2] not in FIXED_NAMES
            and not any(_holds(path, key) for path in self.copies)
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


def _interpolations(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Texts with interpolations, and where they stand; an index is a step of the path."""
    if isinstance(value, str) and "${" in value:
        yield path, value
    items = value.items() if isinstance(value, Mapping) else ()
    for key, item in enumerate(value) if isinstance(value, list) else items:
        yield from _interpolations(item, f"{path}.{key}" if path else str(key))


def _around(keys: Iterable[str]) -> frozenset[str]:
    """The sections that hold these keys."""
    return frozenset(key[:end] for key in keys for end, letter in enumerate(key) if letter == ".")


def _holds(section: str, key: str) -> bool:
    return key == section or key.startswith(f"{section}.")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, dict) and not (isinstance(value, str) and "${" in value)


def _section(config: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *parents, name = path.split(".")
    for parent in parents:
        config = config[parent]
    return config, name
