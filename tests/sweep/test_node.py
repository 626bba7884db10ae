"""What a node is asked for before it trains."""

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.config.cell import Cell
from capsweep.errors import NodeError
from capsweep.ledger import causes
from capsweep.sweep import node
from capsweep.sweep.job import Job, run_job
from capsweep.tracking.labels import Labels


def test_a_node_as_its_driver_wants_it(small_cell: Callable[..., Cell], storage: Path) -> None:
    config = small_cell().config
    with node.required(config) as wanted:
        node.check(json.loads(json.dumps(wanted)), config)
        assert len(list((storage / "ledger").iterdir())) == 1
    assert list((storage / "ledger").iterdir()) == []


@pytest.mark.parametrize("name", ["torch", "ray", "pytorch-lightning"])
def test_other_versions_are_named_with_the_cure(small_cell: Callable[..., Cell], name: str) -> None:
    config = small_cell().config
    with node.required(config) as wanted:
        wanted["versions"][name] = "0.1"
        found = node.versions()[name]
        said = f"has {name} {found} and not the driver's 0.1; install {name}==0.1 there, or run"
        with pytest.raises(NodeError, match=said):
            node.check(wanted, config)


def test_other_code_is_refused(small_cell: Callable[..., Cell]) -> None:
    config = small_cell().config
    with node.required(config) as wanted:
        wanted["versions"][node.CODE] = "0" * 12
        with pytest.raises(NodeError, match="not the driver's 000000000000; take the other caps"):
            node.check(wanted, config)


def test_builds_of_one_version_for_other_devices_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"torch": "2.13.0+cu130", "ray": "2.60.0", "pytorch-lightning": "2.6.6"}
    monkeypatch.setattr(importlib.metadata, "version", found.__getitem__)
    assert node.versions()["torch"] == "2.13.0"


def test_a_node_with_a_ledger_of_its_own(
    small_cell: Callable[..., Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "SEEN", 0.3)
    config = small_cell().config
    other = tmp_path / "other"
    elsewhere = small_cell(f"cluster.node.storage={other}").config
    with node.required(config) as wanted:
        with pytest.raises(NodeError, match=f"{other}/ledger is not the driver's .*LEDGER=s3://"):
            node.check(wanted, elsewhere)
        (other / "ledger").mkdir(parents=True)
        with pytest.raises(NodeError, match=f"{other}/ledger is not the driver's"):
            node.check(wanted, elsewhere)


def test_a_variable_that_the_node_has_not(small_cell: Callable[..., Cell]) -> None:
    config = small_cell("cluster.node.data='$NOWHERE/data'").config
    with (
        node.required(config) as wanted,
        pytest.raises(NodeError, match=r"cluster.node.data=\$NOWHERE/data"),
    ):
        node.check(wanted, config)


def test_a_job_refuses_before_it_writes_anything(
    small_cell: Callable[..., Cell], storage: Path
) -> None:
    cell = small_cell()
    wanted = {"versions": node.versions() | {"torch": "0.1"}, "ledger": "", "file": ""}
    job = Job.from_json(Job(cell, Labels(), wanted=wanted).to_json())
    outcome = run_job(job, lambda row: None)
    assert outcome.cause is not None
    assert causes.kind(outcome.cause) == causes.Kind.NODE
    assert causes.can_succeed(outcome.cause)
    assert not storage.exists()
