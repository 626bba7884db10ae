"""The section of a file of conf/cluster, with keys set past the grammar of overrides."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from capsweep.config import compose


def cluster(name: str, **keys: Any) -> Mapping[str, Any]:
    """`workers__max=2` sets cluster.workers.max."""
    section = dict(_compose_cluster(name))
    for key, value in keys.items():
        outer, _, inner = key.partition("__")
        section[outer] = {**section[outer], inner: value} if inner else value
    return section


@cache
def _compose_cluster(name: str) -> Mapping[str, Any]:
    return compose.cell([f"cluster={name}"]).config["cluster"]
