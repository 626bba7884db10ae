"""`trainer.compile`: the same cell by torch.compile."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from capsweep.config import compose, places
from capsweep.config.cell import Cell, hash_shape
from capsweep.ledger.ledger import folder_of
from capsweep.training.run import run
from capsweep.training.run_hooks import RunHooks

COMPILER = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason=f"no C++ compiler ({COMPILER})"
)
SMALL = (
    "model.conv.channels=4",
    "model.primary.types=2",
    "model.decoder.hidden=[8]",
    "routing.num_iters=3",
    "batch_size=16",
    "limit_batches=2",
    "logger=csv",
    "trainer.accelerator=cpu",
    "trainer.checkpoint_interval=0",
)


class CutError(Exception):
    """What ends a run early."""


def outputs(cell: Cell) -> tuple[dict[str, Tensor], np.ndarray]:
    """Weights and test scores of a finished cell."""
    path = Path(places.resolve(cell.config["places"]).ledger) / folder_of(cell.signature)
    weights = torch.load(path / "weights.ckpt", weights_only=True)
    with np.load(path / "predictions.npz", allow_pickle=False) as stored:
        return weights, stored["scores"]


@pytest.mark.slow
# torch's compiler uses what torch has deprecated: nothing that this code could change.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
# Dynamo looks at whether what enters an uncompiled part has a gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@needs_compiler
def test_a_compiled_cell_has_the_eager_cells_numbers_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    eager, whole, broken = (
        compose.cell([*SMALL, "epochs=3", f"places.storage={tmp_path / name}", *more])
        for name, more in (
            ("eager", ()),
            ("whole", ("trainer.compile=default",)),
            ("broken", ("trainer.compile=default",)),
        )
    )
    for cell in (eager, whole):
        run(cell, places.resolve(cell.config["places"]))

    def cut(row: dict) -> None:
        if row["epoch"] == 1:  # the checkpoint is of the epoch before
            raise CutError

    here = places.resolve(broken.config["places"])
    with pytest.raises(CutError):
        run(broken, here, RunHooks(on_epoch=cut))
    torch._dynamo.reset()
    run(broken, here)

    (weights, scores), (compiled_weights, compiled_scores) = outputs(eager), outputs(whole)
    assert weights.keys() == compiled_weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(compiled_weights[name], weight, atol=1e-4, rtol=1e-3)
    np.testing.assert_allclose(compiled_scores, scores, atol=1e-3)

    resumed_weights, resumed_scores = outputs(broken)
    assert all(torch.equal(compiled_weights[n], resumed_weights[n]) for n in compiled_weights)
    assert np.array_equal(compiled_scores, resumed_scores)


def test_compiling_is_not_hashed_but_costs_differ(small_cell: Callable[..., Cell]) -> None:
    plain, fast = small_cell(), small_cell("trainer.compile=default")
    assert plain.signature == fast.signature
    assert hash_shape(plain) != hash_shape(fast)
