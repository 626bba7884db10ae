"""The groups of conf/: folders, of whose files one is chosen with `group=option`.

A folder of conf/ itself is a group. A folder further down is one where a defaults list of conf/
names it: `defaults: [source: mnist]` in conf/dataset/multimnist.yaml makes conf/dataset/source/ the
group `dataset.source`. Any other folder only sorts options of the group around it, such as
`experiment=paper/mnist`.

Inside, groups are written as keys are, with dots; Hydra's overrides write them with slashes.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import yaml

from capsweep.config import package_files
from capsweep.errors import ConfigError


@cache
def groups() -> Mapping[str, Sequence[str]]:
    """Every group, and the files of conf/ that bring it in: with them it can be chosen.

    A file that moves it to a package (`source@_here_: mnist`) has chosen for good, and one that
    overrides it needs another that brings it in; what they name is a group all the same.
    """
    conf = package_files.find_folder("conf")
    found: dict[str, list[str]] = {p.name: [] for p in sorted(conf.iterdir()) if p.is_dir()}
    for path in sorted(conf.rglob("*.yaml")):
        file = path.relative_to(conf).as_posix()
        for group, is_brought_in in _list_named_groups(path.read_text(), file):
            if (conf / group).is_dir():
                files = found.setdefault(group.replace("/", "."), [])
                files += [f"conf/{file}"] if is_brought_in else []
    return found


def _list_named_groups(text: str, file: str) -> Iterator[tuple[str, bool]]:
    """Groups in a file's defaults list, `group`, `override /group@package` or `optional group`, and
    whether it brings them in.
    """
    if "defaults" not in text:
        return
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"conf/{file}: not YAML: {' '.join(str(error).split())}") from error
    entries = content.get("defaults") if isinstance(content, Mapping) else None
    for entry in entries if isinstance(entries, list) else []:
        for key in entry if isinstance(entry, Mapping) else []:  # a text names one file, no choice
            *words, name = str(key).split(" ")
            name, is_moved, _ = name.partition("@")
            path = posixpath.normpath(posixpath.join("/", posixpath.dirname(file), name))
            yield path.lstrip("/"), not is_moved and "override" not in words


def is_group(key: str) -> bool:
    """Whether `key`, with dots or slashes, is a group, so that its value is the name of a file."""
    return key.replace("/", ".") in groups()


def with_dots(key: str) -> str:
    """A group as it is written inside: `dataset/source` is `dataset.source`; other keys as is."""
    return key.replace("/", ".") if is_group(key) else key


def with_slashes(key: str) -> str:
    """A group as Hydra's overrides write it: `dataset.source` is `dataset/source`."""
    return key.replace(".", "/") if is_group(key) else key


@cache
def options(group: str) -> Sequence[str]:
    """The names that can be chosen in a group, sorted; those of groups inside it are not."""
    conf, outer = package_files.find_folder("conf"), group.replace("/", ".")
    folder = conf / with_slashes(outer)
    inner = [conf / with_slashes(name) for name in groups() if name.startswith(f"{outer}.")]
    return sorted(
        path.relative_to(folder).with_suffix("").as_posix()
        for path in folder.rglob("*.yaml")
        if not any(path.is_relative_to(other) for other in inner)
    )


@cache
def known_keys() -> frozenset[str]:
    """Every key of the groups that a run is made of, of all their options: no presets.

    Those of a group within a group stand in its package, and are those of the group around it.
    """
    conf = package_files.find_folder("conf")
    found: set[str] = set()
    for path in sorted(conf.glob("*/*.yaml")):
        text = path.read_text()
        if not text.startswith("# @package"):
            found |= _list_dotted_keys(yaml.safe_load(text), path.parent.name)
    return frozenset(found)


def _list_dotted_keys(value: object, prefix: str) -> set[str]:
    if not isinstance(value, Mapping) or not value:
        return {prefix}
    return {key for name in value for key in _list_dotted_keys(value[name], f"{prefix}.{name}")}
