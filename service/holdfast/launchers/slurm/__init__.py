"""Slurm launcher: a launch is a batch job that requeues itself and records its state.

    launcher        the port: submit, observe, cancel, logs
    transport       runs commands on a machine that has Slurm: this one, or a login node through ssh
    remote_scripts  the bash scripts that run there, each repeatable
    batch_job       sbatch options, script and files of a launch
    launch_state    the records in a launch's directory, which are the truth
    scontrol        the state of a job in Slurm, and of Slurm itself
    recovery        submits again, requeues or ends: new records and one action from both
    observe         derives the observation from the records

The script itself is `sky_tasks/train.sbatch`, rendered by `holdfast.rendering.slurm`.
"""

from holdfast.launchers.slurm.launcher import SlurmConfig, SlurmLauncher
from holdfast.launchers.slurm.transport import Transport, local, ssh

__all__ = ["SlurmConfig", "SlurmLauncher", "Transport", "local", "ssh"]
