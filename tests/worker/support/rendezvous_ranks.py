"""Ranks that join by their environments, forked from one process, as torch loads slowly.

python rendezvous_ranks.py '[[{NAME: VALUE, ...}, ...], ...]': the environments of the ranks of each run.
"""

import json
import multiprocessing
import os
import sys

from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.topology.identity import RankIdentity


def meet(env: dict[str, str]) -> None:
    """Agree on the greatest rank and exit."""
    os.environ.update(env)
    ranks = ProcessGroup.join(RankIdentity.read(env))
    [greatest] = ranks.all_reduce_max([float(ranks.rank)])
    ranks.destroy()
    sys.exit(0 if greatest == ranks.world_size - 1 else 3)


def main() -> None:
    fork = multiprocessing.get_context("fork")
    ended = []
    for run in json.loads(sys.argv[1]):
        ranks = [fork.Process(target=meet, args=(env,)) for env in run]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        ended.append([rank.exitcode for rank in ranks])
    sys.stdout.write(json.dumps(ended))


if __name__ == "__main__":
    main()
