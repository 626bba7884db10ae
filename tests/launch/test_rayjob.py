"""The RayJob: every field is known and every other refused, and it names secrets alone."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from configured_clusters import cluster
from fake_programs import HOSTILE

from capsweep.errors import ConfigError
from capsweep.launch import launch_files, rayjob

IMAGE = "registry.example/me/capsweep:1"
KEYS: dict[str, Any] = {
    "namespace": "other",
    "image": "registry.example/other:2",
    "ray_version": "2.60.1",
    "token_secret": "token",
    "secret": "other",
    "secret_keys": ["OTHER_KEY"],
    "service_account": "robot",
    "claim": "shared",
    "user": 2000,
    "head__cpus": 3,
    "head__memory": "9Gi",
    "workers__cpus": 5,
    "workers__gpus": 2,
    "workers__memory": "17Gi",
    "workers__max": 7,
    "workers__label": "karpenter.sh/capacity-type",
    "idle_minutes": 9,
    "keep_minutes": 9,
    "hours": 9,
    "retries": 9,
}
NEED_ANOTHER = {
    "mount": ("/else", {"claim": "c"}),
    "workers__label_value": ("x", {"workers__label": "l"}),
}
NOT_RENDERED = {*cluster("local"), "launcher", "base_image"}


def rendered(*words: str, **keys: Any) -> dict[str, Any]:
    section = cluster("kuberay", **{"image": IMAGE, **keys})
    files = launch_files.kuberay(section, "ablation", words or ["sweep", "ablation"], "job-1")
    (text,) = files.values()
    return yaml.safe_load(text)


def sections(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all mappings whose keys are fields."""
    if isinstance(value, dict):
        if path[-1:] not in [("labels",), ("nodeSelector",)]:
            yield path
        for key, inner in value.items():
            yield from sections(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from sections(inner, (*path, index))


ALL_SECTIONS = list(sections(rendered(**KEYS)))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


@pytest.mark.parametrize("path", ALL_SECTIONS, ids=lambda path: ".".join(map(str, path)) or "top")
def test_a_field_that_is_not_ours_is_refused_wherever_it_stands(path: tuple[Any, ...]) -> None:
    config = copy.deepcopy(rendered(**KEYS))
    at(config, path)["maxReplica"] = 1
    with pytest.raises(ConfigError, match="maxReplica"):
        rayjob.check(yaml.safe_dump(config))


@pytest.mark.parametrize("path", [path for path in ALL_SECTIONS if path], ids=str)
def test_a_misspelt_section_is_refused(path: tuple[Any, ...]) -> None:
    config = copy.deepcopy(rendered(**KEYS))
    outer, key = at(config, path[:-1]), path[-1]
    if isinstance(outer, list):
        outer[key] = "not a section"
    else:
        outer[f"{key}s"] = outer.pop(key)
    with pytest.raises(ConfigError, match="cluster=kuberay"):
        rayjob.check(yaml.safe_dump(config))


def test_it_is_a_job_with_a_cluster_that_scales_from_none_and_ends_with_it() -> None:
    job = rendered()
    spec, ray = job["spec"], job["spec"]["rayClusterSpec"]
    assert (job["apiVersion"], job["kind"], spec["jobId"]) == ("ray.io/v1", "RayJob", "job-1")
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["backoffLimit"] == 3
    assert ray["enableInTreeAutoscaling"] is True
    assert ray["autoscalerOptions"]["version"] == "v2"
    assert ray["authOptions"] == {"mode": "token"}
    (workers,) = ray["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (0, 0, 4)
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    (head,) = ray["headGroupSpec"]["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in head["resources"]["limits"]


def test_no_container_runs_as_root_and_every_value_of_a_secret_is_a_reference() -> None:
    spec = rendered()["spec"]
    pods = [
        spec["submitterPodTemplate"],
        spec["rayClusterSpec"]["headGroupSpec"]["template"],
        spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"],
    ]
    for pod in pods:
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            values = [each for each in container.get("env", ()) if "value" in each]
            assert [each["name"] for each in values] in (
                [],
                ["RAY_USAGE_STATS_ENABLED", "RAY_JOB_STOP_WAIT_TIME_S"],
            )
    with pytest.raises(ConfigError, match="less than the minimum of 1"):
        rendered(user=0)


@pytest.mark.parametrize("key", KEYS)
def test_every_option_changes_what_is_rendered(key: str) -> None:
    assert rendered(**{key: KEYS[key]}) != rendered()


@pytest.mark.parametrize("key", NEED_ANOTHER)
def test_an_option_that_needs_another_changes_what_is_rendered_with_it(key: str) -> None:
    value, others = NEED_ANOTHER[key]
    assert rendered(**others, **{key: value}) != rendered(**others)


def test_no_key_of_the_file_is_without_effect() -> None:
    section = cluster("kuberay")
    inner = {f"{key}__{name}" for key in ("head", "workers") for name in section[key]}
    outer = set(section) - {"head", "workers"} - NOT_RENDERED
    assert outer | inner == {*KEYS, *NEED_ANOTHER}


@pytest.mark.parametrize("key", [key for key in KEYS if isinstance(KEYS[key], str)])
@pytest.mark.parametrize("value", ["a\nb: c", "$(touch broken)", 'a"b', "a'b", "{{ name }}"])
def test_a_hostile_value_is_refused_by_what_kubernetes_takes_there(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster=kuberay: (spec|metadata)"):
        rendered(**{key: value})


@pytest.mark.parametrize("word", HOSTILE)
def test_a_hostile_word_of_the_command_reaches_no_shell(word: str) -> None:
    entrypoint = rendered("sweep", "ablation", word)["spec"]["entrypoint"]
    assert set("$`;&|<>\"'\\\n*{}()!#").isdisjoint(entrypoint)


def test_without_an_image_it_is_said_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.image: .*cluster show kuberay"):
        rendered(image=None)


def test_the_dockerfile_begins_with_the_base_image_and_installs_the_pins() -> None:
    files = launch_files.image(cluster("kuberay", base_image="rayproject/ray:x"))
    assert "\nFROM rayproject/ray:x\n" in files["Dockerfile"]
    assert "torch==" in files["requirements.txt"]
    with pytest.raises(ConfigError, match=r"cluster\.base_image"):
        launch_files.image(cluster("kuberay", base_image="x\nRUN evil"))
