"""Former path of `holdfast_worker.node.torchrun_agent`, for wrappers of an older version."""

from holdfast_worker.node.torchrun_agent import main

if __name__ == "__main__":
    main()
