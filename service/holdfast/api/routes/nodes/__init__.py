"""Routes of the nodes of jobs."""
