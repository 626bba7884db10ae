"""Training steps as a GPU's bench measures them. Nothing here is a test of speed."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from capsweep.lab.bench import gpu_step, machine
from capsweep.lab.bench.comparison import CandidateError
from capsweep.lab.bench.gpu_step import CAPTURED, EM
from capsweep.lab.bench.results import Measured
from capsweep.lab.bench.training import StepCandidate, StepTraining
from capsweep.training.graphs import CHECKED, StepGraphs
from capsweep.training.module import CapsuleTask

TINY = ("model=capsnet_tiny", "dataset=digits")
EAGER = StepCandidate("fast", overrides=TINY)


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
        expected, results = (gpu_step.begin_size(images, each) for each in (eager, captured))
        assert results.keys() == expected.keys()
        assert all((results[name] == expected[name]).all() for name in expected)
    captured()
    assert captures == [CHECKED, CHECKED + 1]
    assert eager.graphs.reason == "trainer.graphs=off"


def test_a_candidate_whose_steps_are_not_captured_is_refused() -> None:
    with pytest.raises(CandidateError, match="its steps are not captured: no GPU"):
        gpu_step.begin_size(2, StepTraining(replace(EAGER, captured=True), 1))


def test_candidates_without_faults_are_measured_at_every_size_and_the_others_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = replace(EAGER, overrides=(*TINY, "routing.num_iters=1"))
    monkeypatch.setattr(gpu_step, "CAPSNET", TINY)
    monkeypatch.setattr(gpu_step, "list_candidates", lambda: {"right": EAGER, "wrong": other})
    monkeypatch.setattr(gpu_step, "list_em_candidates", dict)
    monkeypatch.setattr(gpu_step, "MATRIX_OF_THREE", TINY)
    report = gpu_step.measure_steps(budget=0, images=2)
    first, second, lost = report.timings
    assert [(row["candidate"], row["B"]) for row in (first, second)] == [("right", 2), ("right", 8)]
    assert first["images/s"] > 0
    assert lost["not measured"] == "wrong, B = 2"
    assert lost["cause"].startswith("scores differs by")
    assert (report.measured[-1].value, report.measured[-1].verdict) == (1, "missed")


def judge(*speeds: tuple[str, int, float, float | None]) -> dict[str, Measured]:
    """The bars, by what they are of; of candidates, sizes, images a second, times textbook."""
    names = ("candidate", "B", "images/s", "over textbook")
    bars = gpu_step.judge_steps([dict(zip(names, speed, strict=True)) for speed in speeds])
    return {bar.what.partition(": ")[2]: bar for bar in bars}


def test_the_bars_are_the_speeds_of_captured_steps_and_their_ratio_to_public_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "is_gpu", lambda: True)
    bars = judge(
        ("textbook", 128, 10_000, 1.0),
        ("bf16, captured", 128, 50_000, 5.0),
        ("bf16, captured", 512, 70_000, 9.0),
        ("tf32, captured", 128, 34_000, 3.4),
        (EM + CAPTURED, 8, 2_260, None),
        (EM + CAPTURED, 64, 1_000, None),
    )
    assert {what: (bar.value, bar.verdict) for what, bar in bars.items()} == {
        "bf16, captured": (50_000, "kept"),
        "tf32, captured": (34_000, "missed"),
        EM + CAPTURED: (2_260, "kept"),
        "bf16, captured, over public code (textbook)": (5.0, "kept"),
    }


def test_without_a_gpu_the_bars_say_so() -> None:
    bars = judge()
    assert len(bars) == 4
    assert {(bar.value, bar.skipped) for bar in bars.values()} == {(None, "no GPU")}
