"""Bad inputs, drawn by chance: each is refused in a line that says why, and none is used silently.

A case is a function of its kind and number.
"""

import re
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from json_paths import list_paths
from reported_cells import SWEEP

from capsweep import cli
from capsweep.config import compose
from capsweep.config.cell import flatten, get
from capsweep.errors import UserError

CASES = 40  # of each kind
pytestmark = pytest.mark.timeout(120)  # a case that hangs is ended
CODES = "\x1b[2J\x1b]0;x\x07"
LONG = "x" * 5_000
# What no key of a configuration can mean.
PATHS = ("cluster.jobs", "cluster.python", "cluster.node.data", "cluster.node.storage")  # or null
NEVER = ("nan", "1e999", "{a:1}", "[[[]]]", "${no.such.key}", "${oc.env:HOME}", "[" * 2_000, "???")
DOUBTFUL = ("-1", "0", "1.5", "true", "null", "abc", "''", "[1,2]", "1_000", "0x10", "ünï")
WRONG = (
    *(None, 3, -1.5, True, "", "x", [], {}, [[]], [None], {"a": {"b": 1}}, float("nan"), LONG),
    *([{None: 1}], [{7: 1, "value": 0.5}], ["ablation"], date(2026, 1, 1), "${..}", "range(nan,1)"),
)


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


def replace_value(chance: Random, sweep: Any) -> tuple[Any, ...]:
    """Exchange one value for one of another type; where that stands."""
    *above, last = path = chance.choice(list(list_paths(sweep)))
    for name in above:
        sweep = sweep[name]
    sweep[last] = chance.choice([new for new in WRONG if type(new) is not type(sweep[last])])
    return path


@pytest.mark.parametrize("number", range(CASES))
def test_an_override_is_refused_or_means_what_it_says(number: int) -> None:
    chance = Random(f"override/{number}")
    preset = chance.choice(["experiment=digits", "model=matrix_capsnet", "model=cnn_small"])
    known = flatten(compose.cell([preset]).config)
    key = chance.choice(sorted(name for name in known if not name.startswith("places.")))
    is_possible = chance.random() < 0.5
    value = chance.choice(DOUBTFUL if is_possible else NEVER)
    try:
        config = compose.cell([preset, f"{key}={value}"]).config
    except UserError:
        return
    actual, expected = get(config, key), yaml.safe_load(value)
    is_text = isinstance(known[key], str) or key in PATHS
    assert is_possible or is_text, f"{key}={value[:20]} gave {actual!r}"
    assert str(actual) in (value, str(expected)) or actual == expected


@pytest.mark.parametrize("number", range(CASES))
def test_a_bad_sweep_file_is_refused(
    number: int, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = Random(f"sweep file/{number}")
    content, is_free = damage_bytes(chance, SWEEP.encode()), True
    if number % 2:
        sweep = yaml.safe_load(SWEEP)
        path = replace_value(chance, sweep)
        content = yaml.safe_dump(sweep).encode()
        # A text is as good as another, and an arm may have the base alone.
        is_text = path[0] == "question" or path[-1] == "source"
        is_free = is_text or (path[0], len(path)) == ("arms", 2)
    (own_folder / "bad.yaml").write_bytes(content)
    exit_status = cli.main([chance.choice(["plan", "report"]), "bad.yaml", "STORAGE=out"])
    captured = capsys.readouterr()
    printed = f"{captured.out}\n{captured.err}"
    assert exit_status in ((0, 1, 2) if is_free else (2,)), printed[-1000:]
    assert exit_status != 2 or "error: " in captured.err
    assert not re.search(r"Traceback|HYDRA_FULL_ERROR", printed)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed), "a terminal would obey it"


SECRET = "a secret of the environment"
KEYS = (
    *("logger.project", "dataset.name", "model.name", "seed", "epochs", "optim.optimizer.lr"),
    *("logger.tags", "cluster.partition", "loss.name", "dataset", "+new.key", "model"),
)


def draw_reference(chance: Random) -> str:
    """Return a way to write the variable of the environment that holds the secret."""
    name, space = "CAPSWEEP_SECRET", chance.choice(["", " ", "\t", "  "])
    quoted = chance.choice([name, f"'{name}'", f'"{name}"', f"{name},none", f"'{name}' , x"])
    inner = chance.choice(["oc.env", "oc.env", "oc.${seed}env", "${oc.create:oc.env}"])
    text = f"${{{space}{inner}{chance.choice(['', space])}:{space}{quoted}{space}}}"
    forms = (
        *("{}", "a{}b", "[{}]", "{{a: {}}}", "'{}'", '"{}"', "${{oc.decode:{}}}", "choice({},x)"),
        *("${{oc.create:[{}]}}", "${{oc.select:places.data,{}}}", "${{oc.dict.values:{}}}"),
    )
    return chance.choice(forms).format(text)


@pytest.mark.parametrize("number", range(60))
def test_no_secret_of_the_environment_gets_into_a_cell_or_a_message(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = Random(f"secret/{number}")
    monkeypatch.setenv("CAPSWEEP_SECRET", SECRET)
    key = chance.choice(KEYS)
    words = [f"{key}={draw_reference(chance)}"]
    if chance.random() < 0.3:  # by a detour over a place, which may name variables
        words = [f"places.data={draw_reference(chance)}", f"{key}=${{places.data}}"]
    said = ""
    try:
        config = compose.cell(words).config
        said = repr({name: value for name, value in config.items() if name != "places"})
    except UserError as error:
        said = str(error)
    assert SECRET not in said, words
    assert cli.main(["plan", "ablation", *words]) in (0, 2)
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err
