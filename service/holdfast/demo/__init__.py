"""The main scenario end to end on one machine.

A job is submitted, preempted three times, resumed, finished and billed.
"""
