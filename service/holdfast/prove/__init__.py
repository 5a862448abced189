"""Equivalence experiment: a short run with preemptions, compared with an uninterrupted one.

job_file    the shortened job file
experiment  both runs, one after the other
step_logs   what their logs contain for each step
"""
