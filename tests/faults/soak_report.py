"""Turns the rounds of `make soak` into docs/soak.md: python soak_report.py ROUNDS.jsonl"""

import sys

import pandas as pd

from capsweep.report.grid import pipe_table

HEAD = """\
# Soak

`make soak`: SIGKILL at a random moment of a sweep of six cells; the final table and every \
prediction must be those of an undisturbed run, to the last bit. A sweep whose own Ray loses its \
raylet, its GCS or every process ends with status 130 and leaves no process; the same command goes \
on. The rounds ran two at a time. Of the default Ray: processes left, and seconds until it ended.
"""

if __name__ == "__main__":
    faults = pd.read_json(sys.argv[1], lines=True).groupby("fault", sort=False)
    table = faults.agg(
        rounds=("round", "count"),
        equal=("equal", "sum"),
        finished_when_it_hit=("finished_before", "median"),
        processes_left=("left", "sum"),
        median_end=("ended_after", "median"),
        longest_end=("ended_after", "max"),
        median_seconds_of_a_round=("seconds", "median"),
    )
    table.columns = table.columns.str.replace("_", " ")
    rows = table.round(1).astype(object).fillna("–").reset_index()
    print(HEAD, pipe_table(list(rows), rows.to_numpy().astype(str)), sep="\n")
