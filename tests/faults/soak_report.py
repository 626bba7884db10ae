"""Turns the rounds of `make soak` into docs/soak.md: python soak_report.py ROUNDS.jsonl"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from statistics import median_high

HEAD = """\
# Soak

`make soak`: SIGKILL at a random moment of a sweep of six cells; the final table and every \
prediction must be those of an undisturbed run, to the last bit. A sweep whose own Ray loses its \
raylet, its GCS or every process ends with status 130 and leaves no process; the same command goes \
on. The rounds ran two at a time.

| fault | rounds | equal | cells finished when it hit (rounds) | processes left \
| seconds until it ended: median, longest | median seconds of a round |
| --- | --- | --- | --- | --- | --- | --- |
"""


def make_row(fault: str, rounds: Sequence[dict]) -> str:
    """Rounds, how many gave the answer of an undisturbed run, when they hit, and of the default
    Ray's faults, what was left of the sweep and how soon it had ended.
    """
    counts = sorted(Counter(r.get("finished_before", -1) for r in rounds).items())
    hits = ", ".join(f"{cells} ({count})" for cells, count in counts)
    ended = [r["ended_after"] for r in rounds if "ended_after" in r]
    soon = f"{median_high(ended)}, {max(ended)}" if ended else "–"
    left = sum(r.get("left", 0) for r in rounds) if ended else "–"
    equal = sum(r["equal"] for r in rounds)
    seconds = median_high(r["seconds"] for r in rounds)
    name = fault.replace("_", " ")
    return f"| {name} | {len(rounds)} | {equal} | {hits} | {left} | {soon} | {seconds} |\n"


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        lines = [json.loads(line) for line in file]
    faults = dict.fromkeys(line["fault"] for line in lines)
    rows = [make_row(fault, [r for r in lines if r["fault"] == fault]) for fault in faults]
    print(HEAD, *rows, sep="", end="")
