"""Recovery time of a preempted Slurm job, compared with that of a plain batch job."""
