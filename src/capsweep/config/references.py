"""Which keys a value is drawn from: its interpolations, as OmegaConf itself reads them."""

import re
from functools import lru_cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar_parser import parse
from omegaconf.grammar_visitor import GrammarVisitor
from omegaconf.resolvers import oc

PLAIN = re.compile(r"\$\{([\w.]+)\}")
KEY = re.compile(r"(\.*)(.*)")
STEP = re.compile(r"[^.\[\]]+")
BRACKETED = re.compile(r"\[[^\[\]]*\.[^\[\]]*\]")


class _UntoldError(Exception):
    """What a value is drawn from cannot be told before it is computed."""


def references(config: DictConfig, path: str, text: str) -> list[str] | None:
    """The keys, absolute, that the text which stands at `path` names; None: cannot be told.

    Keys within keys are looked up in `config`, so `${a.${b}}` gives b and the key that b chooses.
    Of the resolvers, `oc.env` names no key and `oc.select` one; any other may read what it likes.
    """
    if plain := PLAIN.fullmatch(text):  # most are: no need of the grammar
        return [_absolute(path, plain[1])]
    found: list[str] = []

    def look_up(key: str, default: Any = None) -> Any:
        found.append(_absolute(path, key))
        return OmegaConf.select(config, found[-1], default=default)

    def resolve(name: str, args: tuple[Any, ...], args_str: tuple[str, ...]) -> Any:
        if name == "oc.env":
            return oc.env(*args)
        if name == "oc.select":
            return look_up(*args)
        raise _UntoldError(name)

    try:
        GrammarVisitor(lambda key, memo: look_up(key), resolve, memo=None).visit(_tree(text))
    except (OmegaConfBaseException, LookupError, TypeError, _UntoldError):
        return None
    return found


@lru_cache(maxsize=512)
def _tree(text: str) -> Any:
    return parse(text)


def _absolute(path: str, key: str) -> str:
    """One dot before a key is the section that holds `path`, each further dot the one around it."""
    match, steps = KEY.fullmatch(key), path.split(".")
    if match is None or len(match[1]) > len(steps) or BRACKETED.search(key):
        raise _UntoldError(key)
    dots, rest = match.groups()
    around = steps[: len(steps) - len(dots)] if dots else []
    return ".".join([*around, *STEP.findall(rest)])
