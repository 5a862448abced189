"""The launcher of a Slurm cluster: a launch is a batch job that queues itself again, and keeps its books in a shared folder.

    launcher   the port: submit, look, cancel, logs
    transport  commands on a machine that has Slurm: this one, or a login node behind ssh
    phrases    what is said to that machine: texts for bash, each of which may be repeated
    order      what a launch is there: options of sbatch, a script, files
    books      what was written down in the folder of a launch; the truth
    rows       what Slurm says of a job now
    verdict    what follows for the books from the two
    story      how books are seen
    vitals     whether Slurm answers

The script itself is `sky_tasks/train.sbatch`, and is rendered by `holdfast.rendering.slurm`.
"""

from holdfast.launchers.slurm.launcher import SlurmConfig, SlurmLauncher
from holdfast.launchers.slurm.transport import Transport, local, ssh

__all__ = ["SlurmConfig", "SlurmLauncher", "Transport", "local", "ssh"]
