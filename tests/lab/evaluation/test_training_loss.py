"""Which cells of a ledger are compared, and their losses."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from capsweep.config import compose
from capsweep.config.cell import hash_science
from capsweep.errors import DamageError, NotApplicableError, UserError
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.lab.evaluation.figures.training_loss import draw_training_loss, find_peers, read_loss
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.storage.files import write_json, write_text


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def keep(
    ledger: Ledger,
    *overrides: str,
    losses: Sequence[float] | None = (0.5, 0.25),
    science: Mapping[str, Any] | None = None,
) -> str:
    """A finished cell with a loss for each epoch of ten steps; losses None: not finished."""
    science = science or compose.cell(overrides).science
    name = hash_science(science)
    folder = Path(ledger.disk) / folder_of(name)
    write_text(folder / "config.yaml", yaml.safe_dump(science, sort_keys=True))
    rows = [
        {"epoch": epoch, "step": 10 * (epoch + 1), "train/loss": loss}
        for epoch, loss in enumerate(losses or ())
    ]
    write_text(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    if losses is not None:
        write_json(folder / "result.json", stored_files.with_digests({"metrics": {}}, {}))
    return name


def test_curves_are_means_over_seeds_of_cells_that_differ_in_iterations_and_seed(
    ledger: Ledger,
) -> None:
    first = keep(ledger, "routing.num_iters=1", "seed=0", losses=(0.5, 0.3, 0.2))
    keep(ledger, "routing.num_iters=1", "seed=7", losses=(0.7, 0.1))
    keep(ledger, "routing.num_iters=3", "seed=0", losses=(0.4, 0.2))
    keep(ledger, "routing.num_iters=3", "seed=1", losses=None)
    keep(ledger, "routing.num_iters=3", "seed=2", losses=(float("nan"),))
    for other in ("batch_size=17", "routing.bias=false", "routing=em", "model=cnn_small"):
        keep(ledger, other, "seed=0")
    loader = CellLoader(ledger, "", torch.device("cpu"))
    (drawing,) = draw_training_loss(loader, first, Namespace())
    arrays = drawing.arrays
    np.testing.assert_array_equal(arrays["T1.step"], [10, 20])  # those that all seeds have
    np.testing.assert_array_equal(arrays["T1.loss"], [[0.5, 0.3], [0.7, 0.1]])
    assert (arrays["T1.seeds"].tolist(), arrays["T1.cells"][0]) == ([0, 7], first)
    np.testing.assert_array_equal(arrays["T3.loss"], [[0.4, 0.2]])
    assert not any(name.startswith("T0") for name in arrays)
    (third,) = arrays["T3.cells"].tolist()
    assert set(find_peers(ledger, third)) == set(find_peers(ledger, first))


def test_a_network_that_does_not_route_has_its_own_curve(ledger: Ledger) -> None:
    cells = {seed: keep(ledger, "model=cnn_small", f"seed={seed}") for seed in (0, 1)}
    keep(ledger, "seed=0")
    losses = {10: 0.5, 20: 0.25}
    assert read_loss(ledger, cells[0]) == {0: {cell: losses for cell in cells.items()}}


def test_a_cell_without_losses_is_named(ledger: Ledger) -> None:
    unfinished = keep(ledger, "seed=0", losses=None)
    with pytest.raises(UserError, match=f"{unfinished}: it is not finished"):
        read_loss(ledger, unfinished)
    with pytest.raises(NotApplicableError, match="no train/loss"):
        read_loss(ledger, keep(ledger, "seed=1", losses=()))
    cell = keep(ledger, "seed=2", losses=(0.5, float("inf")))
    with pytest.raises(DamageError, match=r"metrics\.jsonl, line 2, is damaged"):
        read_loss(ledger, cell)
    whole = keep(ledger, "routing.num_iters=1", "seed=2")
    assert list(read_loss(ledger, whole)) == [1]


def test_a_cell_of_before_an_option_was_there_is_compared_too(ledger: Ledger) -> None:
    new = keep(ledger, "routing.num_iters=1")
    science = compose.cell(["routing.num_iters=3"]).science
    routing = {key: value for key, value in science["routing"].items() if key != "gradient"}
    assert routing != science["routing"]
    old = keep(ledger, "routing.num_iters=3", science={**science, "routing": routing})
    assert set(find_peers(ledger, new)) == {new, old}
    assert set(find_peers(ledger, old)) == {new, old}


def test_damaged_settings_of_others_are_no_obstacle(ledger: Ledger) -> None:
    cell = keep(ledger, "seed=0")
    for number, content in enumerate(["{", "a list: [", "[1, 2]", "", "routing: 3\nseed: 1\n"]):
        folder = Path(ledger.disk) / folder_of(f"ab{number:014d}")
        write_text(folder / "config.yaml", content)
    assert set(find_peers(ledger, cell)) == {cell}
