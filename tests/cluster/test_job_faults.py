"""Why a job did not begin, in one line with the cure of what it was started by."""

from typing import Any

import pytest

from capsweep.cluster import job_faults, job_names
from capsweep.cluster.client import SweepJob

NO_JOBS: Any = None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exec 'my python' -m capsweep sweep x", "no program my python; set cluster.python"),
        ("capsweep sweep x --here", "no program capsweep; set cluster.image"),
    ],
)
def test_a_program_that_is_not_there_is_named_with_its_key(command: str, said: str) -> None:
    name = job_names.of("x", ["sweep", "x"])
    job = SweepJob(str(name), name, "FAILED", command, "", None, None, job_faults.NOT_FOUND)
    assert said in str(job_faults.of(job, NO_JOBS))
