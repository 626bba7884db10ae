"""Jobs that make data sets of shards, one file each: `capsweep data make NAME` runs `NAME.py`.

A job's module has `prepare_job(dataset, digits, pairs)`, which returns a
`capsweep.shards.layout.ShardJob`.
"""
