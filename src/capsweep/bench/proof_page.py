"""The section of a page that says what `capsweep gpu-proof` measured, and what failed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from capsweep.bench import machine, results
from capsweep.errors import UserError
from capsweep.report import grid, publish

SECTION = "bench gpu-proof"
PARTS = ("part", "ended", "time")
LOST = ("failed", "out of time")


def publish_proof(page: Path, source: Path, state: Mapping[str, Any]) -> None:
    """Renew the section; every other byte of the page stays. source: the file of this state.

    Raises UserError for a rehearsal, and for a page without a place for the section.
    """
    if state["rehearsal"]:
        raise UserError(f"{source} is of a rehearsal, which measures nothing; name another file")
    conditions = machine.describe_conditions(state["conditions"])
    rows = [
        (name, _describe_status(entry), grid.format_duration(entry["seconds"]) or "")
        for name, entry in state["parts"].items()
    ]
    paragraphs = [f"`capsweep gpu-proof`, {conditions}.", grid.pipe_table(PARTS, rows)]
    for name, entry in state["parts"].items():
        if described := list(_describe_part(entry)):
            paragraphs += [f"### On a GPU: {name}", *described]
    publish.renew_section(page, SECTION, "\n\n".join(paragraphs) + "\n")


def _describe_status(entry: Mapping[str, Any]) -> str:
    status = entry["status"]
    return status.upper() if status in LOST else status


def _describe_part(entry: Mapping[str, Any]) -> Iterator[str]:
    """Paragraphs: why it failed, and what it measured."""
    content = entry["content"]
    if entry["cause"]:
        cause = entry["cause"].splitlines()[-1].replace("`", "'")
        yield f"{_describe_status(entry)}: `{cause}`"
    if "measured" in content:
        for header, rows in results.make_tables(results.from_json(content)):
            yield grid.pipe_table(header, rows)
    elif "passed" in content:
        counts = ", ".join(f"{content[word]} {word}" for word in ("passed", "failed", "skipped"))
        yield f"{': '.join([counts, *filter(None, [', '.join(content['failures'])])])}."
    elif "table" in content:
        # Without its heading and its command, which are those of a report's page.
        paragraphs = content["table"].strip().split("\n\n")[1:]
        yield from [text for text in paragraphs if not text.startswith("`")]
