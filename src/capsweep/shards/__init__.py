"""Examples in HDF5 shards, or in none: data sets that do not fit into a device's memory."""
