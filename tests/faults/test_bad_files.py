"""Bad files, drawn by chance: records of a ledger, and arrays.

Each is named in a line, or is read as what it is. A case is a function of its kind and number.
"""

import io
import json
import re
import shutil
import struct
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import reported_cells
import yaml

from capsweep import cli
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger, folder_of, load_predictions

pytestmark = pytest.mark.timeout(120)  # a case that hangs is ended
RECORDS, ARRAYS = range(100), range(60)  # cases
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
