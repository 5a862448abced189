"""A shell on the login node of a stand that ends with it."""

from __future__ import annotations

import subprocess
import sys

from slurmstand import NotPossible, raised


def main() -> None:
    try:
        with raised() as stand:
            print(f"{stand.plan.nodes} nodes; shared by all: {stand.shared}")
            subprocess.run(stand.on_login(*(sys.argv[1:] or ["bash"])), check=False)
    except NotPossible as reason:
        sys.exit(str(reason))


if __name__ == "__main__":
    main()
