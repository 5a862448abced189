"""Commands for quotas and the queue of waiting jobs."""
