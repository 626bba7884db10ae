"""Training steps as `bench step` measures them. Nothing here is a test of speed."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from capsweep.config import compose, package_files
from capsweep.lab import bench
from capsweep.lab.bench import step
from capsweep.lab.bench.comparison import CandidateError
from capsweep.lab.bench.routing import route_by_bmm
from capsweep.lab.bench.step import CORE_BARS, GPU_BARS, NETWORKS, StepGroup
from capsweep.lab.bench.training import StepCandidate, StepTraining, check_step
from capsweep.model.large_kernels import SMALLEST_KERNEL
from capsweep.model.routing import Routed
from capsweep.training import build
from capsweep.training.graphs import CHECKED, StepGraphs
from capsweep.training.module import CapsuleTask

TINY = ("model=capsnet_tiny", "dataset=digits")
EAGER = StepCandidate("fast", overrides=TINY)


def fail(*_: object, **options: object) -> Routed:
    raise RuntimeError("no kernel")


def route_once(votes: object, _: int, *rest: object, **options: object) -> Routed:
    return route_by_bmm(votes, 1, *rest, **options)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps are captured on a processor too, where that just calls; the replays of each capture."""
    replays: list[int] = []

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        replays.append(0)

        def replay() -> None:
            replays[-1] += 1
            run()

        return replay

    def make_graphs(task: CapsuleTask, optimizer: torch.optim.Optimizer) -> StepGraphs:
        graphs = ordinary(task, optimizer)
        captured = task.graphs == "auto"
        return StepGraphs(graphs.step, graphs.metrics, None, capture) if captured else graphs

    ordinary = CapsuleTask.make_graphs
    monkeypatch.setattr(CapsuleTask, "make_graphs", make_graphs)
    return replays


def test_a_captured_candidate_gives_the_results_of_an_eager_one_and_is_then_replayed(
    captures: list[int],
) -> None:
    eager, captured = (StepTraining(replace(EAGER, captured=each), 1) for each in (False, True))
    for images in (3, 2):
        expected, results = (each.try_out(images) for each in (eager, captured))
        assert results.keys() == expected.keys()
        assert all((results[name] == expected[name]).all() for name in expected)
    captured()
    assert captures == [CHECKED, CHECKED + 1]
    assert eager.graphs.reason == "trainer.graphs=off"


def test_a_candidate_whose_steps_are_not_captured_is_refused() -> None:
    with pytest.raises(CandidateError, match="its steps are not captured: no GPU"):
        StepTraining(replace(EAGER, captured=True), 1).try_out(2)


@pytest.mark.parametrize("gpu", [False, True])  # where all are tried at the same time
def test_candidates_without_faults_are_measured_at_every_size_and_the_others_are_named(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: gpu)
    monkeypatch.setattr(step, "REPEATS", 2)
    candidates = {
        "fast": EAGER,
        "no kernel": StepCandidate("reference", route=fail, overrides=TINY),
        "wrong": StepCandidate("reference", route=route_once, overrides=TINY),
    }
    rows, faults = step.measure_group(StepGroup("tiny", candidates, (2, 4)), budget=0)
    assert [(row["candidate"], row["B"]) for row in rows] == [("fast", 2), ("fast", 4)]
    assert all(row["images/s"] > 0 and 1e2 < row["peak MB"] < 1e4 for row in rows)
    assert faults["tiny, no kernel, B = 2"] == "RuntimeError: no kernel"
    assert "differs by" in faults["tiny, wrong, B = 4"]
    assert len(faults) == 4
    with pytest.raises(CandidateError, match="differs by"):
        check_step(candidates["wrong"], 2)


def test_a_network_that_is_compared_in_float64_is_named_where_it_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = step.list_ways("model=cnn_tiny", "dataset=digits")
    group = StepGroup("cnn_tiny", ways, (2,), is_exact=True)
    assert step.measure_group(group, budget=0)[1] == {}
    monkeypatch.setattr("capsweep.lab.bench.training.FLOAT64_TOLERANCE", -1.0)
    rows, faults = step.measure_group(group, budget=0)
    assert [row["candidate"] for row in rows] == [step.BEFORE, step.DIRECT]
    assert list(faults) == ["cnn_tiny, transformed, B = 2"]


@pytest.mark.parametrize("gpu", [False, True])
def test_every_bar_is_of_a_candidate_that_is_measured(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: gpu)
    groups = step.list_gpu_groups(128) if gpu else step.list_groups(128, NETWORKS)
    measured = {(group.network, name) for group in groups for name in group.candidates}
    bars = GPU_BARS if gpu else CORE_BARS
    assert {bar[:2] for bar in bars} <= measured
    assert {bar.value for bar in step.judge_steps([], bars)} == {None}


def test_bars_are_judged_at_the_smallest_size_and_memory_by_the_largest_network() -> None:
    row = {"network": "capsnet", "candidate": "transformed", "B": 128, "peak MB": 140.0}
    row |= {"over textbook": 5.0, "over before": 1.9}
    before = {"network": "capsnet", "candidate": "before", "peak MB": 100.0}
    rows = [before, row, row | {"B": 512, "over textbook": 9.0}]
    bars = {bar.what: bar for bar in step.judge_steps(rows, CORE_BARS)}
    over = bars["step of capsnet, transformed: over textbook"]
    assert (over.value, over.verdict) == (5.0, "kept")
    assert bars["step of capsnet, transformed: over before"].verdict == "missed"
    (memory,) = step.judge_memory(rows)
    assert (memory.value, memory.verdict) == (1.4, "missed")


def test_networks_with_large_convolutions_are_measured() -> None:
    models = [path.stem for path in (package_files.find_folder("conf") / "model").glob("*.yaml")]
    assert {name for name in models if has_large_kernel(name)} == {"capsnet", *NETWORKS}


def has_large_kernel(model: str) -> bool:
    """Behind the first layer, whose few channels are convolved directly."""
    dataset = NETWORKS.get(model, "smallnorb" if model.startswith("matrix") else "digits")
    matrix = ["routing=em"] if model.startswith("matrix") else []
    config = compose.cell([f"model={model}", f"dataset={dataset}", *matrix]).config
    channels = config["dataset"]["image_shape"][0]
    with torch.device("meta"):
        modules = list(build.build_network(config).modules())
    return any(
        isinstance(module, nn.Conv2d)
        and module.kernel_size[0] >= SMALLEST_KERNEL
        and module.in_channels > channels
        for module in modules
    )


def test_the_slowest_variant_is_told_and_one_that_fails_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variants = {"dynamic": EAGER, "em": StepCandidate("reference", route=fail, overrides=TINY)}
    monkeypatch.setattr(step, "list_variants", lambda: variants)
    (slowest,), rows, lost = step.measure_variants(0.0, None)
    assert slowest.what.endswith("the slowest, dynamic")
    assert [(row["routing"], row["over dynamic"]) for row in rows] == [("dynamic", 1.0)]
    assert list(lost) == ["em"]
