"""Exports of an air-gapped host, merged here: verified whole, the first result stands."""

import gzip
import io
import json
import os
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from capsweep.errors import DataError, UserError
from capsweep.ledger import lease, stored_files, upkeep
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.storage.files import hash_bytes


@pytest.fixture
def exported(ledger: Ledger, finish, tmp_path: Path) -> tuple[Path, str]:
    """An export of one cell, and its signature."""
    cell = finish(ledger, "seed=3")
    file = tmp_path / "export.tar"
    upkeep.export_cells(ledger, [cell.signature], file)
    return file, cell.signature


def edited(file: Path, edit) -> Path:
    """The export with its members changed; hashes are not."""
    with tarfile.open(file) as tar:
        members = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}
    edit(members)
    with tarfile.open(file, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file


def test_what_is_exported_can_be_merged_elsewhere(
    exported: tuple[Path, str], ledger: Ledger, tmp_path: Path
) -> None:
    file, signature = exported
    there = Ledger(tmp_path / "there")
    assert upkeep.import_cells(there, file) == upkeep.Imported(new=1, known=0)
    assert there.read_result(signature) == ledger.read_result(signature)
    assert there.read_science(signature) == ledger.read_science(signature)
    assert there.read(signature, "weights.ckpt") == b"weights"
    assert upkeep.import_cells(there, file) == upkeep.Imported(new=0, known=1)


def test_the_first_result_stands(exported: tuple[Path, str], finish, tmp_path: Path) -> None:
    there = Ledger(tmp_path / "there")
    cell = finish(there, "seed=3", error=0.75)
    upkeep.import_cells(there, exported[0])
    assert there.read_result(cell.signature) == {"metrics": {"test/error": 0.75}}


def test_evaluations_travel_with_their_cell(ledger: Ledger, finish, tmp_path: Path) -> None:
    cell = finish(ledger, "seed=3")
    ledger.write_evaluation(cell.signature, "attack.json", b"{}")
    upkeep.export_cells(ledger, [cell.signature], tmp_path / "export.tar")
    there = Ledger(tmp_path / "there")
    assert upkeep.import_cells(there, tmp_path / "export.tar").new == 1
    assert there.read(cell.signature, "evals/attack.json") == b"{}"


@pytest.mark.parametrize(
    ("name", "message"),
    [("weights.ckpt", "is altered"), ("config.yaml", "is altered"), (None, "not as the manifest")],
)
def test_damage_is_refused_before_anything_is_written(
    exported: tuple[Path, str], tmp_path: Path, name: str | None, message: str
) -> None:
    file, signature = exported

    def damage(members: dict[str, bytes]) -> None:
        if name is None:
            del members[f"{signature}/metrics.jsonl"]
        else:
            members[f"{signature}/{name}"] += b" "

    there = Ledger(tmp_path / "there")
    with pytest.raises(DataError, match=message):
        upkeep.import_cells(there, edited(file, damage))
    assert there.list_signatures() == []


def test_a_configuration_under_another_signature_is_refused(
    ledger: Ledger, finish, tmp_path: Path
) -> None:
    cell = finish(ledger, "seed=3")
    ledger.store.write(f"{folder_of(cell.signature)}/config.yaml", b"seed: 99\n")
    upkeep.export_cells(ledger, [cell.signature], tmp_path / "forged.tar")
    with pytest.raises(DataError, match=f"configuration of cell {cell.signature} has the signat"):
        upkeep.import_cells(Ledger(tmp_path / "there"), tmp_path / "forged.tar")


def test_a_file_cut_short_or_of_another_kind_is_named(
    exported: tuple[Path, str], tmp_path: Path
) -> None:
    file, _ = exported
    there = Ledger(tmp_path / "there")
    file.write_bytes(file.read_bytes()[:700])
    with pytest.raises(DataError, match=r"export\.tar: "):
        upkeep.import_cells(there, file)
    with pytest.raises(DataError, match="no such file"):
        upkeep.import_cells(there, tmp_path / "absent.tar")


@pytest.mark.parametrize(
    "name",
    [
        "../../evil",
        "evals/../evil",
        "evals/.evil",
        "other/evil",
        "",
        "/evil",
        "..",
        "evals/",
        "a\\b",
    ],
)
def test_names_that_lead_out_are_refused(
    exported: tuple[Path, str], tmp_path: Path, name: str
) -> None:
    file, signature = exported

    def escape(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        content = members.pop(f"{signature}/metrics.jsonl")
        digest = manifest["sha256"].pop(f"{signature}/metrics.jsonl")
        manifest["sha256"][f"{signature}/{name}"] = digest
        members[f"{signature}/{name}"] = content
        members["manifest.json"] = json.dumps(manifest).encode()

    with pytest.raises(DataError, match="a file outside its folder"):
        upkeep.import_cells(Ledger(tmp_path / "there"), edited(file, escape))
    assert not (tmp_path / "evil").exists()


def forged(file: Path, signature: str, content: bytes, name: str = "config.yaml") -> Path:
    """The export with a member that the manifest knows to be as it is."""

    def forge(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest["sha256"][f"{signature}/{name}"] = hash_bytes(content)
        members[f"{signature}/{name}"] = content
        members["manifest.json"] = json.dumps(manifest).encode()

    return edited(file, forge)


BOMB = "a: &a [1]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in pairwise("abcdefghijk")
)


@pytest.mark.parametrize(
    "content",
    [BOMB, "a: &a [*a]", "[1]", "{", "!!python/name:os.system ''", "[" * 50_000, "a: .nan"],
)
def test_a_configuration_that_is_none_is_refused(
    exported: tuple[Path, str], tmp_path: Path, content: str
) -> None:
    file, signature = exported
    with pytest.raises(DataError, match=rf"config\.yaml of cell {signature}"):
        upkeep.import_cells(Ledger(tmp_path / "there"), forged(file, signature, content.encode()))
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"metrics": 3}', b"[" * 100_000])
def test_a_result_that_is_none_is_refused_before_anything_is_written(
    exported: tuple[Path, str], tmp_path: Path, content: bytes
) -> None:
    file, signature = exported
    with pytest.raises(DataError, match=rf"result\.json of cell {signature}"):
        upkeep.import_cells(
            Ledger(tmp_path / "there"), forged(file, signature, content, "result.json")
        )
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_a_link_or_a_device_in_an_export_is_refused(
    exported: tuple[Path, str], tmp_path: Path, kind: bytes
) -> None:
    file, signature = exported
    with tarfile.open(file, "a") as tar:
        info = tarfile.TarInfo(f"{signature}/evals")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(DataError, match="is no plain file"):
        upkeep.import_cells(Ledger(tmp_path / "there"), file)
    assert not (tmp_path / "there").exists()


def test_a_compressed_or_a_sparse_export_is_refused(
    exported: tuple[Path, str], tmp_path: Path
) -> None:
    file, signature = exported
    there = Ledger(tmp_path / "there")
    packed = tmp_path / "packed.tar.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    with pytest.raises(DataError, match="not a whole tar file"):
        upkeep.import_cells(there, packed)
    with tarfile.open(file, "a", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo(f"{signature}/large")
        info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(2**50)}
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(DataError, match="is no plain file"):
        upkeep.import_cells(there, file)
    assert there.list_signatures() == []


def test_a_file_that_is_there_twice_is_refused(exported: tuple[Path, str], tmp_path: Path) -> None:
    file, signature = exported
    with tarfile.open(file, "a") as tar:
        info = tarfile.TarInfo(f"{signature}/weights.ckpt")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    with pytest.raises(DataError, match="is not as the manifest says"):
        upkeep.import_cells(Ledger(tmp_path / "there"), file)


def placed(folder: Path) -> set[str]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["a" * 300, "evals/" + "a" * 300, "evals"])
def test_names_that_no_file_can_have_are_refused_before_anything_is_written(
    exported: tuple[Path, str], tmp_path: Path, name: str
) -> None:
    file, signature = exported
    there = Ledger(tmp_path / "there")
    with pytest.raises(DataError, match="of a name too long"):
        upkeep.import_cells(there, forged(file, signature, b"x", name))
    assert not (tmp_path / "there").exists()


