"""A shell on the login node of a cluster, which ends with the shell."""

from __future__ import annotations

import subprocess
import sys

from local_slurm import NotPossible, start_cluster


def main() -> None:
    try:
        with start_cluster() as cluster:
            print(f"{cluster.plan.nodes} nodes; shared by all: {cluster.shared}")
            subprocess.run(cluster.on_login(*(sys.argv[1:] or ["bash"])), check=False)
    except NotPossible as reason:
        sys.exit(str(reason))


if __name__ == "__main__":
    main()
