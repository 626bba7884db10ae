"""Every answer of sweeps/ can be printed again from the repository alone."""

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from capsweep.cli import program
from capsweep.config import package_files
from capsweep.ledger import transfer
from capsweep.ledger.ledger import Ledger
from capsweep.report.publish import ARCHIVES, COMMAND, publish_answer
from capsweep.report.table import build_table
from capsweep.sweep import choices, expand

SWEEPS = package_files.find_folder("sweeps")
ANSWERS = sorted(path.stem for path in SWEEPS.glob("*.md") if path.stem != "README")
LARGEST = 2 * 2**20  # bytes of an archive
ARGS = "ARGS"
VERDICTS = ("holds", "does not hold", "open", "not asked")


def is_row(line: str) -> bool:
    """Whether a line of Markdown is of a table."""
    return line.startswith("|")


def read_choices(page: str) -> list[str]:
    """The options of the command that printed a page, which is one of make: `make report
    SWEEP=recipe EPOCHS=3 ARGS='batch_size=32'`.
    """
    words = shlex.split(str(re.findall(COMMAND, page)[0]))[2:]
    named = {name: value for name, _, value in (word.partition("=") for word in words)}
    sweep, overrides = named.pop("SWEEP"), named.pop(ARGS, "").split()
    options = (f"{name}={value}" for name, value in named.items())
    return [sweep, *options, *overrides]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_page_is_published_again_from_the_cells_beside_it(name: str, tmp_path: Path) -> None:
    page, archive = (SWEEPS / f"{name}.md").read_text(), SWEEPS / ARCHIVES / f"{name}.tar.xz"
    assert archive.stat().st_size < LARGEST
    ledger = Ledger(tmp_path / "ledger")
    assert transfer.import_cells(ledger, archive)[0] > 0
    for signature in ledger.list_signatures():
        assert "places." not in " ".join(ledger.read_provenance(signature)["overrides"])
    parsed = program.parse_arguments(["report", *read_choices(page), f"STORAGE={tmp_path}"])
    sweep = choices.load_sweep(parsed.sweep, parsed.words, parsed.overrides)
    answer = build_table(sweep, expand.set_accuracies(sweep, expand.list_points(sweep)), ledger)
    for suffix in (".yaml", ".md"):
        shutil.copy((SWEEPS / name).with_suffix(suffix), tmp_path)
    there = replace(sweep, path=tmp_path / f"{name}.yaml")
    assert publish_answer(replace(answer, sweep=there), ledger).read_text() == page
    charts = [path.relative_to(tmp_path) for path in tmp_path.glob("charts/*.png")]
    assert [SWEEPS / chart for chart in charts if not (SWEEPS / chart).exists()] == []


def list_numbers(text: str) -> set[str]:
    """Those with a decimal point."""
    return set(re.findall(r"\d+\.\d+", text))


def read_linked(text: str) -> str:
    """The answers that a text links, together."""
    names = re.findall(r"\((?:\.\./)?sweeps/(\w+)\.md\)", text)
    return " ".join((SWEEPS / f"{name}.md").read_text() for name in names)


def list_claims() -> list[list[str]]:
    """The fields of every row of docs/claims.md, but for headings."""
    lines = filter(is_row, (package_files.CHECKOUT / "docs/claims.md").read_text().splitlines())
    rows = [[field.strip() for field in line.strip("| ").split(" | ")] for line in lines]
    return [row for row in rows if row[0] != "claim" and set(row[0]) != {"-"}]


def test_numbers_beside_a_claim_are_those_of_the_answer_it_names() -> None:
    claims = list_claims()
    assert len(claims) > 15
    for claim, ours, verdict in claims:
        assert verdict.removeprefix("[").partition("]")[0] in VERDICTS, claim
        numbers, answers = list_numbers(ours), read_linked(verdict)
        assert numbers or not answers, claim
        assert not numbers - list_numbers(answers), claim
