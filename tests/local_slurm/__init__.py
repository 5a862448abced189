"""A real Slurm on one machine: a login node and four compute nodes. See README.md.

    with local_slurm.start_cluster() as cluster:
        cluster.run("sbatch", "--wrap", "hostname", "--chdir", str(cluster.shared))
        cluster.cut("n2")    # a power failure: the network first, then SIGKILL
        cluster.boot("n2")   # with an empty disk, and an uptime of 0

handle      the interface of tests
plan        number and size of nodes and timeouts, as Slurm's configuration files
node        one node: namespaces around a bash that is its process 1
login.sh    process 1 of the login node
compute.sh  process 1 of a compute node
"""

from local_slurm.handle import NotPossible, SlurmCluster, start_cluster
from local_slurm.plan import Plan

__all__ = ["NotPossible", "Plan", "SlurmCluster", "start_cluster"]
