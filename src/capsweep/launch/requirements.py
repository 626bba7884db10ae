"""What nodes install: the packages that run here, at the versions they have here."""

from collections.abc import Iterator
from importlib import metadata

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("ray", "wandb", "search")
# Nodes are Linux on x86-64, whatever this machine is.
NODE = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}


def pinned() -> str:
    """A requirements file: what capsweep needs, and what that needs, at this machine's versions.

    A local version (+cpu) is left open: pip takes whatever build it is offered. What this machine
    does not have (CUDA's libraries on a laptop) is left to pip.
    """
    pins = {name: version for name, version in _closure("capsweep", EXTRAS) if name != "capsweep"}
    lines = [f"{name}=={version}" for name, version in sorted(pins.items())]
    return "\n".join(
        ["# Rendered by capsweep: the versions that run where it was typed.", *lines, ""]
    )


def _closure(name: str, extras: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    waiting, seen = [(name, frozenset(extras))], set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        yield canonicalize_name(name), found.version.partition("+")[0]
        for text in found.requires or ():
            needed = Requirement(text)
            if _applies(needed, wanted):
                waiting.append((canonicalize_name(needed.name), frozenset(needed.extras)))


def _applies(needed: Requirement, extras: frozenset[str]) -> bool:
    if needed.marker is None:
        return True
    here = {key: str(value) for key, value in default_environment().items()} | NODE
    return any(needed.marker.evaluate(here | {"extra": extra}) for extra in (*extras, ""))
