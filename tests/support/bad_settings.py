"""Bad configurations and bad sweep files."""

from pathlib import Path
from random import Random
from typing import Any

import yaml
from bad_inputs import (
    CODES,
    DOUBTFUL,
    LARGE,
    LONG,
    NEVER,
    STORED,
    SWEEP,
    Base,
    Case,
    Judge,
    Outcome,
    any_end,
    keep,
    mutated,
    paths_of,
    refused,
)

from capsweep.config import compose
from capsweep.config.cell import flat, get


def configuration(chance: Random, base: Base) -> Case:
    """Keys of a cell, each with a value that it cannot have, or may not be able to."""
    preset = chance.choice(
        ["experiment=digits", "model=capsnet", "model=matrix_capsnet", "model=cnn_small"]
    )
    known = flat(compose.cell([preset]).config)
    key = chance.choice(sorted(name for name in known if not name.startswith("places.")))
    never = chance.random() < 0.5
    value = chance.choice(NEVER if never else DOUBTFUL)
    text = f"{key}={value}"
    if chance.random() < 0.1:
        text, never = chance.choice(
            [f"+{text}", f"~{key}", f"{key}.x={value}", f"{key}@a={value}", f"hydra.{text}",
             f"model._target_=torch.nn.{LONG[:9]}", "model._target_=os.system", "hydra/sweeper=x",
             f"{key}x={value}", "hydra.mode=MULTIRUN", f"model={value}", f"dataset={value}"]
        ), True  # fmt: skip
    is_text = isinstance(known[key], str) or key.startswith("cluster.")
    judge = refused() if never else _echoed(key, value)
    if never and is_text and value in (f"'{CODES}'", LONG, "'\udc80'"):
        judge = any_end  # a name may be anything that a name can be
    if never and isinstance(known[key], float) and text == f"{key}={LARGE}":
        judge = _echoed(key, value)  # a number like another, however large
    builds = text.startswith("model._target_=torch.")  # known where the network is built
    argv = ["info"] if builds else ["train", "--cfg", "job"]
    return Case(f"{preset} {text[:80]!a}", [*argv, preset, text], judge)


def _echoed(key: str, value: str) -> Judge:
    """Refused, or what is printed has the value at the key, as it was given."""

    def judge(outcome: Outcome, folder: Path) -> str | None:
        if outcome.status == 2:
            return None
        printed = yaml.safe_load(outcome.out)
        found = get(printed, key) if isinstance(printed, dict) else None
        wanted = float(LARGE) if value == LARGE else yaml.safe_load(value)
        same = found == wanted or str(found) == value or str(found) == str(wanted)
        return None if outcome.status == 0 and same else f"a silent use: {key} is {found!r}"

    return judge


def sweep_file(chance: Random, base: Base) -> Case:
    """A sweep file with damage in its bytes, or in its sections."""
    if chance.random() < 0.4:
        told, content = mutated(chance, SWEEP.encode())
        strong = not told.startswith(("a bit flipped", "cut off"))
        judge = refused() if strong else any_end
    else:
        told, content = _restructured(chance)
        judge = refused()
    argv = chance.choice(
        [["plan", "bad.yaml"], ["report", "bad.yaml"], ["ledger", "failures", "bad.yaml"],
         ["sweep", "bad.yaml", "--executor=local", "logger=csv"]]
    )  # fmt: skip
    if judge is any_end and argv[0] == "sweep":
        argv = ["plan", "bad.yaml"]
    return Case(
        f"sweep file: {told}",
        [*argv, *STORED],
        judge,
        lambda folder: keep(folder / "bad.yaml", content),
    )


WRONG = (None, 3, -1.5, True, "", "x", [], {}, [[]], [None], {"a": {"b": 1}}, float("nan"))
TEXTS = (
    "range(1,2,0)", "range(1,100000000)", "glob(*)", "choice()", "a\0b", "nan", LONG, "${a}",
    "interval(0,1)", CODES, "no.such.key=1", "model=no_such", "routing.num_iters=1000000000000",
)  # fmt: skip


def _restructured(chance: Random) -> tuple[str, bytes]:
    plain = yaml.safe_load(SWEEP)
    paths = [path for path in paths_of(plain) if path]
    path = chance.choice(paths)
    *above, last = path
    section: Any = plain
    for name in above:
        section = section[name]
    old = section[last]
    what = chance.random()
    free = path[0] == "question" or path[-1] == "source"
    is_name = path[0] == "arms" and len(path) == 2  # of an arm: another one is as good
    if what < 0.2 and isinstance(section, dict) and not is_name:
        section[f"{last}x"] = section.pop(last)
        return f"{path} is called {last}x", yaml.safe_dump(plain).encode()
    if what < 0.3:
        nested = "[" * 20_000 if chance.random() < 0.5 else "- " * 20_000
        return "nested 20,000 deep", f"{SWEEP}more: {nested}".encode()
    if what < 0.35:
        return "a key twice", f"{SWEEP}seeds: [0]\n".encode()
    if what < 0.4:
        return "large", SWEEP.encode() + b"# " + b"x" * 50_000_000
    kinds = [new for new in WRONG if type(new) is not type(old)]
    if is_name:
        kinds = [new for new in kinds if new is not None]  # an arm that has the base alone
    if isinstance(old, str) and not free:
        kinds = [*kinds, *TEXTS]
    new = chance.choice(kinds)
    section[last] = new
    return f"{path} is {ascii(new)[:40]}", yaml.safe_dump(plain).encode()
