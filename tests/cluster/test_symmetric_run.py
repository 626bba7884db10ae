"""The batch script with a real Ray: on a node of its own, since `ray symmetric-run` ends every Ray
of its node."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from configured_clusters import cluster
from fake_programs import Programs

from capsweep.cluster import slurm

# Processes, files and network that nobody else sees.
NODE = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--net")
BEGIN = "mount -t proc proc /proc && ip link set lo up && bash "
DRIVER = """
import os, ray
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
print("driven with", int(ray.cluster_resources()["CPU"]), "CPU")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of its own need root")
def test_a_job_starts_its_ray_drives_and_leaves_nothing(programs: Programs, tmp_path: Path) -> None:
    programs.add("scontrol", 'echo "$3"')
    programs.add("srun", 'while [[ $1 == --* ]]; do shift; done; exec "$@"')
    (tmp_path / "token").write_text("0" * 64)
    keys = {"cpus": 1, "gpus": 0, "token": str(tmp_path / "token")}
    section = cluster("slurm", **keys)
    _, text = slurm.render_script(section, "ablation", ["WORDS"], tmp_path)
    words = slurm.quote_value([sys.executable, "-m", "capsweep", "WORDS"])
    assert words in text
    text = text.replace(words, slurm.quote_value([sys.executable, "-c", DRIVER]))
    text = text.replace("--temp-dir=", "--object-store-memory=100000000 --temp-dir=")
    # Behind the environment's own folder of programs, which has the real ray.
    script = tmp_path / "job.sh"
    script.write_text(text)
    job = os.getpid()  # it names Ray's folder; test_slurm_script removes those of its own jobs
    told = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "here", "SLURM_JOB_NUM_NODES": "1"}
    look = f"ls /tmp/ray-0-{job} 2> /dev/null; ps -eo args | grep -c '[r]aylet'"
    after = f"; status=$?; {look}; exit $status"
    begin = BEGIN + shlex.quote(str(script)) + after
    ran = subprocess.run(
        [*NODE, "bash", "-c", begin],
        env=os.environ | told | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "driven with 1 CPU\n" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("\n0\n"), "no process of Ray, no folder of its own"
