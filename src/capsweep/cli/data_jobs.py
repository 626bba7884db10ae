"""The jobs of `data_prep`, found by name and prepared from overrides."""

import argparse
from collections.abc import Sequence
from importlib import import_module, util
from typing import TYPE_CHECKING, Any

from capsweep.errors import ConfigError, UserError

if TYPE_CHECKING:
    from capsweep.shards.job import Job


def load_job_module(name: str) -> Any:
    """`data_prep/NAME.py`. Raises UserError where there is none."""
    import pkgutil

    import data_prep

    names = sorted(module.name for module in pkgutil.iter_modules(data_prep.__path__))
    if not name.isidentifier() or util.find_spec(f"data_prep.{name}") is None:
        raise UserError(f"DATASET={name}: no job makes it; data_prep has {', '.join(names)}")
    return import_module(f"data_prep.{name}")


def prepare_job(
    name: str, overrides: Sequence[str], pairs: int | None, with_sources: bool
) -> "Job":
    """Raises ConfigError naming the key, DataError where the source images are not there."""
    from capsweep.config import compose, places
    from capsweep.data.images import TestedElsewhere
    from capsweep.training import build

    module = load_job_module(name)
    config = compose.cell([f"dataset={name}", *join_overrides(module.OVERRIDES, overrides)]).config
    reader = build.build_reader(config)
    reader = reader.reader if isinstance(reader, TestedElsewhere) else reader
    digits = reader.read(str(places.resolve(config["places"]).data))
    if pairs is not None and pairs < 1:
        raise ConfigError(f"PAIRS must be >= 1, got {pairs}")
    return module.prepare(config["dataset"], digits, pairs, with_sources)


def join_overrides(overrides: Sequence[str], later: Sequence[str]) -> list[str]:
    """Overrides, of which a later one of the same key counts."""
    keys = {text.partition("=")[0] for text in later}
    return [*(text for text in overrides if text.partition("=")[0] not in keys), *later]


def read_overrides(parsed: argparse.Namespace) -> list[str]:
    """As typed, and --data-dir as one."""
    from capsweep.config.overrides import render

    data = [] if parsed.data_dir is None else [render("places.data", parsed.data_dir)]
    return [*parsed.overrides, *data]
