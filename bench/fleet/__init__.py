"""Actions on many jobs, and the queue of many jobs. See README.md."""
