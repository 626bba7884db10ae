"""Submission ids: readable, the same for the same command, and never used twice."""

import re

import pytest

from capsweep.cluster import job_names

WORDS = ["sweep", "table1_mnist", "--here", "--seeds=3"]


def test_an_id_is_read_again() -> None:
    name = job_names.of("table1-mnist.v2", WORDS)
    assert job_names.read(str(name)) == name
    assert re.fullmatch(r"capsweep-table1-mnist\.v2-[0-9a-f]{8}-1", str(name))


@pytest.mark.parametrize("other", ["raysubmit_4LamXRuQpYdSMg7J", "capsweep-x", ""])
def test_jobs_of_others_are_not_ours(other: str) -> None:
    assert job_names.read(other) is None


def test_the_command_decides() -> None:
    assert job_names.of("ablation", WORDS) == job_names.of("ablation", list(WORDS))
    assert job_names.of("ablation", WORDS) != job_names.of("ablation", [*WORDS, "epochs=3"])


def test_a_repetition_has_a_number_of_its_own() -> None:
    first = job_names.of("ablation", WORDS)
    second = job_names.next_after(first, [first])
    assert (second.number, second.is_of(first)) == (2, True)
    elsewhere = job_names.of("ablation", ["sweep"])
    assert job_names.next_after(
        second, [elsewhere, job_names.Name(first.sweep, first.choices, 7)]
    ) == (job_names.Name(first.sweep, first.choices, 8))


def test_odd_names_of_files_become_parts_of_a_url() -> None:
    assert job_names.of("my sweep/ü", WORDS).sweep == "my-sweep--"
