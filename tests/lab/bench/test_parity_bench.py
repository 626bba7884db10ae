"""Whole networks against float64: what is wrong is named, and the others are measured."""

import math
from typing import Any

import pytest

from capsweep.config import package_files
from capsweep.lab.bench import machine, parity
from capsweep.lab.bench.parity import FLOAT32, FLOAT64, MIXED, ParityCase
from capsweep.lab.bench.training import StepCandidate
from capsweep.model.routing import Routed, dynamic

TINY = ("model=capsnet_tiny", "dataset=digits")


def measure(*cases: ParityCase) -> Any:
    """Of two images."""
    return parity.measure_parity(images=2, cases=cases)


def route_wrongly(*arguments: Any, **options: Any) -> Routed:
    """Dynamic routing, its poses a little too long."""
    routed = dynamic.fast(*arguments, **options)
    return routed._replace(pose_BJD=routed.pose_BJD * (1 + 1e-4))


def test_a_wrong_implementation_is_missed_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ParityCase(StepCandidate("fast", overrides=TINY), FLOAT64)
    assert {bar.verdict for bar in measure(right).measured} == {"kept"}
    monkeypatch.setitem(dynamic.IMPLS, "fast", route_wrongly)
    report = measure(right)
    _, gradients = report.measured
    assert (gradients.what, gradients.verdict) == (
        "capsnet_tiny by fast in float64: error of gradients",
        "missed",
    )
    assert 1e-5 < gradients.value < 1e-2
    assert report.timings[0]["largest"].startswith("decoder")


def test_a_candidate_that_cannot_run_is_infinitely_wrong_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **options: Any) -> Routed:
        raise RuntimeError("out of shared memory")

    monkeypatch.setitem(dynamic.IMPLS, "triton", refuse)
    triton = ParityCase(StepCandidate("triton", overrides=TINY), FLOAT32)
    report = measure(triton, ParityCase(StepCandidate("fast", overrides=TINY), FLOAT32))
    assert [bar.verdict for bar in report.measured] == ["missed", "missed", "kept", "kept"]
    assert report.measured[0].value == math.inf
    assert report.timings[0]["largest"] == "RuntimeError: out of shared memory"


@pytest.mark.parametrize("gpu", [False, True])
def test_every_routing_is_compared_by_the_implementation_of_its_file(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "is_gpu", lambda: gpu)
    names = [case.names for case in parity.list_cases()]
    files = (package_files.find_folder("conf") / "routing").glob("*.yaml")
    for precision in (FLOAT64, FLOAT32):
        of_tiny = [
            each["routing"]
            for each in names
            if (each["network"], each["precision"]) == ("capsnet_tiny", precision.name)
        ]
        assert {path.stem for path in files} <= set(of_tiny)
    capsnet = {
        (each["implementation"], each["precision"])
        for each in names
        if each["network"] == "capsnet"
    }
    impls = ("fast", "triton") if gpu else ("fast",)
    precisions = (FLOAT64, FLOAT32, MIXED)
    assert capsnet == {(impl, each.name) for impl in impls for each in precisions}
    assert {"matrix_capsnet", "cnn_small"} <= {each["network"] for each in names}


@pytest.mark.slow
def test_all_networks_are_what_the_reference_computes() -> None:
    report = parity.measure_parity()
    assert {bar.verdict for bar in report.measured} == {"kept"}
    assert len(report.timings) == len(parity.list_cases())
