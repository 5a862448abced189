"""Equivalence experiment: a short run of a job with preemptions, compared with an undisturbed one.

job_file    the shortened job file
experiment  both runs, one after the other
step_logs   what their logs contain for each step
"""
