"""The section of a page that says what `capsweep gpu-proof` measured, and what failed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from capsweep.bench import machine, results
from capsweep.errors import UserError
from capsweep.report import grid, publish

SECTION = "bench gpu-proof"
PARTS = ("part", "ended", "time")


def publish_proof(page: Path, source: Path, state: Mapping[str, Any]) -> None:
    """Renew the section; every other byte of the page stays. source: the file of this state.

    Raises UserError for a rehearsal, and for a page without a place for the section.
    """
    if state["rehearsal"]:
        raise UserError(f"{source} is of a rehearsal, which measures nothing; name another file")
    conditions = machine.describe_conditions(state["conditions"])
    rows = [
        (name, entry["status"], grid.format_duration(entry["seconds"]) or "")
        for name, entry in state["parts"].items()
    ]
    paragraphs = [f"`capsweep gpu-proof`, {conditions}.", grid.pipe_table(PARTS, rows)]
    for name, entry in state["parts"].items():
        if described := list(_describe_part(entry)):
            paragraphs += [f"### On a GPU: {name}", *described]
    publish.renew_section(page, SECTION, "\n\n".join(paragraphs) + "\n")


def _describe_part(entry: Mapping[str, Any]) -> Iterator[str]:
    """Paragraphs: why it failed, and what it measured."""
    cause, content = entry["cause"], entry["content"]
    if cause is not None:
        yield f"```\n{cause.replace('`', chr(39))}\n```"
    if "measured" in content:
        for header, rows in results.make_tables(results.from_json(content)):
            yield grid.pipe_table(header, rows)
    elif "passed" in content:
        counts = ", ".join(f"{content[word]} {word}" for word in ("passed", "failed", "skipped"))
        yield f"{': '.join([counts, *filter(None, [', '.join(content['failures'])])])}."
    elif "table" in content:
        # Without its heading and its command, which are those of a report's page.
        yield from [text for text in content["table"].strip().split("\n\n")[1:] if text[0] != "`"]
