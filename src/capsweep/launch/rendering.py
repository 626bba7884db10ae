"""Launch files from the templates beside conf/cluster/*.yaml.

What a template inserts is quoted by the environment it is rendered in, not by the template, so that
no value can be forgotten: a text becomes one YAML scalar, or one word of the shell, whatever is
in it. What a template does not know is an error.
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError

from capsweep.config import package_files
from capsweep.errors import ConfigError

DIRECTIVE = re.compile(r"[A-Za-z0-9_@%+=:,./&|*()\[\]-]+")  # what sbatch reads without quotes


def render_yaml(template: str, values: Mapping[str, Any]) -> str:
    """A YAML file. Raises ConfigError naming the key that the template asks for in vain."""
    return _render(template, values, as_yaml)


def render_shell(template: str, values: Mapping[str, Any]) -> str:
    """A shell script, or a file whose words are the shell's. Raises ConfigError as `render_yaml`
    does, and for a value in a `#SBATCH` line that sbatch would have to unquote.
    """
    return _render(template, values, as_shell)


def as_yaml(value: Any) -> str:
    """One YAML value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{as_yaml(k)}: {as_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(as_yaml, value)) + "]"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value, allow_nan=False)
    text = yaml.safe_dump(str(value), default_style='"', width=2**31, allow_unicode=True)
    return text.removesuffix("\n")


def as_shell(value: Any) -> str:
    """One word of the shell, or several of a list."""
    if isinstance(value, (list, tuple)):
        return shlex.join(map(str, value))
    return shlex.quote(str(value))


def _render(template: str, values: Mapping[str, Any], quoted: Any) -> str:
    made = Environment(
        loader=FileSystemLoader(package_files.find_folder("conf") / "cluster"),
        undefined=StrictUndefined,
        finalize=quoted,
        autoescape=False,  # of HTML
    )
    made.filters["directive"] = _directive
    try:
        return made.get_template(template).render(values) + "\n"
    except UndefinedError as error:
        raise ConfigError(f"conf/cluster/{template}: {error.message}") from error


def _directive(value: Any, key: str) -> str:
    """A value of an `#SBATCH` line: a comment to the shell, whose end of line nothing may move."""
    text = str(value)
    if DIRECTIVE.fullmatch(text) is None:
        raise ConfigError(
            f"cluster.{key}={text!r}: letters, digits and _@%+=:,./&|*()[]- alone may stand in a "
            "line that sbatch reads"
        )
    return text
