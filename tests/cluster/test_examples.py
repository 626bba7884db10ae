"""The example of AWS in docs/ is taken as it is by `ray up`, and closed to strangers.

That of KubeRay runs in the image of the Dockerfile.
"""

from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_ray_accepts_the_cluster_of_aws_and_strangers_reach_no_port_of_its_head() -> None:
    text = (REPOSITORY / "docs" / "examples" / "aws.yaml").read_text()
    validate_config(prepare_config(yaml.safe_load(text)))
    config = yaml.safe_load(text)
    start = config["head_start_ray_commands"][-1]
    assert "--dashboard-host=127.0.0.1" in start
    assert "RAY_AUTH_MODE=token" in start
    assert all("RAY_AUTH_MODE=token" in c for c in config["worker_start_ray_commands"][1:])


def test_the_example_of_kuberay_runs_as_the_user_of_the_image() -> None:
    job = yaml.safe_load((REPOSITORY / "docs" / "examples" / "kuberay.yaml").read_text())
    user = job["spec"]["submitterPodTemplate"]["spec"]["securityContext"]["runAsUser"]
    image = (REPOSITORY / "Dockerfile").read_text()
    assert f"--uid {user} " in image
    assert image.endswith(f"\nUSER {user}\n")
