"""Turns the rounds of `make soak` into docs/soak.md: python soak_report.py ROUNDS.jsonl"""

import json
import sys
from collections.abc import Sequence


def report(rounds: Sequence[dict]) -> str:
    """A row per fault: rounds, how many gave the answer of an undisturbed run, when they hit, and
    of the default Ray's faults, what was left of the sweep and how soon it had ended.
    """
    lines = [
        "# Soak",
        "",
        "`make soak`: SIGKILL at a random moment of a sweep of six cells; the final table and "
        "every prediction must be those of an undisturbed run, to the last bit. A sweep whose own "
        "Ray loses its raylet, its GCS or every process ends with status 130 and leaves no "
        "process; the same command goes on. The rounds ran two at a time.",
        "",
        "| fault | rounds | equal | cells finished when it hit (rounds) | processes left "
        "| seconds until it ended: median, longest | median seconds of a round |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for fault in dict.fromkeys(r["fault"] for r in rounds):
        mine = [r for r in rounds if r["fault"] == fault]
        before = sorted(r.get("finished_before", -1) for r in mine)
        hit = ", ".join(f"{cells} ({before.count(cells)})" for cells in dict.fromkeys(before))
        seconds = sorted(r["seconds"] for r in mine)[len(mine) // 2]
        equal = sum(r["equal"] for r in mine)
        name = fault.removeprefix("test_").replace("_", " ")
        ended = sorted(r["ended_after"] for r in mine if "ended_after" in r)
        soon = f"{ended[len(ended) // 2]}, {ended[-1]}" if ended else "–"
        left = sum(r["left"] for r in mine if "left" in r) if ended else "–"
        lines.append(f"| {name} | {len(mine)} | {equal} | {hit} | {left} | {soon} | {seconds} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        print(report([json.loads(line) for line in file]), end="")
