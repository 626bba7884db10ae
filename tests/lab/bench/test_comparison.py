"""Candidates compute the same and are timed in turns. Nothing here is a test of speed."""

from typing import Any

import numpy as np
import pytest
import torch
from routing_oracles import AWKWARD
from torch import nn

from capsweep.config import compose, package_files
from capsweep.data.pairs import PairSource
from capsweep.lab.bench import convolution, data, machine, networks, routing, step, sweep, training
from capsweep.lab.bench.comparison import (
    ParityError,
    Seconds,
    check_parity,
    median_ratio,
    time_in_turns,
)
from capsweep.lab.bench.convolution import ConvolutionSizes
from capsweep.lab.bench.routing import BOTH, FORWARD, RoutingSizes, route_by_bmm
from capsweep.model.large_kernels import SMALLEST_KERNEL
from capsweep.model.routing import Routed, dynamic
from capsweep.training import build


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
    monkeypatch.setattr(routing, "GATE", routing.GATE[:1])
    monkeypatch.setattr(routing.processes, "measure_extra_memory", lambda *_: 10**6)
    report = routing.measure_routing(RoutingSizes(batch=2, num_iters=2), budget=0)
    *timed, wrong, failed = report.timings
    assert {row["candidate"] for row in timed} == {"right"}
    assert wrong["not measured"] == "fast"
    assert wrong["cause"].startswith("pose_BJD differs by 1.0e-07, at most 1e-09")
    assert failed == {"not measured": "bmm", "cause": "RuntimeError: no kernel"}
    assert [(bar.value, bar.verdict) for bar in report.measured if bar.value] == [(2, "missed")]


def test_the_steps_without_faults_are_measured_and_the_others_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = ("model=capsnet_tiny", "dataset=digits")
    candidates = {
        "fast fp32": training.StepCandidate("fast", overrides=tiny),
        "no kernel": training.StepCandidate("reference", route=_fail, overrides=tiny),
        "wrong": training.StepCandidate("reference", route=_route_once, overrides=tiny),
    }
    monkeypatch.setattr(step, "CAPSNET", tiny)
    monkeypatch.setattr(step, "list_candidates", lambda: candidates)
    report = step.measure_step(budget=0, images=2, others=())
    sound, failed, wrong = report.timings
    assert sound["candidate"] == "fast fp32"
    assert sound["images/s"] > 0
    assert failed == {"not measured": "no kernel", "cause": "RuntimeError: no kernel"}
    assert wrong["cause"].startswith("scores differs by")
    assert (report.measured[-1].value, report.measured[-1].verdict) == (2, "missed")


def _route_once(votes: object, _: int, *rest: object, **options: object) -> Routed:
    return route_by_bmm(votes, 1, *rest, **options)


def test_em_routing_that_fails_at_a_number_of_iterations_is_measured_at_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check(_: object, results: Any) -> None:
        if failing.pop():
            raise ParityError("fast: scores differs")

    failing = [False, True]
    monkeypatch.setattr(step.comparison, "check_parity", check)
    report = step.measure_em(steps=1, images=2)
    speed, faults = report.measured
    assert speed.what.startswith("EM routing, T = 3")
    assert (faults.value, faults.verdict) == (1, "missed")
    assert report.timings[0]["not measured"] == "fast, T = 2"


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


def test_every_candidate_has_the_outputs_and_gradients_of_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "GATE", [RoutingSizes(*size) for size in AWKWARD])
    assert routing.find_faults(routing.list_candidates()) == {}


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


TRITON = {"triton": [2.0] * 3}


def _seconds(textbook: float, bmm: float, fast: float) -> Seconds:
    return {"textbook": [textbook] * 3, "bmm": [bmm] * 3, "fast": [fast] * 3}


