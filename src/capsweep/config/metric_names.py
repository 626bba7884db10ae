"""Which metrics the cells of a configuration measure: known before any is trained."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from capsweep.config.validation import count_validation_examples
from capsweep.errors import ConfigError

NAMES = ("loss", "error", "reconstruction", "at_least_one", "segmentation")


def list_metrics(config: Mapping[str, Any]) -> tuple[str, ...]:
    """`train/loss`, `test/error` and so on, of a canonical configuration."""
    draws = config["loss"]["reconstruction"]["weight"] > 0
    several = config["dataset"].get("labels_per_image", 1) > 1
    measures = {"reconstruction": draws, "at_least_one": several, "segmentation": draws and several}
    splits = ("train", *(["val"] if count_validation_examples(config["dataset"]) else []), "test")
    return tuple(
        f"{split}/{name}" for split in splits for name in NAMES if measures.get(name, True)
    )


def check_metric(where: str, metric: str, configs: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError, with the nearest name, for a metric that none of the cells measures."""
    known = dict.fromkeys(name for config in configs for name in list_metrics(config))
    if metric not in known:
        close = difflib.get_close_matches(metric, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"{where}: {metric} is not measured; {hint}have {', '.join(known)}")
