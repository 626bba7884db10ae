"""`capsweep bench`: run the benchmarks, print every number beside its bar, and keep it as JSON."""

import json
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capsweep import terminal
from capsweep.bench import conditions, written
from capsweep.bench.measured import Report
from capsweep.bench.parity import ParityError
from capsweep.errors import UserError
from capsweep.files import write_json
from capsweep.report import grid

# Named, not imported: a host with a GPU need not have Ray, which the first ones import.
BENCHES: dict[str, str] = {
    "start": "capsweep.bench.start:measure",
    "scale": "capsweep.bench.scale:growth",
    "fixed_cost": "capsweep.bench.scheduling:fixed_cost",
    "makespan": "capsweep.bench.scheduling:makespan",
    "sweep": "capsweep.bench.overhead:measure",
    "em": "capsweep.bench.em:routing",
    "routing": "capsweep.bench.routing:measure",
    "step": "capsweep.bench.step:measure",
    "scaling": "capsweep.bench.scaling:measure",
    "data": "capsweep.bench.data:batches",
    "shards": "capsweep.bench.shards:measure",
}


def main(
    names: Sequence[str], storage: Path, as_json: bool = False, page: Path | None = None
) -> int:
    """Run some benchmarks, or all; returns 1 when a bar is missed, or when the parity gate of one
    is red: then nothing of it is reported.

    Writes STORAGE/bench/NAME.json and, where there is a page, the benchmark's section of it.
    as_json: print that instead of tables. Raises UserError for an unknown name, or a page without a
    place for it, before anything is measured.
    """
    for name in names:
        if name not in BENCHES:
            raise UserError(f"bench {name}: have {', '.join(BENCHES)}")
    chosen, before = list(names or BENCHES), conditions.before()
    for name in chosen:
        if page is not None:
            written.check_page(page, name)
    good = True
    for name in chosen:
        under = conditions.now(before)
        try:
            report = _run(name)
        except ParityError as error:
            print(f"bench {name}: RED, nothing is reported: {error}", file=sys.stderr, flush=True)
            good = False
            continue
        under |= {"tf32": conditions.tf32()}
        _keep(name, report, under, storage, page)
        _say(name, report, under, as_json)
        good = good and all(measured.verdict != "missed" for measured in report.measured)
    return 0 if good else 1


def _run(name: str) -> Report:
    """A benchmark returns a report, or only what it measured."""
    found = pkgutil.resolve_name(BENCHES[name])()
    return found if isinstance(found, Report) else Report(found)


def _keep(
    name: str, report: Report, under: Mapping[str, Any], storage: Path, page: Path | None
) -> None:
    file = storage / "bench" / f"{name}.json"
    try:
        write_json(file, written.as_json(name, report, under))
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); set STORAGE=...") from error
    if page is not None:
        written.publish(page, name, written.markdown(name, report, under))


def _say(name: str, report: Report, under: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(written.as_json(name, report, under), indent=2), flush=True)
        return
    console = terminal.console()
    for header, rows in written.tables(report):
        terminal.show(console, grid.terminal(name, header, rows))
    for note in [conditions.told(under), *report.notes]:
        terminal.paragraph(console, note)
