"""Sweeps as batch jobs of Slurm, with Ray on the job's nodes."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capsweep.errors import ConfigError
from capsweep.launch import programs, token
from capsweep.storage.files import write_text

Say = Callable[[str], None]


def up(cluster: Mapping[str, Any], say: Say) -> int:
    """Nothing is to be started: say so; returns the exit status."""
    programs.find("sbatch")
    say(f"the token of its jobs: {token.ensure(cluster['token'], say)}")
    say("Slurm starts nodes with each sweep and ends them with it; nothing runs until then:")
    say(f"  capsweep sweep ablation --cluster {cluster['name']}")
    return 0


def down(cluster: Mapping[str, Any], say: Say) -> int:
    """Nothing stands that is to be ended: say how a job is; returns the exit status."""
    say("nothing to end: nodes end with their job. Jobs that run, and how one ends at once:")
    say("  squeue --me --format='%i %j %T'   scancel JOB")
    return 0


def submit(cluster: Mapping[str, Any], name: str, text: str, folder: Path, say: Say) -> int:
    """Write the script into `folder` and submit it; returns the exit status."""
    sbatch = programs.find("sbatch")
    token.ensure(cluster["token"], say)
    script = folder / name
    write_text(script, text)
    status, printed, said = programs.ask([sbatch, "--parsable", str(script)])
    match = re.match(r"\d+", printed.strip())
    if status or match is None:
        raise ConfigError(f"cluster={cluster['name']}: sbatch refused {script} ({said or printed})")
    job = script.stem
    say(f"submitted as job {match[0]}; a second one of the same sweep waits until it has ended")
    say(f"  tail -F {folder / f'{job}-{match[0]}.log'}")
    say(f"  scancel --batch --signal=TERM {match[0]}  # ends it with its checkpoints kept")
    say("the same command, typed when it has ended, runs what is missing")
    return 0
