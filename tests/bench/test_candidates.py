"""Candidates compute the same and are timed in turns. Nothing here is a test of speed."""

from typing import Any

import numpy as np
import pytest
import torch
from procedure_1 import AWKWARD, Size, layer
from routing_variants import assert_same

from capsweep.bench import data, machine, routing, step, sweep
from capsweep.bench.candidates import (
    ParityError,
    Seconds,
    check_parity,
    median_ratio,
    time_in_turns,
)
from capsweep.bench.routing import (
    BOTH,
    FORWARD,
    Route,
    RoutingProblem,
    RoutingSizes,
    route_by_bmm,
    route_by_textbook,
)
from capsweep.config import compose
from capsweep.data.pairs import PairSource
from capsweep.model.routing import dynamic
from capsweep.model.votes import Routed
from capsweep.training import build

every_baseline = pytest.mark.parametrize("route", [route_by_textbook, route_by_bmm])


def _wrong(*arguments: object, **options: object) -> Routed:
    """Dynamic routing, its poses a little too long."""
    routed = dynamic.reference(*arguments, **options)
    return routed._replace(pose_BJD=routed.pose_BJD * (1 + 1e-7))


def test_a_wrong_candidate_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = {"right": dynamic.reference, "wrong": _wrong}
    monkeypatch.setattr(routing, "list_candidates", lambda: candidates)
    monkeypatch.setattr(routing, "GATE", routing.GATE[:1])
    with pytest.raises(ParityError, match=r"^wrong: pose_BJD differs by 1.0e-07, at most 1e-09"):
        routing.measure_routing()


def test_parity_is_asked_of_every_number() -> None:
    expected = {"pose": torch.tensor([1.0, 2.0]), "gradient": torch.zeros(2)}
    check_parity(expected, {"same": (dict(expected), 0.0)})
    for wrong in (
        {"pose": torch.tensor([1.0, 2.1])},
        {"pose": torch.tensor([1.0, torch.nan])},
        {"pose": torch.tensor([1.0])},
        {"gradient": torch.ones(2)},
    ):
        with pytest.raises(ParityError, match="it: "):
            check_parity(expected, {"it": (expected | wrong, 0.01)})
    with pytest.raises(ParityError, match="gives"):
        check_parity(expected, {"it": ({"pose": expected["pose"]}, 0.01)})


@every_baseline
@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
@pytest.mark.parametrize("size", AWKWARD)
def test_outputs_are_those_of_the_reference(route: Route, num_iters: int, size: Size) -> None:
    chosen = layer(size)
    for bias_JD in (None, chosen.bias_JD):
        expected = dynamic.reference(chosen.votes, num_iters, bias_JD)
        routed = route(chosen.votes, num_iters, bias_JD)
        assert_same(routed.pose_BJD, expected.pose_BJD)
        assert_same(routed.act_BJ, expected.act_BJ)
        assert_same(routed.coupling_BIJ, expected.coupling_BIJ)


@every_baseline
@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
def test_gradients_are_those_of_the_reference(route: Route, num_iters: int) -> None:
    problem = RoutingProblem(RoutingSizes(3, 11, 5, 4, 7, num_iters), torch.float64)
    expected, results = problem.compute_results(dynamic.reference), problem.compute_results(route)
    assert len(results) == 5
    for name, tensor in expected.items():
        assert_same(results[name], tensor)


def test_a_network_takes_a_baseline_in_place_of_its_routing() -> None:
    network = build.build_network(
        compose.cell(["model=capsnet_tiny", "routing.impl=reference"]).config
    )
    images_BCHW = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    calls: list[int] = []

    def count_calls(*arguments: object, **options: object) -> Routed:
        calls.append(1)
        return route_by_bmm(*arguments, **options)

    expected = network(images_BCHW).scores_BN
    routing.replace_routing(network, count_calls)
    torch.testing.assert_close(network(images_BCHW).scores_BN, expected)
    assert calls


