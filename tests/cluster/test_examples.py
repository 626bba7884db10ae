"""The example of AWS in docs/ is taken as it is by `ray up`, and closed to strangers."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config


@pytest.fixture
def examples() -> Path:
    return Path(__file__).parents[2] / "docs" / "examples"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_ray_accepts_the_cluster_of_aws(examples: Path) -> None:
    validate_config(prepare_config(load(examples / "aws.yaml")))


def test_strangers_reach_no_port_of_its_head(examples: Path) -> None:
    config = load(examples / "aws.yaml")
    start = config["head_start_ray_commands"][-1]
    assert "--dashboard-host=127.0.0.1" in start
    assert "RAY_AUTH_MODE=token" in start
    assert all("RAY_AUTH_MODE=token" in c for c in config["worker_start_ray_commands"][1:])
