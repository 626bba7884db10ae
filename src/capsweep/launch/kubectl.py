"""Sweeps on Kubernetes: each is a RayJob, that KubeRay's operator gives a cluster of its own."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from capsweep.config import places
from capsweep.errors import ConfigError
from capsweep.launch import programs

Say = Callable[[str], None]

FAILED = 1
TIMEOUT = "--request-timeout=20s"
KIND = "rayjobs.ray.io"
OURS = "app.kubernetes.io/managed-by=capsweep"
ENDED = ("Complete", "Failed", "ValidationFailed")


def up(cluster: Mapping[str, Any], say: Say) -> int:
    """Nothing runs until a sweep does: look for what a sweep needs; returns the exit status."""
    kubectl, space = programs.find("kubectl"), cluster["namespace"]
    needed = [
        (["crd", KIND], "install the operator of KubeRay (helm install kuberay-operator)"),
        (["namespace", space], f"kubectl create namespace {space}"),
        (["serviceaccount", cluster["service_account"]], "name it in cluster.service_account"),
    ]
    if cluster["token_secret"] is not None:
        secret = ["secret", cluster["token_secret"]]
        needed.append((secret, "make it with the key auth_token, or set cluster.token_secret=null"))
    if cluster["claim"] is not None:
        needed.append((["persistentvolumeclaim", cluster["claim"]], "make it, for many readers"))
    missing = [
        f"{' '.join(what)}: {said}; {cure}"
        for what, cure in needed
        if (said := _missing(kubectl, space, what)) is not None
    ]
    for line in missing:
        say(line)
    if missing:
        return FAILED
    secret = ["secret", cluster["secret"]]
    if _missing(kubectl, space, secret) is not None:
        keys = " ".join(f"--from-file={key}=FILE" for key in cluster["secret_keys"])
        make = f"kubectl --namespace {space} create secret generic {cluster['secret']} {keys}"
        say(f"{' '.join(secret)} is missing: sweeps run without it. To make it: {make}")
    say(f"namespace {space} has what a sweep needs; nothing runs there until a sweep does:")
    say(f"  capsweep sweep ablation --cluster {cluster['name']} --storage s3://BUCKET/FOLDER")
    return 0


def down(cluster: Mapping[str, Any], say: Say) -> int:
    """End all sweeps of the namespace, with their clusters; returns the exit status."""
    kubectl, space = programs.find("kubectl"), cluster["namespace"]
    status, said = programs.follow([kubectl, *deletion(cluster)])
    if status:
        why = said or f"kubectl ended with {status}"
        say(f"{why}; pods may be running in namespace {space}")
        return FAILED
    say(f"no sweep of capsweep is left in namespace {space}; what has finished is in its ledger")
    return 0


def deletion(cluster: Mapping[str, Any]) -> list[str]:
    """The words of kubectl by which all our RayJobs end."""
    return ["--namespace", cluster["namespace"], "delete", KIND, "--selector", OURS]


def commands(cluster: Mapping[str, Any]) -> list[str]:
    """What a sweep runs, for a dry run."""
    return [f"kubectl --namespace {cluster['namespace']} apply --filename -"]


def submit(cluster: Mapping[str, Any], sweep: str, job: str, text: str, say: Say) -> int:
    """Start the RayJob, unless the same one runs; returns the exit status."""
    kubectl, space = programs.find("kubectl"), cluster["namespace"]
    base = [kubectl, "--namespace", space]
    state = _state(base, job)
    if state is not None and state not in ENDED:
        say(f"{job} runs already ({state or 'starting'})")
        _tell(cluster, sweep, job, say)
        return 0
    if state in ENDED and programs.run([*base, "delete", KIND, job]):
        return FAILED
    if programs.run([*base, "apply", "--filename", "-"], given=text):
        say(f"kubectl refused {job}: nothing was started")
        return FAILED
    _tell(cluster, sweep, job, say)
    return 0


def check_places(cluster: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise ConfigError where finished cells, or what a sweep remembers, would be left in a pod's
    own file system.
    """
    mount = cluster["mount"].rstrip("/")
    for name in ("ledger", "storage"):
        place = config["places"][name]
        is_mounted = cluster["claim"] is not None and place.startswith(f"{mount}/")
        if not places.is_url(place) and not is_mounted:
            raise ConfigError(
                f"places.{name}={place}: pods do not see it; set STORAGE=s3://BUCKET/FOLDER, or "
                f"cluster.claim=NAME with STORAGE={mount}/FOLDER"
            )


def _missing(kubectl: str, space: str, what: list[str]) -> str | None:
    """Why an object cannot be seen; None when it is there."""
    words = [kubectl, "--namespace", space, TIMEOUT, "get", *what, "--output", "name"]
    status, _, said = programs.ask(words)
    return None if status == 0 else said or f"kubectl ended with {status}"


def _state(base: list[str], job: str) -> str | None:
    """Of a RayJob, "" while it has none; None when there is no such RayJob."""
    words = [*base, TIMEOUT, "get", KIND, job, "--ignore-not-found", "--output", "json"]
    status, printed, said = programs.ask(words)
    if status:
        raise ConfigError(f"cluster: Kubernetes does not answer ({said}); see `kubectl config`")
    if not printed.strip():
        return None
    return json.loads(printed).get("status", {}).get("jobDeploymentStatus", "")


def _tell(cluster: Mapping[str, Any], sweep: str, job: str, say: Say) -> None:
    space, secret = cluster["namespace"], cluster["token_secret"] or "$cluster"
    get = f"kubectl --namespace {space} get {KIND} {job} --output"
    say(f"{job} is with Kubernetes. To watch it, once its head runs:")
    say(f"  cluster=$({get} jsonpath={{.status.rayClusterName}})")
    say(f"  kubectl --namespace {space} port-forward service/$cluster-head-svc 8265:8265 &")
    token = f"kubectl --namespace {space} get secret {secret} --output"
    say(f"  export RAY_AUTH_TOKEN=$({token} jsonpath={{.data.auth_token}} | base64 --decode)")
    say(f"  capsweep attach {sweep} --cluster {cluster['name']}")
    say(f"To end it: kubectl --namespace {space} delete {KIND} {job}")