def test_candidates_take_turns() -> None:
    called: list[str] = []
    calls = {name: (lambda name=name: called.append(name)) for name in "AB"}
    seconds = time_in_turns(calls, budget=0, least=3)
    assert "".join(called) == "ABABABAB"  # the first two do not count
    assert {name: len(each) for name, each in seconds.items()} == {"A": 3, "B": 3}


def test_a_ratio_is_taken_within_rounds() -> None:
    # The machine is ten times slower in the last two rounds, and three times in all is right.
    seconds = {"slow": [3.0, 30.0, 30.0], "fast": [1.0, 10.0, 10.0]}
    assert median_ratio(seconds, "slow", "fast") == 3
    assert median_ratio(seconds, "textbook", "fast") is None


def _seconds(textbook: float, bmm: float, fast: float) -> Seconds:
    return {"textbook": [textbook] * 3, "bmm": [bmm] * 3, "fast": [fast] * 3}


@pytest.mark.parametrize("gpu", [False, True])
def test_the_bars_of_routing_compare_fast_with_the_baselines(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "is_gpu", lambda: gpu)
    seconds = {FORWARD: _seconds(9.0, 3.0, 1.0), BOTH: _seconds(12.0, 2.5, 1)}
    extra = {"textbook": 1600, "bmm": 500, "fast": 100}
    rows = [
        {"candidate": name, "pass": BOTH, "extra MB": megabytes}
        for name, megabytes in extra.items()
    ]
    bars = routing.judge_routing(seconds, rows)
    assert [bar.value for bar in bars] == [12.0, 9.0, 2.5, 1 / 16]
    verdicts = ["skipped"] * 4 if gpu else ["kept", "missed", "kept", "kept"]
    assert [bar.verdict for bar in bars] == verdicts


@pytest.mark.slow
def test_all_candidates_of_routing_are_measured() -> None:
    report = routing.measure_routing(RoutingSizes(batch=2, num_iters=2), budget=0)
    assert [(row["pass"], row["candidate"]) for row in report.timings] == [
        (which, name) for which in (FORWARD, BOTH) for name in routing.list_candidates()
    ]
    assert all(row["extra MB"] > 0 and row["ms"] > 0 for row in report.timings)


@pytest.mark.slow
def test_a_step_with_another_routing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def route_once(votes: object, _: int, *rest: object, **options: object) -> Routed:
        return route_by_bmm(votes, 1, *rest, **options)

    once = step.StepCandidate("reference", route=route_once)
    right = step.list_candidates()["bmm"]
    monkeypatch.setattr(step, "list_candidates", lambda: {"right": right, "once": once})
    with pytest.raises(ParityError, match=r"^once: scores differs by"):
        step.check_candidates()


@pytest.mark.slow
def test_steps_of_em_routing_are_measured() -> None:
    values = [measured.value for measured in step.measure_em(steps=1).measured]
    assert len(values) == 6
    assert all(value is not None and value > 0 for value in values)


@pytest.mark.slow
def test_a_sweep_costs_more_than_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    planned, local, ray = sweep.measure_sweep(cells=2, seeds=2).measured
    assert planned.value is not None
    assert local.value is not None
    assert local.value > 0
    assert ray.describe_verdict() == "skipped: Ray is not installed"


def test_shards_with_something_else_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    data.check_shards()
    compose_pairs = data.compose_pairs

    def spoil_labels(source: PairSource, *arguments: Any, **options: Any) -> dict[str, np.ndarray]:
        arrays = compose_pairs(source, *arguments, **options)
        return arrays | {"labels": arrays["labels"] + 1}

    monkeypatch.setattr(data, "compose_pairs", spoil_labels)
    with pytest.raises(ParityError, match="labels of a shard"):
        data.check_shards()


@pytest.mark.slow
def test_every_rate_of_shards_is_measured() -> None:
    report = data.measure_shards(budget=0.1, examples=2000)
    assert all(measured.value for measured in report.measured)
    assert len(report.measured) == 4
