"""The main scenario end to end on one machine: a job is submitted, preempted twice, resumed, finished and billed."""
