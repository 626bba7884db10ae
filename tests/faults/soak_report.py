"""Turns the rounds of `make soak` into docs/soak.md: python soak_report.py ROUNDS.jsonl"""

import sys

import pandas as pd

from capsweep.report.grid import pipe_table

HEAD = """\
# Soak

`make soak` kills a part of a sweep (SIGKILL) at a random moment. Table and predictions must equal
those of an undisturbed run, bit by bit. If the sweep's own Ray dies, the sweep ends within
these seconds with status 130 and leaves no process; type the command again to continue.
"""

if __name__ == "__main__":
    rounds = pd.read_json(sys.argv[1], lines=True)
    rounds["killed"] = rounds["fault"].str.removeprefix("sigkill_to_").str.replace("_", " ")
    table = rounds.groupby("killed", sort=False).agg(
        equal=("equal", "sum"), rounds=("round", "count"), seconds=("ended_after", "max")
    )
    table["equal"] = table["equal"].astype(str) + "/" + table.pop("rounds").astype(str)
    rows = table.round(1).convert_dtypes().astype(object).fillna("–").reset_index()
    print(HEAD, pipe_table(list(rows), rows.to_numpy().astype(str)), sep="\n")
