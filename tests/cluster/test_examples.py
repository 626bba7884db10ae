"""The example of AWS in docs/ is taken as it is by `ray up`, and closed to strangers."""

from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_ray_accepts_the_cluster_of_aws_and_strangers_reach_no_port_of_its_head() -> None:
    text = (Path(__file__).parents[2] / "docs" / "examples" / "aws.yaml").read_text()
    validate_config(prepare_config(yaml.safe_load(text)))
    config = yaml.safe_load(text)
    start = config["head_start_ray_commands"][-1]
    assert "--dashboard-host=127.0.0.1" in start
    assert "RAY_AUTH_MODE=token" in start
    assert all("RAY_AUTH_MODE=token" in c for c in config["worker_start_ray_commands"][1:])
