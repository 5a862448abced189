"""Routes of quotas and of the queue of waiting jobs."""
