"""The wheel is complete: it runs where there is no checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_an_installed_wheel_finds_its_configuration_and_sweeps(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(REPOSITORY)], check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(installed), str(wheel)], check=True, capture_output=True)
    ran = subprocess.run(
        [sys.executable, "-c", "from capsweep.cli import main; main(['plan', 'ablation'])"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert "15 cells: 0 done, 15 missing" in ran.stdout, ran.stderr
    assert (installed / "capsweep/conf/train.yaml").exists()
    templates = installed / "capsweep" / "report" / "templates"
    names = {file.name for file in (REPOSITORY / "src/capsweep/report/templates").iterdir()}
    assert {file.name for file in templates.iterdir()} >= names > set()