def test_a_cell_is_there_whole_or_not_at_all(ledger: Ledger, finish, tmp_path: Path) -> None:
    first, second = (finish(ledger, f"seed={seed}").signature for seed in (3, 4))
    upkeep.export_cells(ledger, [first, second], tmp_path / "export.tar")
    there = Ledger(tmp_path / "there")
    there.note_failure(first, "OutOfMemory: too small here")
    (tmp_path / "there" / second[:2]).write_text("where a folder should be")
    before = placed(tmp_path / "there")
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        upkeep.import_cells(there, tmp_path / "export.tar")
    assert placed(tmp_path / "there") == before
    assert there.entry(first).status == "failed"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_an_unfinished_run_left_does_not_mix_with_the_import(
    exported: tuple[Path, str], tmp_path: Path, scheme: str
) -> None:
    file, signature = exported
    there = Ledger(f"{scheme}{tmp_path / 'there'}")
    for name in ("predictions.npz", "stopped.json", "resume.ckpt"):
        there.store.write(f"{folder_of(signature)}/{name}", b"of another run")
    upkeep.import_cells(there, file)
    assert there.entry(signature).status == "done"
    assert there.read(signature, "weights.ckpt") == b"weights"
    assert there.read(signature, "resume.ckpt") is None
    assert not scheme or there.read_result(signature)["attempt"]
    again = tmp_path / "again.tar"
    upkeep.export_cells(there, [signature], again)
    assert upkeep.import_cells(Ledger(tmp_path / "third"), again).new == 1


