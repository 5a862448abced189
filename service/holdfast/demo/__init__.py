"""The main scenario end to end on one machine.

A job is submitted, preempted twice, resumed, finished and billed.
"""
