"""Bad files, drawn by chance: records of a ledger, arrays, one's own data, and indexes of shards.

Each is named in a line, or is read as what it is. A case is a function of its kind and number.
"""

import io
import json
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import reported_cells
import shard_folders
import yaml

from capsweep import cli
from capsweep.config import package_files
from capsweep.errors import DataError, UserError
from capsweep.ledger.ledger import Ledger, folder_of, load_predictions
from capsweep.storage.files import hash_file

pytestmark = pytest.mark.timeout(120)  # a case that hangs is ended
RECORDS, ARRAYS, OWN, INDEXES = range(100), range(60), range(80), range(40)  # cases
HUGE = 10**400
NO_NUMBER = ("x", [1], {"a": 1}, True, -1, -0.5, HUGE, float("inf"), float("nan"))
NO_TEXT = (5, [1], {"a": 1}, True, HUGE)
NO_SECTION = ("x", [1], 3, True, HUGE)
# Fields of a result, and what none of them can be.
IMPOSSIBLE: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("metrics", "test/error"): (*NO_NUMBER, 1.5),
    ("metrics", "test/loss"): NO_NUMBER,
    ("metrics",): NO_SECTION,
    ("status",): (*NO_TEXT, "failed", ""),
    ("epochs",): (*NO_NUMBER, 2.5),
    ("parameters",): (*NO_NUMBER, 0.5),
    ("seconds", "total"): NO_NUMBER,
    ("seconds",): NO_SECTION,
    ("images_per_second",): NO_NUMBER,
    ("peak_memory_bytes", "process"): NO_NUMBER,
    ("hardware",): NO_TEXT,
    ("finished",): NO_TEXT,
    ("code",): NO_SECTION,
    ("sha256",): NO_SECTION,
    ("sha256", "predictions.npz"): NO_TEXT,
}
ABSURD = ("x", 3, -1, True, None, [1], {"a": {"b": 1}}, HUGE, -HUGE, float("nan"), float("inf"), "")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with two finished cells, a claimed one, a stopped one and a measurement."""
    folder = tmp_path_factory.mktemp("whole")
    points, ledger = reported_cells.small_sweep(folder)[1], folder / "ledger"
    for point, error in ((points[0], 0.0), (points[2], 0.25)):
        finished = {"finished": "2026-01-02T03:05:05+00:00", "code": {"numerics": "n1"}}
        made = reported_cells.finish(ledger, point, error, **finished)
        scores = np.eye(3, dtype=np.float32)[[0, 1, 2, 0 if error == 0 else 1]]
        np.savez(made / "predictions.npz", scores=scores, labels=np.array([0, 1, 2, 0]))
        (made / "config.yaml").write_text(yaml.safe_dump(point.cell.science))
        reported_cells.sign(made)
    stopped = ledger / folder_of(points[3].cell.signature)
    stopped.mkdir(parents=True)
    (stopped / "stopped.json").write_text('{"epochs": 1, "metrics": {}}')
    (ledger / "claims").mkdir()
    owner = {"host": "far", "machine": "another boot", "pid": 1, "started": "1"}
    claim = ledger / "claims" / f"{points[5].cell.signature}.000001"
    claim.write_text(json.dumps({"owner": owner, "beat": 3}))
    return folder


@pytest.fixture
def ledger(whole: Path, own_folder: Path) -> Path:
    """The ledger of a copy of that storage, in the current folder."""
    return shutil.copytree(whole, own_folder / "storage") / "ledger"


def replace_at(record: Any, path: tuple[Any, ...], value: Any) -> None:
    """Put a value at a path of nested sections, which are made where they are absent."""
    *above, last = path
    for name in above:
        record = record.setdefault(name, {}) if isinstance(record, dict) else record[name]
    record[last] = value


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value of nested sections."""
    inner = value.items() if isinstance(value, dict) else ()
    below = [each for name, item in inner for each in list_paths(item, (*path, name))]
    return [*([path] if path else []), *below]


