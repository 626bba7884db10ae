"""Sweeps that are submitted to Slurm, and `capsweep cluster`."""

from pathlib import Path

import pytest
from fake_programs import Programs

from capsweep import cli

SECRETS = ("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "RAY_AUTH_TOKEN")


pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize("executor", [[], ["--executor=array"]], ids=["script", "array"])
def test_a_dry_run_starts_nothing_writes_nothing_and_tells_no_secret(
    programs: Programs,
    own_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    executor: list[str],
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"value-of-{name}-SECRET")
    programs.add("sbatch")
    assert cli.main(["sweep", "ablation", "--cluster=slurm", "--dry-run", *executor]) == 0
    assert "SECRET" not in capsys.readouterr().out.replace("AWS_SECRET_ACCESS_KEY", "")
    assert programs.calls("sbatch") == []
    assert list(own_folder.iterdir()) == [programs.folder]


def test_a_sweep_on_slurm_is_a_script_that_is_submitted(
    programs: Programs, own_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add("sbatch", 'echo "4711;cluster"')
    token = f"cluster.token={tmp_path / 'token'}"
    command = ["sweep", "ablation", "--cluster=slurm", token, "cluster.partition=big", "--epochs=2"]
    assert cli.main(command) == 0
    ((option, script),) = programs.calls("sbatch")
    text = Path(script).read_text()
    assert option == "--parsable"
    assert "#SBATCH --partition=big\n" in text
    assert f"cd {own_folder} " in text
    assert "sweep ablation --here" in text
    assert f"places.ledger={own_folder}/outputs/ledger" in text
    printed = capsys.readouterr().out
    assert "job 4711" in printed
    assert script.removesuffix(".sh") + "-4711.log" in printed
    programs.add("sbatch", "echo 'invalid partition' >&2; exit 1")
    assert cli.main(command) == 2
    assert "sbatch refused" in capsys.readouterr().err


def test_a_missing_sbatch_is_one_line_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_folder: Path
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert cli.main(["sweep", "ablation", "--cluster=slurm"]) == 2
    assert capsys.readouterr().err.startswith("error: sbatch: no such program here; type")
    assert list(own_folder.iterdir()) == [], "nothing was begun"


def test_clusters_that_we_do_not_start_are_referred_to_their_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["cluster", "up", "aws", "cluster.workers.max=8", "--dry-run"]) == 2
    printed = capsys.readouterr().err
    assert "ray up docs/examples/aws.yaml" in printed
    assert "kubectl apply -f" in printed
    assert cli.main(["sweep", "ablation", "--cluster=aws"]) == 2
    assert "cluster=aws: no such option; " in capsys.readouterr().err


def test_a_sweep_that_nothing_submits_has_no_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "ablation", "--dry-run"]) == 2
    assert "`capsweep plan` prints the cells" in capsys.readouterr().err


BOUNDS = (["--max-hours=8"], ["--max-gpu-hours=8"], ["--budget=2h"], ["--rerun=always"])


@pytest.mark.parametrize("bound", BOUNDS, ids=" ".join)
def test_what_would_begin_anew_with_all_its_hours_is_run_once(
    capsys: pytest.CaptureFixture[str], bound: list[str]
) -> None:
    command = ["sweep", "ablation", "--dry-run", "--cluster=slurm"]
    assert cli.main(command) == 0
    assert "#SBATCH --requeue\n" in capsys.readouterr().out
    assert cli.main([*command, *bound]) == 0
    assert "#SBATCH --no-requeue\n" in capsys.readouterr().out


def test_parts_of_an_array_have_no_gpu_hours_in_common(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["sweep", "ablation", "--cluster=slurm", "--executor=array", "--dry-run"]
    assert cli.main([*command, "--max-gpu-hours=8"]) == 2
    assert "each of the 8 parts" in capsys.readouterr().err
    assert cli.main([*command, "--max-hours=8"]) == 0
    assert "'no-requeue': True" in capsys.readouterr().out


def test_a_sweep_that_a_job_drives_runs_ray(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "ablation", "--cluster=address", "--detach"]
    assert cli.main([*command, "--executor=local"]) == 2
    assert "--executor local: cluster=address is driven by a job" in capsys.readouterr().err