@pytest.mark.parametrize("gpu", [False, True])
def test_the_bars_of_routing_compare_fast_with_the_baselines(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "is_gpu", lambda: gpu)
    seconds = {FORWARD: _seconds(9.0, 3.0, 1.0), BOTH: _seconds(12.0, 2.5, 1) | TRITON}
    bars = routing.judge_routing(seconds, {"textbook": 1600, "bmm": 500, "fast": 100})
    if gpu:
        assert [bar.verdict for bar in bars] == [*["skipped"] * 3, "kept", "missed", "skipped"]
        assert [bar.value for bar in bars[3:5]] == [2.5, 0.5]
        assert bars[4].what == "routing, forward + backward: triton over fast"
    else:
        assert [bar.value for bar in bars] == [12.0, 9.0, 2.5, 1 / 16]
        assert [bar.verdict for bar in bars] == ["kept", "missed", "kept", "kept"]


@pytest.mark.parametrize("gpu", [False, True])
def test_pairs_are_composed_on_the_device_too(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_gpu", lambda: gpu)
    core, _, device, larger = data.measure_data(examples=300, epochs=1).measured
    assert all(each.value and each.value > 0 for each in (core, device, larger))
    assert (core.verdict == "skipped") is gpu
    assert device.bar == 2_000_000
    assert device.verdict == ("missed" if gpu else "skipped")
    assert larger.bar is None


@pytest.mark.slow
def test_all_candidates_of_routing_are_measured() -> None:
    report = routing.measure_routing(RoutingSizes(batch=2, num_iters=2), budget=0)
    assert [(row["pass"], row["candidate"]) for row in report.timings] == [
        (which, name) for which in (FORWARD, BOTH) for name in routing.list_candidates()
    ]
    assert all(row["extra MB"] > 0 and row["ms"] > 0 for row in report.timings)


@pytest.mark.slow
def test_a_step_with_another_routing_is_refused() -> None:
    once = training.StepCandidate("reference", route=_route_once)
    with pytest.raises(ParityError, match=r"^once: scores differs by"):
        training.check_step("once", once)


@pytest.mark.slow
def test_all_candidates_of_a_step_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_gpu", lambda: False)
    report = step.measure_step(budget=0, images=2, others=["cnn_tiny"])
    names = [next(iter(row.values())) for row in report.timings]
    parts = [*step.PARTS, step.OTHER_PARTS]
    assert names == [*step.list_candidates(), *parts, "capsnet", "cnn_tiny"]
    profiled = {row["part"]: row["before: ms"] for row in report.timings if "part" in row}
    never = {"transformed convolutions"}
    assert {part for part, milliseconds in profiled.items() if milliseconds == 0} == never
    assert report.timings[-1]["tiles"] == "direct, direct, direct"
    peaks = [row["peak MB"] for row in report.timings if "part" not in row]
    assert all(1e2 < peak < 1e4 for peak in peaks)


def test_networks_with_large_convolutions_are_measured() -> None:
    models = [path.stem for path in (package_files.find_folder("conf") / "model").glob("*.yaml")]
    assert {name for name in models if _has_large_kernel(name)} == {"capsnet", *networks.NETWORKS}


def _has_large_kernel(model: str) -> bool:
    """Behind the first layer, whose few channels are convolved directly."""
    dataset = networks.NETWORKS.get(model, "smallnorb" if model.startswith("matrix") else "digits")
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


def test_the_bars_of_networks_are_those_of_speed_and_memory() -> None:
    row = {"over before": 2.1, "over direct": 1.2, "before: peak MB": 100.0, "peak MB": 140.0}
    bars = networks.judge_networks(
        [row | {"network": name} for name in ("capsnet", "capsnet_tiny")]
    )
    assert [(bar.value, bar.verdict) for bar in bars] == [
        (2.1, "kept"),
        (1.2, "missed"),
        (1.4, "missed"),
    ]


@pytest.mark.slow
def test_a_convolution_and_the_choice_between_its_methods_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "is_gpu", lambda: False)
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
    assert planned.value is not None
    assert local.value is not None
    assert local.value > 0
    assert ray.as_row()[-1] == "skipped: Ray is not installed"


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
def test_every_rate_is_measured() -> None:
    steps, shards = step.measure_em(steps=1), data.measure_shards(budget=0.1, examples=2000)
    assert (len(steps.measured), len(shards.measured)) == (3, 3)
    assert all(measured.value for measured in [*steps.measured[:2], *shards.measured])
