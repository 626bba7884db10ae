"""`trainer.compile`: the same cell by torch.compile."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from trained_cells import assert_equal, read_outputs, train

from capsweep.config import compose
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
        train(cell)

    def cut(row: dict) -> None:
        if row["epoch"] == 1:  # the checkpoint is of the epoch before
            raise CutError

    with pytest.raises(CutError):
        train(broken, RunHooks(on_epoch=cut))
    torch._dynamo.reset()
    train(broken)

    (weights, scores), (compiled_weights, compiled_scores) = map(read_outputs, (eager, whole))
    assert weights.keys() == compiled_weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(compiled_weights[name], weight, atol=1e-4, rtol=1e-3)
    np.testing.assert_allclose(compiled_scores["scores"], scores["scores"], atol=1e-3)

    assert_equal(broken, whole)
