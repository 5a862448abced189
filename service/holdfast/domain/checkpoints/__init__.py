"""History of a job's checkpoints, and the retention decision."""
