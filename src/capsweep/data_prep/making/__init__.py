"""From a job to a folder of shards: the plan, the folder, engines and their workers."""
