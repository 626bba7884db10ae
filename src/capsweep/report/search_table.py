"""What a search chose, and how: its table is for choosing settings, never for a claim."""

from typing import Any

from capsweep.sweep.spec import Sweep
from capsweep.sweep.study import Searched

SHOWN = 10


def markdown(sweep: Sweep, searched: Searched) -> str:
    """The best trials, and what the reader must know of how they were chosen."""
    assert sweep.search is not None
    keys = list(dict.fromkeys(key for trial in searched.complete for key in trial.settings))
    header = ["trial", *keys, sweep.search.metric]
    lines = [_line(header), _line(["---"] * len(header))]
    for trial in searched.complete[:SHOWN]:
        drawn = [_text(trial.settings.get(key)) for key in keys]
        lines.append(_line([str(trial.number), *drawn, f"{trial.value:.4g}"]))
    notes = "".join(f"\n\n{note}" for note in footnotes(sweep, searched))
    return f"# {sweep.name}\n\n{sweep.question}\n\n" + "\n".join(lines) + notes + "\n"


def footnotes(sweep: Sweep, searched: Searched) -> list[str]:
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
        notes.append("best: " + " ".join(f"{key}={_text(value)}" for key, value in best.items()))
    return notes


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _line(fields: list[str]) -> str:
    return f"| {' | '.join(field.replace('|', '/') for field in fields)} |"
