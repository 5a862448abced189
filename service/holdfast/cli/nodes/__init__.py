"""Commands for the nodes of jobs."""
