"""`capsweep cluster up | down | show`, and sweeps given to launchers: programs are stood in for."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from configured_clusters import IMAGE, SHARED
from fake_programs import Programs

from capsweep import cli
from capsweep.launch import programs as found_programs

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def token(folder: Path) -> str:
    """An override that names a token of the test's own."""
    return f"cluster.token={folder / 'token'}"


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A machine that does not have a program, neither on PATH nor in the environment."""
    kept = [
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not (Path(folder) / name).exists()
    ]
    monkeypatch.setenv("PATH", os.pathsep.join(kept))
    monkeypatch.setattr(found_programs, "BESIDE", Path("/nowhere"))


def test_up_starts_the_head_and_says_what_to_type_next(
    programs: Programs, folder: Path, token: str, capfd: pytest.CaptureFixture[str]
) -> None:
    programs.add("ray", 'echo "mode $RAY_AUTH_MODE"')
    assert cli.main(["cluster", "up", "aws", token]) == 0
    file = folder / "outputs" / "clusters" / "aws" / "cluster.yaml"
    assert programs.calls("ray") == [["up", "-y", str(file)]]
    mounts = yaml.safe_load(file.read_text())["file_mounts"]
    assert {Path(place) for place in mounts.values()} == {
        folder / "token",
        file.parent / "requirements.txt",
    }
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    printed = capfd.readouterr().out
    assert "mode token" in printed
    assert f"ray dashboard {file}" in printed
    assert f"export RAY_AUTH_TOKEN_PATH={folder / 'token'}" in printed
    assert "--cluster aws" in printed
    assert "capsweep cluster down aws" in printed
    assert "cluster.instance_profile is null: its GPU machines" in printed
    assert (folder / "token").read_text() not in printed + file.read_text()


def test_a_cluster_that_is_half_up_is_not_left_without_a_word(
    programs: Programs, folder: Path, token: str, capfd: pytest.CaptureFixture[str]
) -> None:
    programs.add("ray", "exit 4")
    assert cli.main(["cluster", "up", "aws", token]) == 1
    printed = capfd.readouterr().out
    assert re.search("ray up ended with 4: machines may be running.*cluster down aws", printed)
    programs.add("ray", "exit 5")
    assert cli.main(["cluster", "down", "aws"]) == 1
    assert "ray down ended with 5: machines may be running" in capfd.readouterr().out
    programs.add("ray")
    assert cli.main(["cluster", "down", "aws"]) == 0, "its files are there until it is down"
    file = str(folder / "outputs" / "clusters" / "aws" / "cluster.yaml")
    assert programs.calls("ray")[1:] == [["down", "-y", file]] * 2
    assert not Path(file).parent.exists()


def test_down_ends_what_was_started_whatever_is_configured_now(
    programs: Programs, folder: Path, token: str
) -> None:
    programs.add("ray", 'if [[ $1 == down ]]; then cp "${@: -1}" ended.yaml; fi')
    assert cli.main(["cluster", "up", "aws", token, "cluster.region=eu-west-1"]) == 0
    assert cli.main(["cluster", "down", "aws"]) == 0
    ended = yaml.safe_load((folder / "ended.yaml").read_text())
    assert ended["provider"]["region"] == "eu-west-1"


def test_another_cluster_does_not_take_the_place_of_one_that_is_up(
    programs: Programs, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add("ray")
    assert cli.main(["cluster", "up", "aws", token]) == 0
    assert cli.main(["cluster", "up", "aws", token, "cluster.region=eu-west-1"]) == 2
    assert "capsweep in us-west-2 was started from here; end it first" in capsys.readouterr().err
    assert len(programs.calls("ray")) == 1
    assert cli.main(["cluster", "up", "aws", token, "cluster.workers.max=9"]) == 0, "an update"


def test_a_token_that_others_can_read_is_closed_to_them(
    programs: Programs, folder: Path, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add("ray")
    (folder / "token").write_text("made by somebody else")
    (folder / "token").chmod(0o644)
    assert cli.main(["cluster", "up", "aws", token]) == 0
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    assert "others could read the token" in capsys.readouterr().out
    (folder / "token").write_text(" \n")
    assert cli.main(["cluster", "up", "aws", token]) == 2
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("ray", ["cluster", "up", "aws"]),
        ("ray", ["cluster", "down", "aws"]),
        ("kubectl", ["cluster", "up", "kuberay"]),
        ("kubectl", ["sweep", "ablation", "--cluster=kuberay", *SHARED]),
        ("sbatch", ["cluster", "up", "slurm"]),
        ("sbatch", ["sweep", "ablation", "--cluster=slurm"]),
    ],
)
def test_a_missing_program_is_one_line_with_its_cure(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    program: str,
    command: list[str],
) -> None:
    without(monkeypatch, program)
    assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.match(f"error: {program}: no such program on this machine; (pip|install|type)", said)
    assert list(folder.iterdir()) == [], "nothing was begun"


def test_kubernetes_that_lacks_something_is_said_with_the_cure(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add(
        "kubectl", '[[ "$*" != *crd* && "$*" != *secret* ]] || { echo "not found" >&2; exit 1; }'
    )
    assert cli.main(["cluster", "up", "kuberay"]) == 1
    assert "crd rayjobs.ray.io: not found; install the operator" in capsys.readouterr().out
    programs.add("kubectl", '[[ "$*" != *secret* ]] || { echo "not found" >&2; exit 1; }')
    assert cli.main(["cluster", "up", "kuberay"]) == 0
    printed = capsys.readouterr().out
    assert "create secret generic capsweep --from-file=WANDB_API_KEY=FILE" in printed
    assert "nothing runs there until a sweep does" in printed


def test_a_sweep_on_kubernetes_applies_its_rayjob_once(
    programs: Programs, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = folder / "state.json"
    state.write_text("")
    programs.add("kubectl", f'case "$*" in *apply*) cat > applied.yaml;; *get*) cat {state};; esac')
    command = ["sweep", "ablation", "--cluster=kuberay", "--seeds=1", *SHARED]
    assert cli.main(command) == 0
    applied = yaml.safe_load((folder / "applied.yaml").read_text())
    entrypoint = applied["spec"]["entrypoint"]
    assert entrypoint.startswith("capsweep sweep ablation --here ")
    assert "--seeds=1" in entrypoint
    assert "places.ledger=/mnt/capsweep/me/ledger" in entrypoint
    assert re.fullmatch(r"capsweep-ablation-[0-9a-f]{8}-1", applied["spec"]["jobId"])
    assert "port-forward" in capfd.readouterr().out
    state.write_text(json.dumps({"status": {"jobDeploymentStatus": "Running"}}))
    (folder / "applied.yaml").unlink()
    assert cli.main(command) == 0
    assert not (folder / "applied.yaml").exists()
    assert "runs already (Running)" in capfd.readouterr().out
    for ended in ("Failed", "ValidationFailed"):
        state.write_text(json.dumps({"status": {"jobDeploymentStatus": ended}}))
        (folder / "applied.yaml").unlink(missing_ok=True)
        assert cli.main(command) == 0
        name = applied["metadata"]["name"]
        assert programs.calls("kubectl")[-2][2:] == ["delete", "rayjobs.ray.io", name]
        assert (folder / "applied.yaml").exists(), "what is missing runs"


def test_places_that_pods_do_not_see_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "ablation", "--cluster=kuberay", IMAGE]) == 2
    assert re.search(
        r"places\.ledger=.*: pods do not see it; set STORAGE=s3", capsys.readouterr().err
    )


def test_down_ends_the_rayjobs_of_capsweep_alone(programs: Programs) -> None:
    programs.add("kubectl")
    assert cli.main(["cluster", "down", "kuberay", "cluster.namespace=lab"]) == 0
    ((*_, selector),) = programs.calls("kubectl")
    assert selector == "app.kubernetes.io/managed-by=capsweep"
    assert programs.calls("kubectl")[0][:2] == ["--namespace", "lab"]


def test_down_without_a_server_is_one_line_with_what_kubectl_says(
    programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = "echo 'E1122 memcache.go:265' >&2; echo 'The connection was refused' >&2; exit 1"
    programs.add("kubectl", refused)
    assert cli.main(["cluster", "down", "kuberay"]) == 1
    printed = capfd.readouterr()
    assert printed.err == ""
    assert re.fullmatch(
        r"The connection was refused; pods may be running in namespace default\n", printed.out
    )


def test_a_sweep_on_slurm_is_a_script_that_is_submitted(
    programs: Programs, folder: Path, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add("sbatch", 'echo "4711;cluster"')
    command = ["sweep", "ablation", "--cluster=slurm", token, "cluster.partition=big", "--epochs=2"]
    assert cli.main(command) == 0
    ((option, script),) = programs.calls("sbatch")
    text = Path(script).read_text()
    assert option == "--parsable"
    assert "#SBATCH --partition=big\n" in text
    assert f"cd {folder} " in text
    assert "sweep ablation --here" in text
    assert f"places.ledger={folder}/outputs/ledger" in text
    printed = capsys.readouterr().out
    assert "job 4711" in printed
    assert script.removesuffix(".sh") + "-4711.log" in printed
    programs.add("sbatch", "echo 'invalid partition' >&2; exit 1")
    assert cli.main(command) == 2
    assert "sbatch refused" in capsys.readouterr().err


def test_a_sweep_that_nothing_launches_has_no_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "ablation", "--dry-run"]) == 2
    assert "`capsweep plan` prints the cells" in capsys.readouterr().err


def test_a_cluster_without_a_launcher_cannot_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster", "up", "local"]) == 2
    assert "cluster=local: nothing to launch" in capsys.readouterr().err
    assert cli.main(["cluster", "up", "aws", "cluster.regoin=x"]) == 2
    assert "did you mean cluster.region" in capsys.readouterr().err


def test_the_programs_of_a_cluster_are_looked_for_beside_this_python_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert shutil.which("ray") is None
    assert found_programs.find("ray") == str(found_programs.BESIDE / "ray")
