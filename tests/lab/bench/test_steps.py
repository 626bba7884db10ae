"""Training steps as `bench step` and `bench parity` measure them. No test of speed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from capsweep.config import package_files
from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, training
from capsweep.lab.bench.comparison import compare
from capsweep.lab.bench.routing import route_by_bmm
from capsweep.lab.bench.training import CORE_BARS, GPU_BARS, REFERENCE, StepTraining, Way
from capsweep.model.routing import Routed, dynamic
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
    candidates = {name: training.make_candidate(way, 2) for name, way in ways.items()}
    compare(report, "tiny", 2, candidates, budget=0)
    assert [row["candidate"] for row in report.rows] == ["fast"]
    (fault,) = report.numbers
    assert fault.what.startswith("tiny, wrong, B = 2: ValueError: ")


@pytest.mark.parametrize("gpu", [False, True])
def test_every_bar_is_of_a_candidate_that_is_measured(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: gpu)
    measured = {(case, name) for case, _, ways, _ in training.list_groups(False) for name in ways}
    assert {bar[:2] for bar in (GPU_BARS if gpu else CORE_BARS)} <= measured


def test_bars_are_judged_at_the_smallest_size() -> None:
    row = {"case": training.STEP, "candidate": training.NOW, "over before": 1.9}
    report = BenchReport(rows=[row | {"over textbook": ratio} for ratio in (5.0, 9.0)])
    report.judge(CORE_BARS)
    bars = {bar.what: (bar.value, bar.verdict) for bar in report.numbers}
    assert bars["capsnet, transformed over textbook"] == (5.0, "kept")
    assert bars["capsnet, transformed over before"] == (1.9, "MISSED")
    assert bars["EM routing, T = 2, now images/s"] == (None, "")


def test_of_implementations_the_wrong_and_the_broken_are_missed_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **options: Any) -> Routed:
        raise RuntimeError("out of shared memory")

    def route_wrongly(*arguments: Any, **options: Any) -> Routed:
        routed = fast(*arguments, **options)
        return routed._replace(pose_BJD=routed.pose_BJD * (1 + 1e-4))

    fast = dynamic.fast
    monkeypatch.setitem(dynamic.IMPLS, "triton", refuse)
    ways = {impl: Way(TINY, (f"routing.impl={impl}",)) for impl in ("triton", "fast")}
    monkeypatch.setattr(training, "list_compared", lambda p: ways if p != "bf16-mixed" else {})
    numbers = training.measure_parity(is_quick=True).numbers
    assert numbers[0].what == "triton, float64: RuntimeError: out of shared memory"
    assert [each.verdict for each in numbers] == ["MISSED", "kept", "kept"] * 2
    monkeypatch.setitem(dynamic.IMPLS, "fast", route_wrongly)
    gradients = training.measure_parity(is_quick=True).numbers[2]
    assert gradients.what.startswith("fast, float64, error of gradients (largest: gradient of dec")
    assert gradients.verdict == "MISSED"
    assert gradients.value is not None
    assert 1e-5 < gradients.value < 1e-2


@pytest.mark.parametrize("gpu", [False, True])
def test_every_routing_is_compared_by_the_implementation_of_its_file(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: gpu)
    files = (package_files.find_folder("conf") / "routing").glob("*.yaml")
    variants = [f"capsnet_tiny, {path.stem}" for path in files]
    for precision in ("float64", "float32"):
        compared = training.list_compared(precision)
        assert {*variants, "matrix_capsnet", "cnn_small", "capsnet by fast"} <= compared.keys()
    assert ("capsnet by triton" in training.list_compared("bf16-mixed")) == gpu


@pytest.mark.slow
def test_all_networks_are_what_the_reference_computes() -> None:
    report = training.measure_parity(is_quick=False)
    assert {bar.verdict for bar in report.numbers} == {"kept"}
