"""The former path of `holdfast_worker.node.torchrun_agent`, which a wrapper started before an upgrade still runs with `-m`."""

from holdfast_worker.node.torchrun_agent import main

if __name__ == "__main__":
    main()
