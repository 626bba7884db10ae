"""Exports of an air-gapped host, merged here: verified whole, the first result stands."""

import gzip
import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import reported_cells
from s3_server import S3Server

from capsweep.config import compose
from capsweep.errors import DataError, UserError
from capsweep.ledger import lease, transfer
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.storage.files import hash_bytes

SIGNATURE = compose.cell(["seed=3"]).signature
WEIGHTS = f"{SIGNATURE}/weights.ckpt"
Members = dict[str, bytes]


@pytest.fixture
def export(ledger: Ledger, finish, tmp_path: Path) -> Path:
    """An export of one cell with an evaluation."""
    finish(ledger, "seed=3")
    ledger.write_evaluation(SIGNATURE, "attack.json", b"{}")
    transfer.export_cells(ledger, [SIGNATURE], tmp_path / "export.tar")
    return tmp_path / "export.tar"


def edit(file: Path, change: Callable[[Members], object]) -> None:
    """The export with its members changed; hashes are not."""
    with tarfile.open(file) as tar:
        members = {name: tar.extractfile(name).read() for name in tar.getnames()}
    change(members)
    with tarfile.open(file, "w") as tar:
        for name, content in members.items():
            transfer._add_member(tar, name, content)


def forge(file: Path, name: str, content: bytes) -> None:
    """The export with a member that the manifest knows to be as it is."""

    def change(members: Members) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest["sha256"][f"{SIGNATURE}/{name}"] = hash_bytes(content)
        members[f"{SIGNATURE}/{name}"] = content
        members["manifest.json"] = json.dumps(manifest).encode()

    edit(file, change)


def add_member(file: Path, name: str, **attributes: Any) -> None:
    """One more member, of a byte."""
    with tarfile.open(file, "a", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo(f"{SIGNATURE}/{name}")
        info.size = 1
        for attribute, value in attributes.items():
            setattr(info, attribute, value)
        tar.addfile(info, io.BytesIO(b"x"))


FORGED = (
    ("config.yaml", b"a: &a [*a]"),
    ("config.yaml", b"!!python/name:os.system ''"),
    ("provenance.json", b'{"science": {"seed": 7}}'),
    ("metrics.jsonl", b'{"epoch": 0, "val/loss": -1}'),
    ("steps.jsonl", b'{"epoch": 0.5}'),
    ("result.json", b"[" * 100_000),
)
BAD_NAMES = ("../../evil", "evals/../evil", "other/evil", "", "..", "evals/", "evals", "a\\b")
LONG_NAMES = ("a" * 300, "evals/" + "a" * 300)
SPARSE = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(2**50)}
NO_FILES = [
    {"type": kind, "linkname": "/etc/passwd"}
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
]
REFUSED = [
    (partial(edit, change=lambda m: m.update({WEIGHTS: b"w "})), "differs from the manifest"),
    (partial(edit, change=lambda m: m.pop(WEIGHTS)), "is absent"),
    (partial(edit, change=lambda m: m.pop("manifest.json")), "no manifest"),
    (lambda f: f.write_bytes(f.read_bytes()[:700]), r"export\.tar: "),
    (lambda f: f.write_bytes(gzip.compress(f.read_bytes())), "not a complete tar file"),
    (Path.unlink, "no such file"),
    (lambda file: (file.unlink(), os.mkfifo(file)), "no regular file"),
    (partial(add_member, name="weights.ckpt"), "differs from the manifest"),
    *((partial(add_member, name="odd", **kind), "is not a regular file") for kind in NO_FILES),
    (partial(add_member, name="odd", pax_headers=SPARSE), "is not a regular file"),
    *(
        (partial(forge, name=name, content=b"x"), "leads out of its folder")
        for name in (*BAD_NAMES, *LONG_NAMES)
    ),
    (partial(forge, name="config.yaml", content=b"seed: 99\n"), "have the signature"),
    *((partial(forge, name=name, content=content), f"{name} of cell") for name, content in FORGED),
]


@pytest.mark.parametrize("size", [3 * 10**9, 2**40, 2**62, 2**70, -1])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("name", ["export.tar", "export.tar.xz"])
def test_a_header_that_declares_more_bytes_than_there_are_is_one_line(
    size: int, kind: bytes, name: str, tmp_path: Path
) -> None:
    info = tarfile.TarInfo("manifest.json")
    info.size, info.type = size, kind
    content = info.tobuf(tarfile.GNU_FORMAT) + b"{}".ljust(512) + bytes(1024)
    packed = lzma.compress(content) if name.endswith("xz") else content
    (tmp_path / name).write_bytes(packed)
    with pytest.raises(DataError, match=rf"^\S*{name}: not a complete tar file \([^\n]+\); copy"):
        transfer.import_cells(Ledger(tmp_path / "there"), tmp_path / name)


