"""A real Slurm on one machine: a login node and four compute nodes, each in namespaces of its own. See README.md.

    with local_slurm.start_cluster() as stand:
        stand.run("sbatch", "--wrap", "hostname", "--chdir", str(stand.shared))
        stand.cut("n2")    # a power failure: the cable first, then SIGKILL
        stand.boot("n2")   # with an empty disk, and an uptime of 0

stand       what tests hold in their hands
plan        how many nodes, how large, how patient: the files that Slurm reads
node        one node: namespaces around a bash that is its process 1
login.sh    process 1 of the login node
compute.sh  process 1 of a compute node
"""

from local_slurm.handle import NotPossible, SlurmCluster, start_cluster
from local_slurm.plan import Plan

__all__ = ["NotPossible", "Plan", "SlurmCluster", "start_cluster"]
