"""What a search chose, and how: its table is for choosing settings, never for a claim."""

from capsweep.report import grid
from capsweep.report.grid import format_value
from capsweep.sweep.spec import Sweep
from capsweep.sweep.study import Searched

SHOWN = 10
DIGITS = 4


def search_markdown(sweep: Sweep, searched: Searched) -> str:
    """The best trials, and what the reader must know of how they were chosen."""
    assert sweep.search is not None
    keys = list(dict.fromkeys(key for trial in searched.complete for key in trial.settings))
    header = ["trial", *keys, sweep.search.metric]
    rows = [
        [
            format_value(value, DIGITS)
            for value in (trial.number, *map(trial.settings.get, keys), trial.value)
        ]
        for trial in searched.complete[:SHOWN]
    ]
    notes = search_notes(sweep, searched)
    return grid.grid_markdown(sweep.name, sweep.question, header, rows, notes)


def search_notes(sweep: Sweep, searched: Searched) -> list[str]:
    """How many trials were seen, and on what they were judged."""
    wanted = sweep.search
    assert wanted is not None
    early = (
        f"{searched.stopped} ended early and are not shown" if searched.stopped else "none early"
    )
    notes = [
        f"Settings chosen on {wanted.metric} of validation examples (seed {sweep.seeds[0]}): "
        f"{searched.seen} of {wanted.trials} trials seen, {len(searched.complete)} complete, "
        f"{early}, {searched.failed} failed; sampler {wanted.sampler}, scheduler "
        f"{wanted.scheduler}. The best of many trials looks better than it is: this table supports "
        "no claim; run the chosen setting as an ablation, with other seeds."
    ]
    if searched.complete:
        best = searched.complete[0].settings
        notes.append(
            "best: "
            + " ".join(f"{key}={format_value(value, DIGITS)}" for key, value in best.items())
        )
    return notes
