"""Jobs that make data sets in shards: `capsweep data make DATASET=NAME` runs the job in `NAME.py`.

The module of a job has a function `prepare_job(dataset, digits, pairs)`, which returns a
`capsweep.shards.layout.ShardJob`.
"""
