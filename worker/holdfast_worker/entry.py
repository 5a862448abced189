"""The former path of `holdfast_worker.node.rank_entrypoint`, which an agent started before an upgrade still runs with `-m`."""

from holdfast_worker.node.rank_entrypoint import main

if __name__ == "__main__":
    main()
