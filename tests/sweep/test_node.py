"""What a node is asked for before it trains."""

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from s3_objects import S3Server

from capsweep.config.cell import Cell
from capsweep.errors import NodeError
from capsweep.ledger import causes, garbage
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.sweep import node
from capsweep.sweep.job import Job, run_job
from capsweep.tracking.labels import Labels
from capsweep.training.run_hooks import RunHooks


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
    outcome = run_job(job, RunHooks())
    assert outcome.cause is not None
    assert causes.kind_of_cause(outcome.cause) == causes.CauseKind.NODE
    assert causes.can_succeed(outcome.cause)
    assert not storage.exists()


@pytest.fixture
def in_s3(small_cell: Callable[..., Cell], store: S3Server) -> Mapping[str, Any]:
    """The configuration of a cell whose ledger is in an object store."""
    return small_cell(f"places.ledger='{store.url('bucket/x/ledger')}'").config


def test_a_node_reads_and_writes_a_ledger_in_an_object_store(
    in_s3: Mapping[str, Any], store: S3Server
) -> None:
    with node.required(in_s3) as wanted:
        mark = f"bucket/x/ledger/{wanted['file']}"
        assert mark in store.objects
        node.check(json.loads(json.dumps(wanted)), in_s3)
        assert store.count("PUT") - store.count("PUT", mark) >= 1  # the node's own
        assert [name for name in store.objects if not name.endswith("/")] == [mark]
    assert not [name for name in store.objects if ".driver-" in name]


@pytest.mark.parametrize("right", ["none", "to read"])
def test_a_node_without_a_right_to_the_store_is_told_how_to_get_it(
    right: str, in_s3: Mapping[str, Any], store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    cure = "; is it reachable .*credentials.* Give this node .*cluster.instance_profile=.*environ"
    with node.required(in_s3) as wanted:
        if right == "none":
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        else:
            store.readers.add("test-key")
        with pytest.raises(NodeError, match=rf"^node .*: places\.ledger=s3://bucket/x.*{cure}"):
            node.check(wanted, in_s3)


def test_another_ledger_in_an_object_store_is_not_the_drivers(
    in_s3: Mapping[str, Any], store: S3Server
) -> None:
    with node.required(in_s3) as wanted:
        del store.objects[f"bucket/x/ledger/{wanted['file']}"]  # as another endpoint would answer
        with pytest.raises(NodeError, match="s3://bucket/x/ledger is not the driver's s3://bucket"):
            node.check(wanted, in_s3)


def test_a_folder_that_a_node_may_not_write(small_cell: Callable[..., Cell]) -> None:
    config = small_cell("places.ledger=/proc").config  # where nobody makes files
    wanted = {"versions": node.versions(), "ledger": "/proc", "file": "version"}
    with pytest.raises(NodeError, match=r"^node .*: places\.ledger: /proc cannot be written"):
        node.check(wanted, config)


def test_what_a_driver_or_node_left_in_a_ledger_is_no_cell(
    small_cell: Callable[..., Cell], in_s3: Mapping[str, Any], store: S3Server
) -> None:
    cell = small_cell()
    result = f"{folder_of(cell.signature)}/result.json"
    for name in (".driver-0123456789abcdef", ".driver-0123456789abcdef-01234567"):
        store.put(f"bucket/x/ledger/{name}", b"")
    store.put(f"bucket/x/ledger/{result}", b'{"metrics": {}}')
    ledger = Ledger(store.url("bucket/x/ledger"))
    assert ledger.list_signatures() == [cell.signature]
    many = [cell.signature, *(f"{number:016x}" for number in range(20))]
    assert [entry.status for entry in ledger.entries(many).values()].count("done") == 1
    assert garbage.find_garbage(ledger) == []
    with node.required(in_s3) as wanted:
        node.check(wanted, in_s3)
