"""`capsweep report --evals`: figures that a row lacks are drawn first, of trained cells."""

import json
from pathlib import Path

import pytest

from capsweep import cli

SWEEP = """\
question: Does a decoder help?
base: [epochs=1, limit_batches=2, batch_size=16, trainer.accelerator=cpu, logger=csv]
seeds: [0, 1]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small, "model.hidden=8"]}
  capsnet:
    fixed: [model.conv.channels=8, model.primary.types=2, loss.reconstruction.weight=0.0005]
table: {rows: [arm], columns: [dataset], metric: test/error}
"""


def report(file: Path, storage: Path, *arguments: str) -> int:
    """`capsweep report FILE ARGUMENTS`."""
    return cli.main(["report", str(file), "--storage", str(storage), *arguments])


@pytest.mark.slow
def test_a_row_gets_the_figure_of_its_first_seed_once_and_the_page_shows_it(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "decoders.yaml"
    file.write_text(SWEEP)
    assert cli.main(["sweep", str(file), "--storage", str(storage), "--executor", "local"]) == 0
    capsys.readouterr()
    assert report(file, storage, "--evals", "reconstructions", "--json") == 0
    printed = capsys.readouterr()
    fields = json.loads(printed.out)["fields"]
    cells = {field["arm"]: field["cells"] for field in fields}
    (drawn,) = storage.glob("ledger/*/*/evals/reconstructions*.png")
    assert drawn.parents[1].name == cells["capsnet"]["0"]
    assert f"reconstructions: {cells['cnn']['0']}: its network has no decoder" in printed.err
    assert "Reconstructions" in (storage / "reports/decoders/index.html").read_text().title()
    before = drawn.stat().st_mtime_ns
    assert report(file, storage, "--evals", "reconstructions, perturbations") == 0
    assert drawn.stat().st_mtime_ns == before
    assert list(storage.glob("ledger/*/*/evals/perturbations*.png"))
