"""How long a node takes to start its ranks again. See README.md.

cold_start   the CPU time of `holdfast-worker run` from its start to its end, with forked ranks and without
rank_failure the time from the kill of a rank to the next new step
lost_ranks   the same on one of three nodes, for several ways to recover
"""
