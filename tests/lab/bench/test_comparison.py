"""Candidates compute the same and are timed in turns. Nothing here is a test of speed."""

import os
from functools import partial

import pytest
import torch
from routing_oracles import AWKWARD

from capsweep.lab.bench import BenchReport, routing
from capsweep.lab.bench.comparison import (
    Candidate,
    Results,
    check_parity,
    compare,
    median_ratio,
    time_in_turns,
)


class Answer:
    """A problem whose result is a number, or which ends its process as a crash in native code."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __call__(self) -> None:
        """Take no time."""

    def compute_results(self) -> Results:
        """Give the number."""
        if self.number < 0:
            os.kill(os.getpid(), 9)
        return {"pose": torch.tensor([1.0, self.number])}


def test_candidates_without_faults_are_measured_in_turns_and_the_others_are_named() -> None:
    problems = {
        "before": partial(Answer, 2.0),
        "wrong": partial(Answer, 2.1),
        "dies": partial(Answer, -1.0),
        "cannot begin": partial(divmod, 1, 0),
        "fast": partial(Answer, 2.0),
    }
    expected = Answer(2.0).compute_results
    candidates = {n: Candidate(each, expected, 1e-3, n == "fast") for n, each in problems.items()}
    report = BenchReport()
    compare(report, "it", 4, candidates, budget=0.0)
    assert [row["candidate"] for row in report.rows] == ["before", "fast"]
    assert all(row["images/s"] > 0 and row["peak MB"] > 10 for row in report.rows)
    assert all(row["over before"] > 0 for row in report.rows)
    before, fast = (row["memory / before"] for row in report.rows)
    assert before is None
    assert 0.5 < fast < 2
    wrong, dead, refused = report.numbers
    assert wrong.what == (
        "it, wrong, B = 4: ValueError: pose differs by 5.0e-02, at most 1e-03 is allowed"
    )
    assert dead.what.startswith("it, dies, B = 4: BrokenProcessPool: ")
    assert refused.what.startswith("it, cannot begin, B = 4: ZeroDivisionError: ")
    assert {each.verdict for each in report.numbers} == {"MISSED"}


def test_parity_is_asked_of_every_number() -> None:
    expected = {"pose": torch.tensor([1.0, 2.0]), "gradient": torch.zeros(2)}
    assert check_parity(expected, dict(expected), 0.0) == 0
    for wrong in (
        {"pose": torch.tensor([1.0, 2.1])},
        {"pose": torch.tensor([1.0, torch.nan])},
        {"gradient": torch.ones(2)},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} differs by"):
            check_parity(expected, expected | wrong, 0.01)
    with pytest.raises(ValueError, match=r"a tensor has shape \[1\], not \[2\]"):
        check_parity(expected, expected | {"pose": torch.tensor([1.0])}, 0.01)
    with pytest.raises(KeyError, match="gradient"):
        check_parity(expected, {"pose": expected["pose"]}, 0.01)


@pytest.mark.parametrize("name", ["textbook", "bmm"])
def test_a_baseline_has_the_outputs_and_gradients_of_the_reference(name: str) -> None:
    for size in [(*size, iterations) for size in AWKWARD for iterations in (1, 2, 3, 5)]:
        expected, results = (
            routing.RoutingProblem(routing.ROUTES[each], size, dtype=torch.float64)()
            for each in ("reference", name)
        )
        check_parity(expected, results, 1e-9)


def test_candidates_take_turns() -> None:
    called: list[str] = []

    def call(name: str) -> float:
        called.append(name)
        return 1.0

    seconds = time_in_turns({name: partial(call, name) for name in "AB"}, budget=0)
    assert "".join(called) == "AB" * 6  # the first two do not count
    assert seconds == {"A": [1.0] * 5, "B": [1.0] * 5}


def test_a_ratio_is_taken_within_rounds() -> None:
    # The machine is ten times slower in the last two rounds, and three times in all is right.
    seconds = {"slow": [3.0, 30.0, 30.0], "fast": [1.0, 10.0, 10.0]}
    assert median_ratio(seconds, "slow", "fast") == 3
