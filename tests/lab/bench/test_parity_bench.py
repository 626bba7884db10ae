"""Whole networks against float64: what is wrong is named, and the others are measured."""

import math
from typing import Any

import pytest

from capsweep.config import package_files
from capsweep.lab import bench
from capsweep.lab.bench import parity
from capsweep.lab.bench.parity import Case
from capsweep.lab.bench.training import StepCandidate
from capsweep.model.routing import Routed, dynamic

TINY = ("model=capsnet_tiny", "dataset=digits")


def measure(*cases: Case) -> Any:
    """Of two images."""
    return parity.measure_parity(images=2, cases=cases)


def route_wrongly(*arguments: Any, **options: Any) -> Routed:
    """Dynamic routing, its poses a little too long."""
    routed = dynamic.fast(*arguments, **options)
    return routed._replace(pose_BJD=routed.pose_BJD * (1 + 1e-4))


def test_a_wrong_implementation_is_missed_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    right = "tiny", StepCandidate("fast", overrides=TINY), "float64"
    assert {bar.verdict for bar in measure(right).measured} == {"kept"}
    monkeypatch.setitem(dynamic.IMPLS, "fast", route_wrongly)
    report = measure(right)
    _, gradients = report.measured
    what = "error of gradients in float64: the largest, of tiny"
    assert (gradients.what, gradients.verdict) == (what, "missed")
    assert 1e-5 < gradients.value < 1e-2
    assert report.timings[0]["largest"].startswith("decoder")


def test_a_candidate_that_cannot_run_is_infinitely_wrong_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **options: Any) -> Routed:
        raise RuntimeError("out of shared memory")

    monkeypatch.setitem(dynamic.IMPLS, "triton", refuse)
    impls = ("triton", "fast")
    report = measure(*((i, StepCandidate(i, overrides=TINY), "float32") for i in impls))
    assert [(bar.value, bar.verdict) for bar in report.measured] == [(math.inf, "missed")] * 2
    triton, fast = report.timings
    assert triton["largest"] == "RuntimeError: out of shared memory"
    assert fast[parity.OUTPUTS] < 2e-5


@pytest.mark.parametrize("gpu", [False, True])
def test_every_routing_is_compared_by_the_implementation_of_its_file(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "is_gpu", lambda: gpu)
    cases = {(name, precision) for name, _, precision in parity.list_cases()}
    files = (package_files.find_folder("conf") / "routing").glob("*.yaml")
    variants = [f"capsnet_tiny, {path.stem}" for path in files]
    for name in (*variants, "matrix_capsnet by fast", "cnn_small", "capsnet by fast"):
        assert {(name, "float64"), (name, "float32")} <= cases
    assert ("capsnet by fast", "bf16-mixed") in cases
    assert (("capsnet by triton", "bf16-mixed") in cases) == gpu


@pytest.mark.slow
def test_all_networks_are_what_the_reference_computes() -> None:
    report = parity.measure_parity()
    assert {bar.verdict for bar in report.measured} == {"kept"}
    assert len(report.timings) == len(parity.list_cases())
