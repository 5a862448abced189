"""Launchers: adapters that run jobs on this machine, Slurm, SkyPilot or a simulated cloud."""
