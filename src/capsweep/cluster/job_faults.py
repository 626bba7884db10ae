"""Why a job ended before the sweep in it began, in one line with the cure."""

import re
import shlex

from capsweep.cluster.client import Jobs, SweepJob
from capsweep.errors import ConfigError

NOT_FOUND, NOT_RUNNABLE = 127, 126  # what a shell says of a program
MODULE = re.compile(r"^ModuleNotFoundError: No module named '([^']+)'", re.MULTILINE)
LANGUAGE = re.compile(r"^SyntaxError: ", re.MULTILINE)
CURES = "install what requirements.lock names on every node"


def of(job: SweepJob, jobs: Jobs) -> str | None:
    """The fault; None for a sweep that ran, or said itself what is wrong."""
    if job.state != "FAILED":
        return None
    if job.status in (NOT_FOUND, NOT_RUNNABLE):
        return _without_program(job.command)
    if job.status is None:
        said = " ".join(job.message.split()) or "Ray does not say why"
        return f"it did not start: {said[:500]}; `capsweep stop` and the same command start it anew"
    log = _log(job, jobs)
    if (module := MODULE.search(log)) is not None:
        return f"the Python of the head lacks {module[1]}; {CURES}"
    if LANGUAGE.search(log) is not None:
        return "the Python of the head is too old for capsweep; set cluster.python, 3.11 or 3.12"
    return None


def _without_program(command: str) -> str:
    first, *rest = shlex.split(command)
    if first == "exec":  # as `run.submit` writes it; a RayJob's is that of its image
        return f"the head has no program {rest[0]}; set cluster.python to that of its Ray"
    return f"the head has no program {first}; set cluster.image to one that contains capsweep"


def _log(job: SweepJob, jobs: Jobs) -> str:
    try:
        return jobs.log(job.id)
    except ConfigError:
        return job.message  # its node is gone; Ray keeps the last lines
