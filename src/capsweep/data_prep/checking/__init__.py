"""What is in a folder of shards: verified, made again and compared, described, drawn."""