def test_a_cell_that_is_being_run_is_left_alone(exported: tuple[Path, str], tmp_path: Path) -> None:
    file, signature = exported
    with (
        lease.hold_lease(tmp_path / "there", signature),
        pytest.raises(UserError, match=f"{signature} is being run by process"),
    ):
        upkeep.import_cells(Ledger(tmp_path / "there"), file)
    assert upkeep.import_cells(Ledger(tmp_path / "there"), file).new == 1


def test_export_replaces_an_export_and_nothing_else(
    exported: tuple[Path, str], ledger: Ledger, tmp_path: Path
) -> None:
    file, signature = exported
    upkeep.export_cells(ledger, [signature], file)
    notes, pipe, link = tmp_path / "notes.txt", tmp_path / "pipe", tmp_path / "link.tar"
    notes.write_text("mine")
    other = tmp_path / "other.tar"
    with tarfile.open(other, "w") as tar:
        tar.add(notes, "notes.txt")
    os.mkfifo(pipe)
    link.symlink_to(file)
    for target in (notes, other, pipe, link, tmp_path, Path("/dev/null")):
        with pytest.raises(UserError, match=r"is no plain file|is there and is no export"):
            upkeep.export_cells(ledger, [signature], target)
    assert notes.read_text() == "mine"
    assert link.is_symlink()
    with pytest.raises(DataError, match="is no plain file"):
        upkeep.import_cells(Ledger(tmp_path / "there"), pipe)


def test_a_file_that_its_cell_did_not_write_is_refused(
    ledger: Ledger, finish, tmp_path: Path
) -> None:
    signature = finish(ledger, "seed=3").signature
    digests = {"weights.ckpt": hash_bytes(b"weights")}
    result = stored_files.with_digests({"metrics": {"test/error": 0.25}}, digests)
    ledger.store.write(f"{folder_of(signature)}/result.json", json.dumps(result).encode())
    for name, weights in (("all", b"weights"), ("small", None)):
        file, there = tmp_path / f"{name}.tar", Ledger(tmp_path / name)
        upkeep.export_cells(ledger, [signature], file, weights=weights is not None)
        assert upkeep.import_cells(there, file).new == 1
        assert there.read(signature, "weights.ckpt") == weights
    with pytest.raises(DataError, match=rf"weights\.ckpt of cell {signature} was altered"):
        upkeep.import_cells(
            Ledger(tmp_path / "there"),
            forged(tmp_path / "all.tar", signature, b"others", "weights.ckpt"),
        )
