"""Submission ids: readable, the same for the same command, and never used twice."""

import re

import pytest

from capsweep.submission import names

WORDS = ["sweep", "table1_mnist", "--here", "--seeds=3"]


def test_an_id_is_read_again() -> None:
    name = names.of("table1-mnist.v2", WORDS)
    assert names.read(str(name)) == name
    assert re.fullmatch(r"capsweep-table1-mnist\.v2-[0-9a-f]{8}-1", str(name))


@pytest.mark.parametrize("other", ["raysubmit_4LamXRuQpYdSMg7J", "capsweep-x", ""])
def test_jobs_of_others_are_not_ours(other: str) -> None:
    assert names.read(other) is None


def test_the_command_decides() -> None:
    assert names.of("ablation", WORDS) == names.of("ablation", list(WORDS))
    assert names.of("ablation", WORDS) != names.of("ablation", [*WORDS, "epochs=3"])


def test_a_repetition_has_a_number_of_its_own() -> None:
    first = names.of("ablation", WORDS)
    second = names.next_after(first, [first])
    assert (second.number, second.is_of(first)) == (2, True)
    elsewhere = names.of("ablation", ["sweep"])
    assert names.next_after(second, [elsewhere, names.Name(first.sweep, first.choices, 7)]) == (
        names.Name(first.sweep, first.choices, 8)
    )


def test_odd_names_of_files_become_parts_of_a_url() -> None:
    assert names.of("my sweep/ü", WORDS).sweep == "my-sweep--"
