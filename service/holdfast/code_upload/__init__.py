"""Upload of a job's code: packing, content-addressed trees, and the store of uploads."""
