"""Code of a job on its way from a client: packing a folder, its content-addressed tree, and the store of uploads."""
