"""The wheel is complete: it runs where there is no checkout."""

import os
from pathlib import Path

import commands
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_an_installed_wheel_finds_its_configuration_and_sweeps(tmp_path: Path) -> None:
    build = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    commands.run([*build, str(REPOSITORY)]).check_returncode()
    wheel = next(tmp_path.glob("*.whl"))
    installed = tmp_path / "installed"
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    commands.run([*pip, str(installed), str(wheel)]).check_returncode()
    plan = ["-c", "from capsweep.cli import main; main(['plan', 'ablation'])"]
    ran = commands.run(plan, {**os.environ, "PYTHONPATH": str(installed)}, tmp_path)
    assert "15 cells: 0 done, 15 missing" in ran.stdout, ran.stderr
    assert (installed / "capsweep/conf/train.yaml").exists()
    templates = installed / "capsweep" / "report" / "templates"
    names = {file.name for file in (REPOSITORY / "src/capsweep/report/templates").iterdir()}
    assert {file.name for file in templates.iterdir()} >= names > set()