@pytest.mark.parametrize("name", ["metrics.jsonl", "weights.ckpt"])
def test_a_file_that_is_not_the_one_of_the_result_is_not_merged(
    name: str, finish, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path)
    finish(ledger, "seed=3")
    reported_cells.sign(tmp_path / folder_of(SIGNATURE))
    transfer.export_cells(ledger, [SIGNATURE], tmp_path / "export.tar")
    forge(tmp_path / "export.tar", name=name, content=b"")
    message = rf"export\.tar: {SIGNATURE}/{name} is not the file that the cell's result"
    with pytest.raises(DataError, match=message):
        transfer.import_cells(Ledger(tmp_path / "there"), tmp_path / "export.tar")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("provenance.json", '{"code": "x"}', r"provenance\.json is damaged \(code: "),
        ("config.yaml", "seed: 99\n", r"config\.yaml is damaged \(its settings have the sign"),
        ("evals/my plot.png", "x", r"evals/my plot\.png: an export takes only names of letters"),
    ],
)
@pytest.mark.parametrize("ledger", ["disk"], indirect=True)
def test_an_export_that_no_import_would_take_is_not_written(
    name: str, content: str, message: str, ledger: Ledger, finish, tmp_path: Path
) -> None:
    finish(ledger, "seed=3")
    ledger.store.write(f"{folder_of(SIGNATURE)}/{name}", content.encode())
    with pytest.raises(UserError, match=message):
        transfer.export_cells(ledger, [SIGNATURE], tmp_path / "export.tar")
    assert not (tmp_path / "export.tar").exists()


@pytest.mark.parametrize(("damage", "message"), REFUSED)
@pytest.mark.parametrize("ledger", ["disk"], indirect=True)
def test_a_damaged_export_is_refused_before_anything_is_written(
    damage: Callable[[Path], object], message: str, export: Path, tmp_path: Path
) -> None:
    damage(export)
    with pytest.raises(DataError, match=message):
        transfer.import_cells(Ledger(tmp_path / "there"), export)
    assert not (tmp_path / "there").exists()
    assert not (tmp_path / "evil").exists()


def test_what_is_exported_can_be_merged_elsewhere(
    export: Path, ledger: Ledger, tmp_path: Path
) -> None:
    there = Ledger(tmp_path / "there")
    assert transfer.import_cells(there, export) == (1, 0)
    for name in ("config.yaml", "weights.ckpt", "metrics.jsonl", "evals/attack.json"):
        assert there.read(SIGNATURE, name) == ledger.read(SIGNATURE, name)
    assert there.read_result(SIGNATURE) == ledger.read_result(SIGNATURE)
    assert transfer.import_cells(there, export) == (0, 1)
    transfer.export_cells(ledger, [SIGNATURE], tmp_path / "small.tar", transfer.is_needed_by_tables)
    assert transfer.import_cells(Ledger(tmp_path / "other"), tmp_path / "small.tar") == (1, 0)
    assert Ledger(tmp_path / "other").read(SIGNATURE, "weights.ckpt") is None


