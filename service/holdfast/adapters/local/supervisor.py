"""The former path of `holdfast.launchers.local.supervisor`.

A service started before an upgrade still runs it with `-m`.
"""

import sys

from holdfast.launchers.local.supervisor import main

if __name__ == "__main__":
    main(*sys.argv[1:])
