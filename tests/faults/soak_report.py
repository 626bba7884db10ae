"""Turns the rounds of `make soak` into docs/soak.md: python soak_report.py ROUNDS.jsonl"""

import sys

import pandas as pd

from capsweep.report.grid import pipe_table

HEAD = """\
# Soak

`make soak` kills a part of a sweep at a random moment (SIGKILL). The final table and every
prediction must equal those of an undisturbed run, to the last bit. Where the sweep's own Ray dies,
the sweep ends with status 130 and leaves no process; the same command goes on.
"""

if __name__ == "__main__":
    faults = pd.read_json(sys.argv[1], lines=True).groupby("fault", sort=False)
    table = faults.agg(
        rounds=("round", "count"),
        equal=("equal", "sum"),
        most_seconds_until_it_ended=("ended_after", "max"),
    )
    table.columns = table.columns.str.replace("_", " ")
    rows = table.round(1).convert_dtypes().astype(object).fillna("–").reset_index()
    print(HEAD, pipe_table(list(rows), rows.to_numpy().astype(str)), sep="\n")