def test_a_packed_export_is_unpacked_up_to_a_bound(
    export: Path, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "export.tar.xz"
    assert transfer.export_cells(ledger, [SIGNATURE], packed) < export.stat().st_size / 2
    assert transfer.import_cells(Ledger(tmp_path / "there"), packed) == (1, 0)
    monkeypatch.setattr(transfer, "LARGEST", 10)
    with pytest.raises(UserError, match=r"bytes are too many to pack; leave \.xz out"):
        transfer.export_cells(ledger, [SIGNATURE], tmp_path / "large.tar.xz")
    monkeypatch.setattr(transfer, "LARGEST", 2**20)
    (tmp_path / "large.tar.xz").write_bytes(lzma.compress(bytes(2**21), preset=0))
    with pytest.raises(DataError, match=r"more than 1,048,576 bytes when unpacked; unpack it with"):
        transfer.import_cells(Ledger(tmp_path / "other"), tmp_path / "large.tar.xz")
    packed.write_bytes(packed.read_bytes()[:-20])
    monkeypatch.undo()
    with pytest.raises(DataError, match="not a complete tar file"):
        transfer.import_cells(Ledger(tmp_path / "other"), packed)


def test_of_a_failed_cell_the_cause_travels_without_what_is_of_that_machine(
    ledger: Ledger, finish, tmp_path: Path, store: S3Server
) -> None:
    ledger.store.write(f"{folder_of(SIGNATURE)}/resume.ckpt", b"large")
    ledger.note_failure(SIGNATURE, "DataError: /home/me/data/x.gz is damaged\n\nTraceback of it")
    file = tmp_path / "failed.tar"
    transfer.export_cells(ledger, [SIGNATURE], file)
    for there in (Ledger(tmp_path / "there"), Ledger(store.url("bucket/there"))):
        assert transfer.import_cells(there, file) == (1, 0)
        assert transfer.import_cells(there, file) == (0, 1)
        assert there.read(SIGNATURE, "error.txt") == b"DataError: x.gz is damaged"
        assert there.read_entry(SIGNATURE).status == "failed"
        assert there.list_files(SIGNATURE) == ["error.txt"]
    finish(ledger, "seed=3")
    assert transfer.import_cells(ledger, file) == (0, 1)
    assert ledger.read_entry(SIGNATURE).status == "done"
    transfer.export_cells(ledger, [SIGNATURE], tmp_path / "finished.tar")
    assert transfer.import_cells(there, tmp_path / "finished.tar") == (1, 0)
    assert there.read_entry(SIGNATURE).status == "done"


def test_a_failure_beside_a_result_is_left_out(
    export: Path, ledger: Ledger, tmp_path: Path
) -> None:
    forge(export, "error.txt", b"DataError: of an earlier run")
    there = Ledger(tmp_path / "there")
    assert transfer.import_cells(there, export) == (1, 0)
    assert there.read_entry(SIGNATURE).status == "done"
    assert there.read(SIGNATURE, "error.txt") is None


def test_the_first_result_stands(export: Path, finish, tmp_path: Path) -> None:
    there = Ledger(tmp_path / "there")
    finish(there, "seed=3", error=0.75)
    assert transfer.import_cells(there, export) == (0, 1)
    assert (there.read_result(SIGNATURE) or {})["metrics"] == {"test/error": 0.75}


@pytest.mark.parametrize("is_bucket", [False, True])
def test_what_an_unfinished_run_left_does_not_mix_with_the_import(
    export: Path, tmp_path: Path, store: S3Server, is_bucket: bool
) -> None:
    there = Ledger(store.url("bucket/there") if is_bucket else tmp_path / "there")
    for name in ("predictions.npz", "stopped.json", "resume.ckpt"):
        there.store.write(f"{folder_of(SIGNATURE)}/{name}", b"of another run")
    transfer.import_cells(there, export)
    assert there.read_entry(SIGNATURE).status == "done"
    assert there.read(SIGNATURE, "weights.ckpt") == b"weights"
    assert there.read(SIGNATURE, "resume.ckpt") is None
    assert not is_bucket or there.read_result(SIGNATURE)["attempt"]
    again = tmp_path / "again.tar"
    transfer.export_cells(there, [SIGNATURE], again)
    assert transfer.import_cells(Ledger(tmp_path / "third"), again) == (1, 0)


@pytest.mark.parametrize("killed_at", range(1, 7))
def test_a_cell_whose_import_was_killed_is_not_finished(
    export: Path, tmp_path: Path, killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Ledger(tmp_path / "there")
    write, written = there.store.write, []

    def write_or_die(name: str, content: bytes) -> None:
        written.append(name)
        if len(written) == killed_at:
            raise KeyboardInterrupt
        write(name, content)

    monkeypatch.setattr(there.store, "write", write_or_die)
    with pytest.raises(KeyboardInterrupt):
        transfer.import_cells(there, export)
    assert there.read_entry(SIGNATURE).status == "missing"
    monkeypatch.undo()
    assert transfer.import_cells(there, export) == (1, 0)


def test_a_cell_that_is_being_run_is_left_alone(export: Path, tmp_path: Path) -> None:
    with (
        lease.take_lease(tmp_path / "there", SIGNATURE),
        pytest.raises(UserError, match=f"{SIGNATURE} is being run by process"),
    ):
        transfer.import_cells(Ledger(tmp_path / "there"), export)
    assert transfer.import_cells(Ledger(tmp_path / "there"), export) == (1, 0)


def test_an_export_replaces_nothing(export: Path, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    before = export.read_bytes()
    for target in (export, tmp_path, tmp_path / "link", Path("/dev/null")):
        with pytest.raises(UserError, match="exists already"):
            transfer.export_cells(ledger, [SIGNATURE], target)
    assert export.read_bytes() == before
