"""Bad inputs, drawn by chance: each is refused in a line that says why, and none is used silently.

A case is a function of its kind and number. Commands run in this process, and none may train.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from capsweep import cli
from capsweep.config import compose
from capsweep.config.cell import flat, get
from capsweep.errors import UserError
from capsweep.sweep import executors, job

CASES = 40  # of each kind
SWEEP = """\
question: Is one arm better than the other?
base: [experiment=digits, epochs=1, limit_batches=1, batch_size=16, trainer.accelerator=cpu]
seeds: [0, 1]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small, model.hidden=8]}
  capsnet:
    fixed: [model=capsnet_small, model.conv.channels=8, model.primary.types=2]
    space: {routing.num_iters: [2], model.decoder.hidden: [[8]]}
table: {rows: [arm, routing.num_iters], columns: [dataset], metric: test/error}
published: {source: nowhere, values: [{arm: cnn, dataset: digits, value: 0.5}]}
"""
CODES = "\x1b[2J\x1b]0;x\x07"
LONG = "x" * 5_000
# What no key of a configuration can mean.
NEVER = ("nan", "1e999", "{a:1}", "[[[]]]", "${no.such.key}", "${oc.env:HOME}", "[" * 2_000, "???")
DOUBTFUL = ("-1", "0", "1.5", "true", "null", "abc", "''", "[1,2]", "1_000", "0x10", "ünï")
WRONG = (None, 3, -1.5, True, "", "x", [], {}, [[]], [None], {"a": {"b": 1}}, float("nan"), LONG)
READERS = (
    *("ledger ls", "ledger show FIRST", "ledger failures small.yaml"),
    *("ledger compare FIRST SECOND", "ledger gc --dry-run", "ledger reproduce FIRST"),
    *("ledger export x.tar", "ledger verify", "plan small.yaml", "report small.yaml"),
    *("eval ensemble small.yaml", "eval training-loss FIRST"),
)
FILES = ("result.json", "config.yaml", "provenance.json", "metrics.jsonl", "predictions.npz")


@dataclass(frozen=True)
class Trained:
    """A folder with `small.yaml` and the ledger `out/ledger` of its cells."""

    folder: Path
    signatures: list[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "small.yaml").write_text(SWEEP)
    words = ["sweep", f"{folder}/small.yaml", "--executor=local", f"--storage={folder}/out"]
    assert cli.main([*words, "logger=csv"]) == 0
    shutil.rmtree(folder / "out" / "reports")
    cells = sorted((folder / "out" / "ledger").glob("*/*/result.json"))
    return Trained(folder, [path.parent.name for path in cells])


@pytest.fixture
def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """Runs a command in `tmp_path`; returns its exit status and what it printed."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it would have trained a cell")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "run_job", refuse)
    monkeypatch.setattr(executors, "execute_locally", refuse)

    def run(*words: str) -> tuple[int, str]:
        try:
            exit_status = cli.main(list(words))
        except SystemExit as end:
            exit_status = int(str(end.code))
        captured = capsys.readouterr()
        printed = f"{captured.out}\n{captured.err}"
        assert exit_status in (0, 1, 2), printed[-1000:]
        assert not re.search(r"Traceback|HYDRA_FULL_ERROR", printed)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed), "a terminal would obey it"
        if exit_status == 2:
            assert "error: " in captured.err
        return exit_status, printed

    return run


