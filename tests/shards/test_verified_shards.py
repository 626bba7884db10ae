"""A shard is hashed on its first use, then not again while it is the same file."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from capsweep.errors import DataError
from capsweep.shards.manifest import Manifest
from capsweep.shards.verified_files import ShardVerifier
from capsweep.storage.files import user_cache_folder

Folder = tuple[Path, Manifest]


def test_a_shard_is_hashed_once_over_all_processes(spoiled: Folder) -> None:
    folder, whole = spoiled
    verifier = ShardVerifier(folder)
    for shard in whole.shards * 2:
        assert verifier.verified_path(shard) == folder / shard.name
    assert verifier.hashed == len(whole.shards)
    later = ShardVerifier(folder)  # as another process has it
    for shard in whole.shards:
        later.verified_path(shard)
    assert later.hashed == 0


def test_what_is_kept_is_one_small_file_in_the_users_cache(spoiled: Folder) -> None:
    folder, whole = spoiled
    for shard in whole.shards:
        ShardVerifier(folder).verified_path(shard)
    [kept] = user_cache_folder().glob("*.*")
    assert sorted(json.loads(kept.read_text())) == sorted(shard.name for shard in whole.shards)
    assert kept.stat().st_size < 200 * len(whole.shards)


def test_a_flipped_byte_is_found_by_its_hash(spoiled: Folder, aged: Callable[[Path], None]) -> None:
    folder, whole = spoiled
    shard = whole.shards[1]
    ShardVerifier(folder).verified_path(shard)
    flip(folder / shard.name)
    aged(folder / shard.name)
    message = rf"{shard.name}: altered \(sha256 [0-9a-f]{{64}}, {shard.sha256} in index.json\)"
    with pytest.raises(DataError, match=f"{message}; run `make shards` again.*or copy it again"):
        ShardVerifier(folder).verified_path(shard)


def test_setting_the_time_back_hides_no_change(spoiled: Folder) -> None:
    folder, whole = spoiled
    shard = whole.shards[0]
    before = (folder / shard.name).stat()
    ShardVerifier(folder).verified_path(shard)
    flip(folder / shard.name)
    os.utime(folder / shard.name, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match="altered"):
        ShardVerifier(folder).verified_path(shard)


def test_a_file_of_this_moment_is_hashed_at_each_opening(spoiled: Folder) -> None:
    folder, whole = spoiled
    shard = whole.shards[0]
    (folder / shard.name).touch()
    verifier = ShardVerifier(folder)
    verifier.verified_path(shard)
    verifier.verified_path(shard)
    assert verifier.hashed == 2
    flip(folder / shard.name)  # within the same tick, perhaps
    with pytest.raises(DataError, match="altered"):
        verifier.verified_path(shard)


def test_a_truncated_shard_is_told_by_its_size(spoiled: Folder) -> None:
    folder, whole = spoiled
    shard = whole.shards[0]
    os.truncate(folder / shard.name, shard.bytes - 1)
    message = rf"{shard.name}: truncated or altered \({shard.bytes - 1:,} bytes, {shard.bytes:,} "
    with pytest.raises(DataError, match=message):
        ShardVerifier(folder).verified_path(shard)


def test_a_missing_shard_is_named_with_the_cure(spoiled: Folder) -> None:
    folder, whole = spoiled
    (folder / whole.shards[0].name).unlink()
    with pytest.raises(DataError, match=r"train-00000.h5: no such file; run `make shards` again"):
        ShardVerifier(folder).verified_path(whole.shards[0])


def test_links_folders_and_names_that_lead_elsewhere_are_refused(
    spoiled: Folder, tmp_path: Path
) -> None:
    folder, whole = spoiled
    shard = whole.shards[0]
    path = folder / shard.name
    path.rename(tmp_path / shard.name)
    path.symlink_to(tmp_path / shard.name)
    with pytest.raises(DataError, match=r"train-00000.h5: a link, where a file of this folder"):
        ShardVerifier(folder).verified_path(shard)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"train-00000.h5: a folder, where a file of this folder"):
        ShardVerifier(folder).verified_path(shard)
    for name in (f"../{shard.name}", str(tmp_path / shard.name), ".hidden.h5", "sub/a.h5"):
        with pytest.raises(DataError, match="is no name of a shard"):
            ShardVerifier(folder).verified_path(replace(shard, name=name))


def test_other_data_of_the_same_name_is_hashed_anew(spoiled: Folder) -> None:
    folder, whole = spoiled
    shard = whole.shards[0]
    ShardVerifier(folder).verified_path(shard)
    with pytest.raises(DataError, match="altered"):  # of another manifest
        ShardVerifier(folder).verified_path(replace(shard, sha256="0" * 64))


def test_several_at_once_agree_and_lose_nothing_that_matters(spoiled: Folder) -> None:
    folder, whole = spoiled
    verifiers = [ShardVerifier(folder) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            list(
                pool.map(
                    lambda one: [one.verified_path(shard) for shard in whole.shards], verifiers
                )
            )
    assert all(one.hashed <= len(whole.shards) for one in verifiers)
    [kept] = user_cache_folder().glob("shards-*.json")
    assert set(json.loads(kept.read_text())) <= {shard.name for shard in whole.shards}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"train-00000.h5": 3}', b"\xff"])
def test_a_damaged_record_is_as_none(spoiled: Folder, content: bytes) -> None:
    folder, whole = spoiled
    ShardVerifier(folder).verified_path(whole.shards[0])
    [kept] = user_cache_folder().glob("shards-*.json")
    kept.write_bytes(content)
    verifier = ShardVerifier(folder)
    verifier.verified_path(whole.shards[0])
    assert verifier.hashed == 1
    assert list(json.loads(kept.read_text())) == [whole.shards[0].name]


def test_a_cache_that_cannot_be_written_is_said_once_and_costs_a_hash(
    spoiled: Folder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, whole = spoiled
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        verifier = ShardVerifier(folder)
        for shard in whole.shards:
            verifier.verified_path(shard)
        assert verifier.hashed == len(whole.shards)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "which shards are whole cannot be kept (Not a directory); hashing in every run" in said


def flip(path: Path) -> None:
    """Another value in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
