"""What a cell costs depends on its shape: two cells of one shape take as long per training step."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from capsweep.config.cell import Cell, get, without

# Of the science, what changes numbers but not the work of a step.
WORKLESS = (
    "seed",
    "epochs",
    "limit_batches",
    "optim.optimizer.lr",
    "optim.optimizer.betas",
    "optim.optimizer.eps",
    "optim.optimizer.weight_decay",
    "optim.schedule",
    "dataset.name",
    "dataset.reader",
    "dataset.shards",
    "dataset.examples",
    "dataset.validation",
    "dataset.shift",
    "dataset.test",
    "stop_accuracy",
    "model.vote_gain",
    "model.initial",
    "model.dropout",
)

# Logistics that change the work; at these values they count as absent, as before they existed.
PLAIN = {"trainer.compile": None, "trainer.fused_optimizer": True}


def shape(cell: Cell) -> str:
    """8 hexadecimal digits, equal for cells of equal work per step and equal memory.

    Sizes, routing iterations, batch, precision, implementation and threads count; loss weights
    count only as far as they switch a part on.
    """
    work: dict[str, Any] = dict(cell.science)
    for path in WORKLESS:
        work = without(work, path.split("."))
    work["loss"] = _summarise_losses(cell.science["loss"])
    work["logistics"] = [
        get(cell.config, path)
        for path in ("routing.impl", "trainer.threads", "trainer.accelerator")
    ]
    work["logistics"] += [
        [path, get(cell.config, path)]
        for path, plain in PLAIN.items()
        if get(cell.config, path) != plain
    ]
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:8]


def _summarise_losses(loss: Mapping[str, Any]) -> list[Any]:
    return [loss["name"], loss["reconstruction"]["weight"] > 0]


def steps(cell: Cell, train_examples: int) -> int:
    """Training steps of the whole run; held-out examples are not trained on."""
    trained = train_examples - cell.config["dataset"]["validation"]
    batches = math.ceil(trained / cell.config["batch_size"])
    limit = cell.config["limit_batches"]
    return cell.config["epochs"] * (batches if limit is None else min(batches, limit))
