"""Candidates compute the same and are timed in turns. Nothing here is a test of speed."""

import os
import time
from functools import partial

import pytest
import torch
from routing_oracles import AWKWARD

from capsweep.lab import bench
from capsweep.lab.bench import convolution, data, routing, sweep
from capsweep.lab.bench.comparison import (
    CandidateError,
    Seconds,
    check_parity,
    median_ratio,
    start_workers,
    time_in_turns,
)
from capsweep.lab.bench.convolution import ConvolutionSizes
from capsweep.lab.bench.routing import BOTH, FORWARD, RoutingSizes
from capsweep.model.routing import Routed, dynamic


def _wrong(*arguments: object, **options: object) -> Routed:
    """Dynamic routing, its poses a little too long."""
    routed = dynamic.reference(*arguments, **options)
    return routed._replace(pose_BJD=routed.pose_BJD * (1 + 1e-7))


def _fail(*_: object, **options: object) -> Routed:
    raise RuntimeError("no kernel")


def test_the_routings_without_faults_are_measured_and_the_others_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    candidates = {"right": dynamic.reference, "fast": _wrong, "bmm": _fail}
    monkeypatch.setattr(routing, "list_candidates", lambda: candidates)
    monkeypatch.setattr(routing, "measure_extra_memory", lambda *_: 10**6)
    sizes = RoutingSizes(batch=2, num_iters=2)
    report = routing.measure_routing(sizes, budget=0, gate=routing.GATE[:1])
    *timed, wrong, failed = report.rows
    assert {row["candidate"] for row in timed} == {"right"}
    assert wrong["not measured"] == "fast"
    assert wrong["cause"].startswith("pose_BJD differs by 1.0e-07, at most 1e-09")
    assert failed == {"not measured": "bmm", "cause": "RuntimeError: no kernel"}
    assert [(bar.value, bar.verdict) for bar in report.bars if bar.value] == [(2, "missed")]


def test_parity_is_asked_of_every_number() -> None:
    expected = {"pose": torch.tensor([1.0, 2.0]), "gradient": torch.zeros(2)}
    check_parity(expected, dict(expected), 0.0)
    for wrong in (
        {"pose": torch.tensor([1.0, 2.1])},
        {"pose": torch.tensor([1.0, torch.nan])},
        {"pose": torch.tensor([1.0])},
        {"gradient": torch.ones(2)},
    ):
        with pytest.raises(CandidateError, match=f"{next(iter(wrong))} differs by"):
            check_parity(expected, expected | wrong, 0.01)
    with pytest.raises(CandidateError, match="gives"):
        check_parity(expected, {"pose": expected["pose"]}, 0.01)


def test_every_candidate_has_the_outputs_and_gradients_of_the_reference() -> None:
    for route in routing.list_candidates().values():
        routing.check_route(route, [RoutingSizes(*size) for size in AWKWARD])


def test_candidates_take_turns() -> None:
    called: list[str] = []

    def call(name: str) -> float:
        called.append(name)
        return 1.0

    seconds = time_in_turns({name: partial(call, name) for name in "AB"}, budget=0, least=3)
    assert "".join(called) == "ABABABAB"  # the first two do not count
    assert seconds == {"A": [1.0] * 3, "B": [1.0] * 3}


def test_a_ratio_is_taken_within_rounds() -> None:
    # The machine is ten times slower in the last two rounds, and three times in all is right.
    seconds = {"slow": [3.0, 30.0, 30.0], "fast": [1.0, 10.0, 10.0]}
    assert median_ratio(seconds, "slow", "fast") == 3


def test_a_process_computes_when_it_is_asked_and_times_repeats_together() -> None:
    with start_workers({"sleeps": (partial, time.sleep, 0.05)}) as workers:
        sleeps = workers["sleeps"]
        started = time.monotonic()
        seconds = sleeps(repeats=5)  # of one
        assert seconds >= 0.05
        assert time.monotonic() - started > 5 * seconds
        assert sleeps.peak > 10**7
        assert sleeps.ask(find_process) != os.getpid()


def find_process(_: object) -> int:
    """Of the one who is asked."""
    return os.getpid()


def test_a_process_that_dies_or_cannot_begin_says_so_when_it_is_asked() -> None:
    candidates = {
        "dies": (partial, time.sleep, 0),
        "cannot begin": (divmod, 1, 0),
        "fails": (partial, divmod, 1, 0),
    }
    with start_workers(candidates) as workers:
        for name in ("cannot begin", "fails"):
            with pytest.raises(CandidateError, match=r"^ZeroDivisionError: "):
                workers[name]()
        for _ in range(2):
            with pytest.raises(CandidateError, match="its process ended"):
                workers["dies"].ask(kill_process)


def kill_process(_: object) -> None:
    """As a crash in native code ends it."""
    os.kill(os.getpid(), 9)


TRITON = {"triton": [2.0] * 3}


def _seconds(textbook: float, bmm: float, fast: float) -> Seconds:
    return {"textbook": [textbook] * 3, "bmm": [bmm] * 3, "fast": [fast] * 3}


@pytest.mark.parametrize("gpu", [False, True])
def test_the_bars_of_routing_compare_fast_with_the_baselines(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: gpu)
    seconds = {FORWARD: _seconds(9.0, 3.0, 1.0), BOTH: _seconds(12.0, 2.5, 1) | TRITON}
    bars = routing.judge_routing(seconds, {"textbook": 1600, "bmm": 500, "fast": 100})
    if gpu:
        assert [(bar.value, bar.verdict) for bar in bars] == [(2.5, "kept"), (0.5, "missed")]
        assert bars[1].what == "routing, forward + backward: triton over fast"
    else:
        assert [bar.value for bar in bars] == [12.0, 9.0, 2.5, 1 / 16]
        assert [bar.verdict for bar in bars] == ["kept", "missed", "kept", "kept"]


@pytest.mark.parametrize("gpu", [False, True])
def test_pairs_are_composed_on_the_device_too(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: gpu)
    for measured in data.measure_data(examples=300, epochs=1).measured:
        assert measured.verdict != "no bar"
        assert measured.bar == (2_000_000 if gpu else 300_000)


@pytest.mark.slow
def test_all_candidates_of_routing_are_measured() -> None:
    sizes = RoutingSizes(batch=2, num_iters=2)
    report = routing.measure_routing(sizes, budget=0, gate=routing.GATE[:1])
    assert [(row["pass"], row["candidate"]) for row in report.timings] == [
        (which, name) for which in (FORWARD, BOTH) for name in routing.list_candidates()
    ]
    assert all(row["extra MB"] > 0 and row["ms"] > 0 for row in report.timings)


@pytest.mark.slow
def test_a_convolution_and_the_choice_between_its_methods_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: False)
    large, small = (ConvolutionSizes(each, 5, 1, 16, each) for each in (128, 4))
    report = convolution.measure_convolution(0, small, [large, small])
    assert [row["auto"] for row in report.timings] == ["transformed", "direct"]
    assert all(row["over the faster"] >= 1 for row in report.timings)
    errors = [bar.value for bar in report.measured if "error" in bar.what]
    assert all(error is not None and error > 0 for error in errors)


@pytest.mark.slow
def test_a_sweep_costs_more_than_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    planned, local, ray = sweep.measure_sweep(cells=2, seeds=2).measured
    assert None not in (planned.value, local.value)
    assert ray.as_row()[-1] == "skipped: Ray is not installed"


@pytest.mark.slow
def test_every_rate_of_shards_is_measured() -> None:
    measured = data.measure_shards(budget=0.1, examples=2000).measured
    assert [each.verdict in ("kept", "missed") for each in measured] == [True] * 3
