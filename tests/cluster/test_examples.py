"""The example files of docs/ are taken as they are: by `ray up`, and by Kubernetes' KubeRay."""

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


def test_the_rayjob_has_what_kuberay_asks_for(examples: Path) -> None:
    job = load(examples / "kuberay.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    cluster = spec["rayClusterSpec"]
    templates = [
        spec["submitterPodTemplate"],
        cluster["headGroupSpec"]["template"],
        *(group["template"] for group in cluster["workerGroupSpecs"]),
    ]
    for template in templates:
        (container,) = template["spec"]["containers"]
        assert container["image"] == job["metadata"]["annotations"]["capsweep/image"]
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert set(container["resources"]) == {"requests", "limits"}
    assert cluster["authOptions"] == {"mode": "token"}
    assert spec["entrypoint"] == job["metadata"]["annotations"]["capsweep/command"]


@pytest.mark.parametrize("name", ["aws.yaml", "kuberay.yaml"])
def test_three_lines_are_to_be_edited_at_its_top(examples: Path, name: str) -> None:
    lines = (examples / name).read_text().splitlines()
    edited = [number for number, line in enumerate(lines) if "# EDIT" in line]
    assert len(edited) == 3
    assert edited[-1] < 16
