"""Upload of a job's code: packing a directory, its content-addressed tree, and the store of uploads."""