def read_status(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return the status of a command and what it printed; a traceback or a fault of ours fails."""
    status = cli.main(list(words))
    captured = capsys.readouterr()
    printed = f"{captured.out}\n{captured.err}"
    assert status in (0, 1, 2), f"{words}: {status}\n{printed[-1500:]}"
    assert not re.search(r"Traceback|unexpected \w+", printed), printed[-1500:]
    return status, printed


def sign_again(folder: Path) -> None:
    """Give a result the digests that whoever altered it would give it, where that is possible."""
    try:
        reported_cells.sign(folder)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return


@pytest.mark.parametrize("number", RECORDS)
def test_a_bad_record_is_named_and_blinds_no_command(
    number: int, ledger: Path, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = Random(f"record/{number}")
    results = sorted(ledger.glob("*/*/result.json"))
    others = [*ledger.glob("*/*/provenance.json"), *ledger.glob("*/*/stopped.json")]
    others = sorted([*others, *ledger.glob("*/*/metrics.jsonl"), *ledger.glob("claims/*.000001")])
    is_result = number % 2 == 0
    file = chance.choice(results if is_result else others)
    first, *rest = file.read_text().splitlines(keepends=file.suffix == ".jsonl")
    record = json.loads(file.read_text() if file.suffix != ".jsonl" else first)
    path = chance.choice(sorted(IMPOSSIBLE) if is_result else list_paths(record))
    replace_at(record, path, chance.choice(IMPOSSIBLE[path] if is_result else ABSURD))
    lines = [json.dumps(record), *rest] if file.suffix == ".jsonl" else [json.dumps(record)]
    file.write_text("\n".join(lines))
    if is_result and path[0] != "sha256":
        sign_again(file.parent)
    places = [f"STORAGE={own_folder / 'storage'}"]
    sweep = str(own_folder / "storage" / "small.yaml")
    commands = {
        "plan": ["plan", sweep, *places],
        "report": ["report", sweep, *places],
        **{name: ["ledger", name, *places] for name in ("ls", "verify", "failures", "gc")},
        "show": ["ledger", "show", file.parent.name if is_result else results[0].parent.name],
        "export": ["ledger", "export", str(own_folder / "all.tar.xz"), *places],
    }
    commands["show"] += places
    for name in chance.sample(sorted(commands), 3):
        read_status(capsys, *commands[name])
    whole_results = [each for each in results if each != file]
    for each in whole_results:
        assert Ledger(ledger).entry(each.parent.name).result is not None, "another cell was lost"
    if is_result:
        entry = Ledger(ledger).entry(file.parent.name)
        assert entry.status == "failed", f"{path} was believed: {record}"
        assert str(file) in str(entry.cause)


def write_npy(shape: Any, kind: str, content: bytes = b"") -> bytes:
    """Return the bytes of an .npy file whose header says what it likes."""
    head = repr({"descr": kind, "fortran_order": False, "shape": shape})
    head = head.ljust(118) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + content


def write_archive(members: dict[str, bytes]) -> bytes:
    """Return the bytes of an .npz file of these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def draw_header(chance: Random) -> bytes:
    """Return an .npy file that is not what its header says, or is no array of numbers."""
    shapes = [(10**12, 3), (2**62, 4), (-1, 3), (10**400,), "x", (2**31, 2**31), (3.5, 2), (True,)]
    kinds = ["<f4", "|O", "<U9", "<M8[s]", "V16", "<f16", "no kind", "<c16"]
    shape, kind = chance.choice([*shapes, (4, 3)]), chance.choice(kinds)
    if shape == (4, 3) and kind == "<f4":
        shape = (10**13, 3)
    return write_npy(shape, kind, chance.randbytes(chance.choice([0, 48, 64, 1000])))


@pytest.mark.parametrize("number", ARRAYS)
def test_arrays_that_are_not_what_their_header_says_are_damage(
    number: int, ledger: Path, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = Random(f"arrays/{number}")
    file = chance.choice(sorted(ledger.glob("*/*/predictions.npz")))
    with np.load(file) as stored:
        members = {}
        for name, array in stored.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            members[name] = buffer.getvalue()
    members[chance.choice(["scores", "labels"])] = draw_header(chance)
    content = write_archive(members)
    if chance.random() < 0.2:
        content = chance.choice([b"", content[: len(content) // 2], b"PK\x03\x04" + b"\0" * 60])
    file.write_bytes(content)
    sign_again(file.parent)
    with pytest.raises(UserError, match=re.escape(str(file))):
        load_predictions(Ledger(ledger), file.parent.name)
    places = [f"STORAGE={own_folder / 'storage'}"]
    read_status(capsys, "ledger", "show", file.parent.name, *places)
    status, printed = read_status(capsys, "ledger", "verify", *places)
    assert status == 1, printed
    assert file.parent.name in printed


def draw_own_data(chance: Random) -> tuple[dict[str, Any], str | None]:
    """Return arrays of a data set, and why they cannot be taken; None: they can be."""
    draw = np.random.default_rng(chance.randrange(2**32))
    channels = chance.choice([1, 2, 3])
    shape = (chance.choice([30, 41]), channels, 20, 24)
    labels = np.arange(shape[0]) % 3
    arrays: dict[str, Any] = {
        "train_images": draw.integers(0, 256, shape, dtype=np.uint8),
        "train_labels": labels,
        "test_images": draw.integers(0, 256, (9, *shape[1:]), dtype=np.uint8),
        "test_labels": np.arange(9) % 3,
    }
    split = chance.choice(["train", "test"])
    images, labels = f"{split}_images", f"{split}_labels"

    def exchange(name: str, change: Callable[[np.ndarray], Any]) -> None:
        arrays[name] = change(arrays[name])

    def binarise(name: str) -> None:
        for each in ("train_images", "test_images"):
            exchange(each, lambda array: (array > 127).astype(np.uint8))

    faults: dict[str, Callable[[], object]] = {
        "absent": lambda: arrays.pop(chance.choice([images, labels])),
        "floats": lambda: exchange(images, lambda array: array / 255),
        "not finite": lambda: exchange(images, lambda array: array * np.nan),
        "0 and 1 alone": lambda: binarise(images),
        "all alike": lambda: exchange("train_images", lambda array: array * 0 + 7),
        "no rows": lambda: (exchange(images, lambda a: a[:0]), exchange(labels, lambda a: a[:0])),
        "no channels": lambda: exchange(images, lambda array: array[:, :0]),
        "no columns": lambda: exchange(images, lambda array: array[..., :0]),
        "a dimension more": lambda: exchange(images, lambda array: array[None]),
        "flat": lambda: exchange(images, lambda array: array.reshape(len(array), -1)),
        "fewer labels": lambda: exchange(labels, lambda array: array[1:]),
        "negative labels": lambda: exchange(labels, lambda array: array - 1),
        "broken labels": lambda: exchange(labels, lambda array: array + 0.5),
        "one-hot labels": lambda: exchange(labels, lambda array: np.eye(3)[array]),
        "labels that are texts": lambda: exchange(labels, lambda array: array.astype(str)),
        "other sizes": lambda: exchange("test_images", lambda array: array[:, :, :-1]),
        "objects": lambda: exchange(images, lambda array: np.array([{}] * len(array))),
    }
    harmless: dict[str, Callable[[], object]] = {
        "plain": lambda: None,
        "labels in a column": lambda: exchange(labels, lambda array: array[:, None]),
        "labels of bytes": lambda: exchange(labels, lambda array: array.astype(np.uint8)),
        "other byte order": lambda: exchange(labels, lambda array: array.astype(">i8")),
        "Fortran order": lambda: exchange(images, np.asfortranarray),
    }
    if chance.random() < 0.3:
        harmless[chance.choice(sorted(harmless))]()
        return arrays, None
    fault = chance.choice(sorted(faults))
    faults[fault]()
    return arrays, fault


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `capsweep new dataset` needs of a checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("docs/examples", "conf", "sweeps"):
        shutil.copytree(package_files.CHECKOUT / name, folder / name)
    return folder


@pytest.mark.parametrize("number", OWN)
def test_own_data_are_taken_as_they_are_or_refused_with_the_reason(
    number: int,
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from capsweep.data.arrays import NpzReader

    chance = Random(f"own data/{number}")
    arrays, fault = draw_own_data(chance)
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)
    if fault is None and chance.random() < 0.3:
        fault = "a damaged file"
        content = path.read_bytes()
        path.write_bytes(chance.choice([content[:-200], b"", write_archive({"x": b"no array"})]))
    monkeypatch.setattr(package_files, "CHECKOUT", checkout)
    words = ["new", "dataset", f"drawn_{number}", "--file", str(path)]
    status, printed = read_status(capsys, *words)
    assert status == (0 if fault is None else 2), f"{fault}: {printed}"
    if fault is not None:
        assert printed.strip().startswith("error: ")
        assert "own.npz" in printed
        with pytest.raises(DataError):  # also where a configuration was written by hand
            NpzReader({"own": hash_file(path)}, ["."], 3).read(str(tmp_path))
        return
    splits = NpzReader({"own": hash_file(path)}, ["."], 3).read(str(tmp_path))
    np.testing.assert_array_equal(splits.train.images_NCHW.numpy(), arrays["train_images"])
    np.testing.assert_array_equal(splits.test.labels_N.numpy(), arrays["test_labels"].reshape(-1))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small whole folder of shards."""
    folder = tmp_path_factory.mktemp("shards") / "multimnist"
    shard_folders.make(folder)
    return folder


@pytest.mark.parametrize("number", INDEXES)
def test_a_bad_index_of_shards_is_one_line(
    number: int, shards: Path, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = Random(f"index/{number}")
    shutil.copytree(shards, own_folder / "multimnist")
    file = own_folder / "multimnist" / "index.json"
    index = json.loads(file.read_text())
    before = json.dumps(index, sort_keys=True)
    path = chance.choice(list_paths(index))
    replace_at(index, path, chance.choice(ABSURD))
    file.write_text(json.dumps(index))
    status, printed = read_status(capsys, "data", "verify", str(own_folder / "multimnist"))
    is_same = json.dumps(index, sort_keys=True) == before
    assert is_same or status in (1, 2), f"{path} was believed: {printed}"
    assert is_same or "index.json" in printed or "error: " in printed, printed
