"""Commands on the nodes of jobs."""
