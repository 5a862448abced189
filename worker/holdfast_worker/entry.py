"""Former path of `holdfast_worker.node.rank_entrypoint`, for agents of an older version."""

from holdfast_worker.node.rank_entrypoint import main

if __name__ == "__main__":
    main()
