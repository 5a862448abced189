"""How long it takes until a program runs again whose nodes were taken, beside a plain job of Slurm."""
