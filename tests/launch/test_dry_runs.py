"""A dry run of every command that launches."""

from pathlib import Path

import pytest
from configured_clusters import IMAGE, SHARED
from fake_programs import Programs

from capsweep import cli

SECRETS = ("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "RAY_AUTH_TOKEN")


pytestmark = pytest.mark.usefixtures("folder")


@pytest.mark.parametrize(
    "command",
    [
        ["cluster", "show", "aws"],
        ["cluster", "up", "aws", "--dry-run"],
        ["cluster", "down", "aws", "--dry-run"],
        ["cluster", "show", "kuberay", IMAGE],
        ["cluster", "down", "kuberay", "--dry-run"],
        ["cluster", "show", "slurm"],
        ["sweep", "ablation", "--cluster=aws", "--dry-run", "--storage=s3://bucket/x"],
        ["sweep", "ablation", "--cluster=kuberay", "--dry-run", *SHARED],
        ["sweep", "ablation", "--cluster=slurm", "--dry-run"],
        ["sweep", "ablation", "--cluster=slurm", "--executor=array", "--dry-run"],
    ],
    ids=" ".join,
)
def test_a_dry_run_starts_nothing_writes_nothing_and_tells_no_secret(
    programs: Programs,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"value-of-{name}-SECRET")
    for name in ("ray", "kubectl", "sbatch"):
        programs.add(name)
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") >= 1
    assert "SECRET" not in printed.replace("AWS_SECRET_ACCESS_KEY", "")
    assert [programs.calls(name) for name in ("ray", "kubectl", "sbatch")] == [[], [], []]
    assert list(folder.iterdir()) == [programs.folder]


BOUNDS = (["--max-hours=8"], ["--max-gpu-hours=8"], ["--budget=2h"], ["--rerun=always"])


@pytest.mark.parametrize("bound", BOUNDS, ids=" ".join)
@pytest.mark.parametrize(
    ("cluster", "again", "once"),
    [
        (["--cluster=slurm"], "#SBATCH --requeue\n", "#SBATCH --no-requeue\n"),
        (["--cluster=kuberay", *SHARED], "backoffLimit: 3", "backoffLimit: 0"),
    ],
)
def test_what_would_begin_anew_with_all_its_hours_is_run_once(
    capsys: pytest.CaptureFixture[str], cluster: list[str], again: str, once: str, bound: list[str]
) -> None:
    command = ["sweep", "ablation", "--dry-run", *cluster]
    assert cli.main(command) == 0
    assert again in capsys.readouterr().out
    assert cli.main([*command, *bound]) == 0
    printed = capsys.readouterr().out
    assert once in printed
    assert again not in printed
    assert f"{bound[0].partition('=8')[0].partition('=2h')[0]}: it is run once" in printed


def test_parts_of_an_array_have_no_gpu_hours_in_common(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["sweep", "ablation", "--cluster=slurm", "--executor=array", "--dry-run"]
    assert cli.main([*command, "--max-gpu-hours=8"]) == 2
    assert "each of the 8 parts" in capsys.readouterr().err
    assert cli.main([*command, "--max-hours=8"]) == 0
    assert "'no-requeue': True" in capsys.readouterr().out


def test_results_are_not_left_on_a_head_that_ends(capsys: pytest.CaptureFixture[str]) -> None:
    for how in (["--dry-run"], [], ["--detach"]):
        assert cli.main(["sweep", "ablation", "--cluster=aws", "--storage=mine", *how]) == 2
        assert "set STORAGE=s3://BUCKET/FOLDER" in capsys.readouterr().err
    # The seeds that were added, and what a search has tried, lie in the storage.
    for cluster in (["--cluster=aws"], ["--cluster=kuberay", "cluster.image=mine"]):
        elsewhere = ["--ledger=s3://bucket/x", "--storage=mine", "--dry-run"]
        assert cli.main(["sweep", "ablation", *cluster, *elsewhere]) == 2
        assert "places.storage=" in capsys.readouterr().err
    shared = ["--storage=mine", "cluster.node.storage=/mnt/shared"]
    assert cli.main(["sweep", "ablation", "--cluster=aws", "--dry-run", *shared]) == 0


def test_a_sweep_that_a_job_drives_runs_ray(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "ablation", "--cluster=aws", "--storage=s3://bucket/x"]
    assert cli.main([*command, "--executor=local"]) == 2
    assert "--executor local: cluster=aws is driven by a job" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "http://["])
def test_an_address_of_jobs_is_a_url(capsys: pytest.CaptureFixture[str], address: str) -> None:
    assert cli.main(["attach", "ablation", f"--address={address}"]) == 2
    assert "must be where Ray takes jobs, a URL" in capsys.readouterr().err


def test_credentials_in_an_address_are_refused_and_not_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["status", "--address=https://me:secret@head:8265"]) == 2
    said = capsys.readouterr()
    assert "set RAY_AUTH_TOKEN" in said.err
    assert "secret" not in said.err + said.out
