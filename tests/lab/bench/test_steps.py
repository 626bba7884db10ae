"""Training steps as `bench step` measures them. No test of speed."""

from collections.abc import Callable

import pytest
import torch

from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, step
from capsweep.lab.bench.comparison import compare
from capsweep.lab.bench.routing import route_by_bmm
from capsweep.lab.bench.training import REFERENCE, StepTraining, Way
from capsweep.model.routing import Routed
from capsweep.training.graphs import CHECKED, StepGraphs
from capsweep.training.module import CapsuleTask

TINY = ("model=capsnet_tiny", "dataset=digits")
EAGER = "trainer.graphs=off"


def route_once(votes: object, _: int, *rest: object, **options: object) -> Routed:
    return route_by_bmm(votes, 1, *rest, **options)


def test_a_captured_candidate_gives_the_results_of_an_eager_one_and_is_then_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replays: list[int] = []

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        return lambda: (replays.append(1), run())[1]  # a processor just calls

    def make_graphs(task: CapsuleTask, optimizer: torch.optim.Optimizer) -> StepGraphs:
        graphs = ordinary(task, optimizer)
        captured = task.graphs == "auto"
        return StepGraphs(graphs.step, graphs.metrics, None, capture) if captured else graphs

    ordinary = CapsuleTask.make_graphs
    monkeypatch.setattr(CapsuleTask, "make_graphs", make_graphs)
    eager, captured = (StepTraining(Way(TINY, words), 3) for words in ((EAGER,), ()))
    expected, results = (each.compute_results() for each in (eager, captured))
    assert results.keys() == expected.keys()
    assert all((results[name] == expected[name]).all() for name in expected)
    for _ in range(1 + CHECKED + 1):  # the first is eager
        captured()
    assert len(replays) == CHECKED + 1
    assert eager.graphs.reason == EAGER


def test_a_candidate_whose_steps_are_not_captured_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: True)
    monkeypatch.setattr(bench, "get_device", lambda: torch.device("cpu"))
    with pytest.raises(RuntimeError, match="training steps are not captured: no GPU"):
        StepTraining(Way(TINY), 2)()
    StepTraining(Way(TINY, (EAGER,)), 2)()


def test_a_baseline_that_routes_otherwise_is_not_timed() -> None:
    ways = {"fast": Way(TINY), "wrong": Way(TINY, REFERENCE, route_once, keeps_memory=False)}
    report = BenchReport()
    compare(report, "tiny", 2, step.list_candidates(ways, 2), budget=0)
    assert [row["candidate"] for row in report.rows] == ["fast"]
    (fault,) = report.numbers
    assert fault.what.startswith("tiny, wrong, B = 2: ValueError: ")


@pytest.mark.parametrize("gpu", [False, True])
def test_every_bar_is_of_a_candidate_that_is_measured(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: gpu)
    measured = {(case, name) for case, _, ways, _ in step.list_groups(False) for name in ways}
    assert {bar[:2] for bar in (step.GPU_BARS if gpu else step.CORE_BARS)} <= measured


def test_bars_are_judged_at_the_smallest_size_and_memory_by_the_largest_network() -> None:
    row = {"case": step.STEP, "candidate": step.NOW, "over textbook": 5.0, "over before": 1.9}
    rows = [row | {step.MEMORY: None}, row | {"over textbook": 9.0, step.MEMORY: 1.4}]
    report = BenchReport(rows=[*rows, row | {step.MEMORY: 1.2}])
    report.judge(step.CORE_BARS)
    report.judge_worst(step.MEMORY, "x", step.MEMORY_BAR)
    bars = {bar.what: (bar.value, bar.verdict) for bar in report.numbers}
    assert bars["capsnet, transformed over textbook"] == (5.0, "kept")
    assert bars["capsnet, transformed over before"] == (1.9, "MISSED")
    assert bars["EM routing, T = 2, now images/s"] == (None, "")
    assert bars["memory / before, worst case: capsnet, transformed"] == (1.4, "MISSED")