def damage_bytes(chance: Random, content: bytes) -> bytes:
    """Content as a bad disk, or a bad hand, leaves it."""
    at = chance.randrange(len(content))
    flipped = bytes([content[at] ^ (1 << chance.randrange(8))])
    return chance.choice(
        [
            content[:at],
            b"",
            content[:at] + flipped + content[at + 1 :],
            content[:at] + b"\0" + content[at:],
            content[:at] + b"\xff\xfe\xc3" + content[at:],
            chance.randbytes(2048),
            b"[" * 50_000,
            b'{"a":' * 50_000,
            CODES.encode() + content,
        ]
    )


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of nested mappings and lists stands, the whole first."""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    return [path, *(found for name, item in inner for found in list_paths(item, (*path, name)))]


def replace_value(chance: Random, plain: Any) -> tuple[Any, tuple[Any, ...]]:
    """The same with one value of another type, and where that stands."""
    whole = {"": plain}
    *above, last = path = chance.choice(list_paths(whole)[2:])
    section: Any = whole
    for name in above:
        section = section[name]
    kinds = [new for new in WRONG if type(new) is not type(section[last])]
    section[last] = chance.choice(kinds)
    return whole[""], path[1:]


@pytest.mark.parametrize("number", range(CASES))
def test_an_override_is_refused_or_means_what_it_says(number: int) -> None:
    chance = Random(f"override/{number}")
    preset = chance.choice(["experiment=digits", "model=matrix_capsnet", "model=cnn_small"])
    known = flat(compose.cell([preset]).config)
    key = chance.choice(sorted(name for name in known if not name.startswith("places.")))
    is_possible = chance.random() < 0.5
    value = chance.choice(DOUBTFUL if is_possible else NEVER)
    try:
        config = compose.cell([preset, f"{key}={value}"]).config
    except UserError:
        return
    actual, expected = get(config, key), yaml.safe_load(value)
    assert is_possible or isinstance(known[key], str), f"{key}={value[:20]} gave {actual!r}"
    assert str(actual) in (value, str(expected)) or actual == expected


@pytest.mark.parametrize("number", range(CASES))
def test_a_bad_sweep_file_is_refused(
    number: int, run_command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    chance = Random(f"sweep file/{number}")
    if number % 2:
        sweep, path = replace_value(chance, yaml.safe_load(SWEEP))
        content = yaml.safe_dump(sweep).encode()
        # A text is as good as another, and an arm may have the base alone.
        is_free = (
            path[0] == "question" or path[-1] == "source" or (path[0], len(path)) == ("arms", 2)
        )
    else:
        content, is_free = damage_bytes(chance, SWEEP.encode()), True
    (tmp_path / "bad.yaml").write_bytes(content)
    command = chance.choice(["plan", "report"])
    exit_status, printed = run_command(command, "bad.yaml", "--storage=out")
    assert is_free or exit_status == 2, printed[-500:]


@pytest.mark.parametrize("number", range(CASES))
def test_a_damaged_file_of_a_cell_is_named_or_not_read(
    number: int, trained: Trained, run_command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    chance = Random(f"stored file/{number}")
    names = dict(zip(("FIRST", "SECOND"), trained.signatures, strict=False))
    words = [names.get(word, word) for word in chance.choice(READERS).split()]
    words += ["--storage=out", *(["logger=csv"] if "small.yaml" in words else [])]
    shutil.copytree(trained.folder, tmp_path, dirs_exist_ok=True)
    whole = run_command(*words)[1].splitlines()
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "x.tar").unlink(missing_ok=True)
    shutil.copytree(trained.folder, tmp_path, dirs_exist_ok=True)
    name, signature = chance.choice(FILES), chance.choice(trained.signatures[:2])
    path = tmp_path / "out" / "ledger" / signature[:2] / signature / name
    content = path.read_bytes()
    if name in ("result.json", "provenance.json") and chance.random() < 0.5:
        path.write_text(json.dumps(replace_value(chance, json.loads(content))[0]))
    else:
        path.write_bytes(damage_bytes(chance, content))
    printed = run_command(*words)[1].splitlines()
    times = re.compile(r"[0-9]+\.[0-9]+ s\b|[0-9,]+ bytes")
    known = {times.sub("", line) for line in whole}
    new_lines = [line for line in printed if times.sub("", line) not in known]
    assert not new_lines or any(signature in line or name in line for line in new_lines)
