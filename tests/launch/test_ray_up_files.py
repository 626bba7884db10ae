"""What `ray up` is given: valid to Ray's own checks, closed to strangers, without a secret."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from configured_clusters import cluster
from fake_programs import HOSTILE
from ray.autoscaler._private.util import prepare_config, validate_config

from capsweep.errors import ConfigError
from capsweep.launch import launch_files, requirements

FOLDER = Path("/somewhere/clusters/aws")
LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"
KEYS: dict[str, Any] = {
    "cluster_name": "other",
    "region": "eu-west-1",
    "zone": "eu-west-1a",
    "machine_image": "ami-1",
    "image": "rayproject/ray:other",
    "token": "/else/where",
    "instance_profile": "arn:aws:iam::1:instance-profile/x",
    "security_group": "sg-1",
    "ssh_user": "someone",
    "head__instance": "m8i.large",
    "head__disk": 77,
    "workers__instance": "p5.48xlarge",
    "workers__cpus": 192,
    "workers__gpus": 8,
    "workers__max": 9,
    "workers__spot": False,
    "workers__disk": 78,
    "idle_minutes": 3,
}
NOT_RENDERED = {*cluster("local"), "launcher"}


def rendered(**keys: Any) -> Any:
    text = launch_files.ray_up(cluster("aws", **keys), FOLDER)["cluster.yaml"]
    return yaml.safe_load(text)


def accepted(config: Any) -> Any:
    prepared = prepare_config(config)
    validate_config(prepared)
    return prepared


def test_ray_accepts_the_defaults_and_every_option() -> None:
    accepted(rendered())
    accepted(rendered(**KEYS, ssh_key="~/key.pem", key_pair="mine"))


@pytest.mark.parametrize("where", [(), ("available_node_types", "gpu_worker"), ("auth",)])
def test_a_misspelt_key_is_noticed(where: tuple[str, ...]) -> None:
    config = section = rendered()
    for name in where:
        section = section[name]
    section["max_wokers"] = 1
    with pytest.raises(Exception, match="max_wokers"):
        accepted(config)


def test_workers_are_gpu_machines_that_begin_at_none() -> None:
    config = accepted(rendered())
    worker = config["available_node_types"]["gpu_worker"]
    assert (worker["min_workers"], worker["max_workers"]) == (0, 4)
    assert worker["resources"] == {"CPU": 8, "GPU": 1}
    assert worker["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"
    head = config["available_node_types"]["head"]
    assert head["resources"] == {"CPU": 0, "GPU": 0}, "a driver's machine trains nothing"
    assert "InstanceMarketOptions" not in head["node_config"], "the driver is never preempted"


@pytest.mark.parametrize("key", KEYS)
def test_every_option_changes_what_is_rendered(key: str) -> None:
    assert rendered(**{key: KEYS[key]}) != rendered()


def test_no_key_of_the_file_is_without_effect() -> None:
    section = cluster("aws")
    inner = {f"{key}__{name}" for key in ("head", "workers") for name in section[key]}
    outer = set(section) - {"head", "workers"} - NOT_RENDERED
    assert outer | inner == {*KEYS, "ssh_key", "key_pair"}


def test_a_key_of_ssh_needs_its_pair() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.ssh_key and cluster\.key_pair"):
        rendered(ssh_key="~/key.pem")


def test_every_node_asks_for_the_token_and_the_dashboard_is_the_heads_own() -> None:
    config = rendered()
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    for line in (line for line in starts if "ray start" in line):
        assert "RAY_AUTH_MODE=token" in line
    head = next(line for line in starts if "--head" in line)
    assert "--dashboard-host=127.0.0.1" in head
    assert "0.0.0.0" not in str(config)
    assert "security_group" not in config["provider"], "Ray's own opens SSH alone"


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_stays_one_value(value: str) -> None:
    keys = {key: value for key, given in KEYS.items() if isinstance(given, str)}
    plain, hostile = rendered(**KEYS), rendered(**KEYS | keys)
    assert shape(hostile) == shape(plain)
    assert hostile["cluster_name"] == hostile["provider"]["region"] == value
    for commands in ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands"):
        assert hostile[commands] == plain[commands], "no value stands in a command of a shell"


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)


def test_nodes_install_the_locked_versions_of_what_runs_and_nothing_else() -> None:
    pins = [line for line in requirements.pinned().splitlines() if not line.startswith("#")]
    locked = {line.lower().replace("_", "-") for line in LOCK.read_text().splitlines()}
    assert set(pins) <= locked
    names = {pin.partition("==")[0] for pin in pins}
    assert {"torch", "pytorch-lightning", "ray", "hydra-core", "h5py", "wandb"} <= names
    assert names.isdisjoint({"capsweep", "pytest", "ruff", "selenium"})
    assert all(re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.]+", pin) for pin in pins), "and no index"


def test_the_containers_ray_is_the_ray_that_is_installed() -> None:
    pins = requirements.pinned()
    for name, key in (("aws", "image"), ("kuberay", "base_image")):
        version = cluster(name)[key].rpartition(":")[2].partition("-")[0]
        assert f"ray=={version}\n" in pins
    assert f"ray=={cluster('kuberay')['ray_version']}\n" in pins
