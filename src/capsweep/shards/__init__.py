"""Data sets in HDF5 shards, for examples that do not fit into the memory of a device."""
